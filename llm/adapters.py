"""LoRA adapters by name: loaded, replaced and unloaded while the engine runs, one for each request."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from llm import vllm_names
from llm.bridge import on_loop, wait_for
from llm.lora import Adapter, BaseModel, base_model, content_hash, fitting_rank, read
from llm.options import EngineOptions
from llm.protocol import AdapterRefused, EngineStartFailed, EngineUnavailable, UnknownAdapter

log = logging.getLogger(__name__)

PLACES, RANK = 4, 16
"""Adapters that an engine with LoRA has room for unless told otherwise; vLLM's own `max_lora_rank`."""

SPARE = 2
"""Slots of vLLM beyond the adapters' places: one takes new weights while requests still use the old ones of that name.

The last one is never taken. On a CPU a request without adapter reads slot −1 when it shares a batch with others
(vllm-project/vllm#48421), so the last slot has to stay zero. vLLM takes the first free slot.
"""


def base_of(options: EngineOptions, folder: str) -> BaseModel:
    """The engine's model as far as it lies on this machine."""
    given = options.vllm
    return base_model(options.model, folder, revision=given.get("revision"), hub_cache=given.get("download_dir"))


def lora_fields(options: EngineOptions, folder: str) -> dict[str, Any]:
    """LoRA's fields of `vllm.AsyncEngineArgs`, with a rank that takes all of `options.adapters`; empty while it is off.

    Raises AdapterRefused for what `options.adapters` names, before anything starts.
    """
    places = _places(options)
    if not places:
        if "max_lora_rank" in options.vllm:
            log.warning("max_lora_rank changes nothing without adapters or max_adapters: LoRA is off")
        return {}
    if places < len(options.adapters):
        raise AdapterRefused(f"max_adapters is {places}, adapters names {len(options.adapters)}")
    base = base_of(options, folder)
    adapters = [read(name, where, base) for name, where in options.adapters.items()]
    highest = max(adapters, key=lambda adapter: adapter.rank, default=None)
    limit = options.vllm.get("max_lora_rank")
    if limit is None:
        limit = fitting_rank(max(RANK, highest.rank if highest else 0), get_args(vllm_names.MaxLoRARanks))
    elif highest and highest.rank > limit:
        raise _too_high(highest, limit)
    slots = places + SPARE
    # What falls out of vLLM's cache on the host is read again from its folder, and kills the engine if that is gone.
    kept = max(slots, options.vllm.get("max_cpu_loras") or 0)
    return {"enable_lora": True, "max_lora_rank": limit, "max_loras": slots, "max_cpu_loras": kept}


def _places(options: EngineOptions) -> int:
    if options.max_adapters:
        return options.max_adapters
    on = bool(options.adapters) or options.vllm.get("enable_lora")
    return (options.vllm.get("max_loras") or max(PLACES, len(options.adapters))) if on else 0


def _too_high(adapter: Adapter, limit: int) -> AdapterRefused:
    return AdapterRefused(
        f"adapter {adapter.name!r} has rank {adapter.rank}, the engine takes at most {limit}: start it with "
        f"max_lora_rank={adapter.rank} or more, or with this adapter among `adapters`, from which the rank is read"
    )


@dataclass(eq=False)
class Version:
    """One content of an adapter, as vLLM knows it; `users` requests run on it."""

    adapter: Adapter
    content: str
    request: Any
    users: int = 0
    leaving: "asyncio.Task[None] | None" = None


class Adapters:
    """The LoRA adapters of one engine.

    `load` and `unload` may be called from any thread, `aload` and `aunload` on any event loop. Requests that run keep
    the weights that they began with: those of a replaced or unloaded adapter leave the memory after the last of them.
    An adapter's folder is read again only when the engine is started again.
    """

    def __init__(
        self,
        llm: Any,
        base: BaseModel,
        loop: asyncio.AbstractEventLoop,
        *,
        new_request: Callable[..., Any] | None = None,
    ) -> None:
        limits = llm.vllm_config.lora_config
        self._llm, self._base, self._loop, self._new_request = llm, base, loop, new_request
        self._places: int = limits.max_loras - SPARE if limits else 0
        self._max_rank: int = limits.max_lora_rank if limits else 0
        self._current: dict[str, Version] = {}
        self._retired: list[Version] = []
        self._ids = itertools.count(1)
        self._lock = asyncio.Lock()

    def list(self) -> Sequence[Adapter]:
        """What requests can name, in the order of loading."""
        return [version.adapter for version in self._current.values()]

    def load(self, name: str, folder: str | Path) -> Adapter:
        """`aload` for callers without an event loop."""
        return wait_for(self._load(name, folder), self._loop)

    async def aload(self, name: str, folder: str | Path) -> Adapter:
        """Load the LoRA in `folder`, or put its weights in the place of the ones that had this name.

        The same name with the same content changes nothing. Raises AdapterRefused: what was loaded stays and answers.
        """
        return await on_loop(self._load(name, folder), self._loop)

    def unload(self, name: str) -> None:
        """`aunload` for callers without an event loop."""
        wait_for(self._unload(name), self._loop)

    async def aunload(self, name: str) -> None:
        """Take the name away at once, the weights as soon as no running request uses them. Raises UnknownAdapter."""
        await on_loop(self._unload(name), self._loop)

    async def load_all(self, folders: Mapping[str, str]) -> None:
        """Load what the options name. Raises EngineStartFailed."""
        for name, folder in folders.items():
            try:
                await self._load(name, folder)
            except AdapterRefused as error:
                raise EngineStartFailed(str(error)) from error

    def enter(self, name: str | None) -> Version | None:
        """What a request for this adapter runs on, until it calls `leave`. Raises UnknownAdapter."""
        if name is None:
            return None
        if name not in self._current:
            raise UnknownAdapter(name, self._current)
        version = self._current[name]
        version.users += 1
        return version

    async def leave(self, version: Version | None) -> None:
        """A request that had entered has ended or been aborted."""
        if version:
            version.users -= 1
            await self._drop_if_unused(version)

    async def _load(self, name: str, folder: str | Path) -> Adapter:
        async with self._lock:
            adapter, content = await asyncio.to_thread(self._examine, name, folder)
            version = self._known(name, content)
            if version is None:
                await self._refuse_without_room(name)
                version = await self._hand_to_vllm(adapter, content)
            version.adapter = adapter  # the same content may have come from another folder
            before, self._current[name] = self._current.get(name), version
            self._retired = [other for other in self._retired if other is not version]
            if before and before is not version:
                await self._retire(before)
            return adapter

    async def _unload(self, name: str) -> None:
        async with self._lock:
            if name not in self._current:
                raise UnknownAdapter(name, self._current)
            await self._retire(self._current.pop(name))

    def _examine(self, name: str, folder: str | Path) -> tuple[Adapter, str]:
        if not self._places:
            raise AdapterRefused(
                f"adapter {name!r} cannot be loaded, LoRA is off: start the engine with max_adapters={PLACES}, or with "
                "`adapters` (it is off without them because it costs speed)"
            )
        adapter = read(name, folder, self._base)
        if adapter.rank > self._max_rank:
            raise _too_high(adapter, self._max_rank)
        return adapter, content_hash(adapter)

    def _known(self, name: str, content: str) -> Version | None:
        versions = (*self._current.values(), *(version for version in self._retired if not version.leaving))
        return next((v for v in versions if (v.adapter.name, v.content) == (name, content)), None)

    async def _refuse_without_room(self, name: str) -> None:
        await asyncio.gather(*(version.leaving for version in self._retired if version.leaving))
        others = self._current.keys() - {name}
        if len(others) >= self._places:
            raise AdapterRefused(
                f"adapter {name!r} has no place, all {self._places} are taken ({', '.join(self._current)}): "
                f"unload one, or start the engine with max_adapters={self._places + 1}"
            )
        if len(self._current) + len(self._retired) > self._places:
            users = sum(version.users for version in self._retired)
            raise AdapterRefused(
                f"adapter {name!r} has no place as long as {users} requests run on weights that were replaced or "
                "unloaded: load it when they have ended"
            )

    async def _hand_to_vllm(self, adapter: Adapter, content: str) -> Version:
        version = Version(adapter, content, self._request(adapter, content))
        self._retired.append(version)  # it counts from now on
        try:
            # Never first in a request: there an adapter that cannot be loaded kills the engine.
            await self._llm.add_lora(version.request)
        except BaseException as error:
            await self._drop_if_unused(version)  # vLLM keeps one whose weights do not fit
            if not isinstance(error, Exception):
                raise
            if self._llm.errored:
                raise EngineUnavailable(f"the vLLM engine died while it loaded adapter {adapter.name!r}") from error
            raise AdapterRefused(f"adapter {adapter.name!r} in {adapter.folder}: {_cause(error)}") from error
        return version

    def _request(self, adapter: Adapter, content: str) -> Any:
        """vLLM knows weights by their number, and blocks of the prefix cache by name: both are new for new content."""
        return (self._new_request or vllm_names.LoRARequest)(
            lora_name=f"{adapter.name}@{content}", lora_int_id=next(self._ids), lora_path=str(adapter.folder)
        )

    async def _retire(self, version: Version) -> None:
        self._retired.append(version)
        await self._drop_if_unused(version)

    async def _drop_if_unused(self, version: Version) -> None:
        if version in self._retired and not version.users:
            version.leaving = version.leaving or asyncio.create_task(self._drop(version))
            await asyncio.shield(version.leaving)

    async def _drop(self, version: Version) -> None:
        try:
            await self._llm.remove_lora(version.request.lora_int_id)
        except Exception:
            if not self._llm.errored:  # a dead engine holds no weights
                raise
        finally:
            self._retired.remove(version)


def _cause(error: Exception) -> str:
    """vLLM's own sentence, without the names of the calls that it came through."""
    return str(error).removeprefix("Call to add_lora method failed: ")
