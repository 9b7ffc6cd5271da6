"""What it takes to lay out and fit a turn's prompt: `python -m benchmarks.prompts`.

A conversation of 25 turns with five new passages each, SmolLM2's tokenizer, on windows and with passages of several
sizes, no engine: milliseconds of CPU time of a turn (median and worst of the last ten), of encoding its prompt once,
which has to be done in any case, and how much of a prompt the last turn's prompt and answer begin with (mean of the
second to the tenth turn, and of all).

`python -m benchmarks.prompts engine`: ten such turns on the demo's model with a window of 2,048 tokens, and what of
each prompt came from the engine's prefix cache.
"""

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import mean, median
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.models import resolve
from llm.options import EngineOptions
from llm.prompting import PromptEncoder
from rag.conversation import Conversations
from rag.counting import TokenCounter
from rag.profile import LARGE
from rag.prompt import Prompt, build_prompt
from tests.fakes import ScriptedEngine

WORDS = (
    "the",
    "leave",
    "of",
    "employees",
    "travel",
    "approves",
    "25",
    "days",
    "年假",
    "十二天",
    "canteen",
    "opens",
    "policy",
)


ANSWER = 512
"""Tokens that an answer may take."""


def text(words: int) -> str:
    """So many words in a sentence."""
    return " ".join(random.choices(WORDS, k=words)) + "."


@dataclass(frozen=True)
class Turn:
    """One turn of the conversation."""

    prompt: Prompt
    seconds: float
    """To lay it out."""
    answer: str


def conversation(chat: ChatVLLM, turns: int, passage_words: int, answer: Callable[[Prompt], str]) -> list[Turn]:
    """A conversation in which each turn finds five new passages."""
    conversations, had = Conversations(), list[Turn]()
    history: list[BaseMessage] = []
    for number in range(turns):
        found = [Document(text(passage_words), metadata={"source": f"{number}-{at}.md"}) for at in range(5)]
        question = text(15)
        began = time.process_time()
        known = conversations.recall(history)
        counter = TokenCounter.of(chat, conversations.lengths)
        prompt = build_prompt(question, found, known, profile=LARGE, counter=counter, max_tokens=ANSWER)
        conversations.remember(known, question, prompt.sent)
        had.append(Turn(prompt, time.process_time() - began, answer(prompt)))
        conversations.answered(known, question, had[-1].answer, shown=had[-1].answer)
        history += [HumanMessage(question), AIMessage(had[-1].answer)]
    return had


def repeated(turns: list[Turn], encoder: PromptEncoder) -> list[float]:
    """Of each turn but the first: how much of its prompt's ids the last turn's prompt and answer begin with."""

    def share(before: Turn, turn: Turn) -> float:
        had = encoder.encode([*before.prompt.messages, AIMessage(before.answer)])
        ids = encoder.encode(turn.prompt.messages)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(had, ids, strict=False))) / len(ids)

    return [share(*two) for two in pairwise(turns)]


def without_an_engine() -> None:
    """Print the table of windows."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("HuggingFaceTB/SmolLM2-135M-Instruct"))
    print(
        "| window | words a passage | tokens | turns in it | a turn, median | worst | encoding once | first 10 | all |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for window, words in ((2048, 20), (8192, 80), (32768, 80), (32768, 320)):
        chat = ChatVLLM(engine=ScriptedEngine(max_model_len=window, tokenizer=tokenizer))
        turns = conversation(chat, 25, words, lambda prompt: text(60))
        last = [1000 * turn.seconds for turn in turns[-10:]]
        encoder, prompt = PromptEncoder(tokenizer), turns[-1].prompt
        encoder.encode([HumanMessage("warm")])
        began = time.process_time()
        encoder.encode(prompt.messages)
        once = 1000 * (time.process_time() - began)
        shares = repeated(turns, encoder)
        cells = [window, words, prompt.tokens, 24 - prompt.dropped_turns]
        cells += [f"{ms:.1f} ms" for ms in (median(last), max(last), once)]
        print(f"| {' | '.join(map(str, [*cells, f'{mean(shares[:9]):.3f}', f'{mean(shares):.3f}']))} |")


def on_the_engine() -> None:
    """Print a line for each turn."""
    with Engine.start_in_thread(EngineOptions(max_model_len=2048)) as engine:
        chat = ChatVLLM(engine=engine)
        print("| turn | dropped turns | prompt tokens | from the cache | share |")
        print("|---|---|---|---|---|")
        shares: list[float] = []

        def answer(prompt: Prompt) -> str:
            said = chat.invoke(prompt.messages, max_tokens=30, temperature=0)
            usage: Any = said.usage_metadata
            cached = usage["input_token_details"].get("cache_read", 0)
            shares.append(cached / usage["input_tokens"])
            numbers = [len(shares), prompt.dropped_turns, usage["input_tokens"], cached, f"{shares[-1]:.3f}"]
            print(f"| {' | '.join(map(str, numbers))} |", flush=True)
            return str(said.text)

        conversation(chat, 10, 20, answer)
        print(f"mean of the second to the tenth turn: {mean(shares[1:]):.3f}")


if __name__ == "__main__":
    random.seed(5)
    on_the_engine() if sys.argv[1:] == ["engine"] else without_an_engine()
