"""What vLLM's engine hands out for an answer, by its own detokenizer, and an engine that gives such answers."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from llm.options import SamplingOptions
from llm.output import OutputFormat
from llm.prompt.control import ControlTokens, backend_of
from llm.protocol import Delta
from llm.reading.reader import Written
from tests.fakes import ScriptedEngine, ScriptedGeneration

EVERY = range(1, 10_000)
"""Cuts after each token."""


@dataclass(frozen=True)
class Read:
    """An answer as it was read, put together; `calls` are names and arguments."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[tuple[str | None, str], ...] = ()
    finish_reason: str | None = "stop"


def ids_of(tokenizer: Any, *parts: str) -> list[int]:
    """The ids of parts: a control token stands by itself, any other part is plain text as a whole."""
    added, plain = tokenizer.get_added_vocab(), ControlTokens(backend_of(tokenizer))
    return [token for part in parts for token in ([added[part]] if part in added else plain.encode(part))]


def deltas_of(
    tokenizer: Any,
    ids: Sequence[int],
    sampling: SamplingOptions,
    *,
    cuts: Collection[int] = EVERY,
    prompt_ids: Sequence[int] = (),
    finish_reason: str = "stop",
) -> list[Delta]:
    """The deltas of an answer that is cut after so many tokens each; with `stop` the end token is the last."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    ids = [*ids, tokenizer.eos_token_id] if finish_reason == "stop" else list(ids)
    shown = {name: getattr(sampling, name) for name in ("stop", "skip_special_tokens", "spaces_between_special_tokens")}
    request = EngineCoreRequest("r", list(prompt_ids), None, SamplingParams(**shown), None, 0.0, None, None, None)
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    ends = [*sorted(cut for cut in cuts if 0 < cut < len(ids)), len(ids)]
    deltas = []
    for start, end in zip([0, *ends], ends, strict=False):
        last = end == len(ids)
        detokenizer.update(ids[start:end], last and finish_reason == "stop")
        text = detokenizer.get_next_output_text(last, True)
        deltas.append(Delta(text, ids[start:end], finish_reason if last else None))
    return deltas


def read(
    form: OutputFormat, tokenizer: Any, ids: Sequence[int], sampling: SamplingOptions | None = None, **how: Any
) -> Read:
    """Read an answer as a request of this format would; `how` goes to `deltas_of`."""
    applied = form.applied_to(sampling or SamplingOptions())
    reader = form.reader(list(how.get("prompt_ids", ())))
    written = [reader.read(delta) for delta in deltas_of(tokenizer, ids, applied, **how)]
    return put_together(written, reader.finish_reason)


def put_together(written: Sequence[Written], finish_reason: str | None = "stop") -> Read:
    """The whole of what deltas have added."""
    calls: dict[int, tuple[str | None, str]] = {}
    for fragment in (fragment for each in written for fragment in each.tool_calls):
        assert (fragment.index in calls) == (fragment.id is None), "the id comes with the first fragment only"
        name, arguments = calls.get(fragment.index, (None, ""))
        calls[fragment.index] = (name or fragment.name, arguments + fragment.arguments)
    assert list(calls) == list(range(len(calls)))
    text, reasoning = "".join(each.text for each in written), "".join(each.reasoning for each in written)
    return Read(reasoning, text, tuple(calls.values()), finish_reason)


class SpeakingEngine(ScriptedEngine):
    """Gives one answer, of parts as `ids_of` takes them, in deltas that end at `cuts`; `max_tokens` cuts it off."""

    def __init__(self, tokenizer: Any, *parts: str, cuts: Collection[int] = EVERY, **parsers: str | None) -> None:
        super().__init__(tokenizer=tokenizer)
        self.answer, self.cuts = ids_of(tokenizer, *parts), cuts
        self.tool_call_parser, self.reasoning_parser = parsers.get("tools"), parsers.get("reasoning")

    async def submit(self, prompt_ids: list[int], sampling: SamplingOptions, **options: Any) -> ScriptedGeneration:
        generation = await super().submit(prompt_ids, sampling, **options)
        generation._deltas = self._say(prompt_ids, sampling, generation)
        return generation

    async def _say(
        self, prompt_ids: list[int], sampling: SamplingOptions, generation: ScriptedGeneration
    ) -> AsyncGenerator[Delta, None]:
        ids = self.answer[: sampling.max_tokens]
        ending = "stop" if len(ids) < sampling.max_tokens else "length"
        how: dict[str, Any] = {"cuts": self.cuts, "prompt_ids": prompt_ids, "finish_reason": ending}
        for delta in deltas_of(self.tokenizer, ids, sampling, **how):
            yield delta
        self.open.discard(generation)
