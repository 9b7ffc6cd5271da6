import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm.embeddings import Embedder
from llm.options import EmbedderOptions


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
    """Stands in for the sentence-transformers model: a vector is the text's length and its prompt's."""

    max_seq_length: int | None = 12

    def __init__(self, **prompts: str) -> None:
        self.prompts = prompts
        self.calls: list[dict[str, Any]] = []
        self.at_once = threading.Semaphore(1)

    def encode(self, texts: list[str], *, prompt_name: str | None = None, **options: Any) -> Any:
        import numpy

        assert self.at_once.acquire(blocking=False), "two forward passes at once"
        self.calls.append({"prompt_name": prompt_name, **options})
        prompt = self.prompts.get(prompt_name or "", "")
        vectors = numpy.array([[len(text), len(prompt)] for text in texts], dtype="float32")
        self.at_once.release()
        return vectors


def with_model(folder: Path, monkeypatch: pytest.MonkeyPatch, model: SentenceModel) -> Embedder:
    monkeypatch.setattr(Embedder, "_model", model)
    return embedder_of(folder, batch_size=7)


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


def test_documents_and_questions_get_the_prompts_that_the_model_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = with_model(folder, monkeypatch, SentenceModel(query="query: "))
    assert embedder.embed_documents(["a", "bcd"]) == [[1, 0], [3, 0]]
    assert embedder.embed_query("ab") == [2, 7]


def test_vectors_are_asked_for_normalised_and_in_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceModel()
    with_model(folder, monkeypatch, model).embed_query("a")
    (call,) = model.calls
    assert call["normalize_embeddings"] is True
    assert call["show_progress_bar"] is False
    assert call["batch_size"] == 7


def test_no_text_needs_no_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Embedder, "_model", SimpleNamespace())
    assert embedder_of(folder).embed_documents([]) == []


def test_one_forward_pass_runs_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceModel()
    embedder = with_model(folder, monkeypatch, model)
    threads = [threading.Thread(target=embedder.embed_documents, args=(["a"],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(model.calls) == 8
