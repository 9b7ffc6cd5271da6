"""How a model's window is dealt out: answer, system, question and a passage first, then conversation and passages."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

STEP = 4
"""Dropping turns frees at least the window's 1/STEP, so that the prompts of the next turns begin alike."""
CONVERSATION = 4
"""The conversation is owed 1/CONVERSATION of what question and answer leave: only the best passage goes before that."""
PASSAGE = 8
"""A question that leaves less than the window's 1/PASSAGE takes it from the answer, so that a passage has room."""


@dataclass(frozen=True)
class Room:
    """The tokens of a turn: all figures are tokens of the prompt."""

    window: int
    """The model's, prompt and answer together."""
    base: int
    """The prompt with system text and question only; less than the window."""
    answer: int
    """Wanted for the answer; it gets half the window at most."""

    @property
    def prompt(self) -> int:
        """The longest prompt: what the answer leaves, and a place for a passage, half of what is left at most."""
        least = min(self.window // PASSAGE, (self.window - self.base) // 2)
        return max(self.window - min(self.answer, self.window // 2), self.base + least)

    @property
    def left(self) -> int:
        """For conversation and passages."""
        return self.prompt - self.base


def newest_turns(number: int, most: int) -> int:
    """Which turn is the first when `most` are wanted at most: in steps of a quarter of them."""
    if most == 0:
        return number
    step = -(-most // STEP)
    return max(0, -(-(number - most) // step) * step)


def first_turn(turns: Sequence[int], needed: int, *, left: int, step: int) -> int:
    """The first of the turns that stay beside the `needed` tokens of passages.

    What goes is the least multiple of `step` tokens that makes room, in whole turns from the oldest on. As a
    conversation only grows, so do the multiples: between two of them its prompts begin with the same turn, and nobody
    has to remember with which.
    """
    excess = sum(turns) + needed - left
    if excess <= 0:
        return 0
    wanted = -(-excess // step) * step
    gone = (at for at, tokens in enumerate(accumulate(turns), start=1) if tokens >= wanted)
    first = next(gone, len(turns))
    keeps_the_last = first == len(turns) > 0 and turns[-1] + needed <= left
    return first - 1 if keeps_the_last else first


def number_that_fits(passages: Sequence[int], room: int) -> int:
    """How many of the best passages fit."""
    return sum(1 for tokens in accumulate(passages) if tokens <= room)


def share(passages: Sequence[int], conversation: int, left: int) -> int:
    """Tokens of the passages that the conversation makes way for: the best one, and more in what it is not owed."""
    room = left - min(conversation, left // CONVERSATION)
    number = max(1, number_that_fits(passages, room))
    return min(left, sum(passages[:number]))
