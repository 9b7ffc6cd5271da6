"""OpenAI's shape, read by OpenAI's own client."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from llm.protocol import EngineUnavailable
from tests.fakes import ScriptedEngine
from tests.server import until

COMPLETIONS = "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "How many days of annual leave?"}]


async def test_the_official_client_reads_a_whole_answer(official: openai.AsyncOpenAI) -> None:
    completion = await official.chat.completions.create(model="@default", messages=MESSAGES)
    choice = completion.choices[0]
    assert choice.message.content == "Full-time employees receive 25 days of annual leave."
    assert choice.finish_reason == "stop"
    assert choice.message.annotations and completion.usage
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion.usage.prompt_tokens_details and completion.usage.prompt_tokens_details.cached_tokens == 3


async def test_the_official_client_reads_a_stream(official: openai.AsyncOpenAI) -> None:
    stream = await official.chat.completions.create(
        model="@default", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Full-time employees receive 25 days of annual leave."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_cut_answer_says_length(official: openai.AsyncOpenAI) -> None:
    completion = await official.chat.completions.create(model="", messages=MESSAGES, max_completion_tokens=2)
    assert completion.choices[0].finish_reason == "length"


async def test_sampling_system_text_and_history_reach_the_engine(
    official: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello {x}"}]},
        {"role": "assistant", "content": None},
        *MESSAGES,
    ]
    await official.chat.completions.create(model="", messages=messages, temperature=0.5, top_p=0.9, seed=7, stop="END")
    sampling = engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.stop) == (0.5, 0.9, 7, ["END"])
    prompt = engine.tokenizer.decode(engine.submitted[-1].prompt_ids)
    assert "Be brief." in prompt
    assert "Hello {x}" in prompt


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "user", "content": " "}]},
        {"messages": [{"role": "system", "content": "only"}]},
        {"messages": MESSAGES, "n": 2, "temperature": 1},
        {"messages": MESSAGES, "temperature": 9},
        {"messages": MESSAGES, "max_tokens": 10**23},
        {"messages": MESSAGES, "stop": ["x"] * 10_000},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
async def test_what_cannot_be_done_is_a_400(client: httpx.AsyncClient, engine: ScriptedEngine, body: Any) -> None:
    response = await client.post(COMPLETIONS, json={"model": "@default", **body})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert not engine.submitted


@pytest.mark.parametrize("stream", [True, False])
async def test_k_threshold_and_filter_go_along_as_extra_body(official: openai.AsyncOpenAI, stream: bool) -> None:
    async def found(question: str = "Leave is 25 days.", **search: Any) -> list[str]:
        asked: list[Any] = [{"role": "user", "content": question}]
        completions = official.with_options(timeout=60).chat.completions  # the first filter of a process loads torch
        got: Any = await completions.create(model="@three", messages=asked, extra_body=search, stream=stream)
        events = [event async for event in got] if stream else [got]
        return [one["text"] for one in events[0].sources]

    every = await found()
    assert len(every) == 3
    assert await found(k=1) == every[:1] == ["Leave is 25 days."]
    assert await found(filter={"year": {"$gt": 2024}}) == ["Leave is 30 days from 2025 on."]
    assert (
        await found(filter={"部门": "人事部"})
        == await found(filter={"部门": {"$in": ["人事部", "财务部"]}})
        == ["病假为七天。"]
    )
    assert await found(filter={"部门": "财务部"}) == await found("zyzzyva", score_threshold=1) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"k": 1001},
        {"score_threshold": 1.5},
        {"filter": {"部门": {"$foo": "人事部"}}},
        {"filter": {"$or": []}},
        {"filter": "leave.md"},
    ],
    ids=str,
)
async def test_a_search_that_cannot_be_meant_is_the_clients_bad_request(
    official: openai.AsyncOpenAI, engine: ScriptedEngine, wrong: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
        await official.chat.completions.create(model="@three", messages=MESSAGES, extra_body=wrong)
    assert not engine.submitted


async def test_an_unknown_knowledge_base_is_a_404(official: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await official.chat.completions.create(model="@nobody", messages=MESSAGES)


async def test_a_failure_in_the_stream_is_an_error_for_the_client(
    official: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    engine.replies = [EngineUnavailable("the vLLM engine has died")]
    with pytest.raises(openai.APIError, match="died"):
        [chunk async for chunk in await official.chat.completions.create(model="", messages=MESSAGES, stream=True)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool
) -> None:
    engine.gate = asyncio.Event()
    body = {"model": "@default", "messages": MESSAGES, "stream": stream}
    asking = asyncio.create_task(client.post(COMPLETIONS, json=body))
    await until(lambda: engine.unfinished == 1)
    asking.cancel()
    await until(lambda: engine.unfinished == 0, seconds=1)


async def test_a_stream_ends_with_done_and_each_chunk_is_one_line(client: httpx.AsyncClient) -> None:
    body = {"model": "@default", "messages": MESSAGES, "stream": True}
    lines = [line for line in (await client.post(COMPLETIONS, json=body)).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["object"] == "chat.completion.chunk" for line in lines[:-1])
