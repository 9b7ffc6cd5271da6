"""How vLLM's parsers of reasoning read answers, however they are cut into deltas."""

import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from llm.chat import ChatVLLM
from llm.options import SamplingOptions
from llm.output import OutputFormat, ToolUse
from tests.deltas import EVERY, Read, SpeakingEngine, deltas_of, ids_of, read
from tests.templates import QWEN, byte_level, deepseek, qwen

TOKENIZERS = {"qwen3": qwen, "deepseek_r1": deepseek}
TURNS = ["<|im_start|>", "<|im_end|>"]
KEEPS_THOUGHTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)

parsers = pytest.mark.parametrize("parser", TOKENIZERS)
no_deadline = settings(deadline=None, max_examples=40)  # a timing is a benchmark, never a test
any_cuts = st.sets(st.integers(1, 60))
texts = st.lists(
    st.sampled_from(["甲", "山 ", "a", " b", "\n", "<", "</", ">", "think", "{", '"', "👩‍👩‍👧", "é", "e\u0301", "𠀋"])
).map("".join)


@cache
def keeps_thoughts() -> Any:
    return byte_level(KEEPS_THOUGHTS, *TURNS, plain=["<think>", "</think>"], eos="<|im_end|>")


@cache
def special_tags() -> Any:
    return byte_level(QWEN, *TURNS, "<think>", "</think>", "<|pad|>", eos="<|im_end|>")


@cache
def form(parser: str) -> OutputFormat:
    return OutputFormat(SpeakingEngine(TOKENIZERS[parser](), reasoning=parser), ToolUse())


def read_by(parser: str, *parts: str, prompt: tuple[str, ...] = (), **how: Any) -> Read:
    tokenizer = TOKENIZERS[parser]()
    return read(form(parser), tokenizer, ids_of(tokenizer, *parts), prompt_ids=ids_of(tokenizer, *prompt), **how)


@parsers
@pytest.mark.parametrize("cuts", [EVERY, (), (1,), (2, 3)], ids=["each token", "at once", "after one", "in the middle"])
@pytest.mark.parametrize(
    ("prompt", "parts", "ending", "reasoning", "text"),
    [
        ((), ("<think>", "甲", "</think>", "乙"), "stop", "甲", "乙"),
        (("<think>", "\n"), ("甲", "</think>", "乙"), "stop", "甲", "乙"),
        ((), ("甲", "</think>", "乙"), "stop", "甲", "乙"),
        ((), ("<think>", "</think>", "乙"), "stop", "", "乙"),
        ((), ("<think>", "甲", "</think>"), "stop", "甲", ""),
        # never closed
        ((), ("<think>", "甲"), "length", "甲", ""),
        ((), ("<think>", "甲"), "stop", "甲", ""),
        (("<think>", "\n"), ("甲",), "stop", "甲", ""),
        ((), ("甲",), "length", "甲", ""),
        # more than one
        ((), ("<think>", "甲", "</think>", "乙", "<think>", "丙", "</think>", "丁"), "stop", "甲丙", "乙丁"),
        ((), ("<think>", "甲", "</think>", "乙", "<think>", "丙"), "length", "甲丙", "乙"),
        ((), ("<think>", "甲", "</think>", "写 ", "<think>", " 就好"), "stop", "甲", "写 <think> 就好"),
        # none, as the prompt says
        (("<think>", "\n\n", "</think>", "\n\n"), ("乙",), "stop", "", "乙"),
        (("<think>", "\n\n", "</think>", "\n\n"), ("<think>", "甲", "</think>", "乙"), "stop", "甲", "乙"),
        # spelled out
        (
            (),
            ("<think>", "</think> 与 <th", "</think>", "<think> 与 </thi"),
            "stop",
            "</think> 与 <th",
            "<think> 与 </thi",
        ),
    ],
)
def test_reasoning_is_kept_out_of_the_answer(
    parser: str, prompt: tuple[str, ...], parts: tuple[str, ...], ending: str, reasoning: str, text: str, cuts: Any
) -> None:
    got = read_by(parser, *parts, prompt=prompt, cuts=cuts, finish_reason=ending)
    assert got == Read(reasoning, text, finish_reason=ending)


@parsers
@no_deadline
@given(any_cuts, texts, texts, st.booleans(), st.sampled_from([[], ["\0"], ["STOPPED HERE"]]))
def test_any_cut_gives_the_same_reasoning_and_text(
    parser: str, cuts: set[int], reasoning: str, text: str, opened: bool, stop: list[str]
) -> None:
    tag = ("<think>",)
    parts = (reasoning, "</think>", text)
    got = read_by(
        parser,
        *(parts if opened else tag + parts),
        prompt=tag if opened else (),
        cuts=cuts,
        sampling=SamplingOptions(stop=stop),
    )
    assert got == Read(_as_encoded(parser, reasoning), _as_encoded(parser, text))


def _as_encoded(parser: str, text: str) -> str:
    return unicodedata.normalize("NFC", text) if parser == "qwen3" else text


@parsers
@no_deadline
@given(any_cuts)
def test_an_answer_that_ends_without_any_tag_is_the_answer(parser: str, cuts: set[int]) -> None:
    assert read_by(parser, "只是 <b> 回答", cuts=cuts).text == "只是 <b> 回答"


@no_deadline
@given(any_cuts, st.booleans())
def test_the_parser_sees_special_tokens_and_the_caller_does_not(cuts: set[int], hidden: bool) -> None:
    tokenizer = special_tags()
    found = OutputFormat(SpeakingEngine(tokenizer, reasoning="deepseek_r1"), ToolUse())
    sampling = SamplingOptions(skip_special_tokens=hidden)
    assert not found.applied_to(sampling).skip_special_tokens
    ids = ids_of(tokenizer, "<think>", "甲", "<|pad|>", "</think>", "乙", "<|pad|>", "丙")
    shown = "" if hidden else "<|pad|>"
    assert read(found, tokenizer, ids, sampling, cuts=cuts) == Read(f"甲{shown}", f"乙{shown}丙")


def test_tokens_of_reasoning_are_counted_without_tags_and_text() -> None:
    tokenizer, found = qwen(), form("qwen3")
    ids = ids_of(tokenizer, "<think>", "a b {", "</think>", "c d")
    for cuts in (EVERY, (), (3, 5)):
        reader = found.reader([])
        deltas = deltas_of(tokenizer, ids, found.applied_to(SamplingOptions()), cuts=cuts)
        assert sum(reader.read(delta).reasoning_tokens for delta in deltas) == len(ids_of(tokenizer, "a b {"))


@pytest.mark.parametrize(
    ("parser", "tokenizer", "options", "ended"),
    [
        ("qwen3", qwen, {}, False),
        ("qwen3", qwen, {"enable_thinking": True}, False),
        ("qwen3", qwen, {"enable_thinking": False}, True),
        ("deepseek_r1", deepseek, {}, False),
        ("deepseek_r1", keeps_thoughts, {}, False),
        ("qwen3", keeps_thoughts, {}, False),
    ],
)
def test_the_tags_of_texts_and_of_earlier_turns_do_not_end_the_reasoning_of_this_one(
    parser: str, tokenizer: Any, options: dict[str, Any], ended: bool
) -> None:
    engine = SpeakingEngine(tokenizer(), reasoning=parser)
    question = HumanMessage("文件里有 </think> 与 <think>。")
    ids = ChatVLLM(engine=engine).encoder.encode([question, AIMessage("好。"), question], template_options=options)
    assert OutputFormat(engine, ToolUse(), options).reasoning_ended(ids) is ended


def test_where_no_parser_reads_reasoning_nothing_is_said_of_its_end() -> None:
    assert OutputFormat(SpeakingEngine(qwen()), ToolUse()).reasoning_ended([1, 2]) is None
