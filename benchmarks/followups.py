"""How often a follow-up's passage is found, by what is searched for: `python -m benchmarks.followups [MODEL …]`.

The ways: alone, joined with the question before, as `rag/condense.py` joins it, rewritten by each MODEL (`small` is the
demo's, others are names or folders of models for the engine), and standalone: the question as a person wrote it.
Figures are the follow-ups of `data/followups.jsonl` whose passage comes first / among the first five, of how many.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import BaseMessage, convert_to_messages

from ingest.pipeline import ingest
from ingest.store import KnowledgeBase
from llm.chat import ChatVLLM
from llm.embeddings import Embedder
from llm.engine import Engine
from llm.options import EngineOptions
from rag.condense import searches
from rag.profile import LARGE
from rag.retriever import HybridRetriever
from rag.search import search

DATA = Path(__file__).parents[1] / "data"
KINDS = ("pronoun", "ellipsis", "correction", "second", "topic_change")
LANGUAGES = ("en", "zh")
NO_MODEL = FakeListChatModel(responses=[""])

Case = dict[str, Any]
Way = Callable[[Case], Awaitable[list[str]]]


def by_profile(chat: BaseChatModel, follow_up: str) -> Way:
    """What a turn searches for, with one setting of the profile."""
    profile = replace(LARGE, follow_up=follow_up)

    async def texts(case: Case) -> list[str]:
        return await searches(case["question"], history(case), chat=chat, profile=profile)

    return texts


def history(case: Case) -> list[BaseMessage]:
    """The conversation before the follow-up."""
    return convert_to_messages(case["history"])


async def alone(case: Case) -> list[str]:
    """The follow-up itself."""
    return [case["question"]]


async def joined_with_the_last(case: Case) -> list[str]:
    """Behind the question before it, as in Groundwell's first version."""
    return [f"{history(case)[-2].text}\n{case['question']}"]


async def standalone(case: Case) -> list[str]:
    """As a person wrote it."""
    return [case["standalone"]]


async def rank(case: Case, way: Way, retriever: HybridRetriever) -> int:
    """Place of the passage with the quote, from 1; 0 when it is not among those found."""
    _, passages = await search(await way(case), retriever)
    texts = [" ".join(passage.page_content.split()) for passage in passages]
    return next((place for place, text in enumerate(texts, start=1) if case["quote"] in text), 0)


async def row(name: str, cases: list[Case], way: Way, retriever: HybridRetriever) -> str:
    """One line of the table."""
    began = time.perf_counter()
    ranks = {case["id"]: await rank(case, way, retriever) for case in cases}
    milliseconds = (time.perf_counter() - began) / len(cases) * 1000

    def cell(some: list[Case]) -> str:
        places = [ranks[case["id"]] for case in some]
        return f"{places.count(1)} / {sum(1 <= place <= 5 for place in places)} of {len(places)}"

    groups = [[c for c in cases if c["kind"] == kind and c["language"] == lang] for lang in LANGUAGES for kind in KINDS]
    return f"| {' | '.join([name, *map(cell, groups), cell(cases), f'{milliseconds:.0f}'])} |"


def main(models: list[str]) -> None:
    """Print the table."""
    lines = (DATA / "followups.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [case for case in map(json.loads, lines) if case["kind"] != "small_talk"]
    heads = [f"{kind} {language}" for language in LANGUAGES for kind in KINDS]
    print(f"| {' | '.join(['searched', *heads, 'all', 'ms'])} |")
    print("|---" * (len(heads) + 3) + "|")
    ways = {"alone": alone, "with the last question": joined_with_the_last, "joined": by_profile(NO_MODEL, "join")}
    with tempfile.TemporaryDirectory() as folder:
        embedder = Embedder()
        knowledge_base = KnowledgeBase.open(Path(folder), "sample", embedder, create=True)
        ingest(DATA / "sample", knowledge_base)
        retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
        for name, way in (ways | {"standalone": standalone}).items():
            print(asyncio.run(row(name, cases, way, retriever)), flush=True)
        for model in models:
            options = (
                EngineOptions(max_model_len=2048) if model == "small" else EngineOptions(model, max_model_len=2048)
            )
            with Engine.start_in_thread(options) as engine:
                way = by_profile(ChatVLLM(engine=engine), "rewrite")
                print(asyncio.run(row(f"rewritten by {engine.model}", cases, way, retriever)), flush=True)
        knowledge_base.close()


if __name__ == "__main__":
    main(sys.argv[1:])
