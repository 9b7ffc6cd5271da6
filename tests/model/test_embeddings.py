"""The embedder on the real model: LangChain's contract, batching, weights, Chinese, concurrency."""

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
from langchain_tests.integration_tests import EmbeddingsIntegrationTests

from ingest.load import LoadedDocument
from ingest.split import split
from llm.embeddings import Embedder
from llm.engine import Engine
from llm.options import EmbedderOptions

WORDS = ["leave", "password", "warranty", "probe", "handbook", "battery", "the", "of", "in", "every", "年假", "密码"]
FILLER = (
    "苏州办公室位于工业园区，员工每天上午九点上班，下午六点下班，午餐时间为一小时。访客须在前台登记并佩戴胸牌。" * 12
)
SECRET = "保险柜的密码是 47913。"
QUESTIONS = [f"{word} 有多少？ how many {'very ' * (at % 7)}{word}?" for at, word in enumerate(WORDS * 2)]


@pytest.fixture(scope="module", autouse=True)
def engine_first(engine: Engine) -> None:
    """A fork after OpenMP has run is not safe, and the engine is forked."""


@contextmanager
def in_weights(name: str, **options: Any) -> Iterator[Embedder]:
    """The embedder in weights of the test's choice."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llm.passes.weight_type", lambda device: getattr(torch, name))
        embedder = Embedder(EmbedderOptions(**options))
        embedder.embed_query("loads it")
        yield embedder


@pytest.fixture(scope="module")
def exact() -> Iterator[Embedder]:
    """The embedder in float32, whatever this machine is fast with."""
    with in_weights("float32") as embedder:
        yield embedder


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of 1 to 250 tokens, English, Chinese and mixed, in no order."""
    draw = random.Random(3)
    found = [" ".join(draw.choices(WORDS, k=draw.randint(1, 150))) for _ in range(40)]
    return [*found, FILLER[:200], FILLER[3:40], SECRET, "?", "👩‍👩‍👧", "𠮷野家の𩸽"]


@pytest.fixture
def rows(exact: Embedder) -> Iterator[list[int]]:
    """How many rows each forward pass has."""
    found: list[int] = []

    def note(module: Any, arguments: Any, keywords: Any = None) -> None:
        found.append(len(arguments[0]["input_ids"]))

    hook = exact._model.register_forward_pre_hook(note)
    yield found
    hook.remove()


class TestStandard(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embedder]:
        return Embedder

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"options": EmbedderOptions()}


def test_a_vector_is_the_same_alone_and_in_a_batch(exact: Embedder, texts: list[str]) -> None:
    alone = [exact.embed_documents([text])[0] for text in texts]
    assert numpy.abs(numpy.array(exact.embed_documents(texts)) - alone).max() < 1e-5


def test_vectors_are_those_of_the_plain_model(exact: Embedder, texts: list[str]) -> None:
    plain = exact._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    assert numpy.abs(numpy.array(exact.embed_documents(texts)) - plain).max() < 1e-5
    assert exact.embed_query(SECRET) == pytest.approx(exact.embed_documents([SECRET])[0], abs=1e-5)  # no prompts


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_every_vector_has_length_one_and_the_direction_of_float32(exact: Embedder, texts: list[str], name: str) -> None:
    reference = numpy.array(exact.embed_documents(texts))
    with in_weights(name) as embedder:
        vectors = numpy.array(embedder.embed_documents(texts))
        assert str(embedder._model.dtype) == f"torch.{name}"
    assert numpy.abs(numpy.linalg.norm(vectors, axis=1) - 1).max() < 1e-6
    assert (vectors * reference).sum(axis=1).min() >= 0.999


def test_a_batch_runs_over_its_different_texts_only(exact: Embedder, texts: list[str], rows: list[int]) -> None:
    vectors = exact.embed_documents(texts * 3)
    assert sum(rows) == len(texts)
    assert vectors[: len(texts)] == vectors[-len(texts) :]


def test_no_pass_has_more_tokens_than_the_budget(texts: list[str], exact: Embedder) -> None:
    shapes: list[Any] = []
    with in_weights("float32") as small:
        small.options = EmbedderOptions(batch_tokens=512)
        small._model.register_forward_pre_hook(lambda _, given: shapes.append(given[0]["input_ids"].shape))
        vectors = small.embed_documents(texts)
    assert max(rows * longest for rows, longest in shapes) <= 512
    assert numpy.abs(numpy.array(vectors) - exact.embed_documents(texts)).max() < 1e-5


async def test_questions_of_threads_and_loops_at_once_get_their_own_vectors(exact: Embedder, rows: list[int]) -> None:
    apart = [exact.embed_query(question) for question in QUESTIONS]
    rows.clear()
    with ThreadPoolExecutor(16) as pool:
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(pool, exact.embed_query, question) for question in QUESTIONS[::2]]
        far = loop.run_in_executor(pool, asyncio.run, asked(exact, QUESTIONS[:6]))
        together = await asyncio.gather(*threads, *map(exact.aembed_query, QUESTIONS[1::2]))
        elsewhere = await far
    assert numpy.abs(numpy.array(together) - [*apart[::2], *apart[1::2]]).max() < 1e-5
    assert numpy.abs(numpy.array(elsewhere) - apart[:6]).max() < 1e-5
    assert len(rows) < len(QUESTIONS) / 2


async def asked(embedder: Embedder, questions: list[str]) -> list[list[float]]:
    return await asyncio.gather(*map(embedder.aembed_query, questions))


async def test_a_question_is_answered_before_documents_are_done(exact: Embedder, texts: list[str]) -> None:
    started = threading.Event()
    hook = exact._model.register_forward_pre_hook(lambda *_: started.set())
    documents = asyncio.create_task(exact.aembed_documents([f"{at} {text}" for at in range(5) for text in texts]))
    await asyncio.to_thread(started.wait, 30)
    await exact.aembed_query("密码是什么？")
    assert not documents.done()
    assert len(await documents) == 5 * len(texts)
    hook.remove()


def test_a_chinese_fact_at_the_end_of_a_long_text_is_found_once_it_is_split(
    exact: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    whole = FILLER + SECRET
    question = numpy.array(exact.embed_query("保险柜的密码是多少？"))
    exact.embed_documents([whole])
    assert "1 of 1 texts are longer than the 256 tokens" in caplog.text
    caplog.clear()
    chunks = [chunk.text for chunk in split(LoadedDocument("苏州.txt", whole), exact.offsets, exact.max_tokens)]
    scores = numpy.array(exact.embed_documents(chunks)) @ question
    assert not caplog.records
    assert SECRET in chunks[int(scores.argmax())]


def test_a_half_of_a_character_is_refused_and_the_next_question_answered(exact: Embedder) -> None:
    with pytest.raises((TypeError, UnicodeEncodeError)):
        exact.embed_query("half: \ud83d")
    with pytest.raises((TypeError, UnicodeEncodeError)):
        exact.embed_documents(["whole", "half: \ud83d"])
    assert len(exact.embed_query("whole")) == 384
