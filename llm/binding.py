"""What our chat models share: tools and schemas bound to a model, and what a call makes of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from langchain_core.runnables import Runnable

from llm.options import SamplingOptions
from llm.sampled import Sampled
from llm.structured import Tool, constraint_of, openai_tools, structured_output, tool_choice_of

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    class _Chat(Sampled, BaseChatModel): ...
else:
    _Chat = Sampled


class Binding(_Chat):
    """A base beside LangChain's `BaseChatModel`: tools with strict arguments, structured output by grammar."""

    OF_A_CALL: ClassVar[tuple[str, ...]] = (
        *Sampled.OF_A_CALL,
        "chat_template_kwargs",
        "ls_structured_output_format",
        "parallel_tool_calls",
        "response_format",
        "tool_choice",
        "tools",
    )

    def bind_tools(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The model with tools: `tool_choice` is auto, any (or required, True), none (or False), or a tool's name.

        Arguments follow the tool's schema by grammar, unless `strict` is False. Raises ValueError for an unbound name.
        """
        bound = openai_tools(tools, strict=strict is not False)
        if parallel_tool_calls is not None:
            kwargs["parallel_tool_calls"] = parallel_tool_calls
        return self.bind(tools=bound, tool_choice=tool_choice_of(tool_choice, bound), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        include_raw: bool = False,
        method: str = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, Any]:
        """The model with answers of a schema (Pydantic class, TypedDict, JSON schema), enforced by grammar.

        `method`: json_schema, function_calling (one call of a tool of that schema) or json_mode (any JSON object where
        no schema is given). `kwargs` are bound to the model, such as `repetition_penalty`. An answer that was cut
        by `max_tokens` does not parse: `include_raw` gives the message beside the error.
        """
        return structured_output(self, schema, method=method, include_raw=include_raw, strict=strict, **kwargs)

    def _sampling(self, stop: list[str] | None, kwargs: dict[str, Any]) -> SamplingOptions:
        if kwargs.get("response_format") is not None:
            kwargs = kwargs | {"structured_outputs": constraint_of(kwargs["response_format"])}
        return super()._sampling(stop, kwargs)
