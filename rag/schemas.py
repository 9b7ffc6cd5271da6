"""Bodies of requests, checked before any work, and how events look as JSON."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rag.answer import Done, Event, Question, Sources, Token


def _whole_characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half a character (a lone surrogate) at {error.start}") from error
    return text


Text = Annotated[str, AfterValidator(_whole_characters)]
"""JSON can spell halves of characters, such as "\\ud800", which no tokenizer takes."""


class Turn(BaseModel):
    """One message of the conversation so far."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["user", "assistant"]
    content: Text

    def as_message(self) -> BaseMessage:
        """The same as a LangChain message."""
        return HumanMessage(self.content) if self.role == "user" else AIMessage(self.content)


class AskRequest(BaseModel):
    """Body of `POST /v1/knowledge-bases/{name}/ask`."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    history: list[Turn] = Field(default_factory=list)
    stream: bool = True
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2)

    def as_question(self) -> Question:
        """What is asked, as the turn takes it."""
        sampling = self.model_dump(include={"max_tokens", "temperature"}, exclude_none=True)
        return Question(self.question, [turn.as_message() for turn in self.history], sampling=sampling)


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
            "sources": [source(number, passage) for number, passage in event.prompt.sources.items()],
            "prompt_tokens": event.prompt.tokens,
            **event.prompt.dropped,
        }
    assert isinstance(event, Done)
    return asdict(event)


def source(number: int, passage: Document) -> dict[str, Any]:
    """A passage as a source; offsets are characters of the document's extracted text."""
    about = passage.metadata
    return {
        "index": number,
        "file": about.get("source", ""),
        "page": about.get("page"),
        "line": about.get("line"),
        "heading": about.get("heading") or "",
        "start": about.get("start"),
        "end": about.get("end"),
        "score": about.get("score"),
        "text": passage.page_content,
    }
