"""ChatVLLM on answers that vLLM's parsers read, and which parsers are taken."""

from collections.abc import Awaitable, Callable
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from llm.chat import ChatVLLM
from llm.options import EngineOptions
from llm.protocol import EngineStartFailed
from llm.reading.parsers import checked_parsers
from tests.deltas import EVERY, SpeakingEngine, ids_of
from tests.fakes import byte_tokenizer
from tests.templates import deepseek, llama_3, qwen

CALL = ("<tool_call>", '\n{"name": "find_height", "arguments": {"mountain": "富士山 {1}"}}\n', "</tool_call>")


@tool
def find_height(mountain: str) -> int:
    """How high a mountain is."""
    return len(mountain)


async def streamed(chat: Any, question: Any, **kwargs: Any) -> BaseMessage:
    chunks: list[AIMessageChunk] = [chunk async for chunk in chat.astream(question, **kwargs)]
    return reduce(add, chunks)


async def invoked(chat: Any, question: Any, **kwargs: Any) -> BaseMessage:
    return await chat.ainvoke(question, **kwargs)


Ask = Callable[..., Awaitable[Any]]
both_ways = pytest.mark.parametrize("ask", [streamed, invoked])
any_cut = pytest.mark.parametrize("cuts", [EVERY, (), (2, 5)], ids=["each token", "at once", "in the middle"])


@both_ways
@any_cut
@pytest.mark.parametrize(("parser", "tokenizer"), [("qwen3", qwen), ("deepseek_r1", deepseek)])
async def test_reasoning_is_a_block_beside_the_answer_and_counted(
    ask: Ask, cuts: Any, parser: str, tokenizer: Any
) -> None:
    engine = SpeakingEngine(tokenizer(), "<think>", "先想 {想}", "</think>", "四十二", reasoning=parser, cuts=cuts)
    answer = await ask(ChatVLLM(engine=engine), "多少？")
    assert answer.content == "四十二"
    assert [block["type"] for block in answer.content_blocks] == ["reasoning", "text"]
    assert answer.content_blocks[0]["reasoning"] == "先想 {想}"
    assert answer.usage_metadata["output_tokens"] == len(engine.answer) + 1
    assert answer.usage_metadata["output_token_details"] == {"reasoning": len(ids_of(tokenizer(), "先想 {想}"))}
    assert answer.response_metadata["finish_reason"] == "stop"


@both_ways
async def test_reasoning_that_is_cut_leaves_the_answer_empty_and_says_so(ask: Ask) -> None:
    engine = SpeakingEngine(deepseek(), "先想想这个问题", reasoning="deepseek_r1")  # its template opens the thought
    answer = await ask(ChatVLLM(engine=engine, max_tokens=3), "多少？")
    assert answer.content == ""
    assert answer.response_metadata["finish_reason"] == "length"
    assert "先想想这个问题".startswith(answer.additional_kwargs["reasoning_content"])


async def test_reasoning_does_not_stand_in_the_next_prompt() -> None:
    chat = ChatVLLM(engine=SpeakingEngine(qwen(), "<think>", "甲甲", "</think>", "乙", reasoning="qwen3"))
    answer = await chat.ainvoke("问")
    ids = chat.encoder.encode([HumanMessage("问"), answer, HumanMessage("再问")])
    assert "乙" in qwen().decode(ids) and "甲" not in qwen().decode(ids)


@pytest.mark.parametrize(("thinking", "ended"), [(True, False), (False, True)])
async def test_the_engine_hears_whether_the_grammar_holds_at_once(thinking: bool, ended: bool) -> None:
    engine = SpeakingEngine(qwen(), "{}", reasoning="qwen3")
    chat = ChatVLLM(engine=engine, chat_template_kwargs={"enable_thinking": thinking})
    await chat.bind(response_format={"type": "json_object"}).ainvoke("问")
    (request,) = engine.submitted
    assert request.reasoning_ended is ended
    assert request.sampling.structured_outputs == {"json_object": True}


async def test_where_nothing_is_reasoned_a_schema_is_answered_in_the_text() -> None:
    engine = SpeakingEngine(qwen(), '{"a": 1}', reasoning="qwen3")
    chat = ChatVLLM(engine=engine, chat_template_kwargs={"enable_thinking": False})
    parsed = await chat.with_structured_output({"title": "A", "description": "", "type": "object"}).ainvoke("问")
    assert parsed == {"a": 1}


@both_ways
@any_cut
async def test_a_call_after_reasoning_is_a_tool_call(ask: Ask, cuts: Any) -> None:
    parts = ("<think>", "要查", "</think>", "我来查。", *CALL)
    engine = SpeakingEngine(qwen(), *parts, tools="hermes", reasoning="qwen3", cuts=cuts)
    answer = await ask(ChatVLLM(engine=engine).bind_tools([find_height]), "富士山多高？")
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("find_height", {"mountain": "富士山 {1}"}) and call["id"]
    assert answer.content == "我来查。"
    assert answer.additional_kwargs["reasoning_content"] == "要查"
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    assert answer.invalid_tool_calls == []


async def test_a_call_and_its_result_stand_in_the_next_prompt() -> None:
    chat = ChatVLLM(engine=SpeakingEngine(qwen(), *CALL, tools="hermes")).bind_tools([find_height])
    answer = await chat.ainvoke("富士山多高？")
    assert isinstance(answer, AIMessage)
    result = find_height.invoke(answer.tool_calls[0])
    assert isinstance(result, ToolMessage) and result.tool_call_id == answer.tool_calls[0]["id"]
    await chat.ainvoke(["富士山多高？", answer, result])


async def test_a_call_that_is_cut_is_an_invalid_one() -> None:
    engine = SpeakingEngine(qwen(), *CALL, tools="hermes")
    chat = ChatVLLM(engine=engine, max_tokens=len(engine.answer) - 6).bind_tools([find_height])
    answer = await chat.ainvoke("富士山多高？")
    assert isinstance(answer, AIMessage)
    assert answer.tool_calls == []
    (invalid,) = answer.invalid_tool_calls
    assert invalid["name"] == "find_height" and '{"mountain": "富士山 {1}"}'.startswith(str(invalid["args"]))
    assert answer.response_metadata["finish_reason"] == "length"


async def test_each_of_several_choices_is_read_by_itself() -> None:
    engine = SpeakingEngine(qwen(), "<think>", "甲", "</think>", "乙", reasoning="qwen3")
    result = await ChatVLLM(engine=engine, use_beam_search=True, best_of=2).agenerate([[HumanMessage("问")]])
    message = result.generations[0][0].message  # type: ignore[union-attr]
    assert (message.content, message.additional_kwargs["reasoning_content"]) == ("乙", "甲")


# Which parsers


def test_parsers_that_fit_are_taken() -> None:
    assert checked_parsers(EngineOptions(), qwen()) == ("hermes", "qwen3")
    assert checked_parsers(EngineOptions(), llama_3())[1] is None
    assert checked_parsers(EngineOptions(tool_call_parser="none", reasoning_parser="none"), qwen()) == (None, None)


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("tool_call_parser", "hermess", "vLLM has no parser 'hermess'; did you mean 'hermes'?"),
        ("reasoning_parser", "deepseekr1", "vLLM has no parser 'deepseekr1'; did you mean 'deepseek_r1'?"),
        ("reasoning_parser", "???", "vLLM has no parser '???'; known are auto, none, "),
        ("reasoning_parser", "deepseek_r1", "'deepseek_r1' does not fit the model's tokenizer: "),
        ("tool_call_parser", "mistral", "'mistral' does not fit the model's tokenizer: "),
    ],
)
def test_a_parser_of_the_options_that_cannot_be_taken_is_an_error(option: str, name: str, said: str) -> None:
    with pytest.raises(EngineStartFailed) as caught:
        checked_parsers(EngineOptions(**{option: name}), byte_tokenizer())
    assert str(caught.value).startswith(f"{option}: {said}")


@pytest.mark.parametrize(
    ("template", "taken", "warned"),
    [
        ("{# tools <tool_call> #}", ("hermes", None), ""),
        ("{# tools <tool_call> <think> #}", ("hermes", None), "reasoning_parser: 'deepseek_r1' does not fit"),
        ("{# tools [TOOL_CALLS] #}", (None, None), "tool_call_parser: 'mistral' does not fit"),
    ],
)
def test_a_parser_by_the_template_that_does_not_fit_is_left_out_with_a_warning(
    template: str, taken: tuple[str | None, str | None], warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert checked_parsers(EngineOptions(), byte_tokenizer(template)) == taken
    assert [warned in message for message in caplog.messages] == ([True] if warned else [])
