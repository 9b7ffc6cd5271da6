import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import BaseDocumentCompressor, Document

from llm.models import ModelNotFound
from llm.options import RerankerOptions
from llm.rerank import NoReranker, Reranker
from tests.llm.conftest import until

WORDS = ["leave", "days", "are", "full", "time", "password", "safe", "is", "the", "in", "?", "a", "##s"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"年假密码是多少天的保险柜有"]
LIMIT = 48
QUESTION = "how many days is the leave ?"
PASSAGES = [
    "leave is days",
    "the password is in the safe",
    "年假有多少天",
    "密码是 47913",
    "a " * 30,
    "",
    "full time leave",
]


def cross_encoder(folder: Path, **configuration: Any) -> Path:
    """A BERT of two small layers with random weights and the vocabulary above, as a real cross-encoder is saved."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LIMIT, **names).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LIMIT,
        initializer_range=0.5,
        **{"num_labels": 1} | configuration,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


def reranker_of(folder: Path, **options: Any) -> Reranker:
    return Reranker(options=RerankerOptions(model=str(folder), **options))


@pytest.fixture
def reranker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Reranker:
    import torch

    monkeypatch.setattr("llm.passes.weight_type", lambda device: torch.float32)  # the same scores on every machine
    return reranker_of(folder)


class Gate:
    """The real model, which waits at a gate before each pass; notes the pairs that each pass reads."""

    def __init__(self, reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.predict = reranker._model.predict
        monkeypatch.setattr(reranker._model, "predict", self)
        self.passes: list[list[tuple[str, str]]] = []
        self.opened, self.entered = threading.Event(), threading.Event()

    def __call__(self, pairs: list[tuple[str, str]], **options: Any) -> Any:
        self.passes.append(pairs)
        self.entered.set()
        assert self.opened.wait(10)
        return self.predict(pairs, **options)


@pytest.fixture
def gate(reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(reranker, monkeypatch)
    yield gate
    gate.opened.set()


def alone(folder: Path, query: str, text: str) -> float:
    """What the model gives by itself: the sigmoid of one pair's logit."""
    import torch
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu")
    return float(model.predict([(query, text)], activation_fn=torch.nn.Sigmoid())[0])


def test_a_score_is_the_sigmoid_of_the_logit_whatever_it_is_batched_with(folder: Path, reranker: Reranker) -> None:
    scores = reranker.score(QUESTION, PASSAGES)
    assert scores == pytest.approx([alone(folder, QUESTION, text) for text in PASSAGES], abs=1e-5)
    assert all(0 < score < 1 for score in scores)
    assert len({round(score, 4) for score in scores}) == len(PASSAGES)


def test_a_configuration_that_asks_for_logits_gets_scores_all_the_same(folder: Path, tmp_path: Path, reranker) -> None:
    named = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}
    logits = reranker_of(cross_encoder(tmp_path, sentence_transformers=named))
    assert logits.score(QUESTION, PASSAGES) == pytest.approx(reranker.score(QUESTION, PASSAGES), abs=1e-6)
    assert type(logits._model.activation_fn).__name__ == "Identity"


def test_a_budget_changes_the_passes_and_no_score(folder: Path, reranker: Reranker, gate: Gate) -> None:
    gate.opened.set()
    small = reranker_of(folder, batch_tokens=2 * LIMIT)
    assert small.score(QUESTION, PASSAGES) == pytest.approx(reranker.score(QUESTION, PASSAGES), abs=1e-5)


def test_the_budget_counts_what_is_read_and_not_what_is_cut(reranker: Reranker, gate: Gate) -> None:
    gate.opened.set()
    reranker.score(QUESTION, ["a " * 5000, "is " * 6000])
    assert len(gate.passes) == 1


def test_equal_passages_are_read_once(reranker: Reranker, gate: Gate) -> None:
    gate.opened.set()
    scores = reranker.score(QUESTION, ["密码", "leave", "密码", "密码"])
    assert sum(map(len, gate.passes)) == 2
    assert scores[0] == scores[2] == scores[3] != scores[1]


def test_bfloat16_gives_nearly_the_same_scores(folder: Path, reranker: Reranker, monkeypatch) -> None:
    import torch

    exact = reranker.score(QUESTION, PASSAGES)
    monkeypatch.setattr("llm.passes.weight_type", lambda device: torch.bfloat16)
    rounded = reranker_of(folder)
    assert rounded.score(QUESTION, PASSAGES) == pytest.approx(exact, abs=0.05)
    assert rounded._model.dtype == torch.bfloat16


async def test_questions_that_come_while_one_runs_share_the_next_pass(reranker: Reranker, gate: Gate) -> None:
    first = asyncio.create_task(reranker.ascore(QUESTION, ["leave"]))
    await until(gate.entered.is_set)
    asked = ["密码是多少", "is the safe full ?", "年假有多少天"]
    others = [asyncio.create_task(reranker.ascore(question, PASSAGES[:3])) for question in asked]
    others.append(asyncio.create_task(asyncio.to_thread(reranker.score, "leave", ["safe"])))
    await until(lambda: len(reranker._passes._waiting) == len(others))
    gate.opened.set()
    together = [await other for other in [first, *others]]
    assert [len(pairs) for pairs in gate.passes] == [1, 10]
    apart = [reranker.score(question, PASSAGES[:3]) for question in asked]
    assert together[1:4] == [pytest.approx(scores, abs=1e-5) for scores in apart]


async def test_a_cancelled_caller_is_left_out_and_a_failing_one_fails_alone(reranker: Reranker, gate: Gate) -> None:
    first = asyncio.create_task(reranker.ascore(QUESTION, ["leave"]))
    await until(gate.entered.is_set)
    texts = (["safe"], ["is the password"], ["half a character: \ud83d"], ["密码"])
    others = [asyncio.create_task(reranker.ascore(QUESTION, text)) for text in texts]
    await until(lambda: len(reranker._passes._waiting) == len(others))
    others[1].cancel()
    await asyncio.gather(others[1], return_exceptions=True)
    gate.opened.set()
    safe, _, broken, password = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(broken, TypeError | UnicodeEncodeError | ValueError)
    scores = reranker.score(QUESTION, ["leave", "safe", "密码"])
    assert [*await first, *safe, *password] == pytest.approx(scores, abs=1e-5)
    assert not any((QUESTION, "is the password") in pairs for pairs in gate.passes)


def test_the_best_documents_come_first_as_copies_with_their_scores(folder: Path, reranker: Reranker) -> None:
    documents = [Document(text, id=str(at), metadata={"source": f"{at}.md"}) for at, text in enumerate(PASSAGES)]
    best = Reranker(options=reranker.options, top_n=3).compress_documents(documents, QUESTION)
    scores = dict(zip(PASSAGES, reranker.score(QUESTION, PASSAGES), strict=True))
    assert [document.page_content for document in best] == sorted(PASSAGES, key=lambda text: -scores[text])[:3]
    for document in best:
        assert document.metadata["relevance_score"] == pytest.approx(scores[document.page_content], abs=1e-5)
        assert document.metadata["source"] == f"{document.id}.md"
    assert all("relevance_score" not in document.metadata for document in documents)


async def test_a_loop_gets_the_same_documents_and_all_of_them_without_a_number(reranker: Reranker) -> None:
    documents = [Document(text) for text in PASSAGES]
    found = await reranker.acompress_documents(documents, QUESTION)
    assert found == reranker.compress_documents(documents, QUESTION)
    assert len(found) == len(PASSAGES)
    assert isinstance(reranker, BaseDocumentCompressor)


def test_a_passage_that_does_not_fit_is_told_with_its_numbers(reranker: Reranker, caplog) -> None:
    reranker.score(QUESTION, ["leave", "a " * 200 + "密码是 47913"])
    (record,) = [record for record in caplog.records if record.name == "llm.rerank"]
    assert "1 of 2 passages" in record.getMessage() and f"than the {LIMIT} tokens" in record.getMessage()
    assert "the longest has 214" in record.getMessage()


def test_a_classifier_with_several_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoReranker, match="has 3 labels; a reranker has one"):
        reranker_of(cross_encoder(tmp_path, num_labels=3)).score(QUESTION, ["leave"])


async def test_without_documents_no_model_is_loaded() -> None:
    reranker = Reranker(options=RerankerOptions(model="/nowhere"))
    assert reranker.score(QUESTION, []) == await reranker.ascore(QUESTION, []) == []
    assert reranker.compress_documents([], QUESTION) == []
    with pytest.raises(ModelNotFound):
        reranker.score(QUESTION, ["leave"])


def test_making_a_reranker_imports_no_model_library() -> None:
    program = """
import sys
from llm.rerank import Reranker
Reranker(top_n=3)
print(sorted({"torch", "vllm", "transformers", "sentence_transformers"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
