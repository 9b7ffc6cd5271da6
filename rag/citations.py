"""Which words of which source hold what an answer says: the model's marks verified, other sentences matched."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from langchain_core.documents import Document

from rag.evidence import Evidence, Evidences
from rag.marks import Mark, Marks
from rag.sentences import sentence_spans
from rag.statement import Statement

Method = Literal["mark", "match", "quote"]


@dataclass(frozen=True)
class Citation:
    """A sentence of the answer and the words of a source that support it. All offsets are in characters."""

    source: int
    """Number of the source, from 1."""
    file: str
    page: int | None
    slide: int | None
    sheet: str | int | None
    cell: int | None
    line: int | None
    heading: str
    start: int
    """Where the quote starts in the document's extracted text."""
    end: int
    quote: str
    answer_start: int
    answer_end: int
    score: float
    """Share of the sentence's words found in the quote, weighed by rarity, in [0, 1]."""
    match: Literal["exact", "fuzzy"]
    """`exact`: the quote holds the sentence as it is, but for case, marks and white space."""
    method: Method
    """Whether the model named the source, it was found by the sentence's words alone, or it is quoted in place of what
    the model said."""


@dataclass(frozen=True)
class UnverifiedMark:
    """A number that the model wrote behind a sentence without the passage saying so: no proof, and not shown as one."""

    number: int
    position: int
    """Where it stood, in characters of the answer."""
    reason: Literal["unknown_source", "unsupported"]


@dataclass(frozen=True)
class Sentence:
    """A sentence of the answer, with how far the sources support it."""

    start: int
    end: int
    support: float
    """The best evidence's score, 0 without any."""
    weight: int
    """Words and numbers that it states; 0 for a question and for function words alone, such as "No."."""


class Citing:
    """Takes the model's text in pieces; gives what may be shown, and at the end the citations of the whole.

    With `cut`, sentences without evidence are left out, so a sentence is given only when it is complete and verified.
    The same text gives the same result in whatever pieces it comes.
    """

    def __init__(self, sources: Mapping[int, Document], *, cut: bool = False) -> None:
        self.cut = cut
        self.answer = ""
        """What has been given, without marks."""
        self.written = ""
        """What the model wrote."""
        self.citations: list[Citation] = []
        self.unverified: list[UnverifiedMark] = []
        self.sentences: list[Sentence] = []
        self._sources = sources
        self._evidences = Evidences(sources)
        self._marks = Marks()
        self._text = ""
        """All the model's text without marks, cut sentences included."""
        self._settled = 0

    def add(self, text: str) -> str:
        """Take more text; what may be shown now. With `cut` it verifies what is complete, so it takes time."""
        self.written += text
        clean = self._marks.add(text)
        self._text += clean
        if self.cut:
            return self._settle(self._spans()[:-1])  # the last one may go on, or have a mark behind it
        self.answer += clean
        return clean

    def end(self) -> str:
        """What was held back; the citations are complete now."""
        clean = self._marks.end()
        self._text += clean
        self.answer += "" if self.cut else clean
        shown = self._settle(self._spans())
        return shown if self.cut else clean

    def quote(self, source: int, start: int, end: int) -> str:
        """Let the words of a source be the answer, of which nothing else is left; what is to be shown."""
        self.answer = " ".join(self._sources[source].page_content[start:end].split())
        evidence = Evidence(source, start, end, 1.0, "exact")
        self._note(0, len(self.answer), [(evidence, "quote")], [])
        return self.answer

    @property
    def quoted(self) -> bool:
        """Whether the answer is a source's words in place of the model's."""
        return any(citation.method == "quote" for citation in self.citations)

    def _spans(self) -> list[tuple[int, int]]:
        return [
            (start + self._settled, end + self._settled) for start, end in sentence_spans(self._text[self._settled :])
        ]

    def _settle(self, spans: list[tuple[int, int]]) -> str:
        """Verify sentences that are complete; with `cut`, the text of those that are supported."""
        shown = ""
        for start, end in spans:
            evidences, unverified = self._verified(start, end)
            if self.cut and evidences:
                piece = self._text[self._settled : end]
                shown += piece if self.answer else piece.lstrip()
                self.answer += piece if self.answer else piece.lstrip()
            self._settled = end
            if not self.cut or evidences:
                moved = len(self.answer) - end if self.cut else 0
                self._note(start + moved, end + moved, evidences, [(mark, moved) for mark in unverified])
        return shown

    def _note(
        self,
        start: int,
        end: int,
        evidences: list[tuple[Evidence, Method]],
        unverified: list[tuple[UnverifiedMark, int]],
    ) -> None:
        for evidence, method in evidences:
            self.citations.append(_citation(self._sources[evidence.source], evidence, (start, end), method))
        for mark, moved in unverified:
            self.unverified.append(UnverifiedMark(mark.number, mark.position + moved, mark.reason))
        support = max((evidence.score for evidence, _ in evidences), default=0.0)
        self.sentences.append(Sentence(start, end, support, _weight(self.answer[start:end])))

    def _verified(self, start: int, end: int) -> tuple[list[tuple[Evidence, Method]], list[UnverifiedMark]]:
        """The evidence of one sentence, and the marks behind it that there is none for."""
        sentence = self._text[start:end]
        unverified: list[UnverifiedMark] = []
        found: list[tuple[Evidence, Method]] = []
        stated = not sentence.endswith(("?", "？"))  # a question says nothing that could be supported
        for number, position in self._marked(start, end).items():
            evidence = self._evidences.best(sentence, [number]) if number in self._sources and stated else None
            if evidence:
                found.append((evidence, "mark"))
            else:
                reason: Literal["unknown_source", "unsupported"] = (
                    "unsupported" if number in self._sources else "unknown_source"
                )
                unverified.append(UnverifiedMark(number, position, reason))
        if not found and stated and (evidence := self._evidences.best(sentence)):
            found.append((evidence, "match"))
        return found, unverified

    def _marked(self, start: int, end: int) -> dict[int, int]:
        """The numbers of the marks of a sentence, with their positions."""
        positions: dict[int, int] = {}
        for mark in self._marks.found:
            if _belongs(mark, start, end):
                positions = dict.fromkeys(mark.numbers, mark.position) | positions
        return dict(sorted(positions.items()))


def _belongs(mark: Mark, start: int, end: int) -> bool:
    """A mark belongs to the sentence that it stands in or behind; one that opens its line to what follows it."""
    return mark.position == start if mark.leads else start < mark.position <= end


def _weight(sentence: str) -> int:
    statement = Statement(sentence)
    return 0 if sentence.endswith(("?", "？")) else len(statement.terms) + len(statement.amounts)


def _citation(source: Document, evidence: Evidence, span: tuple[int, int], method: Method) -> Citation:
    about = source.metadata
    offset = about.get("start") or 0
    line = about.get("line")
    return Citation(
        source=evidence.source,
        file=about.get("source", ""),
        page=about.get("page"),
        slide=about.get("slide"),
        sheet=about.get("sheet"),
        cell=about.get("cell"),
        line=None if line is None else line + source.page_content[: evidence.start].count("\n"),
        heading=about.get("heading") or "",
        start=offset + evidence.start,
        end=offset + evidence.end,
        quote=source.page_content[evidence.start : evidence.end],
        answer_start=span[0],
        answer_end=span[1],
        score=round(evidence.score, 3),
        match=evidence.match,
        method=method,
    )


async def given_out(citing: Citing, texts: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """The stream as it may be shown. What takes time is done off the event loop; `texts` is closed at the end."""
    async with aclosing(texts):
        async for text in texts:
            if shown := await asyncio.to_thread(citing.add, text) if citing.cut else citing.add(text):
                yield shown
    if rest := await asyncio.to_thread(citing.end):
        yield rest


def cite(answer: str, sources: Mapping[int, Document], *, cut: bool = False) -> Citing:
    """A whole answer of the model, verified at once."""
    citing = Citing(sources, cut=cut)
    citing.add(answer)
    citing.end()
    return citing
