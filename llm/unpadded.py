"""An embedder's forward pass without padding, in weights laid out for the CPU: a sixth faster in bfloat16."""

from itertools import groupby
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

NAME = "flash_rows_of_one_length"
"""sentence-transformers leaves padding away for attention functions that are called "flash…" only."""
SAMPLES = ["one", "a few more words", "as many words here", "word " * 100, "没有空格的中文句子。"]
MATERIALISED = 512
"""Tokens of a row up to which all its attention weights are held at once; they take the square of it."""
ROWS = 4096
"""Tokens in a pass that the weights are laid out for; others are only slower."""


class Unsupported(Exception):
    """The model's architecture is not one that this pass computes rightly."""


def make_unpadded(model: "SentenceTransformer") -> None:
    """Change a bfloat16 model in place, so that its passes see no padding, and check it on a few texts.

    Raises Unsupported (from whatever went wrong) for a model of another kind than BERT's; it is then half changed and
    has to be loaded again.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    before = _sampled(model)
    try:
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, flash_attention_mask)
        transformer: Any = model[0]
        transformer.config._attn_implementation = transformer.model.config._attn_implementation = NAME
        # Unpadding asks whether flash-attention is installed, to import what this attention has no need of.
        where = "transformers.modeling_flash_attention_utils.lazy_import_flash_attention"
        with patch(where, lambda *_: ((None, 1), None)):
            transformer.unpad_inputs = True
        _pack(transformer.model)
        after = _sampled(model)
    except Exception as error:
        raise Unsupported(str(error)) from error
    if (least := float(torch.cosine_similarity(before, after).min())) < 0.999:
        raise Unsupported(f"cosine {least:.4f} to the vectors of the padded pass")


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over rows laid end to end, in transformers' signature; rows of one length are multiplied together.

    `query`, `key` and `value` are (1, heads, tokens, size), `cu_seq_lens_q` the rows' starts and the end. Raises
    Unsupported for what is more than softmax(q·k)·v over whole rows.
    """
    if cu_seq_lens_q is None or mask is not None or getattr(module, "is_causal", False):
        raise Unsupported("padded or causal attention")
    if any(others.get(name) is not None for name in ("sliding_window", "position_bias", "softcap", "s_aux")):
        raise Unsupported("attention with more than a scaled product")
    _, heads, tokens, size = query.shape
    query, start = query * (size**-0.5 if scaling is None else scaling), 0
    found = query.new_empty(tokens, heads, size)
    for length, rows in groupby(cu_seq_lens_q.diff().tolist()):
        end = start + length * len(list(rows))
        q, k, v = (part[0, :, start:end].reshape(-1, length, size) for part in (query, key, value))
        found[start:end] = _of_rows(q, k, v).view(heads, end - start, size).transpose(0, 1)
        start = end
    return found[None], None


def _of_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if q.shape[1] > MATERIALISED:
        return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=1.0)[0]
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)


class _Packed(torch.nn.Module):
    """A linear layer with its weights in the order in which oneDNN multiplies them."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weights = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> Any:
        return torch.ops.mkldnn._linear_pointwise(x, self.weights, self.bias, "none", [], "")


def _pack(model: torch.nn.Module) -> None:
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear:
                setattr(parent, name, _Packed(layer))


def _sampled(model: "SentenceTransformer") -> torch.Tensor:
    return model.encode(SAMPLES, convert_to_tensor=True, show_progress_bar=False).float()
