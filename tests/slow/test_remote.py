"""`ChatRemote` on vLLM's own server: LangChain's contract, and what can only be seen there."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import reduce
from operator import add
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from llm.prompting import PromptTooLong
from llm.protocol import InvalidRequest, UnknownAdapter
from llm.remote import ChatRemote
from tests.server import until
from tests.slow.vllm_server import ADAPTER, MODEL, WINDOW, VLLMServer
from tests.standard import SAMPLING, Contract

pytestmark = pytest.mark.timeout(600)  # the server's start counts too

MESSAGES = [SystemMessage("简短回答。"), HumanMessage("北京在哪里?")]
QUESTION = [HumanMessage("What is the capital of France?")]
END, COMMA = 2, 28
"""Tokens of SmolLM2: `<|im_end|>` and a comma."""


class TestChatRemote(Contract):
    @pytest.fixture(autouse=True)
    def _server(self, vllm_server: VLLMServer) -> None:
        type(self).base_url = vllm_server.base_url  # type: ignore[attr-defined]

    @property
    def chat_model_class(self) -> type[ChatRemote]:
        return ChatRemote

    @property
    def chat_model_params(self) -> dict[str, Any]:
        where = {"base_url": self.base_url, "model": MODEL}  # type: ignore[attr-defined]
        return {**where, "tools_in_prompt": True, **SAMPLING}


@pytest.fixture
def chat(vllm_server: VLLMServer) -> ChatRemote:
    return ChatRemote(base_url=vllm_server.base_url, model=MODEL, max_tokens=20, max_retries=0)


def test_a_stream_and_a_whole_answer_are_the_same(chat: ChatRemote) -> None:
    chunks = list(chat.stream(MESSAGES, logprobs=1))
    streamed, whole = reduce(add, chunks), chat.invoke(MESSAGES, logprobs=1)
    assert streamed.content == whole.content
    assert streamed.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"] == "length"
    assert streamed.response_metadata["model_name"] == whole.response_metadata["model_name"] == MODEL
    assert len(streamed.response_metadata["logprobs"]["content"]) == 20
    assert [chunk.chunk_position for chunk in chunks][-1] == "last"
    assert streamed.usage_metadata and whole.usage_metadata
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert streamed.usage_metadata[name] == whole.usage_metadata[name]  # type: ignore[literal-required]


async def test_a_message_is_counted_as_it_is_sent(chat: ChatRemote) -> None:
    tool = {"name": "weather", "description": "天气", "parameters": {"type": "object", "properties": {}}}
    for tools, in_prompt in (([], False), ([tool], False), ([tool], True)):
        chat.tools_in_prompt = in_prompt
        counted = await asyncio.to_thread(chat.get_num_tokens_from_messages, MESSAGES, tools)
        answer = await (chat.bind_tools(tools) if tools else chat).ainvoke(MESSAGES, max_tokens=1)
        assert answer.usage_metadata
        assert answer.usage_metadata["input_tokens"] == counted
    assert counted > 200
    assert chat.get_num_tokens("你好") == 4


# Leaving


async def left_by_break(chat: ChatRemote, started: Callable[[], int]) -> None:
    async for chunk in chat.astream(MESSAGES):
        if chunk.content:
            break


async def left_by_aclose(chat: ChatRemote, started: Callable[[], int]) -> None:
    async with aclosing(chat.astream(MESSAGES)) as chunks:  # type: ignore[type-var]
        await anext(chunks)


async def left_by_cancel(chat: ChatRemote, started: Callable[[], int]) -> None:
    task = asyncio.ensure_future(chat.ainvoke(MESSAGES))
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(started):
            pass
    task.cancel()
    await asyncio.wait([task])


async def left_by_thread(chat: ChatRemote, started: Callable[[], int]) -> None:
    def leave() -> None:
        for chunk in chat.stream(MESSAGES):
            if chunk.content:
                break

    await asyncio.to_thread(leave)


@pytest.mark.parametrize("leave", [left_by_break, left_by_aclose, left_by_cancel, left_by_thread])
async def test_leaving_stops_the_server(chat: ChatRemote, vllm_server: VLLMServer, leave: Any) -> None:
    await leave(chat.bind(max_tokens=1900, ignore_eos=True), vllm_server.unfinished)
    # On a busy machine the server is slow to say so; the answer itself would take longer than this on any CPU.
    await until(lambda: vllm_server.unfinished() == 0, seconds=20)


# Options that only vLLM knows

EFFECTS: list[tuple[dict[str, Any], Callable[[AIMessage], bool]]] = [
    ({"structured_outputs": {"choice": ["长城", "故宫"]}}, lambda answer: answer.content in ("长城", "故宫")),
    ({"structured_outputs": {"regex": "[甲乙丙]{5}"}}, lambda answer: len(answer.content) == 5),
    ({"allowed_token_ids": [COMMA]}, lambda answer: answer.content == "," * 20),
    ({"allowed_token_ids": [COMMA, END], "logit_bias": {END: 100}}, lambda answer: answer.content == ""),
    ({"logit_bias": {END: 100}, "min_tokens": 3}, lambda answer: used(answer) >= 3),
    ({"logit_bias": {END: 100}, "ignore_eos": True}, lambda answer: used(answer) == 20),
    (
        {"logit_bias": {END: 100}, "ignore_eos": True, "skip_special_tokens": False},
        lambda answer: answer.content == "<|im_end|>" * 20,
    ),
    ({"logit_bias": {COMMA: 100}, "stop_token_ids": [COMMA]}, lambda answer: used(answer) == 1),
    ({"logit_bias": {COMMA: 100}, "bad_words": [","]}, lambda answer: "," not in answer.content),
    ({"logit_bias": {COMMA: 100}, "stop": [",,"]}, lambda answer: answer.content == ""),
    ({"logit_bias": {COMMA: 100}, "stop": [",,"], "include_stop_str_in_output": True}, lambda a: a.content == ",,"),
    ({"prompt_logprobs": 1}, lambda answer: len(answer.response_metadata["prompt_logprobs"]) > 20),
    ({"logprobs": 3}, lambda answer: len(answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 3),
    ({"priority": -1, "spaces_between_special_tokens": False, "min_p": 0.1}, lambda answer: used(answer) == 20),
    ({"chat_template_kwargs": {"enable_thinking": False}}, lambda answer: used(answer) == 20),
    ({"max_tokens": 5000, "logit_bias": {END: 100}}, lambda answer: used(answer) == 1),
]


def used(answer: AIMessage) -> int:
    assert answer.usage_metadata
    return answer.usage_metadata["output_tokens"]


@pytest.mark.parametrize(("options", "shows"), EFFECTS, ids=["+".join(options) for options, _ in EFFECTS])
def test_an_option_has_its_effect(
    chat: ChatRemote, options: dict[str, Any], shows: Callable[[AIMessage], bool]
) -> None:
    answer = chat.invoke(MESSAGES, **options)
    assert shows(answer), answer


def test_drawing_among_one_token_is_taking_the_likeliest(chat: ChatRemote) -> None:
    likeliest = chat.invoke(QUESTION).content
    assert chat.invoke(QUESTION, temperature=1.0, top_k=1).content == likeliest
    assert chat.invoke(QUESTION, temperature=1.0, top_p=0.001, min_p=0.99).content == likeliest
    assert chat.invoke(QUESTION, logit_bias={COMMA: 100}).content != likeliest


def test_requests_share_their_prefix_with_the_same_salt_only(chat: ChatRemote) -> None:
    def cached(salt: str) -> int:
        usage = chat.invoke([HumanMessage("北京在哪里?" * 20)], cache_salt=salt, max_tokens=1).usage_metadata
        assert usage
        return usage["input_token_details"]["cache_read"]

    one, other = f"甲{uuid4()}", f"乙{uuid4()}"
    assert [cached(one), cached(one) > 0, cached(other)] == [0, True, 0]


def test_choices_and_beams_come_best_first(chat: ChatRemote) -> None:
    (drawn,) = chat.generate([QUESTION], n=2, best_of=4, temperature=1.0, seed=1).generations
    sums = [choice.generation_info["cumulative_logprob"] for choice in drawn if choice.generation_info]
    assert len(sums) == 2
    assert sums == sorted(sums, reverse=True)
    (beams,) = chat.generate([QUESTION], n=2, best_of=3, use_beam_search=True, max_tokens=6).generations
    assert len({beam.text for beam in beams}) == 2


def test_an_adapter_answers_by_its_name(chat: ChatRemote) -> None:
    base, poet = chat.invoke(MESSAGES), chat.invoke(MESSAGES, adapter=ADAPTER)
    assert base.content != poet.content
    assert poet.response_metadata["model_name"] == ADAPTER
    with pytest.raises(UnknownAdapter, match="`诗人` does not exist"):
        chat.invoke(MESSAGES, adapter="诗人")


# Refusals


def as_long_as(chat: ChatRemote, tokens: int) -> list[HumanMessage]:
    """A prompt of exactly so many tokens."""
    frame = chat.get_num_tokens_from_messages([HumanMessage(" a")]) - 1
    return [HumanMessage(" a" * (tokens - frame))]


@pytest.mark.parametrize("ask", [ChatRemote.invoke, lambda chat, messages: list(chat.stream(messages))])
def test_a_prompt_too_long_is_refused_with_both_numbers(chat: ChatRemote, ask: Any) -> None:
    for tokens, told in ((WINDOW, WINDOW), (WINDOW + 1, WINDOW + 1), (WINDOW + 700, WINDOW + 1)):
        with pytest.raises(PromptTooLong) as caught:
            ask(chat, as_long_as(chat, tokens))
        assert (caught.value.prompt_tokens, caught.value.max_model_len) == (told, WINDOW)
    with pytest.raises(PromptTooLong) as caught:
        ask(chat, [HumanMessage("汉" * 300_000)])
    assert caught.value.max_model_len == WINDOW < caught.value.prompt_tokens


def test_a_prompt_that_leaves_one_token_is_answered(chat: ChatRemote) -> None:
    answer = chat.invoke(as_long_as(chat, WINDOW - 1))
    assert (used(answer), answer.response_metadata["finish_reason"]) == (1, "length")


@pytest.mark.parametrize("ask", [ChatRemote.invoke, lambda *args, **kwargs: list(ChatRemote.stream(*args, **kwargs))])
def test_what_vllm_refuses_is_an_invalid_request(chat: ChatRemote, ask: Any) -> None:
    with pytest.raises(InvalidRequest, match="regex"):
        ask(chat, MESSAGES, structured_outputs={"regex": "(("})
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
    with pytest.raises(InvalidRequest, match="not a multimodal model"):
        ask(chat, [HumanMessage([image])])
