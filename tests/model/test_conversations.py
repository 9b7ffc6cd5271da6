"""Ten thousand conversations against the real tokenizer and template, twenty of them on the real engine."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.models import resolve
from llm.prompting import PromptEncoder
from rag.chain import rag_chain
from rag.profile import LARGE, AnswerOptions
from tests.conversations import CASES, FRAGMENTS, Case, check
from tests.fakes import ScriptedEngine

FOUND = [f"Number {number} is the number behind number {number - 1}. 第{number}个。" for number in range(1, 6)]
BLOCK = 32
"""Tokens of a KV block on a CPU: the cache holds whole ones."""
PROFILE = replace(LARGE, system="Answer from the passages.", history_turns=3, passages=3)


@pytest.fixture(scope="session")
def scripted() -> Any:
    """An engine that says nothing, with SmolLM2's tokenizer."""
    from transformers import AutoTokenizer

    engine = ScriptedEngine(tokenizer=AutoTokenizer.from_pretrained(resolve("HuggingFaceTB/SmolLM2-135M-Instruct")))
    engine.encoder = PromptEncoder(engine.tokenizer)
    return engine


@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES)
def test_no_conversation_is_over_the_limit_and_none_wastes_the_room_of_a_passage(scripted: Any, case: Case) -> None:
    check(case, scripted, PROFILE)


@pytest.mark.parametrize("seed", range(20))
def test_the_real_engine_takes_every_prompt_and_counts_it_alike(engine: Engine, scripted: Any, seed: int) -> None:
    some = random.Random(seed)

    def text(most: int) -> str:
        return "".join(some.choices(FRAGMENTS, k=some.randrange(most)))

    turns = [(text(4), [text(12) for _ in range(3)], text(12)) for _ in range(some.randrange(6))]
    case = Case(turns, text(4), [text(30) for _ in range(3)], engine.max_model_len, 5000)
    prompt = check(case, scripted, PROFILE)
    assert prompt
    answer = ChatVLLM(engine=engine, max_tokens=2).invoke(prompt.messages)
    assert answer.usage_metadata and answer.usage_metadata["input_tokens"] == prompt.tokens


class Next(BaseRetriever):
    """Finds another passage for each question, by the last number in it."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        number = int(re.findall(r"\d+", query)[-1])
        return [Document(FOUND[number - 1], metadata={"source": "guide.md", "start": 0})]


def test_each_turns_prompt_comes_from_the_engines_cache_as_far_as_the_last_prompt_went(engine: Engine) -> None:
    chain = rag_chain(ChatVLLM(engine=engine), Next(), AnswerOptions(profile="large", max_tokens=8))
    history: list[tuple[str, str]] = []
    sent = 0
    for number, _ in enumerate(FOUND, start=1):
        question = f"What is {number}?"
        turn = chain.invoke({"question": question, "history": history})
        assert turn["usage"]["cached_tokens"] >= sent // BLOCK * BLOCK
        sent = turn["usage"]["prompt_tokens"]
        history += [("human", question), ("ai", turn["answer"])]
    assert turn["usage"]["cached_tokens"] > turn["usage"]["prompt_tokens"] / 2
