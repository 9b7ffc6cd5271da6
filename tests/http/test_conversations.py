"""Conversations over HTTP: clients send plain messages, the passages of earlier turns are known again."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.fakes import ScriptedEngine
from tests.server import events

ASK = "/v1/knowledge-bases/default/ask"
COMPLETIONS = "/v1/chat/completions"
REPLY = "Full-time employees receive 25 days of annual leave [1]."
QUESTIONS = ["How many days of annual leave?", "那病假呢？", "Thanks! And for part-time employees?"]

Messages = list[dict[str, str]]
Answer = tuple[str, dict[str, Any]]
Client = Callable[[httpx.AsyncClient, Messages], Awaitable[Answer]]


async def asked_streaming(client: httpx.AsyncClient, messages: Messages) -> Answer:
    """The answer as the page keeps it, and the first event."""
    body = {"question": messages[-1]["content"], "history": messages[:-1]}
    async with client.stream("POST", ASK, json=body) as response:
        got = [(name, json.loads(data)) async for name, data in events(response)]
    return got[-1][1]["answer"], got[0][1]


async def asked_whole(client: httpx.AsyncClient, messages: Messages) -> Answer:
    body = {"question": messages[-1]["content"], "history": messages[:-1], "stream": False}
    whole = (await client.post(ASK, json=body)).json()
    return whole["answer"], whole


async def completed(client: httpx.AsyncClient, messages: Messages) -> Answer:
    whole = (await client.post(COMPLETIONS, json={"model": "@default", "messages": messages})).json()
    return whole["choices"][0]["message"]["content"], whole


async def streamed(client: httpx.AsyncClient, messages: Messages) -> Answer:
    body = {"model": "@default", "messages": messages, "stream": True}
    response = await client.post(COMPLETIONS, json=body)
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks), chunks[0]


every_client = pytest.mark.parametrize("ask", [asked_streaming, asked_whole, completed, streamed])


@every_client
async def test_each_turns_prompt_begins_with_the_last_ones_prompt_and_answer(
    client: httpx.AsyncClient, engine: ScriptedEngine, ask: Client
) -> None:
    engine.replies = [REPLY]
    messages: Messages = []
    numbers: list[set[int]] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer, about = await ask(client, messages)
        messages.append({"role": "assistant", "content": answer})
        numbers.append({source["index"] for source in about["sources"]})
        assert {name: about[name] for name in ("dropped_turns", "dropped_passages", "shortened")} == {
            "dropped_turns": 0,
            "dropped_passages": 0,
            "shortened": False,
        }
    prompts = [engine.tokenizer.decode(request.prompt_ids) for request in engine.submitted]
    assert len(prompts) == len(QUESTIONS)
    assert prompts[1].startswith(prompts[0] + REPLY) and prompts[2].startswith(prompts[1] + REPLY)
    assert numbers[0] <= numbers[1] <= numbers[2]
    assert prompts[2].count("员工每年有十八天病假。") == 1


async def test_what_was_searched_for_and_what_had_to_stay_out_is_told(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    history = [{"role": "user", "content": "年假有几天？"}, {"role": "assistant", "content": "十二天。" * 400}]
    _, about = await asked_streaming(client, [*history, {"role": "user", "content": "那病假呢？"}])
    assert about["searched"][0].startswith("年假有几天？\n十二天。") and about["question"] in about["searched"]
    assert about["dropped_turns"] == 1
    assert about["prompt_tokens"] == len(engine.submitted[0].prompt_ids)
