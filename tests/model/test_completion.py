"""The plain LLM on the real engine."""

import asyncio
import concurrent.futures
from importlib import import_module
from typing import Any

import pytest
from langchain_core.outputs import Generation

from llm.completion import VLLMCompletion
from llm.engine import Engine
from llm.prompting import PromptTooLong
from llm.protocol import InvalidRequest, UnknownAdapter
from tests.model.conftest import WINDOW
from tests.model.gauges import wait_until_idle

PROMPT = "The capital of France is"
DRAWN = {"temperature": 1.0, "seed": 3, "max_tokens": 6}


@pytest.fixture
def model(engine: Engine) -> VLLMCompletion:
    return VLLMCompletion(engine=engine, max_tokens=10)


def info(generation: Generation) -> dict[str, Any]:
    assert generation.generation_info is not None
    return generation.generation_info


def test_all_ways_of_calling_write_the_same(model: VLLMCompletion) -> None:
    invoked = model.invoke(PROMPT)
    assert "Paris" in invoked
    assert "".join(model.stream(PROMPT)) == invoked
    assert asyncio.run(model.ainvoke(PROMPT)) == invoked
    assert model.batch([PROMPT] * 3) == [invoked] * 3

    async def streamed() -> str:
        return "".join([text async for text in model.astream(PROMPT)])

    assert asyncio.run(streamed()) == invoked


@pytest.mark.parametrize(
    "prompt", [PROMPT, " 一 {x} 👩‍👩‍👧", "<|im_start|>user\nHi<|im_end|>\n", "def f(x):\n\treturn"]
)
def test_the_ids_of_a_prompt_are_those_of_vllms_own_completions(engine: Engine, prompt: str) -> None:
    parse = import_module("vllm.renderers.inputs.preprocess").parse_model_prompt

    async def rendered() -> list[int]:
        llm = engine._llm
        (made,) = await llm.renderer.render_cmpl_async([parse(llm.model_config, prompt)])
        return made["prompt_token_ids"]

    expected = asyncio.run_coroutine_threadsafe(rendered(), engine.loop).result()
    assert VLLMCompletion(engine=engine).get_token_ids(prompt) == expected


def test_usage_is_exact_for_each_answer_and_all_of_them(model: VLLMCompletion) -> None:
    prompts = [PROMPT, "从前有座山，山里有座庙，"]
    result = model.generate(prompts)
    each = [info(generation)["token_usage"] for (generation,) in result.generations]
    assert [usage["prompt_tokens"] for usage in each] == [model.get_num_tokens(prompt) for prompt in prompts]
    assert [usage["completion_tokens"] for usage in each] == [10, 10]
    assert result.llm_output and result.llm_output["model_name"] == model.engine.model
    whole = result.llm_output["token_usage"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert whole[count] == sum(usage[count] for usage in each)


def test_an_answer_has_room_and_says_when_it_was_cut(engine: Engine) -> None:
    (counted,) = VLLMCompletion(engine=engine).generate(["1, 2, 3, 4, 5,"], stop=["20"]).generations[0]
    assert (counted.text[-4:], info(counted)["finish_reason"], info(counted)["stop_reason"]) == ("19, ", "stop", "20")
    assert info(counted)["token_usage"]["completion_tokens"] > 16  # vLLM's own default
    (cut,) = VLLMCompletion(engine=engine, max_tokens=3).generate(["1, 2, 3,"]).generations[0]
    assert (cut.text, info(cut)["finish_reason"]) == (" 4,", "length")


def test_what_just_fits_is_answered_and_one_token_more_is_refused(model: VLLMCompletion) -> None:
    fits = " a" * (WINDOW - 1)
    assert model.get_num_tokens(fits) == WINDOW - 1
    (generation,) = model.generate([fits]).generations[0]
    assert info(generation)["token_usage"]["completion_tokens"] == 1
    for prompt in (fits + " a", "汉" * 300_000):
        with pytest.raises(PromptTooLong, match=f"{WINDOW}"):
            model.invoke(prompt)
    assert model.invoke(PROMPT)


def test_log_probabilities_add_up(model: VLLMCompletion) -> None:
    (generation,) = model.generate([PROMPT], logprobs=2, prompt_logprobs=1).generations[0]
    told = info(generation)
    places = told["logprobs"]["content"]
    assert "".join(place["token"] for place in places) == generation.text
    assert sum(place["logprob"] for place in places) == pytest.approx(told["cumulative_logprob"], abs=1e-4)
    assert [len(place["top_logprobs"]) for place in places] == [2] * 10
    assert len(told["prompt_logprobs"]) == model.get_num_tokens(PROMPT)
    assert told["prompt_logprobs"][0] is None


def test_a_stream_adds_up_to_the_whole(model: VLLMCompletion) -> None:
    chunks = list(model._stream(PROMPT, logprobs=1))
    together = chunks[0]
    for chunk in chunks[1:]:
        together += chunk
    (whole,) = model.generate([PROMPT], logprobs=1).generations[0]
    assert together.text == whole.text
    streamed, asked = info(together), info(whole)
    assert [place["token"] for place in streamed["logprobs"]["content"]] == [
        place["token"] for place in asked["logprobs"]["content"]
    ]
    assert streamed["token_usage"]["total_tokens"] == asked["token_usage"]["total_tokens"]
    assert streamed["cumulative_logprob"] == pytest.approx(asked["cumulative_logprob"], abs=1e-3)


def test_choices_of_each_prompt_stay_apart(model: VLLMCompletion) -> None:
    prompts = [PROMPT, "My favourite number is"]
    result = model.generate(prompts, n=3, temperature=1.5, max_tokens=6, seed=1)
    assert [len(choices) for choices in result.generations] == [3, 3]
    for prompt, choices in zip(prompts, result.generations, strict=True):
        assert len({choice.text for choice in choices}) == 3
        assert {info(choice)["token_usage"]["prompt_tokens"] for choice in choices} == {model.get_num_tokens(prompt)}
    assert result.llm_output
    assert result.llm_output["token_usage"]["prompt_tokens"] == sum(map(model.get_num_tokens, prompts))


def test_best_of_keeps_the_likeliest_of_what_was_drawn(model: VLLMCompletion) -> None:
    every = model.generate([PROMPT], n=4, logprobs=0, **DRAWN).generations[0]
    best = model.generate([PROMPT], best_of=4, n=2, **DRAWN).generations[0]
    by_likelihood = sorted(every, key=lambda choice: info(choice)["cumulative_logprob"], reverse=True)
    assert [choice.text for choice in best] == [choice.text for choice in by_likelihood[:2]]
    assert model.invoke(PROMPT, best_of=4, **DRAWN) == by_likelihood[0].text


def test_the_best_beam_is_at_least_as_likely_as_the_greedy_text(model: VLLMCompletion) -> None:
    prompts = ["My favourite number is", PROMPT]
    alike = {"max_tokens": 6, "ignore_eos": True}  # beams are ordered by the mean of their tokens
    found = model.generate(prompts, use_beam_search=True, best_of=4, n=2, **alike).generations
    greedy = model.generate(prompts, logprobs=0, **alike).generations
    for beams, (straight,) in zip(found, greedy, strict=True):
        first, second = (info(beam)["cumulative_logprob"] for beam in beams)
        assert first >= second
        assert first >= info(straight)["cumulative_logprob"] - 1e-3


def test_a_batch_shares_the_engines_steps(engine: Engine, model: VLLMCompletion) -> None:
    """Sixteen answers take the steps of one, not sixteen times as many."""
    steps = 0

    async def counted() -> None:
        nonlocal steps
        record = engine._llm.logger_manager.record

        def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            stats = kwargs.get("iteration_stats")
            steps += bool(stats and stats.num_generation_tokens)
            return record(*args, **kwargs)

        engine._llm.logger_manager.record = counting
        try:
            await model.abatch([f"{number} is a number that" for number in range(16)], max_tokens=20, ignore_eos=True)
        finally:
            engine._llm.logger_manager.record = record

    asyncio.run_coroutine_threadsafe(counted(), engine.loop).result()
    assert 20 <= steps < 60


@pytest.mark.parametrize("bad", [{"logprobs": 10**6}, {"structured_outputs": {"regex": "((("}}, {"top_p": 0}], ids=str)
def test_a_bad_option_hurts_nobody(model: VLLMCompletion, engine: Engine, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        model.batch([PROMPT, "Hi"], **bad)
    wait_until_idle(engine)
    assert model.invoke(PROMPT)


def test_one_bad_prompt_of_a_batch_raises_and_leaves_nothing_running(model: VLLMCompletion, engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"(?i)prompt"):
        model.batch([PROMPT, "", "Once upon a time"], max_tokens=1500, ignore_eos=True)
    wait_until_idle(engine)
    with pytest.raises(UnknownAdapter, match="'law'"):
        model.batch([PROMPT] * 3, adapter="law")
    wait_until_idle(engine)


def test_many_threads_share_the_engine(model: VLLMCompletion) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(lambda _: model.invoke(PROMPT), range(8)))
    assert all("Paris" in text for text in texts)
