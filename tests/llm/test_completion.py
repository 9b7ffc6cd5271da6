"""The plain LLM on the scripted engine."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.outputs import LLMResult
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.prompts import PromptTemplate
from pydantic import ValidationError

from llm.bridge import LoopThread, SyncCallOnLoop
from llm.completion import VLLMCompletion
from llm.options import SamplingOptions
from llm.prompting import PromptTooLong
from llm.protocol import EngineUnavailable, InvalidRequest
from tests.fakes import Reply, ScriptedEngine
from tests.llm.conftest import until

REPLY = "Once upon a time 从前 有座山"
PROMPT = "Tell: 讲 {x}"

Ask = Callable[..., Awaitable[str]]


@pytest.fixture(params=["own loop", "another loop"])
async def engine(request: pytest.FixtureRequest, far: LoopThread) -> ScriptedEngine:
    """On the test's loop, or on one in another thread."""
    made = ScriptedEngine(REPLY)
    made.loop = asyncio.get_running_loop() if request.param == "own loop" else far.loop
    return made


@pytest.fixture
def distant(far: LoopThread) -> ScriptedEngine:
    """On a loop in another thread, for callers without one."""
    made = ScriptedEngine(REPLY)
    made.loop = far.loop
    return made


async def astreamed(model: Any, /, *args: Any, **kwargs: Any) -> str:
    return "".join([text async for text in model.astream(*args, **kwargs)])


async def ainvoked(model: Any, /, *args: Any, **kwargs: Any) -> str:
    return await model.ainvoke(*args, **kwargs)


async def streamed(model: Any, /, *args: Any, **kwargs: Any) -> str:
    return await asyncio.to_thread(lambda: "".join(model.stream(*args, **kwargs)))


async def invoked(model: Any, /, *args: Any, **kwargs: Any) -> str:
    return await asyncio.to_thread(model.invoke, *args, **kwargs)


async def abatched(model: Any, prompt: str, /, **kwargs: Any) -> str:
    first, second = await model.abatch([prompt, prompt], **kwargs)
    assert first == second
    return first


every_way = pytest.mark.parametrize("ask", [astreamed, ainvoked, streamed, invoked, abatched])


@every_way
async def test_every_way_of_asking_writes_the_same(engine: ScriptedEngine, ask: Ask) -> None:
    assert await ask(VLLMCompletion(engine=engine), PROMPT) == REPLY
    assert engine.unfinished == 0


# Prompts


@every_way
async def test_a_prompt_is_sent_as_it_stands_with_bos_before_it(engine: ScriptedEngine, ask: Ask) -> None:
    model = VLLMCompletion(engine=engine)
    await ask(model, PROMPT)
    ids = engine.submitted[0].prompt_ids
    assert ids[0] == engine.tokenizer.bos_token_id
    assert engine.tokenizer.decode(ids[1:]) == PROMPT
    assert model.get_num_tokens(PROMPT) == len(ids) == 1 + len(PROMPT.encode())


async def test_bos_is_there_once_also_where_the_prompt_begins_with_it(engine: ScriptedEngine) -> None:
    model = VLLMCompletion(engine=engine)
    await model.ainvoke("<s>hi")
    assert engine.tokenizer.decode(engine.submitted[0].prompt_ids) == "<s>hi"
    assert model.get_token_ids("<s>hi") == model.get_token_ids("hi")


async def test_control_tokens_of_a_raw_prompt_are_control_tokens(engine: ScriptedEngine) -> None:
    await VLLMCompletion(engine=engine).ainvoke("<|im_start|>user")
    opening = engine.tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert engine.submitted[0].prompt_ids[1] == opening


async def test_braces_reach_the_engine_unchanged_through_a_chain(engine: ScriptedEngine) -> None:
    braces = '配置 {"key": "{value}"} 与 {0} {} {{x}}'
    await (PromptTemplate.from_template("Read {document}") | VLLMCompletion(engine=engine)).ainvoke(braces)
    assert engine.tokenizer.decode(engine.submitted[0].prompt_ids[1:]) == f"Read {braces}"


async def test_the_count_of_messages_is_the_number_of_ids_sent(engine: ScriptedEngine) -> None:
    model = VLLMCompletion(engine=engine)
    messages = [SystemMessage("Be brief."), HumanMessage("你好")]
    await model.agenerate_prompt([ChatPromptValue(messages=messages)])
    assert len(engine.submitted[0].prompt_ids) == model.get_num_tokens_from_messages(messages)


@every_way
async def test_a_prompt_that_fills_the_window_is_refused_before_the_engine_sees_it(
    engine: ScriptedEngine, ask: Ask
) -> None:
    model = VLLMCompletion(engine=engine)
    engine.max_model_len = size = model.get_num_tokens(PROMPT)
    with pytest.raises(PromptTooLong, match=f"{size} tokens.* {size} with the answer"):
        await ask(model, PROMPT)
    assert engine.submitted == []
    engine.max_model_len = size + 1
    assert await ask(model, PROMPT) == REPLY


async def test_one_prompt_that_is_too_long_stops_its_batch_before_it_begins(engine: ScriptedEngine) -> None:
    with pytest.raises(PromptTooLong):
        await VLLMCompletion(engine=engine).agenerate(["a", "汉" * 300_000, "b"])
    assert engine.submitted == []


# What comes back


async def generated(engine: ScriptedEngine, prompts: list[str], **sampling: Any) -> LLMResult:
    return await VLLMCompletion(engine=engine).agenerate(prompts, **sampling)


async def test_each_answer_says_how_it_ended_and_what_it_used(engine: ScriptedEngine) -> None:
    engine.replies = ["a b c", "d"]
    result = await generated(engine, ["p", "qq"], max_tokens=2)
    (cut,), (ended,) = result.generations
    assert (cut.text, ended.text) == ("a b ", "d")
    assert cut.generation_info == {
        "finish_reason": "length",
        "stop_reason": None,
        "token_usage": used(prompt=2, completion=2, cached=3),
    }
    assert ended.generation_info and ended.generation_info["finish_reason"] == "stop"
    assert result.llm_output == {"token_usage": used(prompt=5, completion=3, cached=6), "model_name": "scripted"}


def used(*, prompt: int, completion: int, cached: int) -> dict[str, Any]:
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}


async def test_log_probabilities_are_told_where_asked_for(engine: ScriptedEngine) -> None:
    engine.replies = ["ab c"]
    (told,) = (await generated(engine, ["p"], logprobs=1, prompt_logprobs=0)).generations[0]
    (silent,) = (await generated(engine, ["p"])).generations[0]
    assert told.generation_info and silent.generation_info
    places = told.generation_info["logprobs"]["content"]
    assert [(place["token"], place["logprob"]) for place in places] == [("ab ", -3.0), ("c", -1.0)]
    assert [len(place["top_logprobs"]) for place in places] == [1, 1]
    assert told.generation_info["cumulative_logprob"] == -4.0
    assert told.generation_info["prompt_logprobs"] == [None]
    assert silent.generation_info.keys() == {"finish_reason", "stop_reason", "token_usage"}


async def test_a_stream_adds_up_to_the_whole(engine: ScriptedEngine) -> None:
    asked = {"logprobs": 1, "prompt_logprobs": 0}
    model = VLLMCompletion(engine=engine, **asked)
    chunks = [chunk async for chunk in model._astream(PROMPT)]
    assert [chunk.text for chunk in chunks] == ["Once ", "upon ", "a ", "time ", "从前 ", "有座山"]
    assert ["finish_reason" in (chunk.generation_info or {}) for chunk in chunks] == [False] * 5 + [True]
    together = chunks[0]
    for chunk in chunks[1:]:
        together += chunk
    whole = (await model.agenerate([PROMPT])).generations[0][0]
    assert (together.text, together.generation_info) == (whole.text, whole.generation_info)


@pytest.mark.parametrize(
    ("sampling", "texts"),
    [
        ({"n": 3, "temperature": 1.0}, ["long one", "one", "a one"]),
        ({"best_of": 3, "n": 2, "temperature": 1.0}, ["one", "a one"]),
        ({"best_of": 3, "n": 2, "use_beam_search": True}, ["one", "a one"]),
    ],
    ids=["n", "best_of", "beams"],
)
async def test_choices_of_each_prompt_stay_apart(
    engine: ScriptedEngine, sampling: dict[str, Any], texts: list[str]
) -> None:
    engine.replies = [("long one", "one", "a one")]
    result = await generated(engine, ["p", "q"], **sampling)
    assert [[choice.text for choice in choices] for choices in result.generations] == [texts, texts]
    words = sum(len(text.split()) for text in texts)
    assert result.llm_output and result.llm_output["token_usage"] == used(prompt=4, completion=2 * words, cached=6)


@pytest.mark.parametrize("ask", [astreamed, streamed])
@pytest.mark.parametrize("sampling", [{"n": 2}, {"best_of": 2}, {"use_beam_search": True, "n": 2}], ids=str)
async def test_several_choices_cannot_be_streamed(engine: ScriptedEngine, ask: Ask, sampling: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="call invoke or generate"):
        await ask(VLLMCompletion(engine=engine, temperature=1.0), PROMPT, **sampling)
    assert engine.submitted == []


# Sampling


@every_way
async def test_sampling_is_given_to_the_constructor_bound_or_given_to_the_call(
    engine: ScriptedEngine, ask: Ask
) -> None:
    model = VLLMCompletion(engine=engine, temperature=0.1, max_tokens=11, seed=7)
    await ask(model, "p")
    await ask(model.bind(max_tokens=12, top_p=0.5), "p")
    await ask(model.bind(max_tokens=12, top_p=0.5), "p", max_tokens=13)
    each = len(engine.submitted) // 3
    assert [request.sampling for request in engine.submitted][::each] == [
        SamplingOptions(temperature=0.1, max_tokens=11, seed=7),
        SamplingOptions(temperature=0.1, max_tokens=12, seed=7, top_p=0.5),
        SamplingOptions(temperature=0.1, max_tokens=13, seed=7, top_p=0.5),
    ]


def test_every_sampling_option_is_a_field() -> None:
    assert SamplingOptions.model_fields.keys() <= VLLMCompletion.model_fields.keys()
    assert VLLMCompletion(engine=ScriptedEngine(), max_completion_tokens=5).max_tokens == 5


@every_way
async def test_stop_strings_come_from_the_constructor_bind_or_the_call(engine: ScriptedEngine, ask: Ask) -> None:
    model = VLLMCompletion(engine=engine, stop=["a"])
    await ask(model, "p")
    await ask(model.bind(stop=["b"]), "p")
    await ask(model, "p", stop=["c", "d"])
    each = len(engine.submitted) // 3
    assert [request.sampling.stop for request in engine.submitted][::each] == [["a"], ["b"], ["c", "d"]]


@every_way
async def test_the_adapter_is_the_calls_else_the_models(engine: ScriptedEngine, ask: Ask) -> None:
    model = VLLMCompletion(engine=engine, adapter="law")
    await ask(model, "p")
    await ask(model, "p", adapter="tax")
    await ask(model.bind(model="poems"), "p")
    await ask(model, "p", model="scripted")
    each = len(engine.submitted) // 4
    assert [request.adapter for request in engine.submitted][::each] == ["law", "tax", "poems", None]


async def test_the_result_names_the_adapter_that_wrote_it(engine: ScriptedEngine) -> None:
    result = await generated(engine, ["p"], adapter="law")
    assert result.llm_output and result.llm_output["model_name"] == "law"


@every_way
@pytest.mark.parametrize(
    ("name", "value"), [("temprature", 0.5), ("temperature", "0.5"), ("top_p", 0), ("n", 2), ("tools", [])]
)
async def test_bad_sampling_is_refused_before_the_engine_sees_it(
    distant: ScriptedEngine, ask: Ask, name: str, value: Any
) -> None:
    with pytest.raises(InvalidRequest, match=name):
        await ask(VLLMCompletion(engine=distant), "p", **{name: value})
    assert distant.submitted == []


def test_an_unknown_keyword_of_the_constructor_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="no option 'max_token'; did you mean 'max_tokens'"):
        VLLMCompletion(engine=ScriptedEngine(), max_token=5)


# Batches


async def test_a_batch_is_in_the_engine_at_once(engine: ScriptedEngine) -> None:
    engine.gate = asyncio.Event()
    asking = asyncio.ensure_future(VLLMCompletion(engine=engine).abatch([f"prompt {at}" for at in range(20)]))
    await until(lambda: engine.unfinished == 20)
    engine.loop.call_soon_threadsafe(engine.gate.set)
    assert await asking == [REPLY] * 20


async def test_answers_come_in_the_order_of_the_prompts(engine: ScriptedEngine) -> None:
    replies: list[Reply] = ["one two three", "one", "one two"]
    engine.replies = [*replies]
    assert await VLLMCompletion(engine=engine).abatch(["a", "b", "c"]) == replies


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_when_one_prompt_fails_its_error_is_raised_and_nothing_is_left_running(
    engine: ScriptedEngine, failing: int
) -> None:
    engine.gate, engine.before_gate = asyncio.Event(), 1
    died = EngineUnavailable("the vLLM engine has died")
    replies: list[Reply] = [REPLY] * 3
    replies[failing] = died
    engine.replies = replies
    with pytest.raises(EngineUnavailable) as caught:
        await VLLMCompletion(engine=engine).abatch(["a", "b", "c"])
    assert caught.value is died
    assert len(engine.submitted) == 3
    assert engine.unfinished == 0


async def test_a_batch_that_is_cancelled_frees_the_engine(engine: ScriptedEngine) -> None:
    engine.gate = asyncio.Event()
    task = asyncio.ensure_future(VLLMCompletion(engine=engine, n=3, temperature=1.0).abatch(["a", "b", "c"]))
    await until(lambda: engine.unfinished == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: engine.unfinished == 0)


async def test_no_prompts_are_no_answers(engine: ScriptedEngine) -> None:
    assert await VLLMCompletion(engine=engine).abatch([]) == []
    assert engine.submitted == []


# Leaving and loops


async def test_leaving_the_loop_over_the_text_frees_the_engine(engine: ScriptedEngine) -> None:
    engine.gate, engine.before_gate = asyncio.Event(), 1
    async for _ in VLLMCompletion(engine=engine).astream(PROMPT):
        break
    await until(lambda: engine.unfinished == 0)


async def test_closing_the_stream_frees_the_engine(engine: ScriptedEngine) -> None:
    engine.gate, engine.before_gate = asyncio.Event(), 1
    async with aclosing(VLLMCompletion(engine=engine).astream(PROMPT)) as texts:  # type: ignore[type-var]
        await anext(texts)
        assert engine.unfinished == 1
    await until(lambda: engine.unfinished == 0)


@pytest.mark.parametrize("ask", [astreamed, ainvoked, abatched])
async def test_cancelling_the_task_frees_the_engine(engine: ScriptedEngine, ask: Ask) -> None:
    engine.gate = asyncio.Event()
    task = asyncio.ensure_future(ask(VLLMCompletion(engine=engine), PROMPT))
    await until(lambda: engine.unfinished)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: engine.unfinished == 0)


def test_leaving_a_blocking_stream_frees_the_engine(distant: ScriptedEngine) -> None:
    distant.gate, distant.before_gate = asyncio.Event(), 1
    for _ in VLLMCompletion(engine=distant).stream(PROMPT):
        break
    assert distant.unfinished == 0


def test_two_loops_one_after_the_other_are_answered(distant: ScriptedEngine) -> None:
    model = VLLMCompletion(engine=distant)
    assert [asyncio.run(model.ainvoke(PROMPT)) for _ in range(2)] == [REPLY, REPLY]


async def test_a_blocking_call_on_the_engines_own_loop_is_refused_in_a_plain_sentence() -> None:
    engine = ScriptedEngine()
    engine.loop = asyncio.get_running_loop()
    for call in (
        VLLMCompletion(engine=engine).invoke,
        lambda prompt: list(VLLMCompletion(engine=engine).stream(prompt)),
    ):
        with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
            call("p")
    assert engine.submitted == []


# Callbacks and caching


class Listener(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.ended: list[LLMResult] = []

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        self.ended.append(response)


class AsyncListener(Listener, AsyncCallbackHandler):
    async def on_llm_new_token(self, token: Any, **_: Any) -> None:  # type: ignore[override]
        self.tokens.append(token)

    async def on_llm_end(self, response: LLMResult, **_: Any) -> None:  # type: ignore[override]
        self.ended.append(response)


@pytest.mark.parametrize("ask", [astreamed, streamed])
@pytest.mark.parametrize("listener", [Listener, AsyncListener])
async def test_a_callback_hears_each_delta_once_and_the_whole_at_the_end(
    engine: ScriptedEngine, ask: Ask, listener: type[Listener]
) -> None:
    heard = listener()
    await ask(VLLMCompletion(engine=engine), PROMPT, config={"callbacks": [heard]})
    assert heard.tokens == ["Once ", "upon ", "a ", "time ", "从前 ", "有座山"]
    (ended,) = heard.ended
    assert ended.generations[0][0].text == REPLY


async def test_events_of_a_chain_carry_each_delta_once(engine: ScriptedEngine) -> None:
    chain = PromptTemplate.from_template("{question}") | VLLMCompletion(engine=engine)
    events = chain.astream_events({"question": "hi"}, version="v2")
    texts = [event["data"]["chunk"].text async for event in events if event["event"] == "on_llm_stream"]
    assert "".join(texts) == REPLY and len(texts) == 6


@pytest.mark.parametrize("ask", [ainvoked, invoked])
async def test_the_cache_asks_once_and_again_for_another_temperature(engine: ScriptedEngine, ask: Ask) -> None:
    cache = InMemoryCache()
    for temperature in (0.1, 0.1, 0.2):
        await ask(VLLMCompletion(engine=engine, temperature=temperature, cache=cache), PROMPT)
    assert [request.sampling.temperature for request in engine.submitted] == [0.1, 0.2]


@pytest.mark.parametrize("ask", [ainvoked, invoked])
@pytest.mark.parametrize("more", [{"temperature": 0.2}, {"stop": ["x"]}, {"adapter": "law"}, {"model": "law"}], ids=str)
async def test_the_cache_knows_the_keywords_of_a_call(engine: ScriptedEngine, ask: Ask, more: dict[str, Any]) -> None:
    model = VLLMCompletion(engine=engine, cache=InMemoryCache())
    for keywords in ({}, more, {}, more):
        await ask(model, PROMPT, **keywords)
    assert len(engine.submitted) == 2


async def test_the_cache_knows_the_models_own_stop_strings(engine: ScriptedEngine) -> None:
    cache = InMemoryCache()
    for stop in (["x"], ["y"], ["x"]):
        await VLLMCompletion(engine=engine, stop=stop, cache=cache).ainvoke(PROMPT)
    assert [request.sampling.stop for request in engine.submitted] == [["x"], ["y"]]


def test_what_tracing_is_told_is_what_is_asked_for() -> None:
    model = VLLMCompletion(engine=ScriptedEngine(), temperature=0.3, stop=["x"])
    assert model._get_ls_params(max_tokens=5) == {
        "ls_provider": "vllm",
        "ls_model_name": "scripted",
        "ls_model_type": "llm",
        "ls_temperature": 0.3,
        "ls_max_tokens": 5,
        "ls_stop": ["x"],
    }
    assert model._get_ls_params(adapter="law")["ls_model_name"] == "law"


def test_the_engine_is_neither_shown_nor_dumped() -> None:
    model = VLLMCompletion(engine=ScriptedEngine())
    assert "ScriptedEngine" not in repr(model)
    assert "engine" not in model.model_dump()
