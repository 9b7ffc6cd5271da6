"""How vLLM's parsers of tool calls read answers, however they are cut into deltas."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.options import SamplingOptions
from llm.output import OutputFormat, ToolUse
from llm.protocol import InvalidRequest
from tests.deltas import EVERY, Read, SpeakingEngine, deltas_of, ids_of, put_together, read
from tests.templates import deepseek, gemma, llama_3, mistral_tekken, phi_4, qwen

TOOL = {
    "type": "function",
    "function": {
        "name": "find_height",
        "description": "How high a mountain is.",
        "parameters": {
            "type": "object",
            "properties": {"mountain": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["mountain"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "find_height"}}

Call = tuple[str, dict[str, Any]]


def hermes(calls: Sequence[Call]) -> list[str]:
    return _between(
        "<tool_call>", "</tool_call>", [f'\n{{"name": "{n}", "arguments": {_json(a)}}}\n' for n, a in calls]
    )


def llama(calls: Sequence[Call]) -> list[str]:
    return ["; ".join(f'{{"name": "{name}", "parameters": {_json(arguments)}}}' for name, arguments in calls)]


def mistral(calls: Sequence[Call]) -> list[str]:
    return ["[TOOL_CALLS]", _json([{"name": name, "arguments": arguments} for name, arguments in calls])]


def phi(calls: Sequence[Call]) -> list[str]:
    return [f"functools{_json([{'name': name, 'arguments': arguments} for name, arguments in calls])}"]


def qwen_coder(calls: Sequence[Call]) -> list[str]:
    def parameters(arguments: dict[str, Any]) -> str:
        return "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())

    written = [f"\n<function={name}>\n{parameters(arguments)}</function>\n" for name, arguments in calls]
    return _between("<tool_call>", "</tool_call>", written)


def function_gemma(calls: Sequence[Call]) -> list[str]:
    def parameters(arguments: dict[str, Any]) -> str:
        return ",".join(f"{key}:<escape>{value}<escape>" for key, value in arguments.items())

    return [f"<start_function_call>call:{name}{{{parameters(a)}}}<end_function_call>" for name, a in calls]


def _between(opening: str, closing: str, written: list[str]) -> list[str]:
    return [part for each in written for part in (opening, each, closing)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Format:
    """A parser of vLLM's, a tokenizer with its tokens, how calls are written, and whether they come in pieces."""

    parser: str
    tokenizer: Callable[[], Any]
    written: Callable[[Sequence[Call]], list[str]]
    in_pieces: bool = True

    @cache  # noqa: B019
    def form(self, choice: str = "auto", reasoning: str | None = None) -> OutputFormat:
        engine = SpeakingEngine(self.tokenizer(), tools=self.parser, reasoning=reasoning)
        return OutputFormat(engine, ToolUse([TOOL], NAMED if choice == "named" else choice))

    def read(self, *parts: str, reasoning: str | None = None, choice: str = "auto", **how: Any) -> Read:
        ids = ids_of(self.tokenizer(), *parts)
        return read(self.form(choice, reasoning), self.tokenizer(), ids, **how)


FORMATS = [
    Format("hermes", qwen, hermes),
    Format("llama3_json", llama_3, llama),
    Format("mistral", mistral_tekken, mistral),
    Format("qwen3_coder", qwen, qwen_coder),
    Format("phi4_mini_json", phi_4, phi, in_pieces=False),
    Format("functiongemma", gemma, function_gemma, in_pieces=False),
]
JSON_FORMATS = [each for each in FORMATS if each.parser in ("hermes", "llama3_json", "mistral", "phi4_mini_json")]

formats = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.parser)
json_formats = pytest.mark.parametrize("format", JSON_FORMATS, ids=lambda format: format.parser)
no_deadline = settings(deadline=None, max_examples=40)  # a timing is a benchmark, never a test
any_cuts = st.sets(st.integers(1, 150))
pieces = st.sampled_from(
    ["富士", "山", "a", " ", "<", "</tool", "{", "}", "[", "]", '"', "\\", "\n", ",", ":", "👩‍👩‍👧", "1"]
)
strings = st.lists(pieces, max_size=6).map("".join)
values = st.recursive(
    strings | st.integers(-99, 99) | st.booleans() | st.none() | st.floats(-9, 9).map(lambda x: round(x, 2)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(strings, inner, max_size=2),
    max_leaves=4,
)
names = st.text("abn_", min_size=1, max_size=4)


@formats
@no_deadline
@given(
    cuts=any_cuts,
    before=st.sampled_from(["", "我来查一下。\n", "3 < 4 {x}. "]),
    stop=st.sampled_from([[], ["STOPPED HERE"]]),
)
def test_any_cut_gives_the_same_text_and_calls(format: Format, cuts: set[int], before: str, stop: list[str]) -> None:
    calls: list[Call] = [("find_height", {"mountain": "富士山 {3}"}), ("find_height", {"mountain": "Pico <b>"})]
    got = format.read(before, *format.written(calls), cuts=cuts, sampling=SamplingOptions(stop=stop))
    assert (got.reasoning, got.text.rstrip("\n"), got.finish_reason) == ("", before.rstrip("\n"), "tool_calls")
    assert [(name, json.loads(arguments)) for name, arguments in got.calls] == calls
    assert "富士山" in got.calls[0][1]


@json_formats
@no_deadline
@given(cuts=any_cuts, arguments=st.lists(st.dictionaries(names, values, max_size=3), min_size=1, max_size=2))
def test_arguments_are_read_as_they_were_meant(format: Format, cuts: set[int], arguments: list[dict[str, Any]]) -> None:
    calls = [("find_height", each) for each in arguments]
    got = format.read(*format.written(calls), cuts=cuts)
    assert [(name, json.loads(arguments)) for name, arguments in got.calls] == calls


@formats
@no_deadline
@given(cuts=any_cuts)
def test_a_call_without_arguments_has_none(format: Format, cuts: set[int]) -> None:
    got = format.read(*format.written([("find_height", {})]), cuts=cuts)
    assert got == Read(calls=(("find_height", "{}"),), finish_reason="tool_calls")


@formats
def test_calls_come_in_pieces_the_id_and_name_with_the_first(format: Format) -> None:
    found, ids = (
        format.form(),
        ids_of(format.tokenizer(), *format.written([("find_height", {"mountain": "富士山 abc"})])),
    )
    reader = found.reader([])
    deltas = deltas_of(format.tokenizer(), ids, found.applied_to(SamplingOptions()))
    fragments = [fragment for delta in deltas for fragment in reader.read(delta).tool_calls]
    assert fragments[0].id and fragments[0].name == "find_height"
    assert {(fragment.id, fragment.name, fragment.index) for fragment in fragments[1:]} <= {(None, None, 0)}
    assert (len(fragments) > 2) is format.in_pieces


@formats
@no_deadline
@given(cuts=any_cuts, length=st.integers(1, 40))
def test_a_call_that_is_cut_gives_what_there_was_of_it(format: Format, cuts: set[int], length: int) -> None:
    parts = format.written([("find_height", {"mountain": "富士山"})])
    ids = ids_of(format.tokenizer(), *parts)
    cut = ids[: min(length, len(ids) - 1)]
    ways = [
        read(format.form(), format.tokenizer(), cut, cuts=each, finish_reason="length") for each in (cuts, EVERY, ())
    ]
    assert ways == [ways[0]] * 3
    assert ways[0].finish_reason == "length"
    assert ways[0].text.strip() in ("", format.tokenizer().decode(cut).strip())
    for name, arguments in ways[0].calls:
        assert name == "find_height"
        assert '{"mountain": "富士山"}'.startswith(arguments.partition("\\n<")[0])  # a part of a tag, in one format
        assert arguments == '{"mountain": "富士山"}' or not _is_json(arguments)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


TEXTS = [
    "3 < 4 <",
    "a {b} c",
    "{b} c",
    '{"a": 1}',
    '{"name": "Bob"}',
    "[TOOL",
    "functools.cache",
    "<tool_cal",
    "<",
    "{",
    "",
]


@formats
@pytest.mark.parametrize("text", TEXTS)
@no_deadline
@given(cuts=any_cuts)
def test_text_that_is_no_call_stays_the_text_it_is(format: Format, text: str, cuts: set[int]) -> None:
    assert format.read(text, cuts=cuts) == Read(text=text)


@pytest.mark.parametrize(
    ("format", "text"),
    [(FORMATS[0], ["<tool_call>", "是标签"]), (FORMATS[1], ['{"name": "find_height"']), (FORMATS[4], ["functools[x]"])],
)
@no_deadline
@given(cuts=any_cuts)
def test_what_begins_as_a_call_and_is_none_is_text_after_all(format: Format, text: list[str], cuts: set[int]) -> None:
    got = format.read("a ", *text, cuts=cuts)
    assert got.text == "a " + "".join(text) or got.calls == (("find_height", "{}"),)


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1"])
@pytest.mark.parametrize("format", [FORMATS[0], FORMATS[3]], ids=lambda format: format.parser)
@no_deadline
@given(cuts=any_cuts, text=st.sampled_from(["", "我来查。"]))
def test_calls_are_found_after_reasoning(format: Format, reasoning: str, cuts: set[int], text: str) -> None:
    calls = format.written([("find_height", {"mountain": "富士山"})])
    got = format.read("<think>", "甲 {", "</think>", text, *calls, reasoning=reasoning, cuts=cuts)
    assert got == Read("甲 {", text, (("find_height", '{"mountain": "富士山"}'),), "tool_calls")


@no_deadline
@given(cuts=any_cuts)
def test_tags_of_reasoning_in_the_arguments_of_a_call_stay_there(cuts: set[int]) -> None:
    call = ["<tool_call>", '\n{"name": "find_height", "arguments": {"mountain": "', "<think>", "a", "</think>", '"}}\n']
    got = FORMATS[0].read("<think>", "甲", "</think>", *call, "</tool_call>", reasoning="deepseek_r1", cuts=cuts)
    assert got.calls == (("find_height", '{"mountain": "<think>a</think>"}'),)


@formats
@pytest.mark.parametrize("choice", ["required", "named"])
@no_deadline
@given(cuts=any_cuts)
def test_a_call_that_has_to_be_is_read_in_the_format_of_its_grammar(
    format: Format, choice: str, cuts: set[int]
) -> None:
    arguments = {"mountain": "富士山"}
    parts = format.written([("find_height", arguments)])
    constraint = format.form(choice).applied_to(SamplingOptions()).structured_outputs
    assert constraint
    if "json" in constraint:  # vLLM's grammar is bare JSON then
        key = "arguments" if format.parser == "mistral" else "parameters"
        bare = [{"name": "find_height", key: arguments}]
        parts = [_json(arguments if choice == "named" and format.parser != "mistral" else bare)]
    got = format.read(*parts, choice=choice, cuts=cuts)
    assert [(name, json.loads(each)) for name, each in got.calls] == [("find_height", arguments)]
    assert got.finish_reason == "tool_calls"


def test_a_model_whose_format_is_not_known_takes_no_tools() -> None:
    with pytest.raises(InvalidRequest, match="how scripted writes tool calls is not known"):
        OutputFormat(SpeakingEngine(qwen()), ToolUse([TOOL]))


def test_tools_that_vllm_refuses_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="vLLM refused the tools"):
        OutputFormat(SpeakingEngine(qwen(), tools="hermes"), ToolUse([TOOL | {"function": {"name": 3}}]))


def test_a_parser_that_does_not_fit_the_tokenizer_is_named() -> None:
    with pytest.raises(InvalidRequest, match="cannot read the model's answers with mistral"):
        OutputFormat(SpeakingEngine(deepseek(), tools="mistral"), ToolUse([TOOL]))


def test_without_a_choice_of_tools_an_answer_is_text() -> None:
    engine = SpeakingEngine(qwen(), tools="hermes")
    found = OutputFormat(engine, ToolUse([TOOL], "none"))
    ids = ids_of(engine.tokenizer, "<tool_call>", "x")
    assert put_together(
        [found.reader([]).read(each) for each in deltas_of(engine.tokenizer, ids, SamplingOptions())]
    ) == (Read(text="<tool_call>x"))
