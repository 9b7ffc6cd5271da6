"""`groundwell eval` on the real models: the figures hang together, whatever the small model says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from llm.embeddings import Embedder
from llm.engine import Engine
from rag.evaluation.cases import read_cases
from rag.evaluation.figures import figures, latencies
from rag.evaluation.running import Asking, evaluate
from rag.evaluation.sweep import variants
from rag.evaluation.table import tables
from rag.settings import Settings
from tests.model.conftest import DATA


def test_questions_are_found_cited_and_in_strict_mode_never_answered_without_evidence(
    engine: Engine, embedder: Embedder, store: Path
) -> None:
    @asynccontextmanager
    async def start_engine() -> AsyncIterator[Engine]:
        yield engine

    cases = read_cases(DATA / "questions.jsonl")[::11]
    settings = Settings(store={"path": store})
    wanted = variants(settings, ["grounding.mode=balanced,strict"])
    told: list[None] = []
    asking = Asking(cases, wanted, 4, lambda: told.append(None))
    balanced, strict = evaluate(
        asking, retrieval_only=False, warn=told.append, start_engine=start_engine, embedder=embedder
    )
    assert told == [None] * 2 * len(cases)
    found, of_strict = figures(balanced.records), figures(strict.records)
    assert found["recall@5"].value >= 0.8 and found["errors"].value == 0
    assert of_strict["refused"].value >= found["refused"].value
    assert "sentences_cited" not in of_strict or of_strict["sentences_cited"].value == 1
    taken = latencies(balanced.records)
    assert 0 < taken["retrieve"].p50 <= taken["first_token"].p50 <= taken["total"].p50
    assert any("right file among the first 5" in line for line in tables([balanced, strict]))
