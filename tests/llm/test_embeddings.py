import asyncio
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm.embeddings import Embedder
from llm.options import EmbedderOptions
from llm.tokens import ModelTokens
from tests.llm.conftest import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder: a tokenizer with one token a word, which would cut at five and pad, and no weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[CLS]", "[SEP]", "[UNK]", "[PAD]", "hello", "world", "passage", ":", "密码"]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5, pad_id=3, pad_token="[PAD]")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"hidden_size": 2}')
    (tmp_path / "model.safetensors").write_bytes(bytes(2**21))
    return tmp_path


def embedder_of(folder: Path, **options: Any) -> Embedder:
    return Embedder(EmbedderOptions(model=str(folder), **options))


class SentenceModel:
    """Stands in for the sentence-transformers model: a vector of the text's length and its prompt's, times any number.

    Waits at a gate, and notes what each pass holds.
    """

    max_seq_length: int | None = 12
    dtype = None

    def __init__(self, **prompts: str) -> None:
        self.prompts = {"query": "", "document": ""} | prompts  # sentence-transformers fills these in
        self.passes: list[tuple[str, list[str]]] = []
        self.at_once = threading.Semaphore(1)
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def encode_query(self, texts: list[str], **options: Any) -> Any:
        return self._encode("query", texts, **options)

    def encode_document(self, texts: list[str], **options: Any) -> Any:
        return self._encode("document", texts, **options)

    def _encode(self, kind: str, texts: list[str], *, prompt: str, batch_size: int, show_progress_bar: bool) -> Any:
        import numpy

        assert self.at_once.acquire(blocking=False), "two forward passes at once"
        self.passes.append((kind, texts))
        assert batch_size == len(texts) and not show_progress_bar
        self.entered.set()
        assert self.gate.wait(10)
        self.at_once.release()
        return 7 * numpy.array([[len(text), len(prompt)] for text in texts], dtype="float32")


@pytest.fixture
def model() -> Iterator[SentenceModel]:
    model = SentenceModel()
    yield model
    model.gate.set()


def with_model(folder: Path, monkeypatch: pytest.MonkeyPatch, model: SentenceModel, **options: Any) -> Embedder:
    monkeypatch.setattr(Embedder, "_loaded", model)
    return embedder_of(folder, **options)


@pytest.fixture
def embedder(folder: Path, monkeypatch: pytest.MonkeyPatch, model: SentenceModel) -> Embedder:
    return with_model(folder, monkeypatch, model)


def test_the_fingerprint_stays_while_the_files_do(folder: Path) -> None:
    assert embedder_of(folder).fingerprint == embedder_of(folder).fingerprint
    assert embedder_of(folder).fingerprint["model"] == str(folder)


def change(file: Path, at: int) -> None:
    changed = bytearray(file.read_bytes())
    changed[at] ^= 1
    file.write_bytes(changed)


@pytest.mark.parametrize(
    ("name", "at"),
    [("config.json", -2), ("tokenizer.json", -3), ("model.safetensors", 0), ("model.safetensors", 2**20 + 5)],
)
def test_the_fingerprint_changes_with_a_file_of_the_same_size(folder: Path, name: str, at: int) -> None:
    before = embedder_of(folder).fingerprint
    change(folder / name, at)
    assert embedder_of(folder).fingerprint != before


def test_the_fingerprint_changes_when_a_file_comes_goes_or_is_renamed(folder: Path) -> None:
    seen = [embedder_of(folder).fingerprint["revision"]]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    seen.append(embedder_of(folder).fingerprint["revision"])
    (folder / "1_Pooling").rename(folder / "2_Pooling")
    seen.append(embedder_of(folder).fingerprint["revision"])
    (folder / "model.safetensors").unlink()
    seen.append(embedder_of(folder).fingerprint["revision"])
    assert len(set(seen)) == 4


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("config_sentence_transformers.json", {"prompts": {"query": ""}}, {"prompts": {"query": "查询："}}),
        ("2_Dense/config.json", {"out_features": 384}, {"out_features": 256}),
        ("sentence_bert_config.json", {"max_seq_length": 256}, {"max_seq_length": 512}),
    ],
)
def test_the_fingerprint_changes_with_prompts_dimension_and_limit(
    folder: Path, name: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    seen = []
    for configuration in (before, after, before):
        (folder / name).write_text(json.dumps(configuration), encoding="utf-8")
        seen.append(embedder_of(folder).fingerprint)
    assert seen[0] == seen[2] != seen[1]


def test_a_readme_does_not_change_the_fingerprint(folder: Path) -> None:
    before = embedder_of(folder).fingerprint
    (folder / "README.md").write_text("new")
    assert embedder_of(folder).fingerprint == before


def test_neither_importing_nor_counting_nor_the_fingerprint_imports_a_model_library(folder: Path) -> None:
    program = f"""
import sys
import llm.chat, llm.engine, llm.models, llm.prompting
from llm.embeddings import Embedder
from llm.options import EmbedderOptions
embedder = Embedder(EmbedderOptions(model={str(folder)!r}))
embedder.fingerprint, embedder.offsets("hello world")
print(sorted({{"torch", "vllm", "ray", "transformers", "sentence_transformers"}} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_offsets_are_character_spans_of_all_tokens_without_the_special_ones(folder: Path) -> None:
    text = "hello  world 密码：hello hello"
    spans = embedder_of(folder).offsets(text)
    assert [text[start:end] for start, end in spans] == ["hello", "world", "密码", "：", "hello", "hello"]


def test_the_tokens_alone_give_the_same_offsets_and_are_sent_without_what_they_loaded(folder: Path) -> None:
    embedder = embedder_of(folder)
    there = pickle.loads(pickle.dumps(embedder.tokens))
    assert there == embedder.tokens == ModelTokens(str(folder))
    assert there.offsets("hello 密码") == embedder.offsets("hello 密码") != []
    assert len(pickle.dumps(there)) < 500


def test_offsets_are_cut_nowhere_and_never_padded(folder: Path) -> None:
    assert len(embedder_of(folder).offsets("hello " * 1000)) == 1000
    assert embedder_of(folder).offsets("hello") == [(0, 5)]
    assert embedder_of(folder).offsets("") == []


def test_prompt_and_special_tokens_are_taken_off_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_model(folder, monkeypatch, SentenceModel()).max_tokens == 12 - 2
    assert with_model(folder, monkeypatch, SentenceModel(document="passage: ")).max_tokens == 12 - 2 - 2


def test_a_model_without_a_limit_has_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceModel()
    model.max_seq_length = None
    assert with_model(folder, monkeypatch, model).max_tokens == 512 - 2


def test_questions_get_the_prompt_that_the_model_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = with_model(folder, monkeypatch, SentenceModel(query="q: "))
    assert embedder.embed_documents(["a", "bcd"]) == [[1, 0], [1, 0]]
    assert embedder.embed_query("abcd") == pytest.approx([0.8, 0.6])


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_documents_get_the_prompt_under_each_name_that_models_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    embedder = with_model(folder, monkeypatch, SentenceModel(**{name: "p: "}))
    assert embedder.embed_documents(["abcd"]) == [pytest.approx([0.8, 0.6])]
    assert embedder.embed_query("abcd") == [1, 0]


def test_no_text_needs_no_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Embedder, "_loaded", SimpleNamespace())
    assert embedder_of(folder).embed_documents([]) == []


async def test_no_text_needs_no_model_on_a_loop_either(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Embedder, "_loaded", SimpleNamespace())
    assert await embedder_of(folder).aembed_documents([]) == []


def test_one_forward_pass_runs_at_a_time(embedder: Embedder, model: SentenceModel) -> None:
    threads = [threading.Thread(target=embedder.embed_documents, args=(["a"],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(model.passes) == 8


def test_passes_hold_like_lengths_under_the_budget_and_the_order_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SentenceModel(document="passage: ")
    embedder = with_model(folder, monkeypatch, model, batch_tokens=24)
    texts = ["hello", "hello " * 8, "hello hello", "hello " * 7, "world", "world " * 8]
    vectors = embedder.embed_documents(texts)
    assert [[len(text.split()) for text in batch] for _, batch in model.passes] == [[8, 8], [7, 2], [1, 1]]
    angles = [vector[1] / vector[0] for vector in vectors]
    assert angles == pytest.approx([9 / len(text) for text in texts])


def test_the_vectors_of_each_pass_are_there_before_the_next_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceModel()
    embedder = with_model(folder, monkeypatch, model, batch_tokens=8)
    found = embedder.embed_by_passes(["密码", "hello " * 6, "密码", "hello " * 5])
    assert list(next(found)) == ["hello " * 6]
    assert len(model.passes) <= 2
    assert [list(some) for some in found] == [["hello " * 5], ["密码"]]
    assert list(embedder.embed_by_passes([])) == []


def test_the_budget_counts_what_is_read_and_not_what_is_cut(embedder: Embedder, model: SentenceModel) -> None:
    embedder.embed_documents(["hello " * 5000, "world " * 6000])
    assert len(model.passes) == 1


def test_equal_texts_of_a_call_are_embedded_once(embedder: Embedder, model: SentenceModel) -> None:
    vectors = embedder.embed_documents(["hello", "密码", "hello", "hello", "密码"])
    assert [sorted(batch) for _, batch in model.passes] == [["hello", "密码"]]
    assert len(vectors) == 5
    vectors[0].append(0)
    assert len(vectors[2]) == 2  # no two share a list


def test_a_text_that_does_not_fit_is_told_with_its_numbers_once_a_call(
    embedder: Embedder, caplog: pytest.LogCaptureFixture
) -> None:
    embedder.embed_documents(["hello " * 10, "hello " * 11, "hello " * 500 + "密码是 47913"])
    (record,) = caplog.records
    assert "2 of 3 texts are longer than the 12 tokens" in record.getMessage()
    assert "the longest has 504" in record.getMessage()
    assert record.levelname == "WARNING"


def test_the_document_prompt_counts_to_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    embedder = with_model(folder, monkeypatch, SentenceModel(document="passage: "))
    embedder.embed_documents(["hello " * embedder.max_tokens])
    assert not caplog.records
    embedder.embed_documents(["hello " * (embedder.max_tokens + 1)])
    assert "1 of 1 texts" in caplog.text


def test_a_question_that_does_not_fit_is_told_too(embedder: Embedder, caplog: pytest.LogCaptureFixture) -> None:
    embedder.embed_query("密码 " * 11)
    assert "1 of 1 texts are longer" in caplog.text


async def test_questions_that_come_while_one_runs_share_the_next_pass(embedder: Embedder, model: SentenceModel) -> None:
    model.gate.clear()
    first = asyncio.create_task(embedder.aembed_query("hello"))
    await until(model.entered.is_set)
    others = [asyncio.create_task(embedder.aembed_query(f"{'hello ' * number}?")) for number in range(1, 9)]
    others += [asyncio.to_thread(embedder.embed_query, "hello world") for _ in range(3)]
    others = [asyncio.ensure_future(other) for other in others]
    await until(lambda: len(embedder._passes._waiting) == len(others))
    model.gate.set()
    assert await asyncio.gather(first, *others) == [[1, 0]] * 12
    assert [len(batch) for _, batch in model.passes] == [1, 9]  # the three equal ones once


async def test_the_loop_turns_while_questions_and_documents_are_embedded(
    embedder: Embedder, model: SentenceModel
) -> None:
    model.gate.clear()
    question = asyncio.create_task(embedder.aembed_query("hello"))
    documents = asyncio.create_task(embedder.aembed_documents(["hello"]))
    await until(model.entered.is_set)
    assert not question.done() and not documents.done()
    model.gate.set()
    assert await question == [1, 0]
    assert await documents == [[1, 0]]


async def test_a_question_whose_caller_is_cancelled_is_left_out_and_the_others_are_answered(
    embedder: Embedder, model: SentenceModel
) -> None:
    model.gate.clear()
    first = asyncio.create_task(embedder.aembed_query("hello"))
    await until(model.entered.is_set)
    asked = [asyncio.create_task(embedder.aembed_query(text)) for text in ("world", "密码", "passage")]
    await until(lambda: len(embedder._passes._waiting) == 3)
    asked[1].cancel()
    first.cancel()  # its pass runs already: only its answer is dropped
    await asyncio.gather(asked[1], first, return_exceptions=True)
    model.gate.set()
    assert await asyncio.gather(asked[0], asked[2]) == [[1, 0]] * 2
    assert model.passes == [("query", ["hello"]), ("query", ["world", "passage"])]


async def test_a_text_that_cannot_be_read_fails_its_own_caller_only(embedder: Embedder, model: SentenceModel) -> None:
    model.gate.clear()
    first = asyncio.create_task(embedder.aembed_query("hello"))
    await until(model.entered.is_set)
    others = [
        asyncio.create_task(embedder.aembed_query(text)) for text in ("world", "half a character: \ud83d", "密码")
    ]
    await until(lambda: len(embedder._passes._waiting) == 3)
    model.gate.set()
    good, bad, last = await asyncio.gather(*others, return_exceptions=True)
    assert (await first, good, last) == ([1, 0], [1, 0], [1, 0])
    assert isinstance(bad, TypeError | UnicodeEncodeError)


async def test_questions_get_in_between_the_batches_of_documents(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: SentenceModel
) -> None:
    embedder = with_model(folder, monkeypatch, model, batch_tokens=1)
    model.gate.clear()
    documents = asyncio.create_task(asyncio.to_thread(embedder.embed_documents, ["hello", "world", "密码"]))
    await until(model.entered.is_set)
    question = asyncio.create_task(embedder.aembed_query("passage"))
    await until(lambda: embedder._passes._waiting)
    model.gate.set()
    await asyncio.gather(documents, question)
    assert [kind for kind, _ in model.passes] == ["document", "query", "document", "document"]


async def test_cancelled_documents_begin_no_further_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: SentenceModel
) -> None:
    embedder = with_model(folder, monkeypatch, model, batch_tokens=1)
    model.gate.clear()
    documents = asyncio.create_task(embedder.aembed_documents(["hello", "world", "密码"]))
    await until(model.entered.is_set)
    documents.cancel()
    await asyncio.gather(documents, return_exceptions=True)
    model.gate.set()
    assert await embedder.aembed_query("passage") == [1, 0]
    assert model.passes == [("document", ["hello"]), ("query", ["passage"])]


def test_one_event_loop_after_another_may_ask(embedder: Embedder) -> None:
    assert [asyncio.run(embedder.aembed_query("hello")) for _ in range(2)] == [[1, 0]] * 2


def test_the_model_is_loaded_once_however_many_ask_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loaded = SentenceModel(), []

    def load(*_: object) -> SentenceModel:
        loaded.append(model)
        return model

    monkeypatch.setattr("llm.embeddings.load", load)
    embedder = embedder_of(folder)
    asks = [embedder.embed_query, lambda text: embedder.embed_documents([text]), lambda _: embedder.max_tokens]
    threads = [threading.Thread(target=ask, args=("hello",)) for ask in asks * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded == [model]
