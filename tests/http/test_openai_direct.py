"""The model itself in OpenAI's shape: choices, tools, formats, log-probabilities; embeddings and token counts."""

import base64
from typing import Any

import httpx
import numpy
import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.fakes import ScriptedEngine, WordCountEmbedder
from tests.http.test_openai import COMPLETIONS, MESSAGES

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def plain(engine: ScriptedEngine) -> ScriptedEngine:
    engine.reset("Paris, of course")
    return engine


@pytest.mark.parametrize("stream", [True, False])
async def test_each_choice_is_whole_and_ends_once(
    official: openai.AsyncOpenAI, engine: ScriptedEngine, stream: bool
) -> None:
    engine.reset(("one two", "一 二 三", "x"))
    got: Any = await official.chat.completions.create(
        model="scripted", messages=MESSAGES, n=3, temperature=1, stream=stream, **_usage(stream)
    )
    if not stream:
        assert [choice.message.content for choice in got.choices] == ["one two", "一 二 三", "x"]
        assert [choice.finish_reason for choice in got.choices] == ["stop"] * 3
        assert got.usage.completion_tokens == 6
        return
    texts, ended, roles, usage = ["", "", ""], [0, 0, 0], [0, 0, 0], None
    async for chunk in got:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
            ended[choice.index] += choice.finish_reason == "stop"
    assert texts == ["one two", "一 二 三", "x"]
    assert ended == roles == [1, 1, 1]
    assert usage and usage.completion_tokens == 6 and usage.prompt_tokens > 0


def _usage(stream: bool) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if stream else {}


async def test_log_probabilities_come_streamed_and_whole(official: openai.AsyncOpenAI, plain: ScriptedEngine) -> None:
    asked: Any = {"model": "scripted", "messages": MESSAGES, "logprobs": True, "top_logprobs": 1}
    whole = await official.chat.completions.create(**asked)
    assert whole.choices[0].logprobs and whole.choices[0].logprobs.content
    tokens = [place.token for place in whole.choices[0].logprobs.content]
    assert tokens == ["Paris, ", "of ", "course"]
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 1
    chunks = [chunk async for chunk in await official.chat.completions.create(**asked, stream=True)]
    places = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
    assert [place.token for some in places for place in some or ()] == tokens


async def test_a_schema_reaches_the_engine(official: openai.AsyncOpenAI, plain: ScriptedEngine) -> None:
    schema = {"type": "object", "properties": {"城市": {"type": "string"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    await official.chat.completions.create(model="scripted", messages=MESSAGES, response_format=form)
    assert plain.submitted[-1].sampling.structured_outputs == {"json": schema}


async def test_vllms_sampling_options_go_along(official: openai.AsyncOpenAI, plain: ScriptedEngine) -> None:
    await official.chat.completions.create(
        model="scripted",
        messages=MESSAGES,
        logit_bias={"5": -100},
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "guided_choice": ["是", "否"]},
    )
    sampling = plain.submitted[-1].sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (5, 0.1, 1.1)
    assert sampling.logit_bias == {5: -100}
    assert sampling.structured_outputs == {"choice": ["是", "否"]}


async def test_fields_of_other_clients_are_ignored(client: httpx.AsyncClient, plain: ScriptedEngine) -> None:
    more = {
        "user": "u",
        "store": True,
        "metadata": {"a": 1},
        "chat_id": "7",
        "features": {},
        "stop": None,
        "seed": None,
    }
    response = await client.post(COMPLETIONS, json={"model": "scripted", "messages": MESSAGES, **more})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"temprature": 0.5}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"type": "web"}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "other"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"n": 3, "temperature": 0}, "n 3"),
        ({"n": 1000}, "n"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"logits_processors": ["x"]}, "logits_processors"),
    ],
    ids=str,
)
async def test_a_field_that_cannot_be_meant_is_named(
    client: httpx.AsyncClient, plain: ScriptedEngine, wrong: dict[str, Any], names: str
) -> None:
    response = await client.post(COMPLETIONS, json={"model": "scripted", "messages": MESSAGES, **wrong})
    assert response.status_code == 400, response.text
    assert names in response.json()["error"]["message"]
    assert not plain.submitted


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 2, "temperature": 1},
        {"tools": [WEATHER]},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
async def test_what_an_answer_from_documents_cannot_have_is_refused(
    client: httpx.AsyncClient, engine: ScriptedEngine, wrong: dict[str, Any]
) -> None:
    response = await client.post(COMPLETIONS, json={"model": "@default", "messages": MESSAGES, **wrong})
    assert response.status_code == 400
    assert next(iter(wrong)) in response.json()["error"]["message"]
    assert not engine.submitted


async def test_a_cut_call_goes_back_as_it_was_written(client: httpx.AsyncClient, plain: ScriptedEngine) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Pa'}}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}, *MESSAGES]
    response = await client.post(COMPLETIONS, json={"model": "scripted", "messages": messages})
    assert response.status_code == 200, response.text


async def test_langchains_client_works_unchanged(client: httpx.AsyncClient, plain: ScriptedEngine) -> None:
    chat = ChatOpenAI(
        model="scripted", base_url=f"{client.base_url}/v1", api_key="none", http_async_client=client, max_retries=0
    )
    answer = await chat.ainvoke("Where?")
    assert answer.text == "Paris, of course"
    assert answer.usage_metadata and answer.usage_metadata["output_tokens"] == 3
    assert "".join([chunk.text async for chunk in chat.astream("Where?")]) == "Paris, of course"
    plain.reset("25 days.")
    grounded = await chat.bind(model="@default").ainvoke("How many days of annual leave?")
    assert grounded.text


async def test_embeddings_are_those_of_the_knowledge_bases(
    official: openai.AsyncOpenAI, client: httpx.AsyncClient, embedder: WordCountEmbedder
) -> None:
    texts = ["annual leave", "病假"]
    whole = await official.embeddings.create(model="word-count", input=texts)  # the client asks for base64
    for made, expected in zip(whole.data, embedder.embed_documents(texts), strict=True):
        assert made.embedding == pytest.approx(expected, abs=1e-6)
    assert whole.usage.prompt_tokens == 4
    plain = (
        await client.post("/v1/embeddings", json={"model": "", "input": "病假", "encoding_format": "base64"})
    ).json()
    packed = numpy.frombuffer(base64.b64decode(plain["data"][0]["embedding"]), dtype="<f4")
    assert packed.tolist() == pytest.approx(whole.data[1].embedding, abs=1e-6)
    langchain = OpenAIEmbeddings(
        model="word-count",
        base_url=f"{client.base_url}/v1",
        api_key="none",
        http_async_client=client,
        check_embedding_ctx_length=False,
    )
    assert await langchain.aembed_query("病假") == pytest.approx(whole.data[1].embedding, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": [1, 2, 3]}, 400),
        ({"input": []}, 400),
        ({"input": ["a", " "]}, 400),
        ({"input": ["a"] * 2049}, 400),
        ({"input": "a", "dimensions": 7}, 400),
        ({"input": "a", "model": "text-embedding-3-small"}, 404),
    ],
    ids=["ids", "none", "empty", "many", "dimensions", "model"],
)
async def test_what_cannot_be_embedded_is_refused(client: httpx.AsyncClient, body: Any, status: int) -> None:
    assert (await client.post("/v1/embeddings", json=body)).status_code == status


async def test_tokens_are_counted_as_they_are_sent(client: httpx.AsyncClient, plain: ScriptedEngine) -> None:
    await client.post(COMPLETIONS, json={"model": "scripted", "messages": MESSAGES})
    counted = (await client.post("/tokenize", json={"model": "scripted", "messages": MESSAGES})).json()
    assert counted["tokens"] == list(plain.submitted[-1].prompt_ids)
    assert counted["count"] == len(counted["tokens"])
    assert counted["max_model_len"] == plain.max_model_len
    assert (await client.post("/tokenize", json={"prompt": "你好"})).json()["count"] == 6
    assert (await client.post("/tokenize", json={})).status_code == 400
