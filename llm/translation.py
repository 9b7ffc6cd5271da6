"""Our requests in vLLM's types; vLLM's outputs and refusals in ours."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm import vllm_names
from llm.options import SamplingOptions
from llm.protocol import Candidate, Delta, EngineBusy, InvalidRequest, TokenLogprobs

IN_THE_LIBRARY = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
"""Where in its own source xgrammar has refused a grammar."""
OURS = ("best_of", "use_beam_search", "length_penalty", "max_length", "priority", "cache_salt")
"""Sampling options that are not fields of vLLM's SamplingParams."""


def prompt_of(prompt_ids: list[int], sampling: SamplingOptions) -> Any:
    """Token ids as vLLM's rendered input."""
    return vllm_names.tokens_input(prompt_ids, cache_salt=sampling.cache_salt)


def sampling_params(sampling: SamplingOptions, defaults: dict[str, Any], *, prompt_tokens: int, window: int) -> Any:
    """vLLM's SamplingParams, with the model's own defaults below the options."""
    given = defaults | sampling.model_dump(exclude_none=True, exclude=set(OURS))
    given["max_tokens"] = _room(sampling, prompt_tokens, window)
    if sampling.best_of and sampling.best_of > 1:
        given |= {"n": sampling.best_of, "logprobs": sampling.logprobs or 0}
    if sampling.structured_outputs is not None:
        given["structured_outputs"] = vllm_names.StructuredOutputsParams(**sampling.structured_outputs)
    return vllm_names.SamplingParams(**given, output_kind=vllm_names.RequestOutputKind.DELTA)


def beam_search_params(sampling: SamplingOptions, *, prompt_tokens: int, window: int) -> Any:
    """vLLM's BeamSearchParams."""
    return vllm_names.BeamSearchParams(
        beam_width=sampling.best_of or sampling.n,
        max_tokens=_room(sampling, prompt_tokens, window),
        ignore_eos=sampling.ignore_eos,
        temperature=sampling.temperature,
        length_penalty=1.0 if sampling.length_penalty is None else sampling.length_penalty,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
    )


def _room(sampling: SamplingOptions, prompt_tokens: int, window: int) -> int:
    # More than the window holds is no more, and vLLM 0.26 on a GPU dies of a sum beyond 32 bits.
    room = min(sampling.max_tokens, max(window - prompt_tokens, sampling.min_tokens or 1))
    if sampling.max_length is None:
        return room
    if prompt_tokens >= sampling.max_length:
        raise InvalidRequest(f"the prompt has {prompt_tokens} tokens, max_length {sampling.max_length} leaves no room")
    return min(room, sampling.max_length - prompt_tokens)


def delta_of(choice: Any, output: Any) -> Delta:
    """What one output of vLLM's adds to one of its choices."""
    return Delta(
        choice.text,
        choice.token_ids,
        choice.finish_reason,
        choice.stop_reason,
        output.num_cached_tokens or 0,
        choice.index,
        _logprobs(choice),
        choice.cumulative_logprob,
        [_token_logprobs(place) for place in output.prompt_logprobs or ()] or None,
    )


def _logprobs(choice: Any) -> Sequence[TokenLogprobs] | None:
    if not choice.logprobs:
        return None
    places = zip(choice.token_ids, choice.logprobs, strict=False)  # a finished beam has one more: its end token
    return [TokenLogprobs(_candidate(token, place[token]), _best_first(place)) for token, place in places]


def _token_logprobs(place: Mapping[int, Any] | None) -> TokenLogprobs | None:
    if not place:
        return None
    token = next(iter(place))  # vLLM puts the token that stands there first
    return TokenLogprobs(_candidate(token, place[token]), _best_first(place))


def _best_first(place: Mapping[int, Any]) -> list[Candidate]:
    return [_candidate(token, place[token]) for token in sorted(place, key=lambda token: place[token].rank)]


def _candidate(token_id: int, found: Any) -> Candidate:
    return Candidate(token_id, found.decoded_token or "", found.logprob)


def refusal_of(error: Exception) -> Exception:
    """Return our exception for a refusal of vLLM's; any other comes back as it is."""
    if isinstance(error, vllm_names.GracefulHTTPError):
        return EngineBusy(str(error))
    if isinstance(error, (vllm_names.VLLMClientError, ValueError, TypeError, OverflowError)):
        return InvalidRequest(IN_THE_LIBRARY.sub("", str(error)))
    if isinstance(error, vllm_names.EngineGenerateError):
        return InvalidRequest(f"vLLM refused the request: {error.__cause__ or error}")
    return error
