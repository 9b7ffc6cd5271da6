"""Passages widened by the chunks before and behind them, with exact spans of the document's text."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from langchain_core.documents import Document

from ingest.store import KnowledgeBase

LONGEST_GAP = 8
"""Characters of white space between two chunks at most; behind more of them a chunk may be missing."""
OF_ONE_PLACE = ("source", "page", "slide", "sheet", "cell")


def widened(passages: Sequence[Document], knowledge_base: KnowledgeBase, width: int) -> list[Document]:
    """The passages, each with up to `width` chunks of its document on each side, as far as page or sheet is the same.

    `page_content` is `text[start:end]` of the document, but for the kind of white space between chunks: a position in
    it plus `start` is one of the document. `found_start` and `found_end` say which part was found, so that a prompt
    that is short of room can cut back to it. A passage that stands in a better one already is left out, and no text
    comes twice.
    """
    around = {str(passage.id): knowledge_base.journal.around(str(passage.id), width) for passage in passages}
    wanted = dict.fromkeys(id_ for sides in around.values() for side in sides for id_ in side)
    chunks = {str(chunk.id): chunk for chunk in knowledge_base.chunks(list(wanted))}
    result, used = list[Document](), set[str]()
    for passage in passages:
        if str(passage.id) in used:
            continue
        before, behind = (list(_joining(passage, side, chunks, used)) for side in around[str(passage.id)])
        run = [*reversed(before), passage, *behind]
        used |= {str(one.id) for one in run}
        result.append(_merged(passage, run))
    return result


def _joining(
    passage: Document, ids: Iterable[str], chunks: Mapping[str, Document], used: Container[str]
) -> Iterator[Document]:
    """The chunks, nearest first, as far as each follows the one before it, forwards or backwards, and is not used."""
    last = passage
    for chunk in (chunks.get(id_) for id_ in ids):
        if (
            chunk is None
            or chunk.id in used
            or any(chunk.metadata.get(name) != passage.metadata.get(name) for name in OF_ONE_PLACE)
        ):
            return
        first, second = sorted((last, chunk), key=lambda one: one.metadata["start"])
        if not 0 <= second.metadata["start"] - first.metadata["end"] <= LONGEST_GAP:
            return
        yield chunk
        last = chunk


def _merged(passage: Document, run: Sequence[Document]) -> Document:
    text = run[0].page_content
    for one, two in pairwise(run):
        gap = two.metadata["start"] - one.metadata["end"]
        text += (" " if gap == 1 else "\n" * gap) + two.page_content
    about = passage.metadata
    span = {"start": run[0].metadata["start"], "end": run[-1].metadata["end"]}
    found = {"found_start": about["start"], "found_end": about["end"]}
    line = {"line": run[0].metadata["line"]} if "line" in run[0].metadata else {}
    return Document(id=passage.id, page_content=text, metadata=about | span | found | line)
