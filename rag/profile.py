"""What a model is given and how its answer is read, by the model's size, with the user's changes."""

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from llm.options import Options
from rag.delimit import RULE

SMALL_MODEL = 1_000_000_000
"""Weights: below this a model copies from one passage but neither weighs several nor writes citation marks."""


@dataclass(frozen=True)
class Profile:
    """How a turn is put to one kind of model."""

    system: str
    passages: int
    """Passages in the prompt at most; the others found are still shown and cited."""
    sentences: int | None
    """Neighbouring sentences of a passage that go into the prompt, those nearest the question; None: all."""
    citations: Literal["marks", "match"]
    """`marks`: the model writes [n]; `match`: its sentences are matched to the passages afterwards."""
    follow_up: Literal["rewrite", "join"]
    """How a follow-up is searched for: rewritten by the model, or joined with the turns before. Joined finds as many
    passages in five as the questions that a person wrote, with no call: see `benchmarks/followups.py`."""
    history_turns: int
    """Question-and-answer pairs of the conversation in the prompt at most."""
    max_tokens: int
    stop_at_repetition: bool
    quotes: bool
    """Outside of open mode, what the model says without evidence is left out, and where nothing is left, the nearest
    sentence of the passages is the answer: a small model finds the words more often than it can say them."""


SMALL = Profile(
    system="Use the text to answer the question in one sentence.",
    passages=1,
    sentences=2,
    citations="match",
    follow_up="join",
    history_turns=0,
    max_tokens=60,
    stop_at_repetition=True,
    quotes=True,
)
LARGE = Profile(
    system=(
        f"You answer questions from the passages that the user's messages hold. {RULE} Use nothing but the passages; "
        "when they do not hold the answer, say so in one sentence. After each sentence write the number of the passage "
        "it comes from in brackets, as in [1]. Answer in the language of the question, briefly."
    ),
    passages=5,
    sentences=None,
    citations="marks",
    follow_up="join",
    history_turns=20,
    max_tokens=512,
    stop_at_repetition=False,
    quotes=False,
)


class AnswerOptions(Options):
    """How questions are answered; None leaves what the model's profile says."""

    profile: Literal["auto", "small", "large"] = Field("auto", description="auto: small below 10⁹ weights")
    retrieve: int = Field(5, ge=1, le=100, description="passages found for a question")
    passages: int | None = Field(None, ge=1, le=100, description="of these in the prompt")
    citations: Literal["marks", "match"] | None = Field(None, description="written by the model, or matched afterwards")
    follow_up: Literal["rewrite", "join"] | None = Field(None, description="how a follow-up is searched for")
    history_turns: int | None = Field(None, ge=0, description="earlier question-and-answer pairs in the prompt")
    max_tokens: int | None = Field(None, ge=1, description="tokens of an answer")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token")

    def profile_for(self, parameters: int | None) -> Profile:
        """The profile for a model of so many weights (None: unknown, taken as large), with this object's changes."""
        small = self.profile == "small" or (self.profile == "auto" and (parameters or SMALL_MODEL) < SMALL_MODEL)
        names = ("passages", "citations", "follow_up", "history_turns", "max_tokens")
        changes = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(SMALL if small else LARGE, **changes)
