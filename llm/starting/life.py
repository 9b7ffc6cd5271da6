"""An engine's life: noticed when vLLM dies, started again where the options say so, and its end."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from llm import vllm_names
from llm.models import ModelNotFound
from llm.options import EngineOptions
from llm.protocol import EngineStartFailed, EngineStopping, EngineUnavailable
from llm.starting.start import Started, start
from llm.starting.start_failure import SILENT, root_cause

STARTS, PAUSE = 3, 2.0
"""Failed starts in a row after which a restart is given up, and the seconds before the second and third."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def lived(options: EngineOptions) -> AsyncIterator["Life"]:
    """Start vLLM, end it after the block. Raises EngineStartFailed, ModelNotFound."""
    life = Life(await start(options), options)
    try:
        yield life
    finally:
        await life.stop()


class Life:
    """Watches the vLLM that was started, on the running loop, until `stop`."""

    def __init__(self, started: Started, options: EngineOptions) -> None:
        self.started = started
        self.restarted: Callable[[], Awaitable[None]] | None = None
        """Called when vLLM has been started again, before requests are sent to it."""
        self.trouble: str | None = None
        """Why requests are refused; None while vLLM runs."""
        self._options = options
        self._living = asyncio.create_task(self._live())

    def check(self) -> None:
        """Raise EngineUnavailable unless vLLM runs."""
        if self.trouble:
            raise EngineUnavailable(self.trouble)

    def obituary(self) -> str:
        """Why vLLM has died, and what comes now."""
        cause = root_cause(self.started.log.lines) or f"{SILENT}, as when it is killed"
        outlook = "it is being started again" if self._options.restart else "start the engine anew, or set restart"
        return f"the vLLM engine has died ({cause}): {outlook}"

    async def died(self) -> EngineUnavailable:
        """Return once vLLM is dead and is not started again. Raises EngineStopping when it is stopped instead."""
        await asyncio.wait([self._living])
        if self._living.cancelled():
            raise EngineStopping("the engine is stopped")
        return self._living.result()

    async def stop(self) -> None:
        """End vLLM, or the restart that is under way; goes on when the wait for it is cancelled."""
        await asyncio.shield(self._stop())

    async def _stop(self) -> None:
        self._living.cancel()
        await asyncio.wait([self._living])
        # It blocks for seconds; on the loop it would hold up the last bytes of the streams.
        await asyncio.to_thread(self.started.stop)

    async def _live(self) -> EngineUnavailable:
        while True:
            await _death(self.started.llm)
            self.trouble = self.obituary()
            log.error("%s", self.trouble)
            await asyncio.to_thread(self.started.stop)
            if not self._options.restart or not await self._start_again():
                return EngineUnavailable(self.trouble)
            self.trouble = None

    async def _start_again(self) -> bool:
        for attempt in range(STARTS):
            await asyncio.sleep(PAUSE if attempt else 0)
            try:
                self.started = await start(self._options)
                if self.restarted:
                    await self.restarted()
            except (EngineStartFailed, ModelNotFound, EngineUnavailable) as error:
                await asyncio.to_thread(self.started.stop)
                self.trouble = f"the vLLM engine has died and does not start again: {error}"
                log.error("%s (attempt %d of %d)", self.trouble, attempt + 1, STARTS)
            else:
                log.warning("the vLLM engine runs again")
                return True
        return False


async def _death(llm: Any) -> None:
    """Return when vLLM's processes have died, however idle it was; then nothing that waits for them waits on."""
    llm._run_output_handler()  # else it is not watched before its first request
    await asyncio.wait([llm.output_handler])
    # vLLM ends the requests itself, but forgets the calls (add_lora, is_sleeping, …).
    for answer in llm.engine_core.utility_results.values():
        if not answer.done():
            answer.set_exception(vllm_names.EngineDeadError())
