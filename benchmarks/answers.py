"""How often sources and answers are right on `data/questions.jsonl`: `python -m benchmarks.answers [MODE …]`.

MODE: balanced, strict or open, for the small profile. "Sentences cited" counts those that state something.
"""

import asyncio
import json
import re
import sys
import tempfile
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
from rag.grounding import GroundingOptions, Mode
from rag.profile import SMALL
from rag.retriever import HybridRetriever

Turn = tuple[Sources, Done]
DATA = Path(__file__).parents[1] / "data"


async def ask(question: str, chat: ChatVLLM, retriever: HybridRetriever, options: GroundingOptions) -> Turn:
    """One turn's first and last event."""
    turn = answer(
        Question(question),
        chat=chat,
        retriever=retriever,
        profile=SMALL,
        conversations=Conversations(),
        grounding=options,
    )
    events = [event async for event in turn]
    assert isinstance(events[0], Sources) and isinstance(events[-1], Done)
    return events[0], events[-1]


async def ask_all(
    questions: list[str], chat: ChatVLLM, retriever: HybridRetriever, options: GroundingOptions
) -> list[Turn]:
    """All turns, twelve at a time."""
    gate = asyncio.Semaphore(12)

    async def one(question: str) -> Turn:
        async with gate:
            return await ask(question, chat, retriever, options)

    return await asyncio.gather(*map(one, questions))


def row(name: str, questions: list[dict[str, Any]], turns: list[Turn]) -> str:
    """One line of the table."""
    pairs = list(zip(questions, turns, strict=True))
    answerable = [(question, *turn) for question, turn in pairs if question["answerable"]]
    refused = [done.grounding.refused for question, (_, done) in pairs if not question["answerable"]]
    files = [[passage.metadata["source"] for passage in sources.passages] for _, sources, _ in answerable]
    wanted = [question["file"] for question, _, _ in answerable]
    cited = [(question["file"], citation.file) for question, _, done in answerable for citation in done.citations]
    sentences = [(question["file"], done) for question, _, done in answerable if not done.grounding.refused]
    stated = sum(len(stating(done)) for _, done in sentences)
    bare = sum(len(done.grounding.unsupported) for _, done in sentences)
    counts = [
        (sum(found[0] == file for found, file in zip(files, wanted, strict=True)), len(answerable)),
        (sum(file in found for found, file in zip(files, wanted, strict=True)), len(answerable)),
        (sum(bool(re.search(q["pattern"], done.answer, re.I | re.S)) for q, _, done in answerable), len(answerable)),
        (stated - bare, stated),
        (sum(file == other for file, other in cited), len(cited)),
        (len(sentences), len(answerable)),
        (sum(refused), len(refused)),
    ]
    return f"| {' | '.join([name, *(f'{right}/{total}' for right, total in counts)])} |"


def stating(done: Done) -> set[tuple[int, int]]:
    """The sentences that state something."""
    return {*done.grounding.unsupported, *((one.answer_start, one.answer_end) for one in done.citations)}


def main(modes: list[Mode]) -> None:
    questions = [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    heads = "mode", "right file first", "in five", "answer right", "sentences cited", "cited file right", "answered"
    print(f"| {' | '.join(heads)} | unanswerable refused |\n|{'---|' * 8}")
    with Engine.start_in_thread(EngineOptions(max_model_len=4096)) as engine, tempfile.TemporaryDirectory() as folder:
        embedder = Embedder()
        knowledge_base = KnowledgeBase.open(Path(folder), "sample", embedder, create=True)
        ingest(DATA / "sample", knowledge_base)
        retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
        chat = ChatVLLM(engine=engine)
        for mode in modes:
            asked = [question["question"] for question in questions]
            turns = wait_for(ask_all(asked, chat, retriever, GroundingOptions(mode=mode)), engine.loop)
            print(row(mode, questions, turns), flush=True)


if __name__ == "__main__":
    known: dict[str, Mode] = {"balanced": "balanced", "strict": "strict", "open": "open"}
    main([known[name] for name in sys.argv[1:]] or [*known.values()][:2])
