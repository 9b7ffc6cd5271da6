"""The knowledge-base endpoint over a real socket."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from llm.protocol import EngineBusy, EngineUnavailable
from tests.fakes import ScriptedEngine, WordCountEmbedder
from tests.server import events, until

ASK = "/v1/knowledge-bases/default/ask"
QUESTION = {"question": "How many days of annual leave do full-time employees get?"}


async def ask(client: httpx.AsyncClient, **more: Any) -> list[tuple[str, Any]]:
    async with client.stream("POST", ASK, json=QUESTION | more) as response:
        assert response.status_code == 200
        return [(name, json.loads(data)) async for name, data in events(response)]


async def test_a_stream_is_sources_then_tokens_then_done(client: httpx.AsyncClient) -> None:
    got = await ask(client)
    names = [name for name, _ in got]
    assert names[0] == "sources"
    assert names[-1] == "done"
    assert set(names[1:-1]) == {"token"}
    answer = "".join(data["text"] for name, data in got if name == "token")
    assert got[-1][1]["answer"] == answer == "Full-time employees receive 25 days of annual leave."
    citation = got[-1][1]["citations"][0]
    source = got[0][1]["sources"][citation["source"] - 1]
    assert citation["file"] == "leave.md"
    assert citation["quote"] == "Full-time employees receive 25 days of annual leave per year."
    assert source["text"][citation["start"] - source["start"] :].startswith(citation["quote"])


async def test_a_stream_says_that_it_must_not_be_held_back(client: httpx.AsyncClient) -> None:
    headers = {"Accept-Encoding": "gzip"}
    async with client.stream("POST", ASK, json=QUESTION, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers


async def test_the_first_event_comes_while_the_model_still_runs(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.gate = asyncio.Event()
    async with client.stream("POST", ASK, json=QUESTION) as response:
        stream = events(response)
        assert (await anext(stream))[0] == "sources"
        assert engine.unfinished == 1
        engine.gate.set()
        assert [name async for name, _ in stream][-1] == "done"


async def test_without_streaming_the_same_comes_as_one_object(client: httpx.AsyncClient) -> None:
    whole = (await client.post(ASK, json=QUESTION | {"stream": False})).json()
    streamed = await ask(client)
    assert whole["answer"] == streamed[-1][1]["answer"]
    assert whole["sources"] == streamed[0][1]["sources"]
    assert whole["citations"] == streamed[-1][1]["citations"]


async def test_chinese_is_answered_from_chinese(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.replies = ["员工每年有十八天病假。"]
    got = await ask(client, question="病假有几天？")
    assert got[-1][1]["citations"][0]["quote"] == "员工每年有十八天病假。"


async def test_history_reaches_the_model(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    history = [{"role": "user", "content": "Is there {annual} leave?"}, {"role": "assistant", "content": "Yes {0}."}]
    await ask(client, history=history)
    prompt = engine.tokenizer.decode(engine.submitted[-1].prompt_ids)
    assert "Is there {annual} leave?" in prompt
    assert "Yes {0}." in prompt


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_request"),
        (b"{", "invalid_json"),
        (b'{"question": ""}', "empty_question"),
        ('{"question": " \\n\u3000"}'.encode(), "empty_question"),
        (b'{"question": 7}', "invalid_request"),
        (b'{"question": "a", "temprature": 1}', "invalid_request"),
        (b'{"question": "a", "temperature": 3}', "invalid_request"),
        (b'{"question": "a", "max_tokens": 0}', "invalid_request"),
        (b'{"question": "a", "max_tokens": 100000000000000000000000}', "invalid_request"),
        (b'{"question": "a", "history": [{"role": "system", "content": "x"}]}', "invalid_request"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"question": "\\ud800"}', "invalid_request"),
        (b'{"question": "a", "history": [{"role": "user", "content": "\\udfff"}]}', "invalid_request"),
    ],
)
async def test_a_bad_body_is_refused_before_any_work(
    client: httpx.AsyncClient, engine: ScriptedEngine, body: bytes, code: str
) -> None:
    response = await client.post(ASK, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code
    assert not engine.submitted


async def test_a_question_longer_than_the_window_is_refused_with_both_numbers(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    response = await client.post(ASK, json={"question": "汉" * 2000})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "4096" in error["message"]
    assert "644" in error["message"]  # 2,000 characters of three bytes, one token each, system text and template
    assert not engine.submitted
    assert (await ask(client))[-1][0] == "done"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/knowledge-bases/nobody/ask", 404, "unknown_knowledge_base"),
        ("/v1/knowledge-bases/空/ask", 409, "empty_knowledge_base"),
        ("/v1/nothing", 404, "not_found"),
    ],
)
async def test_what_is_not_there_is_said(client: httpx.AsyncClient, path: str, status: int, code: str) -> None:
    response = await client.post(path, json=QUESTION)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("refusal", "code"), [(EngineBusy("full"), "engine_busy"), (EngineUnavailable("dead"), "engine_unavailable")]
)
async def test_what_fails_before_the_first_byte_has_a_status(
    client: httpx.AsyncClient, engine: ScriptedEngine, refusal: Exception, code: str, stream: bool
) -> None:
    engine.refusal = refusal
    response = await client.post(ASK, json=QUESTION | {"stream": stream})
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["error"]["code"] == code


async def test_what_fails_after_the_first_byte_is_one_error_event(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.replies = [EngineUnavailable("the vLLM engine has died")]
    got = await ask(client)
    assert [name for name, _ in got] == ["sources", "token", "error"]
    assert got[-1][1]["error"]["code"] == "engine_unavailable"
    assert engine.unfinished == 0


async def test_an_unforeseen_failure_shows_nothing_of_its_inside(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.replies = [RuntimeError("a secret")]
    got = await ask(client)
    assert got[-1][1]["error"]["code"] == "internal_error"
    assert "secret" not in str(got[-1])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("before_gate", [0, 3])
async def test_a_client_that_leaves_frees_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool, before_gate: int
) -> None:
    engine.gate, engine.before_gate = asyncio.Event(), before_gate
    asking = asyncio.create_task(client.post(ASK, json=QUESTION | {"stream": stream}))
    await until(lambda: engine.unfinished == 1)
    asking.cancel()
    await until(lambda: engine.unfinished == 0, seconds=1)


async def test_a_client_that_leaves_while_retrieving_never_reaches_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine, embedder: WordCountEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()

    def slow(_: str) -> list[float]:
        entered.set()
        release.wait(10)
        return [0.0] * 256

    monkeypatch.setattr(embedder, "embed_query", slow)
    asking = asyncio.create_task(client.post(ASK, json=QUESTION))
    await until(entered.is_set)
    asking.cancel()
    await until(asking.done)
    # Answered while the embedder still blocks its thread; the best of three, for a machine that is busy otherwise.
    answers = [await client.get("/health/live") for _ in range(3)]
    assert min(answer.elapsed.total_seconds() for answer in answers) < 0.1
    release.set()
    assert (await client.get("/health/ready")).json()["unfinished_requests"] == 0
    assert not engine.submitted


async def test_a_stopping_service_ends_its_streams_with_an_error_event(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.gate = asyncio.Event()
    async with client.stream("POST", ASK, json=QUESTION) as response:
        stream = events(response)
        await anext(stream)
        await engine.stop_accepting()
        name, data = [event async for event in stream][-1]
    assert name == "error"
    assert json.loads(data)["error"]["code"] == "service_stopping"
    assert (await client.get("/health/ready")).status_code == 503
    assert (await client.post(ASK, json=QUESTION)).status_code == 503


async def test_an_unforeseen_failure_before_the_first_byte_is_a_500_and_the_connection_lives(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.refusal = RuntimeError("a secret")
    response = await client.post(ASK, json=QUESTION)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert "connection" not in response.headers
    engine.refusal = None
    assert (await ask(client))[-1][0] == "done"


async def test_a_body_is_bounded_while_it_is_read(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    response = await client.post(ASK, json={"question": "a" * (2 * 2**20)})
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
    assert not engine.submitted
    assert (await ask(client))[-1][0] == "done"


async def test_a_long_conversation_loses_its_oldest_turns_and_is_answered(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    turn = [{"role": "user", "content": "Is there leave? " * 20}, {"role": "assistant", "content": "Yes."}]
    got = await ask(client, history=turn * 1000, max_tokens=8)
    assert got[-1][0] == "done"
    assert got[0][1]["prompt_tokens"] == len(engine.submitted[-1].prompt_ids) <= engine.max_model_len - 8
    assert got[0][1]["dropped_turns"] > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_k_threshold_and_filter_of_a_request_hold(client: httpx.AsyncClient, stream: bool) -> None:
    async def sources(**more: Any) -> list[str]:
        body = {"question": "Leave is 25 days.", "stream": stream} | more
        # The first filter of a process loads torch.
        async with client.stream("POST", "/v1/knowledge-bases/three/ask", json=body, timeout=60) as response:
            whole = [json.loads(data) async for _, data in events(response)] if stream else [await response.aread()]
        return [one["text"] for one in (whole[0] if stream else json.loads(whole[0]))["sources"]]

    every = await sources()
    assert len(every) == 3
    assert await sources(k=1) == every[:1] == ["Leave is 25 days."]
    assert await sources(k=1000) == every
    assert await sources(filter={"year": {"$gt": 2024}}) == ["Leave is 30 days from 2025 on."]
    assert await sources(question="zyzzyva", score_threshold=1) == await sources(filter={"year": 1999}) == []


@pytest.mark.parametrize(
    ("question", "refusal"), [("How many days?", "The documents do not"), ("有几天？", "文档中没有")]
)
@pytest.mark.parametrize("mode", ["strict", "balanced"])
async def test_an_answer_to_nothing_found_says_so(
    client: httpx.AsyncClient, engine: ScriptedEngine, question: str, refusal: str, mode: str
) -> None:
    asked = {"question": question, "score_threshold": 1, "grounding": mode, "stream": False}
    whole = (await client.post(ASK, json=asked)).json()
    assert whole["sources"] == whole["citations"] == []
    assert whole["answer"].startswith(refusal) and whole["finish_reason"] == "refusal"
    assert engine.submitted == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"k": 1001},
        {"score_threshold": 1.5},
        {"score_threshold": -0.1},
        {"filter": {"year": {"$foo": 1}}},
        {"filter": {"$or": []}},
        {"filter": {"year": {}}},
        {"filter": {"year": None}},
        {"filter": "leave.md"},
    ],
    ids=str,
)
async def test_a_search_that_cannot_be_meant_is_a_bad_request(client: httpx.AsyncClient, wrong: dict[str, Any]) -> None:
    answered = await client.post(ASK, json=QUESTION | wrong)
    assert 400 <= answered.status_code < 500
    assert next(iter(wrong)) in str(answered.json()["error"])
