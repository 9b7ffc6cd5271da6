"""What langchain-openai makes of a server's answer → what `ChatVLLM` gives: reasoning, usage, how it ended.

Here `answer` and `choice` are the server's JSON, vLLM's own fields included.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import add_usage, subtract_usage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from llm.chunks import as_openai
from llm.options import SamplingOptions
from llm.protocol import Candidate, EngineUnavailable, InvalidRequest, TokenLogprobs

PROVIDER = "vllm"


def completed(result: ChatResult, answer: Mapping[str, Any]) -> ChatResult:
    """The whole choices with all that the server said of them."""
    prompt = _prompt_logprobs(answer.get("prompt_logprobs"))
    for generation, choice in zip(result.generations, answer["choices"], strict=True):
        _complete(generation, choice, model=answer["model"])
        generation.generation_info = _told(choice) | prompt
    if len(result.generations) > 1:
        for generation, choice in zip(result.generations, answer["choices"], strict=True):
            _count_alone(generation.message, choice)
    return result


def _complete(generation: ChatGeneration, choice: Mapping[str, Any], *, model: str) -> None:
    message = generation.message
    kept = {name: value for name, value in message.additional_kwargs.items() if value is not None}
    message.additional_kwargs = kept | reasoning(choice["message"])
    message.response_metadata |= {"model_name": model, "model_provider": PROVIDER}


def _count_alone(message: Any, choice: Mapping[str, Any]) -> None:
    """The server counts the tokens of all choices together, LangChain asks for those of each."""
    if message.usage_metadata and choice.get("token_ids") is not None:
        written = len(choice["token_ids"])
        total = message.usage_metadata["input_tokens"] + written
        message.usage_metadata |= {"output_tokens": written, "total_tokens": total}


def reasoning(message: Mapping[str, Any]) -> dict[str, str]:
    """The reasoning of a message or delta, under today's name or that of older versions of vLLM."""
    text = message.get("reasoning") or message.get("reasoning_content")
    return {"reasoning_content": text} if text else {}


def _told(choice: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if (logprobs := choice.get("logprobs")) and logprobs.get("content"):
        told["logprobs"] = {"content": [_best_first(place) for place in logprobs["content"]]}
    if choice.get("finish_reason"):
        told |= {"finish_reason": choice["finish_reason"], "stop_reason": choice.get("stop_reason")}
    return told


def _best_first(place: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's server puts the chosen token first, which need not be the likeliest."""
    return {**place, "top_logprobs": sorted(place["top_logprobs"], key=lambda each: -each["logprob"])}


def _prompt_logprobs(places: Sequence[Mapping[str, Any] | None] | None) -> dict[str, Any]:
    if places is None:
        return {}
    return {"prompt_logprobs": [place and as_openai([_place(place)])[0] for place in places]}


def _place(place: Mapping[str, Any]) -> TokenLogprobs:
    """The token that stands there comes first."""
    found = {key: Candidate(int(key), each["decoded_token"] or "", each["logprob"]) for key, each in place.items()}
    best_first = sorted(place, key=lambda key: place[key]["rank"])
    return TokenLogprobs(next(iter(found.values())), [found[key] for key in best_first])


def kept(result: ChatResult, sampling: SamplingOptions) -> ChatResult:
    """The `n` choices to return, best first where more were drawn. vLLM gives beams best first."""
    if sampling.best_of and not sampling.use_beam_search:
        for generation in result.generations:
            _sum_up(generation, shown=sampling.logprobs is not None)
        result.generations.sort(key=_cumulative_logprob, reverse=True)
    return ChatResult(generations=result.generations[: sampling.n], llm_output=result.llm_output)


def _cumulative_logprob(generation: ChatGeneration) -> float:
    return (generation.generation_info or {})["cumulative_logprob"]


def _sum_up(generation: ChatGeneration, *, shown: bool) -> None:
    told = generation.generation_info or {}
    if "logprobs" not in told:
        raise InvalidRequest("best_of needs log-probabilities, which the server did not send: use n")
    told["cumulative_logprob"] = sum(place["logprob"] for place in told["logprobs"]["content"])
    if not shown:
        del told["logprobs"]
    generation.generation_info = told


def extended(made: ChatGenerationChunk, chunk: Mapping[str, Any]) -> ChatGenerationChunk:
    """A streamed chunk with all that the server said in it."""
    made.message.response_metadata.pop("model_provider", None)
    told: dict[str, Any] = {"model_name": chunk["model"]} if "model" in chunk else {}
    if choices := chunk.get("choices"):
        made.message.additional_kwargs |= reasoning(choices[0]["delta"])
        told |= _told(choices[0])
    made.generation_info = told
    return made


class Streamed:
    """Makes of the chunks of one stream those of `ChatVLLM`: model and provider stand in the first one only, each
    carries the usage that it adds, and the last one says how the answer ended.
    """

    def __init__(self) -> None:
        self._first = True
        self._counted: Any = None
        self._last: ChatGenerationChunk | None = None

    def chunk(self, made: ChatGenerationChunk) -> ChatGenerationChunk | None:
        """The chunk to pass on; None for the last ones, which `end` gives as one."""
        told = made.generation_info or {}
        model = told.pop("model_name", None)
        if self._first:
            made.message.response_metadata |= {"model_name": model, "model_provider": PROVIDER}
            self._first = False
        self._count(made.message)
        if self._last is None and "finish_reason" not in told:
            return made
        self._last = made if self._last is None else self._last + made
        return None

    def end(self) -> ChatGenerationChunk:
        """The last chunk. Raises EngineUnavailable for a stream that was broken off without one."""
        if self._last is None:
            raise EngineUnavailable("the server's stream broke off before the end of the answer")
        return self._last + ChatGenerationChunk(message=AIMessageChunk(content="", chunk_position="last"))

    def _count(self, message: Any) -> None:
        # vLLM counts from the answer's begin in each chunk, LangChain adds the chunks' usages up.
        if isinstance(message, AIMessageChunk) and message.usage_metadata:
            added = subtract_usage(message.usage_metadata, self._counted)
            self._counted = add_usage(self._counted, added)
            message.usage_metadata = added
