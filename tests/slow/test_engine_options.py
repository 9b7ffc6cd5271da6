"""Engine options that the session's engine of tests/model does not have: two engines, one after the other."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from llm.chat import ChatVLLM
from llm.choices import collect
from llm.engine import Engine
from llm.models import resolve
from llm.options import EngineOptions, SamplingOptions
from llm.protocol import AdapterRefused, Delta, InvalidRequest
from tests.adapters import write_adapter

pytestmark = pytest.mark.filterwarnings("default")  # vLLM and torch warn of each other

STORY, REPEATED = "Once upon a time there was", "word " * 110
TEMPLATE = "{% for m in messages %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant"
TEMPLATE += "{% if thinking %}<think>{% endif %}"
SEVENS = {"json": {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 99}}

ONE = EngineOptions(
    seed=6,
    dtype="float32",
    max_model_len=1024,
    kv_cache_gib=0.2,
    block_size=64,
    served_model_name="一个名字",
    guided_decoding_backend="guidance",
    fast_start=True,
)


def another(tokenizer: Path) -> EngineOptions:
    return EngineOptions(
        seed=5,
        dtype="bfloat16",
        max_model_len="auto",
        kv_cache_gib=0.1,
        enable_prefix_caching=False,
        disable_log_stats=True,
        disable_log_requests=False,
        served_model_name="another",
        tokenizer=str(tokenizer),
        max_num_seqs=2,
        scheduling_policy="fcfs",
        max_logprobs=3,
        enable_lora=True,
        max_lora_rank=8,
        logits_processors=["tests.slow.processors:OnlyToken"],
        override_generation_config={"top_k": 1},
        reasoning_parser="qwen3",
        reasoning_config={"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"},
        fast_start=True,
    )


@dataclass(frozen=True)
class Asker:
    """Asks an engine from the test's thread; a prompt is a text that is continued."""

    engine: Engine

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.engine.loop).result(60)

    def __call__(self, prompt: str = STORY, *, adapter: str | None = None, **options: Any) -> list[Delta]:
        sampling = SamplingOptions(**{"max_tokens": 8} | options)
        (deltas,) = self.run(collect(self.engine, self.ids(prompt), sampling, adapter=adapter))
        return deltas

    def ids(self, prompt: str) -> list[int]:
        return self.engine.tokenizer.encode(prompt)

    def text(self, prompt: str = STORY, **options: Any) -> str:
        return "".join(delta.text for delta in self(prompt, **options))

    def likelihood(self) -> float:
        """Log-probability of the likeliest first token."""
        return self(logprobs=0, max_tokens=1)[-1].cumulative_logprob or 0.0

    def cached(self) -> list[int]:
        return [self(REPEATED, max_tokens=1)[0].cached_tokens for _ in range(2)]

    def draws(self) -> list[str]:
        """Tokens drawn without a seed of their own."""
        return [self.text(temperature=1.5, top_k=0, max_tokens=1) for _ in range(8)]


@dataclass(frozen=True)
class Said:
    """What the first engine said before it was stopped."""

    draws: list[str]
    likelihood: float
    window: int
    cached: list[int]
    served_names: set[str]
    seven: str


def served_names() -> set[str]:
    families = prometheus_client.REGISTRY.collect()
    samples = [sample for family in families for sample in family.samples if sample.name.startswith("vllm:")]
    return {sample.labels["model_name"] for sample in samples if "model_name" in sample.labels}


@pytest.fixture(scope="module")
def one() -> Said:
    """The first engine: started, asked and stopped."""
    with Engine.start_in_thread(ONE) as engine:
        ask = Asker(engine)
        return Said(
            draws=ask.draws(),
            likelihood=ask.likelihood(),
            window=engine.max_model_len,
            cached=ask.cached(),
            served_names=served_names(),
            seven=ask.text(structured_outputs=SEVENS),
        )


@pytest.fixture(scope="module")
def ask(one: Said, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """The second engine, while the tests run."""
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    for file in Path(resolve(EngineOptions().model)).glob("*.json"):
        text = file.read_text(encoding="utf-8")
        # Two tokens that no test needs become the tags of reasoning.
        (tokenizer / file.name).write_text(text.replace("<repo_name>", "<think>").replace("<reponame>", "</think>"))
    (tokenizer / "chat_template.jinja").write_text(TEMPLATE)
    with Engine.start_in_thread(another(tokenizer)) as engine:
        yield Asker(engine)


def test_another_seed_draws_otherwise(one: Said, ask: Asker) -> None:
    drawn = ask.draws()
    assert sum(first != second for first, second in zip(one.draws, drawn, strict=True)) >= 4, (one.draws, drawn)


def test_the_type_of_the_weights_changes_the_logprobs(one: Said, ask: Asker) -> None:
    likelihood = ask.likelihood()
    assert likelihood != one.likelihood
    assert likelihood == pytest.approx(one.likelihood, abs=0.2)


def test_the_window_is_what_fits_the_memory(one: Said, ask: Asker) -> None:
    assert one.window == 1024
    assert one.window < ask.engine.max_model_len < 8192


def test_the_template_is_the_tokenizers(ask: Asker) -> None:
    turns = [{"role": "user", "content": "四月"}]
    text = ask.engine.tokenizer.apply_chat_template(turns, tokenize=False)
    assert text == "<|im_start|>user\n四月<|im_end|>\n<|im_start|>assistant"


def test_without_prefix_caching_nothing_is_cached(ask: Asker) -> None:
    assert ask.cached() == [0, 0]


def test_cached_prefixes_come_in_blocks(one: Said, ask: Asker) -> None:
    assert 96 < len(ask.ids(REPEATED)) < 128
    assert one.cached == [0, 64]


def test_the_metrics_carry_the_served_name(one: Said) -> None:
    assert one.served_names == {"一个名字"}


def test_without_stats_there_are_no_metrics(ask: Asker) -> None:
    assert ask.text()
    assert "another" not in served_names()


def test_requests_are_logged_when_asked_for(
    ask: Asker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, "vllm"):
        ask(max_tokens=1)
    assert "Added request groundwell-" in caplog.text


def test_so_many_requests_run_at_once_first_come_first_served(ask: Asker) -> None:
    events: list[str] = []

    async def one_request(name: str, tokens: int, priority: int = 0) -> None:
        options = SamplingOptions(max_tokens=tokens, ignore_eos=True, priority=priority)
        async with aclosing(await ask.engine.submit(ask.ids(STORY), options)) as generation:
            async for _ in generation:
                if f"{name} begins" not in events:
                    events.append(f"{name} begins")
        events.append(f"{name} ends")

    async def all_of_them() -> None:
        requests = [("long", 40, 0), ("short", 10, 0), ("normal", 2, 0), ("urgent", 2, -10)]
        await asyncio.gather(*(one_request(*request) for request in requests))

    ask.run(all_of_them())
    assert events.index("short ends") < events.index("normal begins")
    assert events.index("normal ends") < events.index("urgent begins")
    assert events[-1] == "long ends"


def test_more_logprobs_are_refused(ask: Asker) -> None:
    assert ask(logprobs=3, max_tokens=1)
    with pytest.raises(InvalidRequest, match=r"4.*3"):
        ask(logprobs=4)


def test_the_models_defaults_can_be_others(ask: Asker) -> None:
    assert ask.text(temperature=2.0, seed=1) == ask.text()
    assert ask.text(temperature=2.0, seed=1, top_k=0) != ask.text()


def test_a_logits_processor_gets_the_requests_arguments(ask: Asker) -> None:
    (moon,) = ask.ids(" moon")
    assert ask.text(extra_args={"only": moon}, max_tokens=3) == " moon moon moon"
    assert "moon" not in ask.text()
    with pytest.raises(InvalidRequest, match="only takes a token id, not 'moon'"):
        ask(extra_args={"only": "moon"})


def test_reasoning_ends_at_its_budget(ask: Asker) -> None:
    prompt = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n<think>"

    def ids(budget: int | None) -> list[int]:
        deltas = ask(prompt, min_tokens=20, max_tokens=20, thinking_token_budget=budget)
        return [token for delta in deltas for token in delta.token_ids]

    (closing,) = ask.ids("</think>")
    assert closing not in ids(None)
    assert [ids(budget).index(closing) for budget in (2, 5, 10)] == [2, 5, 10]


@pytest.mark.parametrize("budget", [3, 8])
@pytest.mark.parametrize("question", ["What is the capital of France?", "法国的首都是哪里？"])
def test_a_schema_holds_for_the_answer_and_not_for_the_reasoning(ask: Asker, question: str, budget: int) -> None:
    chat = ChatVLLM(engine=ask.engine, max_tokens=60, chat_template_kwargs={"thinking": True})
    schema = {"title": "City", "type": "object", "properties": {"city": {"enum": ["巴黎", "Paris"]}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    thinking = chat.bind(thinking_token_budget=budget, min_tokens=budget)  # else this model ends at once
    answered = thinking.bind(structured_outputs={"json": schema}).invoke(question)
    assert json.loads(str(answered.content))["city"] in {"巴黎", "Paris"}
    reasoning = answered.additional_kwargs["reasoning_content"]
    assert reasoning == thinking.invoke(question).additional_kwargs["reasoning_content"]
    assert answered.usage_metadata["output_token_details"]["reasoning"] == budget


def test_a_backend_takes_its_schemas(one: Said, ask: Asker) -> None:
    assert int(one.seven) % 7 == 0
    with pytest.raises(InvalidRequest, match="xgrammar"):  # the backend where none is chosen
        ask(structured_outputs=SEVENS)


def test_an_adapter_answers_otherwise_up_to_the_rank(ask: Asker, tmp_path: Path) -> None:
    plain = ask.text()
    ask.run(ask.engine.adapters.aload("适配器", write_adapter(tmp_path / "eight", rank=8, strength=0.2)))
    assert ask.text(adapter="适配器") != plain
    assert ask.text() == plain
    with pytest.raises(AdapterRefused, match=r"16.*8"):
        ask.run(ask.engine.adapters.aload("sixteen", write_adapter(tmp_path / "sixteen", rank=16)))
