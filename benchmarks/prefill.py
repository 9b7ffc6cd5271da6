"""Tokens a second that vLLM reads and writes here, by weight type: `python -m benchmarks.prefill float32 bfloat16`."""

import asyncio
import itertools
import sys
import time

from llm.engine import Engine
from llm.options import EngineOptions, SamplingOptions

PROMPT, STREAMS, WRITTEN = 1500, 12, 32


async def measure(engine: Engine) -> tuple[float, float]:
    """Prompt tokens/s of one long prompt, and tokens/s written by twelve streams at once."""
    fresh = itertools.count(1000)  # no prompt begins like another one, so none is in the prefix cache

    async def seconds(prompt: int, written: int) -> float:
        start = time.perf_counter()
        first = next(fresh)
        generation = await engine.submit([first] * prompt, SamplingOptions(max_tokens=written, ignore_eos=True))
        async for _ in generation:
            pass
        return time.perf_counter() - start

    await seconds(50, 4)
    reading = PROMPT / await seconds(PROMPT, 1)
    start = time.perf_counter()
    await asyncio.gather(*(seconds(20, WRITTEN) for _ in range(STREAMS)))
    return reading, STREAMS * WRITTEN / (time.perf_counter() - start)


async def main(dtypes: list[str]) -> None:
    print("| weights | prompt tokens/s, one prompt | tokens/s, 12 streams |\n|---|---|---|")
    for dtype in dtypes:
        async with Engine.start(EngineOptions(max_model_len=2048, dtype=dtype)) as engine:
            reading, writing = await measure(engine)
        print(f"| {dtype} | {reading:.0f} | {writing:.0f} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["float32", "bfloat16"]))
