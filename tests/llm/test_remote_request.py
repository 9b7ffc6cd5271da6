"""What `ChatRemote` sends, and what it makes of a refusal."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.responses import JSONResponse, PlainTextResponse
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import ValidationError

from llm.options import SamplingOptions
from llm.prompt.tool_turns import with_tools
from llm.prompting import PromptTooLong, UnsupportedContent
from llm.protocol import EngineBusy, EngineUnavailable, InvalidRequest, UnknownAdapter
from llm.remote import ChatRemote
from llm.remote.request import sampling_fields
from tests.llm.test_remote import Ask, City, every_way, remote, weather
from tests.remote_server import MODEL, WINDOW, RemoteServer, refusal
from tests.server import serving

NOWHERE = "http://127.0.0.1:1/v1"


@pytest.fixture
def server() -> RemoteServer:
    return RemoteServer()


@pytest.fixture
async def chat(server: RemoteServer) -> AsyncIterator[ChatRemote]:
    async with serving(server.app()) as address:
        yield remote(f"{address}/v1")


# Sampling


def test_the_defaults_are_ours() -> None:
    assert ChatRemote(base_url=NOWHERE, model=MODEL).sampling == SamplingOptions()


@every_way
async def test_only_what_was_asked_for_is_sent(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    await ask(chat, "你好")
    sent = server.received[0]
    streamed = ("stream", "stream_options")
    assert {name: value for name, value in sent.items() if name not in streamed} == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "你好"}],
        "max_tokens": 512,
        "temperature": 0.0,
    }


SENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": 7}, {"max_tokens": 7}),
    ({"max_completion_tokens": 7}, {"max_tokens": 7}),
    ({"min_tokens": 2}, {"min_tokens": 2}),
    ({"n": 2, "temperature": 0.5}, {"n": 2, "temperature": 0.5, "return_token_ids": True}),
    ({"best_of": 3, "temperature": 0.5}, {"n": 3, "temperature": 0.5, "logprobs": True, "return_token_ids": True}),
    (
        {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5},
        {"use_beam_search": True, "n": 3, "length_penalty": 0.5, "return_token_ids": True},
    ),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_k": 4}, {"top_k": 4}),
    ({"min_p": 0.1}, {"min_p": 0.1}),
    ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
    ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
    ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ({"seed": 7}, {"seed": 7}),
    ({"stop": ["。", "!"]}, {"stop": ["。", "!"]}),
    ({"stop_token_ids": [2]}, {"stop_token_ids": [2]}),
    ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}),
    ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
    ({"prompt_logprobs": 1}, {"prompt_logprobs": 1}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ({"spaces_between_special_tokens": False}, {"spaces_between_special_tokens": False}),
    ({"logit_bias": {5: 1.0}}, {"logit_bias": {"5": 1.0}}),
    ({"allowed_token_ids": [5]}, {"allowed_token_ids": [5]}),
    ({"bad_words": ["坏"]}, {"bad_words": ["坏"]}),
    ({"structured_outputs": {"choice": ["是", "否"]}}, {"structured_outputs": {"choice": ["是", "否"]}}),
    ({"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
    (
        {"structured_outputs": {"json": {"type": "object"}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "object"}},
            }
        },
    ),
    ({"structured_outputs": {"json_object": True}}, {"response_format": {"type": "json_object"}}),
    ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    (
        {"structured_outputs": {"json_object": True, "whitespace_pattern": " ?"}},
        {"structured_outputs": {"json_object": True, "whitespace_pattern": " ?"}},
    ),
    ({"thinking_token_budget": 9}, {"thinking_token_budget": 9}),
    ({"extra_args": {"only": 5}}, {"vllm_xargs": {"only": 5}}),
    ({"priority": -1}, {"priority": -1}),
    ({"cache_salt": "盐"}, {"cache_salt": "盐"}),
    ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}),
    ({"extra_body": {"session_id": "s"}}, {"session_id": "s"}),
    ({"adapter": "poet"}, {"model": "poet"}),
    ({"model": "poet"}, {"model": "poet"}),
]


@pytest.mark.parametrize(("given", "sent"), SENT, ids=lambda value: ",".join(value))
async def test_each_option_is_sent_from_a_call_and_from_bind(
    chat: ChatRemote, server: RemoteServer, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    await chat.ainvoke("hi")
    await chat.ainvoke("hi", **given)
    await chat.bind(**given).ainvoke("hi")
    plain, called, bound = server.received
    assert called == bound == plain | sent


def test_no_sampling_option_is_forgotten() -> None:
    shown = {name for given, _ in SENT for name in given}
    assert set(SamplingOptions.model_fields) - shown == {"max_length"}


@pytest.mark.parametrize("name", [name for name in SamplingOptions.model_fields if name != "max_length"])
async def test_an_option_of_the_constructor_is_sent(name: str) -> None:
    given = next(given for given, _ in SENT if name in given)
    chat = remote(NOWHERE, **{key: value for key, value in given.items() if key != "response_format"})
    assert chat._default_params == {"model": MODEL, **sampling_fields(SamplingOptions(**given))}


async def test_a_call_goes_over_bind_and_bind_over_the_constructor(server: RemoteServer) -> None:
    async with serving(server.app()) as address:
        chat = remote(f"{address}/v1", temperature=0.1, seed=7, adapter="poet", extra_body={"session_id": "s"})
        await chat.ainvoke("hi")
        await chat.bind(temperature=0.2).ainvoke("hi")
        await chat.bind(temperature=0.2).ainvoke("hi", temperature=0.3, adapter=None)
    assert [body["temperature"] for body in server.received] == [0.1, 0.2, 0.3]
    assert [body["model"] for body in server.received] == ["poet", "poet", MODEL]
    assert [(body["seed"], body["session_id"]) for body in server.received] == [(7, "s")] * 3


@every_way
async def test_an_unknown_keyword_of_a_call_names_the_nearest(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    with pytest.raises(ValueError, match="no option 'temprature'; did you mean 'temperature'"):
        await ask(chat, "hi", temprature=0.5)
    with pytest.raises(InvalidRequest, match="max_length counts the prompt too"):
        await ask(chat, "hi", max_length=5)
    assert server.received == []


def test_an_unknown_keyword_of_the_constructor_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="no option 'max_token'; did you mean 'max_tokens'"):
        remote(NOWHERE, max_token=5)
    for of_openais_other_api in ({"verbosity": "low"}, {"use_previous_response_id": True}):
        with pytest.raises(ValidationError, match="no option"):
            remote(NOWHERE, **of_openais_other_api)
    with pytest.raises(ValidationError, match="temperature"):
        remote(NOWHERE, temperature="0.5")


@pytest.mark.parametrize("name", ["gpt-5-mini", "o1-preview", "my-codex", "gpt-5-pro"])
async def test_a_models_name_changes_nothing(chat: ChatRemote, server: RemoteServer, name: str) -> None:
    named = remote(chat.openai_api_base, model=name, temperature=0.7)
    assert named.temperature == 0.7
    await named.ainvoke("hi")
    assert server.received[0]["temperature"] == 0.7
    assert server.received[0]["messages"] == [{"role": "user", "content": "hi"}]


# Messages and tools

CALLED = [
    SystemMessage("简短回答。"),
    HumanMessage([{"type": "text", "text": "北京"}, {"type": "text", "text": "天气?"}]),
    AIMessage(
        [{"type": "reasoning", "reasoning": "…"}, {"type": "tool_use", "id": "1", "name": "weather", "input": {}}]
    ),
    ToolMessage("晴", tool_call_id="1"),
]
CALLED[2].tool_calls = [{"name": "weather", "args": {"city": "北京"}, "id": "1", "type": "tool_call"}]  # type: ignore[attr-defined]


async def test_texts_of_one_message_are_one_text(chat: ChatRemote, server: RemoteServer) -> None:
    await chat.ainvoke(CALLED)
    sent = server.received[0]["messages"]
    assert [message["content"] for message in sent] == ["简短回答。", "北京天气?", None, "晴"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool"]
    (call,) = sent[2]["tool_calls"]
    assert (call["id"], json.loads(call["function"]["arguments"])) == ("1", {"city": "北京"})


async def test_an_image_is_sent_for_the_server_to_judge(chat: ChatRemote, server: RemoteServer) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa"}}
    await chat.ainvoke([HumanMessage([{"type": "text", "text": "什么?"}, image])])
    assert server.received[0]["messages"][0]["content"] == [{"type": "text", "text": "什么?"}, image]


async def test_a_call_that_is_no_json_is_left_out(chat: ChatRemote, server: RemoteServer) -> None:
    broken = AIMessage("", invalid_tool_calls=[{"name": "weather", "args": '{"ci', "id": "1", "error": None}])
    await chat.ainvoke([HumanMessage("hi"), broken, HumanMessage("again")])
    assert "tool_calls" not in server.received[0]["messages"][1]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("any", "required"),
        (True, "required"),
        ("weather", {"type": "function", "function": {"name": "weather"}}),
    ],
)
async def test_tools_are_sent_with_strict_arguments(
    chat: ChatRemote, server: RemoteServer, choice: Any, sent: Any
) -> None:
    await chat.bind_tools([weather, City], tool_choice=choice, parallel_tool_calls=False).ainvoke("hi")
    body = server.received[0]
    assert [(tool["function"]["name"], tool["function"]["strict"]) for tool in body["tools"]] == [
        ("weather", True),
        ("City", True),
    ]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (sent, False)


async def test_tools_that_may_not_be_called_are_not_sent(chat: ChatRemote, server: RemoteServer) -> None:
    await chat.bind_tools([weather], tool_choice="none").ainvoke("hi")
    assert not {"tools", "tool_choice"} & server.received[0].keys()


def test_an_unbound_tool_is_refused() -> None:
    with pytest.raises(ValueError, match="tool_choice names 'wether'"):
        remote(NOWHERE).bind_tools([weather], tool_choice="wether")


async def test_tools_can_be_put_into_words(chat: ChatRemote, server: RemoteServer) -> None:
    chat.tools_in_prompt = True
    await chat.bind_tools([weather]).ainvoke(CALLED)
    await chat.ainvoke(CALLED)
    await chat.ainvoke("hi")
    with_both, with_turns, plain = server.received
    assert with_both["messages"][0]["content"].startswith("简短回答。\n\nYou can call these tools:\n")
    assert [message["role"] for message in with_both["messages"][-3:]] == ["user", "assistant", "user"]
    assert with_both["messages"][-1]["content"] == "<tool_response>\n晴\n</tool_response>"
    assert with_both["tools"][0]["function"]["name"] == "weather"
    assert with_turns["messages"][0]["content"] == "简短回答。"
    assert with_turns["messages"][1:] == with_both["messages"][-3:]
    assert plain["messages"] == [{"role": "user", "content": "hi"}]
    assert with_tools(plain["messages"], ()) == plain["messages"]


async def test_tools_in_words_leave_no_place_for_an_image(chat: ChatRemote) -> None:
    chat.tools_in_prompt = True
    with pytest.raises(UnsupportedContent):
        await chat.bind_tools([weather]).ainvoke([HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}])])


# Refusals

AT_LEAST = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, "
    "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=2049)"
)
CHARACTERS = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains 300000 characters (more than "
    "32768 characters, which is the upper bound for 2048 input tokens). Please reduce the length of the input prompt."
)
EXACTLY = (
    "This model's maximum context length is 2048 tokens. However, you requested 2560 tokens (2048 in the messages, "
    "512 in the completion). Please reduce the length of the messages or completion."
)
FULL = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
TOO_MUCH_ASKED = [
    "max_tokens=512 cannot be greater than max_model_len=128. Please request fewer output tokens.",
    "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 2048 tokens and "
    "your request has 1600 input tokens (512 > 2048 - 1600).",
    "This model's maximum context length is 2048 tokens. However, you requested 512 output tokens and your prompt "
    "contains at least 1537 input tokens, for a total of at least 2049 tokens.",
]


@every_way
@pytest.mark.parametrize(
    ("message", "tokens", "exact"),
    [(AT_LEAST, 2049, False), (CHARACTERS, 2049, False), (EXACTLY, 2048, True)],
    ids=["at least", "characters", "exactly"],
)
async def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(
    chat: ChatRemote, server: RemoteServer, ask: Ask, message: str, tokens: int, exact: bool
) -> None:
    server.answers = [refusal(message)]
    with pytest.raises(PromptTooLong) as caught:
        await ask(chat, "hi")
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (tokens, WINDOW)
    assert ("at least" in str(caught.value)) is not exact
    assert len(server.received) == 1


@every_way
@pytest.mark.parametrize("message", TOO_MUCH_ASKED, ids=["window", "too large", "both"])
async def test_an_answer_gets_the_room_that_the_prompt_leaves(
    chat: ChatRemote, server: RemoteServer, ask: Ask, message: str
) -> None:
    server.answers = [refusal(message)]
    assert (await ask(chat, "hi")).content == "".join(server.words)
    first, second = server.received
    assert "max_tokens" not in second
    assert first == second | {"max_tokens": 512}


@every_way
async def test_a_prompt_that_fills_the_window_is_counted(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.answers = [refusal(FULL), refusal(FULL)]
    with pytest.raises(PromptTooLong) as caught:
        await ask(chat.bind_tools([weather]), "hi")
    assert caught.value.max_model_len == WINDOW
    assert "tools" in server.received[2]
    assert caught.value.prompt_tokens == len(
        json.dumps([server.received[2]["messages"], server.received[2]["tools"]], ensure_ascii=False).encode()
    )


@every_way
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, InvalidRequest),
        (422, InvalidRequest),
        (429, EngineBusy),
        (500, EngineUnavailable),
        (501, InvalidRequest),
        (502, EngineUnavailable),
        (503, EngineBusy),
    ],
)
async def test_a_refusal_is_the_exception_that_an_engine_here_raises(
    chat: ChatRemote, server: RemoteServer, ask: Ask, status: int, kind: type[Exception]
) -> None:
    server.answers = [refusal("温度不对", status)]
    with pytest.raises(kind, match="温度不对") as caught:
        await ask(chat, "hi")
    assert type(caught.value) is kind


@every_way
async def test_an_unknown_model_or_adapter_is_named(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.answers = [refusal("The model `诗人` does not exist. Valid aliases: small.", 404)]
    with pytest.raises(UnknownAdapter, match="The model `诗人` does not exist"):
        await ask(chat, "hi", adapter="诗人")


@every_way
async def test_a_wrong_address_is_said(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.answers = [JSONResponse({"detail": "Not Found"}, status_code=404)]
    with pytest.raises(InvalidRequest, match=f"{chat.openai_api_base} has no chat completions .*ends in /v1"):
        await ask(chat, "hi")
    server.answers = [PlainTextResponse("<html>bad gateway</html>", status_code=502)]
    with pytest.raises(EngineUnavailable, match=f"{chat.openai_api_base} failed with status 502"):
        await ask(chat, "hi")


@every_way
async def test_a_server_that_is_not_there_is_unavailable(ask: Ask) -> None:
    with socket.socket() as taken:  # bound but not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EngineUnavailable, match=rf"{address} does not answer: .*(refused|failed)"):
            await ask(remote(address), "hi")


@every_way
async def test_a_server_that_does_not_answer_in_time_is_unavailable(
    chat: ChatRemote, server: RemoteServer, ask: Ask
) -> None:
    server.gate, server.before_gate = asyncio.Event(), 0
    with pytest.raises(EngineUnavailable, match="does not answer"):
        await ask(chat, "hi", timeout=0.2)


@every_way
async def test_a_busy_server_is_asked_again_where_wanted(server: RemoteServer, ask: Ask) -> None:
    server.answers = [refusal("busy", 503)]
    server.answers[0].headers["retry-after-ms"] = "1"
    async with serving(server.app()) as address:
        answer = await ask(remote(f"{address}/v1", max_retries=1), "hi")
    assert answer.content == "".join(server.words)
    assert len(server.received) == 2
