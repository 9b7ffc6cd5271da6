"""How often sources and answers are right on `data/questions.jsonl`: `python -m benchmarks.answers [SENTENCES …]`.

SENTENCES: how much of a passage the small profile puts into the prompt; 0 is all of it.
"""

import asyncio
import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ingest.pipeline import ingest
from ingest.store import KnowledgeBase
from llm.bridge import wait_for
from llm.chat import ChatVLLM
from llm.embeddings import Embedder
from llm.engine import Engine
from llm.options import EngineOptions
from rag.answer import Done, Question, Sources, answer
from rag.conversation import Conversations
from rag.profile import SMALL, Profile
from rag.retriever import HybridRetriever

DATA = Path(__file__).parents[1] / "data"


async def ask(question: str, chat: ChatVLLM, retriever: HybridRetriever, profile: Profile) -> tuple[Sources, Done]:
    """One turn's first and last event."""
    turn = answer(Question(question), chat=chat, retriever=retriever, profile=profile, conversations=Conversations())
    events = [event async for event in turn]
    assert isinstance(events[0], Sources) and isinstance(events[-1], Done)
    return events[0], events[-1]


async def ask_all(
    questions: list[str], chat: ChatVLLM, retriever: HybridRetriever, profile: Profile
) -> list[tuple[Sources, Done]]:
    """All turns, twelve at a time."""
    gate = asyncio.Semaphore(12)

    async def one(question: str) -> tuple[Sources, Done]:
        async with gate:
            return await ask(question, chat, retriever, profile)

    return await asyncio.gather(*map(one, questions))


def row(name: str, questions: list[dict[str, Any]], turns: list[tuple[Sources, Done]]) -> str:
    """One line of the table."""
    pairs = list(zip(questions, turns, strict=True))
    answerable = [(question, *turn) for question, turn in pairs if question["answerable"]]
    others = [done for question, (_, done) in pairs if not question["answerable"]]
    files = [[passage.metadata["source"] for passage in sources.passages] for _, sources, _ in answerable]
    wanted = [question["file"] for question, _, _ in answerable]
    counts = [
        sum(found[0] == file for found, file in zip(files, wanted, strict=True)),
        sum(file in found for found, file in zip(files, wanted, strict=True)),
        sum(bool(re.search(q["pattern"], done.answer, re.I | re.S)) for q, _, done in answerable),
        sum(bool(done.citations) for _, _, done in answerable),
        sum(q["file"] in [citation.file for citation in done.citations] for q, _, done in answerable),
    ]
    shown = [f"{count}/{len(answerable)}" for count in counts]
    return f"| {' | '.join([name, *shown, f'{sum(bool(done.citations) for done in others)}/{len(others)}'])} |"


def main(sentences: list[int]) -> None:
    questions = [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    print("| sentences | right file first | in five | answer right | cited | right file cited | unanswerable cited |")
    print("|---|---|---|---|---|---|---|")
    with Engine.start_in_thread(EngineOptions(max_model_len=4096)) as engine, tempfile.TemporaryDirectory() as folder:
        embedder = Embedder()
        knowledge_base = KnowledgeBase.open(Path(folder), "sample", embedder, create=True)
        ingest(DATA / "sample", knowledge_base)
        retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
        chat = ChatVLLM(engine=engine)
        for number in sentences:
            profile = replace(SMALL, sentences=number or None)
            turns = wait_for(
                ask_all([question["question"] for question in questions], chat, retriever, profile), engine.loop
            )
            print(row(str(number or "all"), questions, turns), flush=True)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]] or [SMALL.sentences or 0])
