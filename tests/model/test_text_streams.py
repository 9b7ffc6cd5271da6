"""A stream of text says what the whole answer says: characters of many tokens, cuts in their midst, stop strings."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import aclosing
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from llm.chat import ChatVLLM
from llm.completion import VLLMCompletion
from llm.engine import Engine
from llm.options import SamplingOptions

LENGTHS = range(1, 41)
TEXTS = {
    "emoji families": "👩‍👩‍👧‍👦👨🏽‍🚀🏳️‍🌈🇩🇪🫱🏿‍🫲🏻",
    "rare Chinese characters": "𠮷野家的龘字，𪚥𠀀㐂𰻝、亖朤㙓𡃁𤭢。",
    "combining marks": "é̩ Z̷̢a̴͝l̶͠g̸̾o̵ ñ́ ạ̈̇ ǖ̃ 각 が",
    "Arabic and Thai": "السَّلامُ عليكم กำลังใจ น้ำ",
}
STOPPED = "甲乙丙👩‍👧 stop here, 结束 END 𠮷。"


def on(engine: Engine, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, engine.loop).result(100)


def forced(engine: Any, text: str, **sampling: Any) -> ChatVLLM:
    """A chat model whose every answer is this text."""
    return ChatVLLM(engine=engine, structured_outputs={"choice": [text]}, **{"max_tokens": 200} | sampling)


async def streamed(chat: ChatVLLM, **kwargs: Any) -> AIMessage:
    chunks = [chunk async for chunk in chat.astream("Go on.", **kwargs)]
    whole: Any = reduce(add, chunks)
    assert whole.content == "".join(str(chunk.content) for chunk in chunks)
    return whole


async def together(works: list[Awaitable[AIMessage]]) -> list[Any]:
    return [str(message.content) for message in await asyncio.gather(*works)]


class Recording:
    """The engine, noting the tokens of each answer by its max_tokens.

    A text can be written in several ways that are equally likely in bfloat16: which one depends on what it is batched
    with.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.written: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def submit(self, prompt: list[int], sampling: SamplingOptions, **options: Any) -> Any:
        generation = await self._engine.submit(prompt, sampling, **options)
        return self._noted(generation, self.written.setdefault(sampling.max_tokens, []))

    async def _noted(self, generation: Any, written: list[int]) -> AsyncGenerator[Any, None]:
        async with aclosing(generation):
            async for delta in generation:
                written += delta.token_ids
                yield delta


def whole_characters(engine: Engine, text: str, ids: list[int]) -> str:
    """As much of the text as the tokens have the bytes of, found without a detokenizer that streams."""
    written = engine.tokenizer.decode(ids, skip_special_tokens=True)
    certain = written.rstrip("\ufffd")
    assert text.startswith(certain)
    return certain


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_deltas_add_up_to_the_unstreamed_text_at_every_length(engine: Engine, text: str) -> None:
    for ask in (streamed, lambda chat, **options: chat.ainvoke("Go on.", **options)):
        recording = Recording(engine)
        chat = forced(recording, text)
        answers = on(engine, together([ask(chat, max_tokens=length) for length in LENGTHS]))
        assert [len(recording.written[length]) for length in LENGTHS] == list(LENGTHS)
        assert answers == [whole_characters(engine, text, recording.written[length]) for length in LENGTHS]
        assert not [piece for piece in answers if "\ufffd" in piece]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_whole_text_comes_as_it_is(engine: Engine, text: str) -> None:
    answer = on(engine, streamed(forced(engine, text)))
    assert (answer.content, answer.response_metadata["finish_reason"]) == (text, "stop")


def test_a_completion_streams_the_same(engine: Engine) -> None:
    text = TEXTS["emoji families"]
    model = VLLMCompletion(engine=engine, structured_outputs={"choice": [text]}, max_tokens=17)

    async def both() -> tuple[str, str]:
        return "".join([piece async for piece in model.astream("Go on.")]), await model.ainvoke("Go on.")

    stream, whole = on(engine, both())
    assert stream == whole
    assert text.startswith(stream) and 0 < len(stream) < len(text)


# Stop strings: whatever a stream had let slip of one would stand at the end of its text


def stops(*lengths: int) -> list[str]:
    """Parts of these lengths of the text, from each of its characters on."""
    return [STOPPED[at : at + length] for length in lengths for at in range(len(STOPPED) - length + 1)]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_no_part_of_a_stop_string_is_let_slip_wherever_it_stands(engine: Engine, length: int) -> None:
    chat = forced(engine, STOPPED)
    every = stops(length)
    before = [STOPPED.partition(stop)[0] for stop in every]
    assert on(engine, together([streamed(chat, stop=[stop]) for stop in every])) == before


def test_an_unstreamed_answer_stops_at_the_same_place(engine: Engine) -> None:
    chat = forced(engine, STOPPED)
    every = stops(3)[::3]
    before = [STOPPED.partition(stop)[0] for stop in every]
    assert on(engine, together([chat.ainvoke("Go on.", stop=[stop]) for stop in every])) == before
    answer = on(engine, chat.ainvoke("Go on.", stop=["no", "👧"]))
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["stop_reason"] == "👧"


def test_the_stop_string_stays_whole_where_it_is_asked_for(engine: Engine) -> None:
    chat = forced(engine, STOPPED, include_stop_str_in_output=True)
    every = stops(4)[::2]
    with_it = [STOPPED.partition(stop)[0] + stop for stop in every]
    assert on(engine, together([streamed(chat, stop=[stop]) for stop in every])) == with_it
    assert on(engine, together([chat.ainvoke("Go on.", stop=[stop]) for stop in every])) == with_it


def test_what_only_begins_like_a_stop_string_is_text(engine: Engine) -> None:
    chat = forced(engine, STOPPED)
    beginnings = [f"{part}?" for part in stops(3)[::3]]
    assert on(engine, together([streamed(chat, stop=[stop]) for stop in beginnings])) == [STOPPED] * len(beginnings)
    assert on(engine, streamed(chat, stop=beginnings[:8])).content == STOPPED


def test_the_stop_string_that_ends_first_wins(engine: Engine) -> None:
    chat = forced(engine, STOPPED)
    for stop in (["END 𠮷", "END", "束 E"], ["束 END", "END", "ND"]):
        first = min(stop, key=lambda each: STOPPED.index(each) + len(each))
        assert on(engine, streamed(chat, stop=stop)).content == STOPPED.partition(first)[0]


def test_a_cut_gives_the_text_that_was_held_back_for_a_stop_string(engine: Engine) -> None:
    chat = forced(engine, STOPPED)
    lengths = range(1, 25, 2)
    free = on(engine, together([streamed(chat, max_tokens=length) for length in lengths]))
    waiting = on(engine, together([streamed(chat, max_tokens=length, stop=["𠮷。!", "-----"]) for length in lengths]))
    assert waiting == free


def test_the_completion_stops_there_too(engine: Engine) -> None:
    model = VLLMCompletion(
        engine=engine, structured_outputs={"choice": [STOPPED]}, max_tokens=200, stop=["👧 st", "𠮷"]
    )

    async def both() -> tuple[str, Any]:
        return "".join([piece async for piece in model.astream("Go on.")]), await model.agenerate(["Go on."])

    stream, result = on(engine, both())
    (generation,) = result.generations[0]
    assert stream == generation.text == STOPPED.partition("👧 st")[0]
    assert generation.generation_info["stop_reason"] == "👧 st"
