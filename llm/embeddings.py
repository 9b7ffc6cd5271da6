"""The embedder: a sentence-transformers model behind LangChain's `Embeddings`."""

import hashlib
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings

from llm.models import NOT_HERE, ModelNotFound, resolve
from llm.options import EmbedderOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer


class Embedder(Embeddings):
    """Normalised vectors of a sentence-transformers model, with the prompts that the model's own configuration names.

    Loading waits until the first text (5–10 s): a run that embeds nothing never imports torch. Thread-safe: one
    forward pass at a time, since two on the same cores are slower than one after the other.
    """

    def __init__(self, options: EmbedderOptions = EmbedderOptions()) -> None:  # noqa: B008 (frozen)
        self.options = options
        self._lock = threading.Lock()

    @cached_property
    def _folder(self) -> str:
        return resolve(self.options.model)

    @cached_property
    def _model(self) -> "SentenceTransformer":
        from sentence_transformers import SentenceTransformer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        try:
            return SentenceTransformer(self._folder, device=self.options.device)
        except OSError as error:
            raise ModelNotFound(f"the embedder {self.options.model} cannot be loaded: {NOT_HERE}") from error

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        """A copy without truncation and padding: counting must see what encoding would cut."""
        from tokenizers import Tokenizer

        file = Path(self._folder) / "tokenizer.json"
        found = Tokenizer.from_file(str(file)) if file.is_file() else Tokenizer.from_pretrained(self._folder)
        found.no_truncation()
        found.no_padding()
        return found

    @cached_property
    def max_tokens(self) -> int:
        """How many tokens of a document's own text fit, the document prompt and special tokens taken off."""
        with self._lock:
            limit = self._model.max_seq_length or 512
            prompt = self._model.prompts.get("document") or ""
        return limit - len(self._tokenizer.encode(prompt).ids)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What makes two vectors comparable: name, and a hash over samples of the model's files. Loads no model."""
        folder = Path(self._folder)
        if not folder.is_dir():  # a hub id: its cached snapshot's folder is the revision
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(self._folder))
        digest = hashlib.sha256()
        for file in sorted(path for path in folder.rglob("*") if path.suffix in {".json", ".safetensors", ".bin"}):
            size = file.stat().st_size
            digest.update(f"{file.relative_to(folder)} {size} ".encode())
            with file.open("rb") as stream:
                for at in range(0, size, max(2**16, size // 16)):  # all of a small file, 1 MiB of a large one
                    stream.seek(at)
                    digest.update(stream.read(2**16))
        return {"model": self.options.model, "revision": digest.hexdigest()[:16]}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each of the text's tokens, without special tokens, in order."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One normalised vector for each text, in order."""
        return self._encode(texts, "document")

    def embed_query(self, text: str) -> list[float]:
        """The normalised vector of a question."""
        return self._encode([text], "query")[0]

    def _encode(self, texts: list[str], kind: str) -> list[list[float]]:
        if not texts:
            return []
        with self._lock:
            options: dict[str, Any] = {"prompt_name": kind} if kind in self._model.prompts else {}
            vectors = self._model.encode(
                texts,
                batch_size=self.options.batch_size,
                normalize_embeddings=True,
                show_progress_bar=False,
                convert_to_numpy=True,
                **options,
            )
        return vectors.tolist()
