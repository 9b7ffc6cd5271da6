"""What the LangChain classes on an engine in this process share: the engine, an adapter, sampling options as fields."""

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import LangSmithParams
from pydantic import ConfigDict, Field, field_validator, model_validator

from llm.bridge import refuse_on
from llm.options import SamplingOptions
from llm.protocol import EngineLike
from llm.sampled import Sampled

# LangChain's standard parameters that mean nothing to an engine in this process; taken, so that models can be swapped.
REMOTE_ONLY = ("api_key", "base_url", "max_retries", "stream", "stream_usage", "streaming", "timeout")


class OnEngine(Sampled):
    """A base beside LangChain's."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Any = Field(exclude=True, repr=False)
    adapter: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_sampling(cls, values: dict[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in values.items() if name in cls._own_fields()}
        given = {name: value for name, value in values.items() if name not in own and name not in REMOTE_ONLY}
        return own | SamplingOptions.model_validate(given).model_dump()

    @field_validator("engine")
    @classmethod
    def _is_started(cls, engine: Any) -> Any:
        if not hasattr(engine, "submit"):
            raise ValueError(
                f"engine is {type(engine).__name__}, not a started Engine: `async with Engine.start(options) as engine`"
            )
        return engine

    @classmethod
    def _own_fields(cls) -> set[str]:
        return set(cls.model_fields) - set(SamplingOptions.model_fields)

    @property
    def _engine(self) -> EngineLike:
        return self.engine

    def batch(self, *arguments: Any, **keywords: Any) -> list[Any]:
        """LangChain's; refused on the engine's own loop, which its threads would wait for while it waits for them."""
        refuse_on(self._engine.loop)
        return super().batch(*arguments, **keywords)  # type: ignore[misc]

    def batch_as_completed(self, *arguments: Any, **keywords: Any) -> Iterator[tuple[int, Any]]:
        """As `batch`."""
        refuse_on(self._engine.loop)
        return super().batch_as_completed(*arguments, **keywords)  # type: ignore[misc]

    def _adapter(self, kwargs: dict[str, Any]) -> str | None:
        model = kwargs.get("model")
        return kwargs.get("adapter", self.adapter if model is None else None if model == self._engine.model else model)

    def _sampling(self, stop: list[str] | None, kwargs: dict[str, Any]) -> SamplingOptions:
        return super()._sampling(stop, {name: value for name, value in kwargs.items() if name not in REMOTE_ONLY})

    def _traced(self, stop: list[str] | None, kwargs: dict[str, Any]) -> LangSmithParams:
        """What LangSmith is told of a call."""
        sampling = self._sampling(stop, kwargs)
        return LangSmithParams(
            ls_provider="vllm",
            ls_model_name=self._adapter(kwargs) or self._engine.model,
            ls_temperature=sampling.temperature,
            ls_max_tokens=sampling.max_tokens,
            ls_stop=sampling.stop or None,
        )
