"""Sampling options as fields of a LangChain class, which the keywords of a call replace."""

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ValidationError, create_model

from llm.option_names.older_names import in_todays_names
from llm.option_names.older_sampling_options import SAMPLING
from llm.options import SamplingOptions
from llm.protocol import InvalidRequest

if TYPE_CHECKING:
    _WithSampling = BaseModel
else:
    # As fields, so that `chat.temperature` reads and LangChain's `configurable_fields` finds them.
    _sampling_fields = {name: (field.annotation, field) for name, field in SamplingOptions.model_fields.items()}
    _WithSampling = create_model("_WithSampling", **_sampling_fields)


class Sampled(_WithSampling):
    """Every field of `SamplingOptions` and its older names, as keywords of the constructor, `.bind()` and a call."""

    OF_A_CALL: ClassVar[tuple[str, ...]] = ("adapter", "model")
    """Keywords of a call that are not sampling options."""

    @property
    def sampling(self) -> SamplingOptions:
        """How an answer is drawn when the call says nothing else."""
        return SamplingOptions(**{name: getattr(self, name) for name in SamplingOptions.model_fields})

    def _sampling(self, stop: list[str] | None, kwargs: dict[str, Any]) -> SamplingOptions:
        """The sampling of one call. Raises InvalidRequest, which names the option."""
        given = {name: value for name, value in kwargs.items() if name not in self.OF_A_CALL}
        if stop:
            given["stop"] = stop
        if not given:
            return self.sampling
        try:
            return SamplingOptions(**self.sampling.model_dump() | in_todays_names(given, SAMPLING))
        except ValueError as error:
            if not isinstance(error, ValidationError):
                raise InvalidRequest(str(error)) from error
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            raise InvalidRequest(f"{place}: {message}, not {first['input']!r:.100}" if place else message) from error
