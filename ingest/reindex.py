"""Re-index a knowledge base for another embedder: beside the live collection, then swapped in one transaction."""

import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest import index, recovery
from ingest.batches import in_batches
from ingest.collection import (
    BUILDING,
    NEVER,
    drop_others,
    fingerprint,
    journal_path,
    lock_path,
    make_collection,
    next_collection_name,
    note,
)
from ingest.disk import told_plainly
from ingest.journal import Journal
from ingest.knowledge_bases import unknown
from ingest.lock import writer_lock

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

    from ingest.embedder import EmbedderLike

BATCH = 1000
"""Chunks read, embedded and written at a time."""

Progress = Callable[[int, int], None]
"""Told how many chunks are done, and of how many."""


class ChunksTooLong(Exception):
    """Chunks were cut for an embedder that reads more; this one would not read their ends."""

    def __init__(self, name: str, embedder: "EmbedderLike", lengths: list[int], chunks: int) -> None:
        super().__init__(
            f"{len(lengths)} of the {chunks} chunks of knowledge base {name!r} are longer than the"
            f" {embedder.max_tokens} tokens that {embedder.fingerprint['model']} reads, the longest has {max(lengths)}:"
            f" have the files cut anew with `groundwell ingest FOLDER --knowledge-base {shlex.quote(name)} --rebuild`"
            " (texts that were added without a file must then be added again)"
        )


def reindex(folder: Path, name: str, embedder: "EmbedderLike", progress: Progress = lambda done, total: None) -> bool:
    """Embed all chunks with another embedder. False when the knowledge base is made with this one already.

    Until the swap the old vectors answer; a run that is killed leaves a collection that the next writer drops.
    Raises UnknownKnowledgeBase, AlreadyWriting, StoreNotWritable, and ChunksTooLong before anything is embedded.
    """
    if not recovery.is_there(folder, name):
        raise unknown(folder, name)
    with (
        told_plainly(folder),
        writer_lock(lock_path(folder, name), name),
        closing(Journal(journal_path(folder, name))) as journal,
    ):
        live = str(journal.live())
        client, old = index.load(folder, name, live)
        drop_others(client, name, live)
        if fingerprint(old) == embedder.fingerprint:
            return False
        recovery.agree(journal, old, name)
        _check_lengths(name, journal, old, embedder)
        new = make_collection(
            *(client, next_collection_name(name, journal.generation()), name, embedder),
            sync_threshold=BATCH,
            session=journal.session(),
            building=True,
        )
        _copy(journal, old, new, embedder, progress, min(BATCH, client.get_max_batch_size()))
        index.set_threshold(new, NEVER)  # until now nobody else could load it
        note(new, {BUILDING: False})
        journal.switch(new.name)
        journal.note_written(BATCH)
        drop_others(client, name, new.name)
    return True


def _check_lengths(name: str, journal: Journal, old: "Collection", embedder: "EmbedderLike") -> None:
    too_long = []
    for ids in in_batches(journal.ids(), BATCH):
        lengths = [len(embedder.offsets(text or "")) for text in _texts(old, ids)]
        too_long += [length for length in lengths if length > embedder.max_tokens]
    if too_long:
        raise ChunksTooLong(name, embedder, too_long, journal.count()[1])


def _copy(
    journal: Journal, old: "Collection", new: "Collection", embedder: "EmbedderLike", progress: Progress, batch: int
) -> None:
    """Each text is embedded once: equal ones are in one batch, or at the end of one and the beginning of the next."""
    done, total = 0, journal.count()[1]
    vectors: dict[bytes, Any] = {}
    for chunks in in_batches(journal.by_text(), batch):
        digests = dict(chunks)
        got: Any = old.get(ids=list(digests), include=["documents", "metadatas"])
        digest_of = [digests[id_] for id_ in got["ids"]]
        texts = {digest: text or "" for digest, text in zip(digest_of, got["documents"], strict=True)}
        vectors = {digest: vectors[digest] for digest in texts.keys() & vectors.keys()}
        missing = texts.keys() - vectors.keys()
        vectors |= zip(missing, embedder.embed_documents([texts[digest] for digest in missing]), strict=True)
        new.add(
            ids=got["ids"],
            embeddings=[vectors[digest] for digest in digest_of],
            documents=got["documents"],
            metadatas=got["metadatas"],
        )
        done += len(chunks)
        progress(done, total)


def _texts(collection: "Collection", ids: list[str]) -> list[str]:
    return collection.get(ids=ids, include=["documents"])["documents"] or []
