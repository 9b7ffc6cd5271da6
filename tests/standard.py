"""LangChain's own contract for chat models, for both of ours: every switch on but images, pdf and audio."""

from typing import Any

from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

# Against endless repetition; unlike repetition_penalty it leaves what is copied from the question alone.
SAMPLING = {"temperature": 0, "max_tokens": 200, "logprobs": 1, "frequency_penalty": 0.5}


class Contract(ChatModelIntegrationTests):
    """One configuration for all tests."""

    @property
    def has_tool_calling(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def has_structured_output(self) -> bool:
        return True

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"repetition_penalty": 1.15}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def returns_usage_metadata(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    @property
    def model_override_value(self) -> str:
        return MODEL

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = self.chat_model_class(**self.chat_model_params)
        question = "Repeat after me: " + "soil moisture probe " * 40
        model.invoke(question)
        if not stream:
            return model.invoke(question)  # type: ignore[return-value]
        chunks = list(model.stream(question))
        return sum(chunks[1:], chunks[0])  # type: ignore[return-value]
