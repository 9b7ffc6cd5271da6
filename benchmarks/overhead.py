"""What LangChain and our chat model cost: tokens/s through `ChatVLLM.astream` against vLLM's own `generate`.

Run: `python -m benchmarks.overhead [TOKENS [ROUNDS]]`. The same ids and options, with 1 and 32 streams, the two ways in
turn, each time under a cache salt of its own: whoever comes second must not find the first one's prompts in the cache.
The ratio is of the medians over the rounds.
"""

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable

from langchain_core.messages import BaseMessage, HumanMessage

from llm import vllm_names
from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.options import EngineOptions

Way = Callable[[list[BaseMessage], str], Awaitable[int]]


def ways(engine: Engine, tokens: int) -> dict[str, Way]:
    """How one answer of so many tokens is streamed, each way returning the number of tokens it saw."""
    chat = ChatVLLM(engine=engine, max_tokens=tokens, ignore_eos=True)
    params = vllm_names.SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=vllm_names.RequestOutputKind.DELTA
    )

    async def raw(messages: list[BaseMessage], cache_salt: str) -> int:
        prompt = vllm_names.tokens_input(chat.encoder.encode(messages), cache_salt=cache_salt)
        outputs = engine._llm.generate(prompt, params.clone(), uuid.uuid4().hex)
        return sum([len(output.outputs[0].token_ids) async for output in outputs])

    async def langchain(messages: list[BaseMessage], cache_salt: str) -> int:
        usages = [chunk.usage_metadata async for chunk in chat.astream(messages, cache_salt=cache_salt)]
        return sum(usage["output_tokens"] for usage in usages if usage)

    return {"raw": raw, "langchain": langchain}


async def rate(way: Way, streams: int, tokens: int, seed: int) -> float:
    """Tokens per second of so many streams at once, each with a prompt of its own."""
    cache_salt = uuid.uuid4().hex
    prompts = [[HumanMessage(f"{seed}-{number}: tell me a long story about soil probes.")] for number in range(streams)]
    began = time.perf_counter()
    counts = await asyncio.gather(*(way(messages, cache_salt) for messages in prompts))
    assert counts == [tokens] * streams, counts
    return sum(counts) / (time.perf_counter() - began)


async def main(tokens: int, rounds: int) -> None:
    options = EngineOptions(max_model_len=2048, max_num_seqs=32, fast_start=True)
    async with Engine.start(options) as engine:
        both = ways(engine, tokens)
        print(f"| streams | {' | '.join(f'{name} tokens/s' for name in both)} | ratio |\n|---|---|---|---|")
        for streams in (1, 32):
            for way in both.values():  # warm-up
                await rate(way, streams, tokens, seed=-1)
            rates: dict[str, list[float]] = {name: [] for name in both}
            for turn in range(rounds):
                for name, way in sorted(both.items(), reverse=bool(turn % 2)):
                    rates[name].append(await rate(way, streams, tokens, seed=turn))
            raw, langchain = (statistics.median(rates[name]) for name in both)
            print(f"| {streams} | {raw:.1f} | {langchain:.1f} | {langchain / raw:.3f} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*[int(number) for number in (*sys.argv[1:], 64, 6)[:2]]))
