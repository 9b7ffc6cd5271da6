"""Several choices of one prompt, each whole: n, best_of and beam search."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from llm.options import SamplingOptions
from llm.protocol import Delta, EngineLike

NOT_STREAMED = "n, best_of and use_beam_search give whole answers: call invoke or generate (ainvoke, agenerate)"


def several(sampling: SamplingOptions) -> bool:
    """Whether the request cannot be streamed: it has more than one choice, or the best is known at the end only."""
    return max(sampling.n, sampling.best_of or 1) > 1  # as beam search has too


async def collect(
    engine: EngineLike,
    prompt_ids: list[int],
    sampling: SamplingOptions,
    *,
    adapter: str | None = None,
    reasoning_ended: bool | None = None,
) -> list[list[Delta]]:
    """The deltas of each of the `sampling.n` choices, best first with `best_of` and beam search. Raises as `submit`."""
    if sampling.use_beam_search:
        return [[beam] for beam in await engine.beam_search(prompt_ids, sampling, adapter=adapter)]
    width = sampling.best_of or sampling.n
    choices: list[list[Delta]] = [[] for _ in range(width)]
    generation = await engine.submit(prompt_ids, sampling, adapter=adapter, reasoning_ended=reasoning_ended)
    async with aclosing(generation):
        async for delta in generation:
            choices[delta.index].append(delta)
    if sampling.best_of:
        choices.sort(key=_cumulative_logprob, reverse=True)
    return choices[: sampling.n]


def _cumulative_logprob(deltas: list[Delta]) -> float:
    return deltas[-1].cumulative_logprob or 0.0


def whole(deltas: Sequence[Delta]) -> Delta:
    """All deltas of one choice as one."""
    return replace(
        deltas[-1],
        text="".join(delta.text for delta in deltas),
        token_ids=[token for delta in deltas for token in delta.token_ids],
        logprobs=[place for delta in deltas for place in delta.logprobs or ()] or None,
        prompt_logprobs=next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), None),
    )
