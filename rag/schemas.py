"""Bodies of requests, checked before any work, and how events look as JSON."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ingest.metadata import check_where
from rag.answer import Done, Event, Question, Sources, Token
from rag.grounding import Mode


def _whole_characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half a character (a lone surrogate) at {error.start}") from error
    return text


Text = Annotated[str, AfterValidator(_whole_characters)]
"""JSON can spell halves of characters, such as "\\ud800", which no tokenizer takes."""

MOST_PASSAGES = 1000


def _readable(conditions: dict[str, Any]) -> dict[str, Any]:
    check_where(conditions)
    return conditions


class Turn(BaseModel):
    """One message of the conversation so far."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["user", "assistant"]
    content: Text

    def as_message(self) -> BaseMessage:
        """The same as a LangChain message."""
        return HumanMessage(self.content) if self.role == "user" else AIMessage(self.content)


class Searching(BaseModel):
    """The fields of a request that say how its passages are searched for."""

    k: int | None = Field(None, ge=1, le=MOST_PASSAGES)
    score_threshold: float | None = Field(None, ge=0, le=1)
    filter: Annotated[dict[str, Any], AfterValidator(_readable)] | None = None

    @property
    def search(self) -> dict[str, Any]:
        """Keywords of the retriever's call: those that were given."""
        return {name: value for name in Searching.model_fields if (value := getattr(self, name)) is not None}


class SearchRequest(Searching):
    """Body of `POST /v1/knowledge-bases/{name}/search`."""

    model_config = ConfigDict(extra="forbid")

    question: Annotated[Text, Field(pattern=r"\S")]


class AskRequest(Searching):
    """Body of `POST /v1/knowledge-bases/{name}/ask`."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    history: list[Turn] = Field(default_factory=list)
    stream: bool = True
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2)
    grounding: Mode | None = None

    def as_question(self) -> Question:
        """What is asked, as the turn takes it."""
        sampling = self.model_dump(include={"max_tokens", "temperature"}, exclude_none=True)
        history = [turn.as_message() for turn in self.history]
        return Question(self.question, history, sampling=sampling, search=self.search, grounding=self.grounding)


def event_name(event: Event) -> str:
    """The event's name in the stream: sources, token or done."""
    return type(event).__name__.lower()


def event_data(event: Event) -> dict[str, Any]:
    """The event's data as JSON takes it."""
    if isinstance(event, Token):
        return {"text": event.text}
    if isinstance(event, Sources):
        return {
            "question": event.question,
            "searched": event.searched,
            "sources": sources(event),
            "prompt_tokens": event.prompt.tokens,
            **event.prompt.dropped,
        }
    assert isinstance(event, Done)
    return asdict(event)


def sources(event: Sources) -> list[dict[str, Any]]:
    """Everything that the answer may cite: what was found, best first, then what earlier turns hold."""
    found = {id(passage) for passage in event.passages}
    return [source(number, one) | {"earlier": id(one) not in found} for number, one in event.prompt.sources.items()]


def source(number: int, passage: Document) -> dict[str, Any]:
    """A passage as a source; offsets are characters of the document's extracted text."""
    about = passage.metadata
    return {
        "index": number,
        "file": about.get("source", ""),
        "page": about.get("page"),
        "slide": about.get("slide"),
        "sheet": about.get("sheet"),
        "cell": about.get("cell"),
        "line": about.get("line"),
        "heading": about.get("heading") or "",
        "start": about.get("start"),
        "end": about.get("end"),
        "score": about.get("score"),
        "text": passage.page_content,
    }
