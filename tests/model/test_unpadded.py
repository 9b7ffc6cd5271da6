"""The forward pass without padding gives the padded one's vectors, or leaves it to it."""

import itertools
from pathlib import Path

import numpy
import pytest

from llm.embeddings import Embedder
from llm.engine import Engine
from llm.models import has_fast_bfloat16, resolve
from llm.options import EmbedderOptions
from llm.unpadded import NAME, Unsupported, attention
from tests.model.test_embeddings import in_weights

TEXTS = [
    "",
    "?",
    "one word",
    "two words",
    "苏州办公室在哪里？",
    "年假有多少天？",
    "long " * 400,
    "长句子。" * 90,
    *"abcd",
]


@pytest.fixture(scope="module", autouse=True)
def engine_first(engine: Engine) -> None:
    """A fork after OpenMP has run is not safe, and the engine is forked."""


@pytest.mark.parametrize("lengths", [[1], [3, 3, 1, 700, 700, 5], [600, 20, 20, 20]])
def test_attention_over_rows_laid_end_to_end_is_that_of_each_row(lengths: list[int]) -> None:
    import torch

    draw = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(1, 4, sum(lengths), 8, generator=draw) for _ in range(3))
    starts = [0, *itertools.accumulate(lengths)]
    found, _ = attention(torch.nn.Module(), query, key, value, None, cu_seq_lens_q=torch.tensor(starts))
    for start, end in itertools.pairwise(starts):
        row = (part[:, :, start:end] for part in (query, key, value))
        alone = torch.nn.functional.scaled_dot_product_attention(*row)
        assert torch.allclose(found[0, start:end], alone[0].transpose(0, 1), atol=1e-5)


def test_what_is_more_than_a_product_is_refused() -> None:
    import torch

    rows = [torch.ones(1, 1, 2, 2)] * 3
    ends = torch.tensor([0, 2])
    for more in ({}, {"cu_seq_lens_q": ends, "sliding_window": 4}, {"cu_seq_lens_q": ends, "softcap": 1.0}):
        with pytest.raises(Unsupported):
            attention(torch.nn.Module(), *rows, None, **more)


def test_bfloat16_runs_without_padding_where_it_is_fast() -> None:
    with in_weights("float32") as exact, in_weights("bfloat16") as embedder:
        reference = numpy.array(exact.embed_documents(TEXTS))
        found = numpy.array(embedder.embed_documents(TEXTS))
        alone = numpy.array([embedder.embed_query(text) for text in TEXTS])
        assert attention_of(exact) != NAME
        assert attention_of(embedder) == NAME or not has_fast_bfloat16()
    assert (found * reference).sum(axis=1).min() >= 0.999
    assert (found * alone).sum(axis=1).min() >= 0.999


def test_a_model_that_computes_otherwise_is_run_with_padding(tmp_path: Path) -> None:
    of_another_kind(tmp_path)
    with in_weights("float32", model=str(tmp_path)) as exact, in_weights("bfloat16", model=str(tmp_path)) as embedder:
        assert attention_of(embedder) != NAME
        found, reference = (numpy.array(each.embed_documents(TEXTS)) for each in (embedder, exact))
    assert (found * reference).sum(axis=1).min() >= 0.99


def of_another_kind(folder: Path) -> None:
    """A small MPNet with random weights: its attention has a bias by position."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import AutoTokenizer, MPNetConfig, MPNetModel

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    MPNetModel(MPNetConfig(vocab_size=30527, **shape)).save_pretrained(folder / "body")
    AutoTokenizer.from_pretrained(resolve(EmbedderOptions().model)).save_pretrained(folder / "body")
    body = Transformer(str(folder / "body"), max_seq_length=128)
    SentenceTransformer(modules=[body, Pooling(32)]).save(str(folder))


def attention_of(embedder: Embedder) -> str:
    return embedder._model[0].config._attn_implementation
