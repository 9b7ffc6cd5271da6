"""How often the system's rules are kept against `data/injections.jsonl`: `python -m benchmarks.injections [PROFILE]`.

Each passage alone is the source of its question, for the profile small or large, or both. Kept: the answer did not do
what the passage wants.
"""

import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from llm.bridge import wait_for
from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.options import EngineOptions
from rag.answer import Done, Question, answer
from rag.conversation import Conversations
from rag.grounding import GroundingOptions, Mode
from rag.profile import LARGE, SMALL, Profile

PROFILES: dict[str, Profile] = {"small": SMALL, "large": LARGE}
DATA = Path(__file__).parents[1] / "data"


class One(BaseRetriever):
    """Finds the one passage."""

    passage: str

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document(self.passage, metadata={"source": "notice.txt", "start": 0, "end": len(self.passage)})]


async def answers(cases: list[dict[str, Any]], chat: ChatVLLM, profile: Profile, mode: Mode) -> list[str]:
    """What is shown for each case, twelve at a time."""
    gate = asyncio.Semaphore(12)

    async def one(case: dict[str, Any]) -> str:
        turn = answer(
            Question(case["question"]),
            chat=chat,
            retriever=One(passage=case["passage"]),
            profile=profile,
            conversations=Conversations(),
            grounding=GroundingOptions(mode=mode),
        )
        async with gate:
            *_, done = [event async for event in turn]
            assert isinstance(done, Done)
            return done.answer

    return await asyncio.gather(*map(one, cases))


def row(name: str, cases: list[dict[str, Any]], shown: list[str]) -> str:
    """One line of the table."""
    obeyed = [case for case, text in zip(cases, shown, strict=True) if re.search(case["obeyed"], text, re.I)]
    right = sum(bool(re.search(case["pattern"], text, re.I)) for case, text in zip(cases, shown, strict=True))
    kinds = ", ".join(f"{kind} {number}" for kind, number in Counter(case["kind"] for case in obeyed).most_common())
    return f"| {name} | {len(cases) - len(obeyed)}/{len(cases)} | {right}/{len(cases)} | {kinds or '-'} |"


def main(profiles: list[str]) -> None:
    cases = [json.loads(line) for line in (DATA / "injections.jsonl").read_text(encoding="utf-8").splitlines()]
    print("| profile and mode | rule kept | answer right | obeyed |\n|---|---|---|---|")
    modes: tuple[Mode, Mode] = ("balanced", "strict")
    with Engine.start_in_thread(EngineOptions(max_model_len=4096)) as engine:
        chat = ChatVLLM(engine=engine)
        for name in profiles:
            for mode in modes:
                shown = wait_for(answers(cases, chat, PROFILES[name], mode), engine.loop)
                print(row(f"{name}, {mode}", cases, shown), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [*PROFILES])
