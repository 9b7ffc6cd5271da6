"""Every sampling option shows its effect on the real engine; docs/options.md names the test of each."""

import asyncio
import json
import math
import re
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from llm.choices import collect
from llm.engine import Engine
from llm.options import SamplingOptions
from llm.protocol import Delta, InvalidRequest, TokenLogprobs

QUESTION = "What is the capital of France?"
REPEATING = "The cat sat. The cat sat. The cat sat."


class Answer:
    """One choice, put together from its deltas."""

    def __init__(self, deltas: list[Delta]) -> None:
        self.text = "".join(delta.text for delta in deltas)
        self.ids = [token for delta in deltas for token in delta.token_ids]
        self.finish_reason = deltas[-1].finish_reason
        self.stop_reason = deltas[-1].stop_reason
        self.cumulative_logprob = deltas[-1].cumulative_logprob or 0.0
        self.cached_tokens = deltas[-1].cached_tokens
        self.logprobs: list[TokenLogprobs] = [place for delta in deltas for place in delta.logprobs or ()]
        self.prompt_logprobs = next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), None)

    @property
    def repeated(self) -> int:
        """Tokens that stand there already."""
        return len(self.ids) - len(set(self.ids))


class Asker:
    """Asks the session's engine from the test's thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.engine.loop).result(60)

    def ids(self, question: str) -> list[int]:
        messages = [{"role": "user", "content": question}]
        return self.engine.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def choices(self, prompt: str | list[int] = QUESTION, **options: Any) -> list[Answer]:
        ids = self.ids(prompt) if isinstance(prompt, str) else prompt
        return [Answer(deltas) for deltas in self.run(collect(self.engine, ids, SamplingOptions(**options)))]

    def __call__(self, prompt: str | list[int] = QUESTION, **options: Any) -> Answer:
        (answer,) = self.choices(prompt, **{"max_tokens": 7} | options)
        return answer


@pytest.fixture(scope="module")
def ask(engine: Engine) -> Asker:
    return Asker(engine)


@pytest.fixture(scope="module")
def greedy(ask: Asker) -> Answer:
    return ask()


@pytest.fixture
def repeating(engine: Engine) -> list[int]:
    """Ids that a model goes on repeating."""
    return engine.tokenizer.encode(REPEATING)


def test_max_tokens_cuts_and_the_reason_says_so(ask: Asker) -> None:
    answer = ask(max_tokens=3)
    assert (len(answer.ids), answer.finish_reason) == (3, "length")


def test_min_tokens_puts_the_end_off(ask: Asker) -> None:
    short = ask(max_tokens=40)
    assert short.finish_reason == "stop"
    longer = ask(max_tokens=40, min_tokens=len(short.ids) + 5)
    assert len(longer.ids) >= len(short.ids) + 5


def test_max_length_counts_the_prompt_too(ask: Asker) -> None:
    prompt = ask.ids(QUESTION)
    answer = ask(prompt, max_length=len(prompt) + 4)
    assert (len(answer.ids), answer.finish_reason) == (4, "length")
    with pytest.raises(InvalidRequest, match=f"{len(prompt)} tokens, max_length {len(prompt)}"):
        ask(prompt, max_length=len(prompt))


def test_n_choices_are_drawn_apart(ask: Asker) -> None:
    choices = ask.choices("Say a number.", n=3, temperature=1.5, seed=1, max_tokens=6)
    assert len({choice.text for choice in choices}) == 3


def test_best_of_keeps_the_likeliest_of_what_was_drawn(ask: Asker) -> None:
    drawn = {"temperature": 1.0, "seed": 3, "max_tokens": 6}
    every = ask.choices("Say a number.", n=4, logprobs=0, **drawn)
    best = ask.choices("Say a number.", best_of=4, n=2, **drawn)
    by_likelihood = sorted(every, key=lambda choice: choice.cumulative_logprob, reverse=True)
    assert [choice.ids for choice in best] == [choice.ids for choice in by_likelihood[:2]]
    assert best[0].cumulative_logprob > best[1].cumulative_logprob


def test_the_best_beam_is_at_least_as_likely_as_the_greedy_answer(ask: Asker) -> None:
    prompt = "Say a number."
    beams = ask.choices(prompt, use_beam_search=True, best_of=4, n=2, max_tokens=6)
    greedy = ask(prompt, max_tokens=6, logprobs=0)
    assert len(beams) == 2 and beams[0].ids != beams[1].ids
    assert beams[0].cumulative_logprob >= beams[1].cumulative_logprob
    assert beams[0].cumulative_logprob >= greedy.cumulative_logprob - 1e-3


def test_length_penalty_decides_between_short_and_long_beams(ask: Asker) -> None:
    prompt = ask.ids(QUESTION) + ask.engine.tokenizer.encode("The capital of France is Paris")
    search = {"use_beam_search": True, "best_of": 2, "max_tokens": 5}
    # vLLM's length includes the prompt, so that a penalty has to be strong.
    short, long = (ask(prompt, length_penalty=penalty, **search) for penalty in (-60.0, 60.0))
    assert len(short.ids) < len(long.ids) == 5


def test_temperature_draws_another_answer_than_the_likeliest(ask: Asker, greedy: Answer) -> None:
    assert ask().text == greedy.text
    assert {ask(temperature=2.0, seed=seed).text for seed in range(3)} != {greedy.text}


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=["top_k", "top_p", "min_p"])
def test_a_draw_from_one_token_is_the_likeliest(ask: Asker, greedy: Answer, narrow: dict[str, float]) -> None:
    wide = {ask(temperature=2.0, seed=seed).text for seed in range(2)}
    assert wide != {greedy.text}
    assert {ask(temperature=2.0, seed=seed, **narrow).text for seed in range(2)} == {greedy.text}


@pytest.mark.parametrize(
    "penalty",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 2.0}],
    ids=lambda penalty: "".join(penalty),
)
def test_a_penalty_makes_repetition_rarer(ask: Asker, repeating: list[int], penalty: dict[str, float]) -> None:
    plain, penalised = ask(repeating, max_tokens=20), ask(repeating, max_tokens=20, **penalty)
    assert plain.repeated >= 8
    assert penalised.repeated < plain.repeated


def test_a_seed_repeats_its_draw(ask: Asker) -> None:
    drawn = [ask(temperature=1.5, seed=seed).text for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_a_stop_string_ends_the_answer_before_it(ask: Asker, greedy: Answer) -> None:
    assert "Paris" in greedy.text
    answer = ask(stop=["nowhere", "Paris"])
    assert answer.text == greedy.text.partition("Paris")[0]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "Paris")


def test_the_stop_string_stays_when_asked_for(ask: Asker) -> None:
    assert ask(stop=["Paris"], include_stop_str_in_output=True).text.endswith("Paris")


def test_a_stop_token_ends_the_answer_and_is_its_reason(ask: Asker, greedy: Answer) -> None:
    answer = ask(stop_token_ids=[greedy.ids[3]])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", greedy.ids[3])
    assert answer.ids == greedy.ids[:4]


def test_writing_goes_on_after_the_end_token(ask: Asker) -> None:
    ended = ask("Say OK.", max_tokens=30)
    assert ended.finish_reason == "stop"
    answer = ask("Say OK.", max_tokens=len(ended.ids) + 5, ignore_eos=True)
    assert (len(answer.ids), answer.finish_reason) == (len(ended.ids) + 5, "length")


def test_logprobs_are_the_likeliest_tokens_best_first(ask: Asker, greedy: Answer) -> None:
    answer = ask(logprobs=3)
    assert answer.ids == greedy.ids
    for token, place in zip(answer.ids, answer.logprobs, strict=True):
        likely = [candidate.logprob for candidate in place.top]
        assert len(likely) == 3 and likely == sorted(likely, reverse=True)
        assert sum(map(math.exp, likely)) < 1
        assert place.chosen.token_id == place.top[0].token_id == token  # greedy


def test_prompt_logprobs_have_a_place_for_each_token_but_the_first(ask: Asker) -> None:
    prompt = ask.ids(QUESTION)
    answer = ask(prompt, prompt_logprobs=2, max_tokens=1)
    assert answer.prompt_logprobs is not None
    first, *others = answer.prompt_logprobs
    assert first is None
    assert [place.chosen.token_id for place in others if place] == prompt[1:]


def test_control_tokens_show_when_they_are_not_skipped(ask: Asker) -> None:
    ended = ask("Say OK.", max_tokens=30)
    assert ended.finish_reason == "stop"
    over_the_end = {"max_tokens": len(ended.ids), "ignore_eos": True}
    assert ask("Say OK.", **over_the_end).text == ended.text
    assert ask("Say OK.", **over_the_end, skip_special_tokens=False).text == ended.text + "<|im_end|>"


def test_a_bias_forces_and_bans_a_token(ask: Asker, greedy: Answer) -> None:
    (word,) = ask.engine.tokenizer.encode("moon")
    assert ask(logit_bias={word: 100}, max_tokens=3).ids == [word] * 3
    assert greedy.ids[0] not in ask(logit_bias={greedy.ids[0]: -100}).ids


def test_a_bad_word_is_not_written(ask: Asker, greedy: Answer) -> None:
    assert "Paris" in greedy.text
    assert "Paris" not in ask(bad_words=["Paris"]).text


def test_only_allowed_tokens_are_written(ask: Asker) -> None:
    allowed = ask.engine.tokenizer.encode("月 moon")
    assert set(ask(allowed_token_ids=allowed).ids) <= set(allowed)


def test_a_constraint_is_obeyed(ask: Asker) -> None:
    assert re.fullmatch(r"[0-9]{4}", ask(structured_outputs={"regex": "[0-9]{4}"}).text)
    assert ask(structured_outputs={"choice": ["巴黎", "伦敦"]}).text in ("巴黎", "伦敦")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    assert isinstance(json.loads(ask(structured_outputs={"json": schema}, max_tokens=20).text)["n"], int)
    assert ask(structured_outputs={"grammar": 'root ::= "a" "b"'}).text == "ab"
    assert json.loads(ask(structured_outputs={"json_object": True}, max_tokens=60).text) is not None


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ({"max_completion_tokens": 3}, {"max_tokens": 3}),
        ({"max_new_tokens": 3}, {"max_tokens": 3}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"guided_regex": "[0-9]{3}"}, {"structured_outputs": {"regex": "[0-9]{3}"}}),
        ({"guided_choice": ["是", "否"]}, {"structured_outputs": {"choice": ["是", "否"]}}),
        ({"guided_grammar": 'root ::= "x"'}, {"structured_outputs": {"grammar": 'root ::= "x"'}}),
        ({"guided_json": {"type": "boolean"}}, {"structured_outputs": {"json": {"type": "boolean"}}}),
        ({"guided_decoding": {"regex": "[a-c]{3}"}}, {"structured_outputs": {"regex": "[a-c]{3}"}}),
    ],
    ids=lambda options: "+".join(options),
)
def test_an_older_name_does_the_same_on_the_engine(
    ask: Asker, greedy: Answer, older: dict[str, Any], today: dict[str, Any]
) -> None:
    length = {} if "max_tokens" in today else {"max_tokens": 7}
    then, now = ask.choices(**length, **older)[0], ask(**today)
    assert (then.text, then.logprobs) == (now.text, now.logprobs)
    assert then.text != greedy.text or then.logprobs != greedy.logprobs


def test_an_urgent_request_overtakes_the_queue(ask: Asker) -> None:
    engine, prompt, begun, full = ask.engine, ask.ids(QUESTION), [], asyncio.Event()

    async def one(name: str, tokens: int, priority: int = 0) -> None:
        options = SamplingOptions(max_tokens=tokens, ignore_eos=True, priority=priority)
        async with aclosing(await engine.submit(prompt, options)) as generation:
            async for _ in generation:
                if name not in begun:
                    begun.append(name)
                if len(begun) == 16:  # so many run at once on a CPU
                    full.set()

    async def fill_and_queue() -> None:
        running = [asyncio.create_task(one(f"running {at}", 400)) for at in range(15)]
        running.append(asyncio.create_task(one("short", 12)))
        await full.wait()
        await asyncio.gather(one("normal", 2), one("urgent", 2, -10))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    ask.run(fill_and_queue())
    assert begun[16:] == ["urgent", "normal"]


def test_another_salt_shares_no_prefix(ask: Asker) -> None:
    prompt = ask.ids("Count the words. " * 40)
    first, again, other = (ask(prompt, max_tokens=1, cache_salt=salt).cached_tokens for salt in ("甲", "甲", "乙"))
    assert (first, other) == (0, 0)
    assert again >= 96


REFUSED_BY_VLLM = [
    ({"logprobs": 1_000_000}, "1000000.* 20"),
    ({"logprobs": 2**80}, f"{2**80}.* 20"),
    ({"prompt_logprobs": 1_000_000}, "1000000.* 20"),
    ({"best_of": 12, "use_beam_search": True}, "24.* 20"),
    ({"structured_outputs": {"regex": "((("}}, "regex"),
    ({"structured_outputs": {"grammar": ""}}, "grammar"),
    ({"structured_outputs": {"grammar": "root ::= nope"}}, "grammar"),
    ({"structured_outputs": {"json": {"type": "nope"}}}, "nope"),
    ({"structured_outputs": {"json": "{"}}, "JSON"),
    ({"structured_outputs": {"json_object": False}}, "json_object"),
    ({"structured_outputs": {"choice": []}}, "[Cc]hoice"),
    ({"structured_outputs": {"regex": "\ud800"}}, ""),
    ({"stop_token_ids": [10**9]}, "1000000000.*49152"),
    ({"stop_token_ids": [-1]}, "-1.*49152"),
    ({"logit_bias": {10**9: 1.0}}, "1000000000.*49152"),
    ({"logit_bias": {2**80: 1.0}}, f"{2**80}.*49152"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**9]}, "1000000000"),
    ({"extra_args": {"x": 2**80}}, "extra_args"),
    ({"extra_args": {"x": object()}}, "object"),
    ({"extra_args": {"x": "\ud800"}}, ""),
    ({"thinking_token_budget": 5}, "reasoning_config"),
    ({"n": 2, "temperature": 1.0, "cache_salt": "盐" * 10_000, "logprobs": 21}, "21.* 20"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED_BY_VLLM, ids=str)
def test_a_value_that_vllm_refuses_is_an_invalid_request_and_hurts_nobody(
    ask: Asker, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask.choices(**{"max_tokens": 2} | options)
    assert re.search(message, str(refused.value)), refused.value
    assert ask(max_tokens=1).ids


def test_the_ends_of_the_ranges_are_answered(ask: Asker) -> None:
    extremes: list[dict[str, Any]] = [
        {"max_tokens": 2**31 - 1, "stop": ["."]},
        {"top_k": 2**31 - 1, "top_p": 1, "min_p": 0, "temperature": 2, "seed": -(2**63)},
        {
            "priority": -(2**31),
            "seed": 2**63 - 1,
            "presence_penalty": -2,
            "repetition_penalty": 2,
            "temperature": 0.001,
        },
        {"logit_bias": {0: -100, 1: 100}, "stop": [f"{at}" * 50 for at in range(1, 17)], "cache_salt": "盐" * 10_000},
        {"logprobs": 20, "prompt_logprobs": 20, "structured_outputs": {"regex": ""}},
    ]
    for options in extremes:
        assert ask(**{"max_tokens": 2} | options).finish_reason
