"""The same folder, the same model and Chroma through LangChain and LlamaIndex, each as its documentation shows it.

Neither is a dependency. `pip install --target FOLDER --no-deps langchain-chroma langchain-community langchain-classic
langchain-text-splitters llama-index-core llama-index-vector-stores-chroma` and what these then ask for, and run with
that folder in PYTHONPATH; what is not there is left out.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.embeddings import Embeddings
from sentence_transformers import SentenceTransformer

from ingest.pipeline import ingest
from ingest.store import KnowledgeBase
from llm.embeddings import Embedder
from llm.models import resolve


def tokens(text: str) -> list[tuple[int, int]]:
    """All three cut by the model's own tokens: by characters, the model would read half of a Chinese chunk only."""
    return TOKENIZER.offsets(text)


TOKENIZER = Embedder()
ROUNDS = 2


class PlainEmbeddings(Embeddings):
    """sentence-transformers as langchain-huggingface calls it: `encode()` of all texts, 32 at a time."""

    def __init__(self) -> None:
        self.model = SentenceTransformer(resolve(Embedder().options.model), device="cpu")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.model.encode(texts, show_progress_bar=False).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def with_groundwell(documents: Path, store: Path, embeddings: Any) -> int:
    knowledge_base = KnowledgeBase.open(store, "bench", embeddings, create=True)
    chunks = ingest(documents, knowledge_base).chunks
    knowledge_base.close()
    return chunks


def with_langchain(documents: Path, store: Path, embeddings: Embeddings) -> int:
    from langchain_chroma import Chroma
    from langchain_community.document_loaders import DirectoryLoader, TextLoader
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    loader = DirectoryLoader(str(documents), glob="**/*.txt", loader_cls=TextLoader)
    splitter = RecursiveCharacterTextSplitter(
        chunk_size=TOKENIZER.max_tokens, chunk_overlap=0, length_function=lambda text: len(tokens(text))
    )
    chunks = splitter.split_documents(loader.load())
    Chroma.from_documents(chunks, embeddings, persist_directory=str(store))
    return len(chunks)


def with_llama_index(documents: Path, store: Path, embeddings: Embeddings) -> int:
    import chromadb
    from llama_index.core import SimpleDirectoryReader, StorageContext, VectorStoreIndex
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.node_parser import SentenceSplitter
    from llama_index.vector_stores.chroma import ChromaVectorStore

    class Given(BaseEmbedding):
        """The embeddings of the comparison; its batches are LlamaIndex's own, of ten."""

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return embeddings.embed_documents(texts)

        def _get_text_embedding(self, text: str) -> list[float]:
            return embeddings.embed_query(text)

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return embeddings.embed_query(query)

    loaded = SimpleDirectoryReader(str(documents), recursive=True).load_data()
    collection = chromadb.PersistentClient(str(store)).create_collection("bench")
    context = StorageContext.from_defaults(vector_store=ChromaVectorStore(chroma_collection=collection))
    splitter = SentenceSplitter(chunk_size=TOKENIZER.max_tokens, chunk_overlap=0, tokenizer=tokens)
    VectorStoreIndex.from_documents(loaded, storage_context=context, embed_model=Given(), transformations=[splitter])
    return collection.count()


WAYS: dict[str, tuple[str, Callable[[Path, Path, Any], int]]] = {
    "LangChain": ("langchain_community", with_langchain),
    "LlamaIndex": ("llama_index", with_llama_index),
}


def compare(documents: Path) -> None:
    """Print the rates of all that are installed, in turn."""
    warnings.simplefilter("ignore")
    ours, plain = Embedder(), PlainEmbeddings()
    ours.embed_query("warm-up")
    plain.embed_query("warm-up")
    ways = {"groundwell": (with_groundwell, ours)}
    for name, (module, way) in WAYS.items():
        if find_spec(module) is None:
            print(f"{name} is not installed: see benchmarks/ingest_peers.py")
            continue
        ways |= {f"{name}, encode()": (way, plain), f"{name}, our embedder": (way, ours)}
    characters = sum(len(path.read_text(encoding="utf-8")) for path in documents.rglob("*.txt"))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    chunks = {}
    for _ in range(ROUNDS):
        for name, (way, embeddings) in ways.items():
            with TemporaryDirectory() as store:
                start = time.perf_counter()
                chunks[name] = way(documents, Path(store), embeddings)
                seconds[name].append(time.perf_counter() - start)
    first = statistics.median(seconds["groundwell"])
    print("\n| way | chunks | seconds | characters/s | groundwell is so many times as fast |\n|---|---|---|---|---|")
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        print(
            f"| {name} | {chunks[name]} | {middle:.1f} | {characters / middle:,.0f} | {middle / first:.2f} |",
            flush=True,
        )
