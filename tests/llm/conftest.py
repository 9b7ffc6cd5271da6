"""What the tests of the engine's side start from."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from llm.bridge import LoopThread

settings.register_profile("groundwell", deadline=None)  # a timing is a benchmark, never a test
settings.load_profile("groundwell")


@pytest.fixture
def far() -> Iterator[LoopThread]:
    """A loop in another thread, as an engine has one that was started for a script."""
    with LoopThread() as thread:
        yield thread


async def until(condition: Callable[[], object]) -> None:
    """Turn the loop until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for may be on another loop)
            await asyncio.sleep(0)
