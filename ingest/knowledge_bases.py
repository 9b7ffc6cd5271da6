"""Knowledge bases as a whole: list, describe, make, empty, delete."""

import logging
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.collection import collection_name as first_name
from ingest.collection import (
    collections_of,
    drop_others,
    fingerprint,
    index_backup_path,
    index_lock_path,
    journal_files,
    journal_path,
    lexical_path,
    lock_path,
    make_collection,
    next_collection_name,
    open_chroma,
)
from ingest.index import index_files
from ingest.journal import Journal
from ingest.lock import AlreadyWriting, writer_lock
from ingest.recovery import is_there, set_aside
from ingest.report import first_of

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

    from ingest.embedder import EmbedderLike

log = logging.getLogger(__name__)


class UnknownKnowledgeBase(Exception):
    """There is no knowledge base of that name."""

    def __init__(self, name: str, known: list[str]) -> None:
        others = f"there are: {first_of(known)}" if known else "there is none yet"
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
        client, live = open_chroma(folder), journal.live()
        if live is None:
            drop_others(client, name, live=None)
            make_collection(client, first_name(name), name, embedder)
            journal.switch(first_name(name), empty=True)
        elif all(collection.name != live for collection in collections_of(folder, name)):
            make_collection(
                client, live, name, embedder
            )  # Chroma's folder is lost; the writer will see what is missing


def start_over(folder: Path, name: str, embedder: "EmbedderLike") -> None:
    """Empty a knowledge base, and give it to this embedder; names what no file brings back. Raises AlreadyWriting."""
    with writer_lock(lock_path(folder, name), name), closing(Journal(journal_path(folder, name))) as journal:
        client = open_chroma(folder)
        drop_others(client, name, journal.live())
        collection = next_collection_name(name, journal.generation())
        make_collection(client, collection, name, embedder, session=journal.session())
        if added := [document.source for document in journal.documents() if document.file is None]:
            said = "the texts that were added to knowledge base %r without a file (%d) are taken out: %s"
            log.warning(said, name, len(added), first_of(added))
        journal.switch(collection, empty=True)
        drop_others(client, name, collection)


def delete(folder: Path, name: str) -> None:
    """Delete a knowledge base with all of its files. Raises UnknownKnowledgeBase and AlreadyWriting.

    Gone as soon as no collection answers; killed after that, the rest goes when one of that name is made or deleted.
    """
    path = journal_path(folder, name)
    if not is_there(folder, name) and not path.is_file():
        raise unknown(folder, name)
    with writer_lock(lock_path(folder, name), name):
        with closing(Journal(path)) as journal:
            was_there = journal.live() is not None
            journal.switch(None)
        drop_others(open_chroma(folder), name, live=None)
        for file in journal_files(path) + set_aside(path):
            file.unlink(missing_ok=True)
        shutil.rmtree(lexical_path(path), ignore_errors=True)
        index_lock_path(folder, name).unlink(missing_ok=True)
        shutil.rmtree(index_backup_path(folder, name), ignore_errors=True)
        lock_path(folder, name).unlink()
    if not was_there:
        raise unknown(folder, name)


def _live(folder: Path) -> Iterator[tuple[str, "Collection", Journal]]:
    if not (folder / "chroma").is_dir():
        return
    for collection in open_chroma(folder).list_collections():
        name = (collection.metadata or {}).get("knowledge_base", "")
        if journal := _journal(folder, name):
            with closing(journal):
                if journal.live() == collection.name:
                    yield name, collection, journal


def _journal(folder: Path, name: str) -> Journal | None:
    """The journal of a knowledge base; mended only where it cannot be opened, for looking into it may take long."""
    path = journal_path(folder, name)
    with suppress(sqlite3.DatabaseError):
        if path.is_file():
            return Journal(path)
    with suppress(AlreadyWriting):
        if is_there(folder, name):
            return Journal(path)
    return None


def _own_bytes(folder: Path, name: str, collection: "Collection") -> int:
    path = journal_path(folder, name)
    files = journal_files(path) + set_aside(path) + index_files(folder, collection)
    files += lexical_path(path).rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _shared_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "chroma").glob("chroma.sqlite3*"))


def _shown(fingerprint: dict[str, str]) -> str:
    return f"{fingerprint['model']} (revision {fingerprint.get('revision', 'unknown')})"
