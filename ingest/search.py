"""What is asked of a knowledge base: its two legs, their scores for given chunks, and the chunks themselves."""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from operator import methodcaller
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.documents import Document

from ingest.batches import in_batches
from ingest.columns import Columns, Unanswerable
from ingest.journal import Journal
from ingest.lexical import DamagedIndex
from ingest.memory import SMALL, Memory
from ingest.metadata import OF_A_DOCUMENT, with_place
from ingest.metadata import where as chroma_where
from ingest.relevance import Relevance
from ingest.resident import FEW, Allowed, Resident, unit
from ingest.vector_store import LangChainVectorStore
from llm.passes import Passes, result_of

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

LOOKED_PAST = 1000
"""Chunks of unfinished documents that a query looks past at most."""
DEEPER = 2
"""So many times as many candidates are looked at as would hold enough that meet a filter, were they spread evenly."""
LISTED = 7
"""The ids of chunks, whose number squared is at most so many times that of all, are put into the lexical question; for
more it takes less time to look at more candidates."""
NONE_KNOWN: Mapping[str, float] = MappingProxyType({})

Result = TypeVar("Result")


class Searching(LangChainVectorStore):
    """The reading half of `KnowledgeBase`, whose file it would make too long."""

    _batch: int

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._counted = (-1, 0)
        """A generation of the journal, and the chunks that it has."""
        self._remembering = threading.Lock()
        self._queries: Passes[tuple[list[float], int], list[tuple[str, float]]] = Passes(self._query, "chroma")
        self._scans = ThreadPoolExecutor(1, "scan")

    def close(self) -> None:
        """Let go of what is in memory."""
        with self._remembering:
            if self._memory:
                self._memory.close()
            self._memory = None

    def wait_for_memory(self) -> None:
        """Until the chunks that a filter has let be read into memory are there; Chroma answers as long."""
        if memory := self._memory:
            memory.wait()

    @abstractmethod
    def answering(self) -> tuple[str, int]:
        """The collection that answers, and the generation of the journal that it is at least at."""

    @abstractmethod
    def ask(self, question: Callable[["Collection"], Result]) -> Result:
        """Put a question to Chroma."""

    @abstractmethod
    def mend_lexical(self) -> None:
        """Make the lexical index whole again, where it is behind or damaged."""

    def dense(self, vector: list[float], k: int, where: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """The `k` nearest chunks, of those whose metadata meet `where`: id and cosine similarity, best first.

        Exact where there are at most SMALL chunks or a filter leaves less than an eighth of them; otherwise as exact as
        Chroma's index.
        """
        is_small = self._is_small()
        # What another process has just written is not in the index that is loaded: nobody waits for it.
        may_read = bool(where) or self.journal.generation() == self.answering()[1]
        if (where or is_small) and (allowed := self._allowed(where, begin=may_read)):
            return self._compared(vector, k, allowed) if is_small else self._nearest_of(vector, k, allowed)
        found = self._nearest(vector, k, where)
        # Chunks of unfinished documents took places; how many is known only afterwards, and is nearly always none.
        if len(found) < k and (pending := len(self.journal.pending())):
            found = self._nearest(vector, k + min(pending, LOOKED_PAST), where)[:k]
        return found

    def lexical(self, query: str, k: int, where: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """The `k` best chunks that hold any of the query's terms and meet `where`: id and BM25 score, best first."""
        if not where:
            return self._ask_lexical(lambda journal: journal.search(query, k))
        if (allowed := self._allowed(where)) is None:
            return self._ask_lexical(
                lambda journal: journal.search(query, k, meets=lambda ids: self._meeting(ids, where))
            )
        if allowed.count**2 <= LISTED * len(allowed.rows):
            return self._ask_lexical(lambda journal: journal.search(query, k, among=allowed.ids()))
        depth = int(DEEPER * k * allowed.one_in)
        likely = allowed.likely() if allowed.one_in > DEEPER else None
        return self._ask_lexical(lambda journal: journal.search(query, k, meets=allowed.of, likely=likely, depth=depth))

    def coverages(self, query: str, ids: list[str], known: Mapping[str, float] = NONE_KNOWN) -> list[float]:
        """How much of the query's terms each chunk holds, weighed by rarity: in [0, 2.2), 1 where it holds each once.

        It is the chunk's BM25 score over that of a chunk of mean length that does. `known`: what `lexical` has found.
        """
        whole = sum(self.term_weights(query).values()) or 1
        rest = [id_ for id_ in ids if id_ not in known]
        scores = {**known, **self._ask_lexical(lambda journal: journal.lexical_scores(query, rest))}
        return [scores.get(id_, 0.0) / whole for id_ in ids]

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
        query, resident, known = unit(vector), self._resident(begin=False), dict[str, float]()
        if resident:
            rows = {id_: row for id_ in ids if (row := resident.row_of.get(id_)) is not None}
            known = dict(zip(rows, map(float, resident.similarities(query, [*rows.values()])), strict=True))
        rest = [id_ for id_ in ids if id_ not in known]
        known |= {id_: float(query @ unit(stored)) for id_, stored in self.vectors(rest).items()}
        return [known.get(id_, -1.0) for id_ in ids]

    def vectors(self, ids: list[str]) -> dict[str, Any]:
        """The stored vectors, as numpy arrays, of those chunks that are there."""
        pairs = (zip(got["ids"], got["embeddings"], strict=True) for got in self._got(ids, ["embeddings"]))
        return dict(chain.from_iterable(pairs))

    def _nearest(self, vector: list[float], k: int, where: Mapping[str, Any] | None) -> list[tuple[str, float]]:
        if meeting := chroma_where(where):
            found = self.ask(lambda collection: _found(collection, [vector], k, meeting))[0]
        else:
            found = result_of(self._queries.share([(vector, k)]))[0]
        known = self.journal.known(id_ for id_, _ in found)
        return [(id_, similarity) for id_, similarity in found if id_ in known]

    def _query(self, questions: list[tuple[list[float], int]]) -> list[list[tuple[str, float]]]:
        """Several callers' questions in one call, which takes Chroma less time, and less than several threads do."""
        vectors, most = [vector for vector, _ in questions], max(k for _, k in questions)
        found = self.ask(lambda collection: _found(collection, vectors, most))
        return [one[:k] for one, (_, k) in zip(found, questions, strict=True)]

    def _nearest_of(self, vector: list[float], k: int, allowed: Allowed) -> list[tuple[str, float]]:
        if not allowed.count:
            return []
        if allowed.one_in < FEW:  # the nearest of all hold enough of them, unless these are all far away
            found = self._nearest(vector, int(DEEPER * k * allowed.one_in), None)
            met = allowed.of([id_ for id_, _ in found])
            found = [(id_, similarity) for id_, similarity in found if id_ in met]
            if len(found) >= k:
                return found[:k]
        return self._compared(vector, k, allowed)

    def _compared(self, vector: list[float], k: int, allowed: Allowed) -> list[tuple[str, float]]:
        found = result_of(self._scans.submit(allowed.nearest, vector, k))
        known = self.journal.known(id_ for id_, _ in found)
        return [(id_, similarity) for id_, similarity in found if id_ in known]

    def _is_small(self) -> bool:
        generation = self.journal.generation()
        if self._counted[0] != generation:
            self._counted = generation, self.journal.count()[1]
        return self._counted[1] <= SMALL

    def _allowed(self, where: Mapping[str, Any] | None, *, begin: bool = True) -> Allowed | None:
        """The chunks in memory that meet a filter, without one all; None where only Chroma knows."""
        if resident := self._resident(begin=begin):
            with suppress(Unanswerable):
                return Allowed(resident, resident.meeting(chroma_where(where)))
        return None

    def _resident(self, *, begin: bool = True) -> Resident | None:
        """The chunks in memory, where they are all there; a question with a filter, or to few, begins to read them."""
        collection, generation = self.answering()
        with self._remembering:
            if begin and (self._memory is None or self._memory.collection != collection):
                if self._memory:
                    self._memory.close()
                self._memory = Memory(self.journal, collection, self._read)
            memory = self._memory
        there = memory is not None and memory.collection == collection and memory.journal is self.journal
        return memory.at(generation, begin=begin) if memory and there else None

    def _read(self, ids: Iterable[str]) -> Iterator[Any]:
        return self._got(ids, ["embeddings", "metadatas"])

    def _meeting(self, ids: list[str], where: Mapping[str, Any]) -> set[str]:
        """Chroma takes as long for a few ids as for all, so that it answers only what we cannot."""
        meeting = chroma_where(where) or {}
        columns, there = Columns(), []
        for got in self._got(ids, ["metadatas"]):
            columns.add(got["metadatas"])
            there += got["ids"]
        try:
            return {id_ for id_, meets in zip(there, columns.meeting(meeting, len(there)), strict=True) if meets}
        except Unanswerable:
            return {id_ for got in self._got(ids, [], where=meeting) for id_ in got["ids"]}

    def _got(self, ids: Iterable[str], include: list[Any], *, where: Any = None) -> Iterator[Any]:
        for some in in_batches(dict.fromkeys(ids), self._batch):
            yield self.ask(methodcaller("get", ids=some, where=where, include=include))

    def _ask_lexical(self, question: Callable[[Journal], Result]) -> Result:
        try:
            return question(self.journal)
        except DamagedIndex:
            self.mend_lexical()
        return question(self.journal)


def _found(
    collection: "Collection", vectors: list[list[float]], k: int, where: Any = None
) -> list[list[tuple[str, float]]]:
    import numpy

    asked = numpy.asarray(vectors, dtype="float32")
    got = collection.query(asked, n_results=k, where=where, include=["distances"])
    pairs = zip(got["ids"], got["distances"] or [], strict=True)
    return [[(id_, max(-1.0, min(1.0, 1 - far))) for id_, far in zip(*one, strict=True)] for one in pairs]
