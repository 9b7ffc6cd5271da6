"""The messages of a turn, laid out for the prefix cache and cut to the model's window by exact counting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from ingest.terms import terms
from llm.prompting import PromptTooLong
from rag.profile import Profile
from rag.sentences import sentence_spans

Count = Callable[[list[BaseMessage]], int]


@dataclass(frozen=True)
class Prompt:
    """What goes to the model, and what had to stay out."""

    messages: list[BaseMessage]
    tokens: int | None
    """Exactly the ids that are sent; None for a model whose window is not known."""
    passages: list[Document]
    sources: Mapping[int, Document]
    """Every passage that this turn's answer may cite, by its number in the conversation, which starts at 1 and need not
    be without gaps: those found now, in the prompt or not, and those that an earlier turn in the prompt holds."""
    dropped_passages: int = 0
    dropped_turns: int = 0


@dataclass(frozen=True)
class _Deal:
    """One way to fill the window: so many of the newest turns, so many of the best passages."""

    turns: int
    passages: int


def build_prompt(
    question: str,
    passages: Sequence[Document],
    history: Sequence[BaseMessage],
    *,
    profile: Profile,
    count: Count | None,
    window: int | None,
    max_tokens: int,
    instructions: str = "",
) -> Prompt:
    """Lay out a turn: system, conversation, passages, question, so that what repeats from turn to turn stands first.

    When it does not fit into `window` tokens beside the answer's `max_tokens` (at most half the window), the oldest
    turns go first, in whole pairs, then the last passages. Raises PromptTooLong when the question alone does not fit.
    """
    sources = dict(enumerate(passages, start=1))
    passages = list(passages[: profile.passages])
    turns = _pairs(history)[-profile.history_turns :] if profile.history_turns else []
    system = SystemMessage("\n\n".join(filter(None, [profile.system, instructions])))
    texts = _passage_texts(passages, question, profile)

    def messages(deal: _Deal) -> list[BaseMessage]:
        kept = [message for pair in turns[len(turns) - deal.turns :] for message in pair]
        return [system, *kept, HumanMessage("\n\n".join([*texts[: deal.passages], question]))]

    if count is None or window is None:
        return Prompt(messages(_Deal(len(turns), len(passages))), None, passages, sources)
    room = window - min(max_tokens, window // 2)
    deals = [_Deal(number, len(passages)) for number in range(len(turns), -1, -1)]
    deals += [_Deal(0, number) for number in range(len(passages) - 1, -1, -1)]
    deal = deals[_first_that_fits(deals, lambda deal: count(messages(deal)) <= room)]
    tokens = count(messages(deal))
    if tokens >= window:
        raise PromptTooLong(tokens, window)
    return Prompt(
        messages(deal),
        tokens,
        passages[: deal.passages],
        sources,
        dropped_passages=len(passages) - deal.passages,
        dropped_turns=len(turns) - deal.turns,
    )


def _first_that_fits(deals: list[_Deal], fits: Callable[[_Deal], bool]) -> int:
    """Index of the first deal that fits, else of the last; the deals shrink, so most need not be counted."""
    if fits(deals[0]):
        return 0
    low, high = 0, len(deals) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(deals[middle]) else (middle, high)
    return high


def _pairs(history: Sequence[BaseMessage]) -> list[list[BaseMessage]]:
    """The conversation in whole turns: a question with the answers that follow it."""
    pairs: list[list[BaseMessage]] = []
    for message in history:
        if isinstance(message, AIMessage) and pairs:
            pairs[-1].append(message)
        else:
            pairs.append([message])
    return pairs


def _passage_texts(passages: Sequence[Document], question: str, profile: Profile) -> list[str]:
    if profile.citations == "match":
        return [_nearest(passage.page_content, question, profile.sentences) for passage in passages]
    return [_numbered(number, passage) for number, passage in enumerate(passages, start=1)]


def _nearest(text: str, question: str, sentences: int | None) -> str:
    """So many neighbouring sentences of a passage, those that share most terms with the question; no headings."""
    spans = [span for span in sentence_spans(text) if not text.startswith("#", span[0])]
    if sentences is None or len(spans) <= sentences:
        return text
    asked = set(terms(question))
    shared = [len(asked & set(terms(text[start:end]))) for start, end in spans]
    first = max(range(len(spans) - sentences + 1), key=lambda at: sum(shared[at : at + sentences]))
    return text[spans[first][0] : spans[first + sentences - 1][1]]


def _numbered(number: int, passage: Document) -> str:
    place = passage.metadata.get("source", "") + (f", page {page}" if (page := passage.metadata.get("page")) else "")
    return f"[{number}] {place}\n{passage.page_content}"
