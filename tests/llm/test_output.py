"""Answers that are plain text, single tokens, where calls begin, and which parsers a chat template asks for."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm import vllm_names
from llm.chat import ChatVLLM
from llm.options import EngineOptions, SamplingOptions
from llm.output import OutputFormat, ToolUse
from llm.prompt.control import backend_of
from llm.protocol import Delta, InvalidRequest
from llm.reading.calls import CallsFromStart, CallStart
from llm.reading.parsers import call_start, parsers_of
from llm.reading.reader import Token, Tokens, Written
from tests.fakes import ScriptedEngine, byte_tokenizer
from tests.templates import FAMILIES

TOOL = {"type": "function", "function": {"name": "find_height", "parameters": {"type": "object", "properties": {}}}}
WORDS = ["甲", "山 ", "a", "<", "</", ">", "tool", "_call", "{", '"name"', '"', ": ", "find_height", "other", "\n", "é"]
texts = st.lists(st.sampled_from(WORDS)).map("".join)


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise AssertionError(f"{name} is imported")

    monkeypatch.setattr(vllm_names, "import_module", import_module)


# Plain text


@pytest.mark.usefixtures("no_vllm")
@pytest.mark.parametrize("use", [ToolUse(), ToolUse([TOOL], "none")])
def test_an_answer_without_tools_and_reasoning_is_text_and_needs_no_vllm(use: ToolUse) -> None:
    form = OutputFormat(ScriptedEngine(), use, constraint={"regex": "a+"})
    assert form.applied_to(SamplingOptions(temperature=0.5)) == SamplingOptions(
        temperature=0.5, structured_outputs={"regex": "a+"}
    )
    assert form.reasoning_ended([1, 2]) is None
    reader = form.reader([1, 2])
    assert reader.read(Delta("<think>", [5])) == Written("<think>")
    assert reader.finish_reason is None
    assert reader.read(Delta("甲", [6], "length")) == Written("甲")
    assert reader.finish_reason == "length"


@pytest.mark.usefixtures("no_vllm")
async def test_the_chat_model_answers_without_vllm() -> None:
    assert (
        await ChatVLLM(engine=ScriptedEngine("<think>甲</think> 乙")).ainvoke("问")
    ).content == "<think>甲</think> 乙"


@pytest.mark.usefixtures("no_vllm")
def test_tools_for_a_model_whose_format_is_not_known_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"set engine\.tool_call_parser"):
        OutputFormat(ScriptedEngine(), ToolUse([TOOL]))


# Which parsers


@pytest.mark.parametrize(
    ("family", "tools", "reasoning"),
    [
        ("qwen", "hermes", "qwen3"),
        ("deepseek", "hermes", "deepseek_r1"),
        ("llama_3", "llama3_json", None),
        ("mistral_tekken", "mistral", None),
        ("smollm", "hermes", None),
    ],
)
def test_the_parsers_are_those_of_what_the_chat_template_writes(family: str, tools: str, reasoning: str | None) -> None:
    assert parsers_of(EngineOptions(), FAMILIES[family]()) == (tools, reasoning)


@pytest.mark.parametrize(
    ("template", "parsers"),
    [
        ("", ("hermes", None)),
        ("{{ tools }}", (None, None)),
        ("{{ tools }}<tool_call><function=", ("qwen3_coder", None)),
        ("{{ tools }}<|python_tag|>", ("llama3_json", None)),
        ("{{ tools }}<start_function_call>", ("functiongemma", None)),
        ("{{ tools }}functools", ("phi4_mini_json", None)),
        ("[THINK]", ("hermes", "mistral")),
        ("enable_thinking <think>", ("hermes", "qwen3")),
        ({"default": "", "tool_use": "{{ tools }}[TOOL_CALLS]"}, ("mistral", None)),
        ({"default": "<think>"}, ("hermes", "deepseek_r1")),
    ],
)
def test_marks_in_a_template_name_the_parsers(template: Any, parsers: tuple[str | None, str | None]) -> None:
    assert parsers_of(EngineOptions(), SimpleNamespace(chat_template=template)) == parsers  # type: ignore[arg-type]


def test_the_options_go_before_the_template() -> None:
    options = EngineOptions(tool_call_parser="pythonic", reasoning_parser="none")
    assert parsers_of(options, FAMILIES["qwen"]()) == ("pythonic", None)


# Single tokens


def tokens_of(deltas: list[Delta], *, hides: bool = True) -> list[Token]:
    tokens = Tokens(backend_of(byte_tokenizer()), [], hides_special_tokens=hides)
    return [token for delta in deltas for token in tokens.of(delta)]


@given(texts, st.lists(st.integers(0, 4)), st.integers(0, 12))
def test_each_token_comes_with_its_text_when_that_has_come(text: str, lengths: list[int], held_back: int) -> None:
    ids = byte_tokenizer().encode(text, add_special_tokens=False)
    alone = tokens_of([Delta(text, ids, "stop")])
    deltas, at, given_text = [], 0, 0
    for length in lengths:
        part, at = ids[at : at + length], at + length
        shown = max(given_text, len("".join(token.text for token in alone[:at])) - held_back)
        deltas.append(Delta(text[given_text:shown], part))
        given_text = shown
    deltas.append(Delta(text[given_text:], ids[at:], "stop"))
    assert tokens_of(deltas) == alone
    assert "".join(token.text for token in alone) == text
    assert [token.id for token in alone] == ids


def test_a_token_that_is_not_shown_has_no_text() -> None:
    special = byte_tokenizer().convert_tokens_to_ids("<|im_end|>")
    a, b = byte_tokenizer().encode("ab", add_special_tokens=False)
    hidden = [Delta("a", [a, special]), Delta("b", [b]), Delta("", [special], "stop")]
    assert tokens_of(hidden) == [("a", a), ("", special), ("b", b), ("", special)]
    shown = [Delta("a<|im_end|>", [a, special]), Delta("b", [b]), Delta("", [special], "stop")]
    assert tokens_of(shown, hides=False) == [("a", a), ("<|im_end|>", special), ("b", b), ("", special)]


def test_what_a_stop_string_cuts_off_is_missing_from_its_tokens() -> None:
    ids = byte_tokenizer().encode("abcd", add_special_tokens=False)
    assert [token.text for token in tokens_of([Delta("", ids[:2]), Delta("ab", ids[2:], "stop")])] == ["a", "b", "", ""]


def test_text_that_is_no_tokens_text_comes_all_the_same() -> None:
    assert (
        "".join(token.text for token in tokens_of([Delta("Hello ", [0]), Delta("世界", [1], "stop")])) == "Hello 世界"
    )


# Where calls begin

AUTO = SimpleNamespace(tool_choice="auto")


class Recording:
    """A parser that finds nothing, and what it got."""

    def __init__(self) -> None:
        self.got = ""

    def parse_delta(self, text: str, *_: Any, **__: Any) -> None:
        self.got += text


def after(start: CallStart, text: str, lengths: list[int], *, finish_reason: str = "stop") -> tuple[str, str]:
    """What is text, and what the parser gets, of a text that comes in pieces."""
    recording, written = Recording(), Written()
    calls = CallsFromStart(recording, AUTO, start)
    while text:
        length = lengths.pop() if lengths else 1
        calls.read(Token(text[:length], None), written)
        text = text[length:]
    before = written.text
    calls.end(written, cut=finish_reason == "length")
    assert written.text.startswith(before)
    return written.text, recording.got


@pytest.mark.parametrize("parser", ["hermes", "llama3_json"])
@given(texts, st.lists(st.integers(1, 5)))
def test_without_a_call_all_is_text_and_from_its_beginning_on_the_parser_gets_it(
    parser: str, text: str, lengths: list[int]
) -> None:
    start = call_start(parser, ["find_height", "a.b"])
    assert start
    began = start.whole.search(text)
    assert after(start, text, lengths) == (text, text[began.start() :] if began else "")


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('好。{"name": "find_height", "p', '{"name": "find_height", "p'),
        ('{ "name" :"a.b"', '{ "name" :"a.b"'),
        ('{"type": "function", "name": "find_height"', '{"type": "function", "name": "find_height"'),
        ("<|python_tag|>{", "<|python_tag|>{"),
        ('{"name": "find_height_of"', ""),
        ('{"name": "axb"', ""),
        ('{"a": {"name": "Bob"}}', ""),
    ],
)
def test_a_call_in_json_begins_with_the_name_of_a_tool(text: str, call: str) -> None:
    start = call_start("llama3_json", ["find_height", "a.b"])
    assert start and after(start, text, [], finish_reason="length") == (text.removesuffix(call), call)


def test_a_text_is_held_back_no_longer_than_it_may_begin_a_call() -> None:
    start, written = CallStart.of("<tool_call>"), Written()
    calls = CallsFromStart(Recording(), AUTO, start)
    shown = []
    for character in "a<b <tool!":
        calls.read(Token(character, None), written)
        shown.append(written.text)
    assert shown == ["a", "a", "a<b", "a<b ", *["a<b "] * 5, "a<b <tool!"]


def test_vllms_newer_parsers_look_for_the_beginning_themselves() -> None:
    assert call_start("mistral", ["a"]) is None
    assert call_start("qwen3_coder", ["a"]) is None
