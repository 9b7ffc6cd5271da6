"""The stand-ins do what the tests that use them take for granted."""

import asyncio
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.options import SamplingOptions
from llm.protocol import Delta, EngineStopping, Generation
from tests.fakes import ScriptedEngine, byte_tokenizer

SAMPLING = SamplingOptions()


async def said(generation: Generation) -> list[Delta]:
    return [delta async for delta in generation]


async def answer(engine: ScriptedEngine, sampling: SamplingOptions = SAMPLING) -> str:
    return "".join(delta.text for delta in await said(await engine.submit([1, 2], sampling)))


async def test_replies_come_in_order_and_the_last_one_stays() -> None:
    engine = ScriptedEngine("one", "two")
    assert [await answer(engine) for _ in range(4)] == ["one", "two", "two", "two"]


async def test_a_reply_comes_word_by_word_and_ends_with_its_reason() -> None:
    deltas = await said(await ScriptedEngine("a  b\nc").submit([1], SAMPLING))
    assert [delta.text for delta in deltas] == ["a  ", "b\n", "c"]
    assert [delta.finish_reason for delta in deltas] == [None, None, "stop"]
    assert sum(len(delta.token_ids) for delta in deltas) == 3


async def test_a_reply_is_cut_at_max_tokens() -> None:
    deltas = await said(await ScriptedEngine("a b c").submit([1], SamplingOptions(max_tokens=2)))
    assert [(delta.text, delta.finish_reason) for delta in deltas] == [("a ", None), ("b ", "length")]


async def test_an_empty_reply_ends_too() -> None:
    (delta,) = await said(await ScriptedEngine("").submit([1], SAMPLING))
    assert (delta.text, delta.finish_reason) == ("", "stop")


async def test_an_exception_is_raised_after_some_text() -> None:
    broken = LookupError("broken")
    generation = await ScriptedEngine(broken).submit([1], SAMPLING)
    texts = []
    with pytest.raises(LookupError) as caught:
        async for delta in generation:
            texts.append(delta.text)
    assert caught.value is broken
    assert texts == ["Half an"]


async def test_choices_come_in_turn_each_with_its_own_ending() -> None:
    sampling = SamplingOptions(n=2, temperature=1.0, max_tokens=2)
    deltas = await said(await ScriptedEngine(("a b c", "d")).submit([1], sampling))
    assert [(delta.index, delta.text) for delta in deltas] == [(0, "a "), (1, "d"), (0, "b ")]
    assert [delta.finish_reason for delta in deltas] == [None, "stop", "length"]


async def test_one_text_is_the_text_of_every_choice() -> None:
    deltas = await said(await ScriptedEngine("a").submit([1], SamplingOptions(best_of=3, temperature=1.0)))
    assert [(delta.index, delta.text) for delta in deltas] == [(0, "a"), (1, "a"), (2, "a")]


async def test_a_words_log_probability_is_minus_its_length_where_it_is_asked_for() -> None:
    deltas = await said(await ScriptedEngine("abc d").submit([1], SamplingOptions(logprobs=0)))
    assert [delta.cumulative_logprob for delta in deltas] == [-4.0, -5.0]
    assert [place.chosen.logprob for delta in deltas for place in delta.logprobs or ()] == [-4.0, -1.0]
    (silent,) = await said(await ScriptedEngine("abc").submit([1], SAMPLING))
    assert (silent.logprobs, silent.cumulative_logprob) == (None, None)


async def test_the_prompts_log_probabilities_come_once() -> None:
    deltas = await said(await ScriptedEngine("a b").submit([1], SamplingOptions(prompt_logprobs=0)))
    assert [delta.prompt_logprobs for delta in deltas] == [[None], None]


async def test_beams_are_whole_and_the_likeliest_comes_first() -> None:
    engine = ScriptedEngine(("three words long", "two words", "one"))
    sampling = SamplingOptions(use_beam_search=True, best_of=3, n=2)
    beams = await engine.beam_search([1], sampling, adapter="law")
    assert [(beam.text, beam.finish_reason) for beam in beams] == [("one", "stop"), ("two words", "stop")]
    assert (engine.submitted[0].adapter, engine.unfinished) == ("law", 0)


async def test_what_came_in_is_listed() -> None:
    engine = ScriptedEngine()
    await engine.submit([1, 2], SamplingOptions(max_tokens=3, priority=-1))
    (submitted,) = engine.submitted
    assert (submitted.prompt_ids, submitted.sampling.max_tokens, submitted.priority) == ([1, 2], 3, -1)


async def test_a_request_is_unfinished_until_its_end_or_its_closing() -> None:
    engine = ScriptedEngine()
    read, closed = await engine.submit([1], SAMPLING), await engine.submit([1], SAMPLING)
    assert engine.unfinished == 2
    await said(read)
    assert engine.unfinished == 1
    await closed.aclose()
    assert engine.unfinished == 0
    assert await said(closed) == []


async def test_a_gate_holds_back_what_comes_after_it() -> None:
    engine = ScriptedEngine("a b")
    engine.gate, engine.before_gate = asyncio.Event(), 1
    deltas = aiter(await engine.submit([1], SAMPLING))
    assert (await anext(deltas)).text == "a "
    second = asyncio.ensure_future(anext(deltas))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done()
    engine.gate.set()
    assert (await second).text == "b"


async def test_stopping_breaks_off_what_waits_at_the_gate_and_refuses_the_next() -> None:
    engine = ScriptedEngine("a b")
    engine.gate = asyncio.Event()
    generation = await engine.submit([1], SAMPLING)
    await engine.health()
    await engine.stop_accepting()
    with pytest.raises(EngineStopping, match="broken off"):
        await said(generation)
    with pytest.raises(EngineStopping, match="no new request"):
        await engine.submit([1], SAMPLING)
    with pytest.raises(EngineStopping):
        await engine.health()


async def test_a_refusal_is_raised_and_nothing_is_listed() -> None:
    engine = ScriptedEngine()
    engine.refusal = LookupError("full")
    with pytest.raises(LookupError, match="full"):
        await engine.submit([1], SAMPLING)
    assert (engine.submitted, engine.unfinished) == ([], 0)


async def test_the_loop_is_the_running_one_unless_another_is_set() -> None:
    assert ScriptedEngine().loop is asyncio.get_running_loop()
    engine = ScriptedEngine()
    engine.loop = loop = asyncio.new_event_loop()
    assert engine.loop is loop
    loop.close()


@cache
def tokenizer() -> Any:
    return byte_tokenizer()


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_byte_is_a_token_and_every_text_comes_back(text: str) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer().decode(ids) == text


def test_the_tokenizer_writes_bos_only_when_asked() -> None:
    bos = tokenizer().bos_token_id
    assert tokenizer().encode("hi")[0] == bos
    assert bos not in tokenizer().encode("hi", add_special_tokens=False)


def test_a_turns_marks_are_one_token_each() -> None:
    ids = tokenizer().encode("<|im_start|>x<|im_end|>", add_special_tokens=False)
    assert len(ids) == 3
    assert {ids[0], ids[2]} == set(tokenizer().convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]))


def test_the_template_writes_turns_and_the_opening_of_the_answer() -> None:
    messages = [{"role": "user", "content": "hi"}]
    text = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
