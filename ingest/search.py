"""What is asked of a knowledge base: its two legs, their scores for given chunks, and the chunks themselves."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.documents import Document

from ingest.batches import in_batches
from ingest.journal import Journal
from ingest.lexical import DamagedIndex
from ingest.metadata import OF_A_DOCUMENT, with_place
from ingest.metadata import where as chroma_where
from ingest.relevance import Relevance
from ingest.vector_store import LangChainVectorStore

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

LOOKED_PAST = 1000
"""Chunks of unfinished documents that a query looks past at most."""
DEEPER = 4
"""So many times as many candidates are looked at when too few of them meet a condition."""

Result = TypeVar("Result")


class Searching(LangChainVectorStore):
    """The reading half of `KnowledgeBase`, whose file it would make too long."""

    _batch: int

    @abstractmethod
    def ask(self, question: Callable[["Collection"], Result]) -> Result:
        """Put a question to Chroma."""

    @abstractmethod
    def mend_lexical(self) -> None:
        """Make the lexical index whole again, where it is behind or damaged."""

    def dense(self, vector: list[float], k: int, where: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """The `k` nearest chunks, of those whose metadata meet `where`: id and cosine similarity, best first."""
        found = self._nearest(vector, k, where)
        # Chunks of unfinished documents took places; how many is known only afterwards, and is nearly always none.
        if len(found) < k and (pending := len(self.journal.pending())):
            found = self._nearest(vector, k + min(pending, LOOKED_PAST), where)[:k]
        return found

    def lexical(self, query: str, k: int, where: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """The `k` best chunks that hold any of the query's terms and meet `where`: id and BM25 score, best first."""
        if not where:
            return self._search(query, k)
        depth = k
        while True:
            candidates = self._search(query, depth)
            meeting = self._meeting([id_ for id_, _ in candidates], where)
            found = [(id_, score) for id_, score in candidates if id_ in meeting]
            if len(found) >= k or len(candidates) < depth:
                return found[:k]
            depth *= DEEPER

    def coverages(self, query: str, ids: list[str]) -> list[float]:
        """How much of the query's terms each chunk holds, weighed by rarity: in [0, 2.2), 1 where it holds each once.

        It is the chunk's BM25 score over that of a chunk of mean length that does.
        """
        weights = self.term_weights(query)
        scores = self._ask_lexical(lambda journal: journal.lexical_scores(query, ids))
        return [scores.get(id_, 0.0) / (sum(weights.values()) or 1) for id_ in ids]

    def relevance(self) -> Relevance:
        """How far each leg is to be trusted here."""
        return self.journal.relevance()

    def term_weights(self, query: str) -> dict[str, float]:
        """The inverse document frequency of each of the query's terms."""
        return self._ask_lexical(lambda journal: journal.term_weights(query))

    def chunks(self, ids: list[str]) -> list[Document]:
        """The chunks in the order of `ids`; one that has been removed in the meantime is left out.

        Metadata: source, start, end (characters of the document's text), heading; page, slide, sheet, cell or line
        where there is one; and what the document brought with it.
        """
        stored = self.stored(ids)
        nameless = [id_ for id_ in stored if not isinstance(stored[id_].metadata.get("source"), str)]
        sources = self.journal.sources(nameless)
        gone = {id_ for id_ in nameless if id_ not in sources}
        return [with_place(stored[id_], sources.get(id_)) for id_ in ids if id_ in stored and id_ not in gone]

    def stored(self, ids: Iterable[str]) -> dict[str, Document]:
        """Those chunks that are there, with the metadata as they are stored."""
        rows: dict[str, Document] = {}
        for got in self._got(ids, ["documents", "metadatas"]):
            for id_, text, about in zip(got["ids"], got["documents"], got["metadatas"], strict=True):
                shown = {key: value for key, value in (about or {}).items() if key != OF_A_DOCUMENT}
                rows[id_] = Document(id=id_, page_content=text or "", metadata=shown)
        return rows

    def similarities(self, vector: list[float], ids: list[str]) -> list[float]:
        """Cosine similarity in [-1, 1] of each chunk to `vector`; -1 for one that has been removed."""
        import numpy

        stored, query = self.vectors(ids), numpy.asarray(vector) / (numpy.linalg.norm(vector) or 1)
        return [
            float(query @ stored[id_] / (numpy.linalg.norm(stored[id_]) or 1)) if id_ in stored else -1 for id_ in ids
        ]

    def vectors(self, ids: list[str]) -> dict[str, Any]:
        """The stored vectors, as numpy arrays, of those chunks that are there."""
        pairs = (zip(got["ids"], got["embeddings"], strict=True) for got in self._got(ids, ["embeddings"]))
        return dict(chain.from_iterable(pairs))

    def _nearest(self, vector: list[float], k: int, where: Mapping[str, Any] | None) -> list[tuple[str, float]]:
        meeting = chroma_where(where)
        got = self.ask(lambda collection: collection.query(vector, n_results=k, where=meeting, include=["distances"]))
        known = self.journal.known(got["ids"][0])
        pairs = zip(got["ids"][0], (got["distances"] or [[]])[0], strict=True)
        return [(id_, max(-1.0, min(1.0, 1 - distance))) for id_, distance in pairs if id_ in known]

    def _meeting(self, ids: list[str], where: Mapping[str, Any]) -> set[str]:
        return {id_ for got in self._got(ids, [], where=chroma_where(where)) for id_ in got["ids"]}

    def _got(self, ids: Iterable[str], include: list[Any], *, where: Any = None) -> Iterator[Any]:
        for some in in_batches(dict.fromkeys(ids), self._batch):
            yield self.ask(methodcaller("get", ids=some, where=where, include=include))

    def _search(self, query: str, k: int) -> list[tuple[str, float]]:
        return self._ask_lexical(lambda journal: journal.search(query, k))

    def _ask_lexical(self, question: Callable[[Journal], Result]) -> Result:
        try:
            return question(self.journal)
        except DamagedIndex:
            self.mend_lexical()
        return question(self.journal)
