"""The messages of a turn, laid out for the prefix cache and cut to the model's window by exact counting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from ingest.terms import terms
from llm.prompting import PromptTooLong
from rag.budget import STEP, Room, first_turn, newest_turns, number_that_fits, share
from rag.conversation import Conversation, Sent, Turn
from rag.counting import TokenCounter
from rag.delimit import delimited
from rag.profile import Profile
from rag.sentences import sentence_spans

ROUNDS = 4
"""Times that a prompt is counted exactly before the conversation is given up to make it fit."""
LIKELY = 2
"""Characters of a token at least: a prompt that fits by this is counted whole at once, others by their parts first."""


@dataclass(frozen=True)
class Prompt:
    """What goes to the model, and what had to stay out."""

    messages: list[BaseMessage]
    tokens: int | None
    """Exactly the ids that are sent; None for a model whose window is not known."""
    passages: list[Document]
    """Found now and in the prompt, in this turn's message or an earlier one's."""
    sources: Mapping[int, Document]
    """Every passage that this turn's answer may cite, by its number in the conversation, which starts at 1 and need not
    be without gaps: those found now, in the prompt or not, and those that an earlier turn in the prompt holds."""
    sent: Sent
    """What is to be remembered of the turn."""
    dropped_passages: int = 0
    dropped_turns: int = 0
    shortened: bool = False
    """The one passage was cut at a sentence."""

    @property
    def dropped(self) -> dict[str, int | bool]:
        """The report of what had to stay out, as it travels with the answer."""
        names = ("dropped_turns", "dropped_passages", "shortened")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class _Deal:
    """One way to fill the window: the turns from one on, and so many passages that no turn among them holds."""

    first: int
    passages: int
    cut: int | None = None
    """Characters of the last of these passages that stay."""


@dataclass(frozen=True)
class _Layout:
    """Everything there is for a turn, and how a deal of it looks to the model."""

    question: str
    numbered: Mapping[int, Document]
    """Found and wanted in the prompt, best first."""
    conversation: Conversation
    profile: Profile
    instructions: str = ""

    @property
    def turns(self) -> list[Turn]:
        return self.conversation.turns

    @cached_property
    def system(self) -> SystemMessage:
        return SystemMessage("\n\n".join(filter(None, [self.profile.system, self.instructions])))

    @cached_property
    def newest(self) -> int:
        """The first of the turns that the profile lets in."""
        return newest_turns(len(self.turns), self.profile.history_turns)

    def told(self, first: int) -> frozenset[int]:
        """Numbers of the passages that the turns from one on hold."""
        return frozenset().union(*(turn.told for turn in self.turns[first:]))

    def new(self, first: int) -> list[int]:
        """Numbers of the passages that this turn has to send."""
        told = self.told(first)
        return [number for number in self.numbered if number not in told]

    def messages(self, deal: _Deal) -> list[BaseMessage]:
        """Static first: system, conversation, passages, question."""
        earlier = [message for turn in self.turns[deal.first :] for message in turn.messages]
        return [self.system, *earlier, HumanMessage(self.asked(deal))]

    def asked(self, deal: _Deal) -> str:
        """The text of this turn's message."""
        new = self.new(deal.first)[: deal.passages]
        texts = [self.text(number) for number in new]
        if deal.cut is not None:
            texts[-1] = self.text(new[-1], cut=deal.cut)
        return "\n\n".join([*filter(None, [self.see(deal.first)]), *texts, self.question])

    def see(self, first: int) -> str:
        """Points at the passages that were found again and stand in an earlier turn."""
        numbers = [f"[{number}]" for number in self.numbered if number in self.told(first)]
        return f"See above: {' '.join(numbers)}" if numbers else ""

    def text(self, number: int, *, cut: int | None = None) -> str:
        """A passage as the model gets it."""
        about = self.numbered[number].metadata
        if self.profile.citations == "match":
            return self.words(number)[:cut]
        place = about.get("source", "") + (f", page {page}" if (page := about.get("page")) else "")
        return delimited(number, place, self.words(number)[:cut])

    def words(self, number: int) -> str:
        """What of a passage is for this model."""
        text = self.numbered[number].page_content
        return _nearest(text, self.question, self.profile.sentences) if self.profile.citations == "match" else text


def build_prompt(
    question: str,
    passages: Sequence[Document],
    conversation: Conversation,
    *,
    profile: Profile,
    counter: TokenCounter | None,
    max_tokens: int,
    instructions: str = "",
) -> Prompt:
    """Lay out a turn: system, conversation, new passages, question, so that what repeats stands first.

    A passage stands in the turn that it was first found for; later ones point at its number. When not everything fits
    beside the answer's `max_tokens`, `rag.budget` says what goes: the oldest turns, then the last passages, then the
    end of the one passage. Raises PromptTooLong when the question alone does not fit. `passages` come best first.
    """
    numbers = conversation.numbered(passages)
    wanted = dict(list(numbers.items())[: profile.passages])
    layout = _Layout(question, wanted, conversation, profile, instructions)
    everything = _Deal(layout.newest, len(layout.new(layout.newest)))
    deal, tokens = _Fitting(layout, counter, max_tokens).fitted(everything) if counter else (everything, None)
    told, new = layout.told(deal.first), layout.new(deal.first)[: deal.passages]
    whole = frozenset(new if deal.cut is None else new[:-1]) if profile.citations == "marks" else frozenset()
    return Prompt(
        layout.messages(deal),
        tokens,
        [passage for number, passage in wanted.items() if number in told or number in new],
        numbers | {n: turn.sent.numbers[n] for turn in layout.turns[deal.first :] if turn.sent for n in turn.told},
        Sent(layout.asked(deal), numbers, whole),
        dropped_passages=sum(1 for number in wanted if number not in told and number not in new),
        dropped_turns=deal.first,
        shortened=deal.cut is not None,
    )


def unsent(passages: Sequence[Document], conversation: Conversation) -> Prompt:
    """The prompt of a turn that no model is asked in: nothing but the passages with their numbers."""
    numbers = conversation.numbered(passages)
    return Prompt([], 0, [], numbers, Sent("", numbers, frozenset()))


@dataclass(frozen=True)
class _Fitting:
    """Finds the deal that fits. The sizes of the parts tell which to try, so few prompts are counted whole."""

    layout: _Layout
    counter: TokenCounter
    answer: int

    def fitted(self, everything: _Deal) -> tuple[_Deal, int]:
        """The deal, and the tokens of its prompt. Raises PromptTooLong."""
        messages = self.layout.messages(everything)
        surely = self.counter.window - min(self.answer, self.counter.window // 2)
        may_fit = sum(len(message.text) for message in messages) <= LIKELY * surely
        if may_fit and (tokens := self.counter.prompt(messages)) <= surely:
            return everything, tokens
        question: list[BaseMessage] = [self.layout.system, HumanMessage(self.layout.question)]
        base = self.counter.prompt(question)
        if base >= self.counter.window:
            raise PromptTooLong(base, self.counter.window)
        return self._within(Room(self.counter.window, base, self.answer))

    def _within(self, room: Room) -> tuple[_Deal, int]:
        over = 0
        for _ in range(ROUNDS):
            deal = self._dealt(room, room.left - over)
            tokens = self.counter.prompt(self.layout.messages(deal))
            if tokens <= room.prompt:
                return deal, tokens
            over += tokens - room.prompt
        return _Deal(len(self.layout.turns), 0), room.base

    def _dealt(self, room: Room, left: int) -> _Deal:
        """The deal for so many tokens of conversation and passages, by the sizes of the parts."""
        first = self.layout.newest
        while True:
            free = left - self._see(first)
            sizes = [self._passages[number] for number in self.layout.new(first)]
            needed = share(sizes, sum(self._turns), free)
            later = self.layout.newest + first_turn(self._turns, needed, left=free, step=room.window // STEP)
            if later <= first:
                break
            first = later
        free -= sum(self._turns[first - self.layout.newest :])
        fitting = number_that_fits(sizes, free)
        if fitting or not sizes or self.layout.told(first):
            return _Deal(first, fitting)
        cut = self._cut(self.layout.new(first)[0], free)
        return _Deal(first, 1, cut) if cut else _Deal(first, 0)

    @cached_property
    def _turns(self) -> list[int]:
        return [self.counter.turn(turn.messages) for turn in self.layout.turns[self.layout.newest :]]

    @cached_property
    def _passages(self) -> dict[int, int]:
        return {number: self.counter.text(self.layout.text(number) + "\n\n") for number in self.layout.numbered}

    def _see(self, first: int) -> int:
        return self.counter.text(see + "\n\n") if (see := self.layout.see(first)) else 0

    def _cut(self, number: int, free: int) -> int:
        """Characters of the passage that fit: whole sentences, or a part of the first when it alone is too long."""
        words = self.layout.words(number)
        free -= self.counter.text(self.layout.text(number, cut=0) + "\n\n")
        ends = [end for _, end in sentence_spans(words)]
        sizes = [self.counter.text(words[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        if whole := number_that_fits(sizes, free):
            return ends[whole - 1]
        length = ends[0] if ends else 0
        while length and (tokens := self.counter.text(words[:length])) > max(free, 0):
            length = min(length - 1, length * max(free, 0) // tokens)
        blank = words.rfind(" ", length // 2, length)
        return blank if blank > 0 else length


def _nearest(text: str, question: str, sentences: int | None) -> str:
    """So many neighbouring sentences of a passage, those that share most terms with the question; no headings."""
    spans = [span for span in sentence_spans(text) if not text.startswith("#", span[0])]
    if sentences is None or len(spans) <= sentences:
        return text
    asked = set(terms(question))
    shared = [len(asked & set(terms(text[start:end]))) for start, end in spans]
    first = max(range(len(spans) - sentences + 1), key=lambda at: sum(shared[at : at + sentences]))
    return text[spans[first][0] : spans[first + sentences - 1][1]]
