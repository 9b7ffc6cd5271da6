"""A logits processor of the engine; vLLM imports this file in its own process."""

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class OnlyToken(AdapterLogitsProcessor):
    """Lets the token of `extra_args={"only": ID}` through and no other."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        only = (sampling_params.extra_args or {}).get("only", 0)
        if not isinstance(only, int):
            raise ValueError(f"only takes a token id, not {only!r}")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams):  # type: ignore[no-untyped-def]
        only = (params.extra_args or {}).get("only")
        if only is None:
            return None

        def apply(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            kept = logits[only].clone()
            return logits.fill_(float("-inf")).index_fill_(0, torch.tensor([only]), kept.item())

        return apply
