"""Knowledge bases as a whole: list, describe, make, empty, delete."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.collection import collection_name as first_name
from ingest.collection import (
    drop_others,
    fingerprint,
    index_lock_path,
    journal_path,
    lexical_path,
    lock_path,
    make_collection,
    next_collection_name,
    open_chroma,
)
from ingest.index import index_files
from ingest.journal import Journal
from ingest.lock import writer_lock

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

    from ingest.embedder import EmbedderLike


class UnknownKnowledgeBase(Exception):
    """There is no knowledge base of that name."""

    def __init__(self, name: str, known: list[str]) -> None:
        others = f"there are: {', '.join(known)}" if known else "there is none yet"
        super().__init__(f"no knowledge base {name!r} ({others}); make it with `groundwell ingest FOLDER`")
        self.name, self.known = name, known


class EmbedderMismatch(Exception):
    """The knowledge base was made with another embedder, whose vectors cannot be compared with this one's."""

    def __init__(self, name: str, stored: dict[str, str], given: dict[str, str]) -> None:
        quoted = shlex.quote(name)
        super().__init__(
            f"knowledge base {name!r} was made with {_shown(stored)}, but the embedder is now {_shown(given)}: set the"
            f" first one again, re-index what is stored with `groundwell knowledge-bases reindex {quoted}`, or read the"
            f" files again with `groundwell ingest FOLDER --knowledge-base {quoted} --rebuild`"
        )
        self.name, self.stored, self.given = name, stored, given


@dataclass(frozen=True)
class KnowledgeBaseSummary:
    """One line of the list of knowledge bases."""

    name: str
    documents: int
    chunks: int
    embedder: str


@dataclass(frozen=True)
class KnowledgeBaseDescription(KnowledgeBaseSummary):
    """All that is known of one without opening it. `bytes` on disk: its files and its share of Chroma's."""

    revision: str
    bytes: int
    last_run: str | None


def list_knowledge_bases(folder: Path) -> list[KnowledgeBaseSummary]:
    """The knowledge bases below `folder`, by name."""
    found = []
    for name, collection, journal in _live(folder):
        found.append(KnowledgeBaseSummary(name, *journal.count(), fingerprint(collection)["model"]))
    return sorted(found, key=lambda summary: summary.name)


def describe(folder: Path, name: str) -> KnowledgeBaseDescription:
    """One knowledge base. Raises UnknownKnowledgeBase."""
    total = sum(summary.chunks for summary in list_knowledge_bases(folder))
    for found, collection, journal in _live(folder):
        if found == name:
            documents, chunks = journal.count()
            model = fingerprint(collection)
            size = _own_bytes(folder, name, collection) + _shared_bytes(folder) * chunks // max(total, 1)
            revision = model.get("revision", "unknown")
            return KnowledgeBaseDescription(name, documents, chunks, model["model"], revision, size, journal.last_run())
    raise unknown(folder, name)


def exists(folder: Path, name: str) -> bool:
    """Whether there is a knowledge base of that name."""
    path = journal_path(folder, name)
    if not path.is_file():
        return False
    with closing(Journal(path)) as journal:
        return journal.live() is not None


def stored_fingerprint(folder: Path, name: str) -> dict[str, str]:
    """That of the embedder which a knowledge base was made with. Raises UnknownKnowledgeBase."""
    for found, collection, _ in _live(folder):
        if found == name:
            return fingerprint(collection)
    raise unknown(folder, name)


def unknown(folder: Path, name: str) -> UnknownKnowledgeBase:
    """The error that names those there are."""
    return UnknownKnowledgeBase(name, [summary.name for summary in list_knowledge_bases(folder)])


def make(folder: Path, name: str, embedder: "EmbedderLike") -> None:
    """Make an empty knowledge base, unless another has made it in the meantime. Raises AlreadyWriting."""
    folder.mkdir(parents=True, exist_ok=True)
    with writer_lock(lock_path(folder, name), name), closing(Journal(journal_path(folder, name))) as journal:
        if journal.live() is None:
            client = open_chroma(folder)
            drop_others(client, name, live=None)
            make_collection(client, first_name(name), name, embedder)
            journal.switch(first_name(name), empty=True)


def start_over(folder: Path, name: str, embedder: "EmbedderLike") -> None:
    """Empty a knowledge base, and give it to this embedder. Raises AlreadyWriting."""
    with writer_lock(lock_path(folder, name), name), closing(Journal(journal_path(folder, name))) as journal:
        client = open_chroma(folder)
        drop_others(client, name, journal.live())
        collection = next_collection_name(name, journal.generation())
        make_collection(client, collection, name, embedder)
        journal.switch(collection, empty=True)
        drop_others(client, name, collection)


def delete(folder: Path, name: str) -> None:
    """Delete a knowledge base with all of its files. Raises UnknownKnowledgeBase and AlreadyWriting.

    Gone as soon as no collection answers; killed after that, the rest goes when one of that name is made or deleted.
    """
    path = journal_path(folder, name)
    if not path.is_file():
        raise unknown(folder, name)
    with writer_lock(lock_path(folder, name), name):
        with closing(Journal(path)) as journal:
            was_there = journal.live() is not None
            journal.switch(None)
        drop_others(open_chroma(folder), name, live=None)
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        shutil.rmtree(lexical_path(path), ignore_errors=True)
        index_lock_path(folder, name).unlink(missing_ok=True)
        lock_path(folder, name).unlink()
    if not was_there:
        raise unknown(folder, name)


def _live(folder: Path) -> Iterator[tuple[str, "Collection", Journal]]:
    if not (folder / "chroma").is_dir():
        return
    for collection in open_chroma(folder).list_collections():
        name = (collection.metadata or {}).get("knowledge_base", "")
        path = journal_path(folder, name)
        if path.is_file():
            with closing(Journal(path)) as journal:
                if journal.live() == collection.name:
                    yield name, collection, journal


def _own_bytes(folder: Path, name: str, collection: "Collection") -> int:
    path = journal_path(folder, name)
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    files += [*index_files(folder, collection), *lexical_path(path).rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def _shared_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "chroma").glob("chroma.sqlite3*"))


def _shown(fingerprint: dict[str, str]) -> str:
    return f"{fingerprint['model']} (revision {fingerprint.get('revision', 'unknown')})"
