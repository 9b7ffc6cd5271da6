"""The journal and Chroma made to agree again: a journal that is lost is made anew, what differs is mended.

Chroma's collection names its knowledge base, tells whether it is still being filled, and holds a number that the last
writer left in the journal too (`session`): where one of the two was restored from a backup, theirs is another.
"""

import logging
import re
import sqlite3
from collections.abc import Collection as Sized
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.batches import in_batches
from ingest.collection import BUILDING, SESSION, collections_of, journal_files, journal_path, lock_path, note
from ingest.imprint import ADDED, Found, documents_in
from ingest.journal import Journal
from ingest.lock import AlreadyWriting, writer_lock
from ingest.rows import StoredChunk

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

BATCH = 1000
"""Chunks read at a time."""
DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""Results of SQLite that a file has which is broken, is none of SQLite's or lacks tables."""
DIFFER = (
    "Chroma and the journal of knowledge base %r differ (one of them is from a backup, or another program has written):"
    " %d chunks are missing in Chroma, %d are unknown"
)

log = logging.getLogger(__name__)


def is_there(folder: Path, name: str) -> bool:
    """Whether there is a knowledge base of that name. A journal that is lost or broken is made anew from Chroma first.

    A broken file is set aside, not deleted. Raises AlreadyWriting where another writes to what has to be mended.
    """
    if (answer := _is_there(folder, name)) is not None:
        return answer
    try:
        with writer_lock(lock_path(folder, name), name):
            answer = _is_there(folder, name)  # somebody else may have mended it
            return _make_anew(folder, name) if answer is None else answer
    except AlreadyWriting:
        if (answer := _is_there(folder, name)) is None:  # not only swapped for another collection in between
            raise
        return answer


def agree(journal: Journal, collection: "Collection", name: str) -> tuple[str, ...]:
    """Go by what Chroma has, where the journal says something else; for the one who writes.

    Chunks that are not in Chroma are forgotten, and the files of their documents no longer count as read. What only
    Chroma has is taken in where it is of a file, for the next ingest to decide, or where the journal is the older one
    of the two; the rest is swept. Returns the added documents that have lost text: no file has it.
    """
    if not _differ(journal, collection):
        return ()
    there, ours = set(collection.get(include=[])["ids"]), set(journal.ids())
    missing, unknown = ours - there, there - ours - set(journal.pending())
    lost = tuple(sorted({source for source in journal.sources(missing).values() if source.startswith(ADDED)}))
    if missing or unknown:
        log.warning(DIFFER, name, len(missing), len(unknown))
    if lost:
        log.warning("texts that were added to knowledge base %r are lost; add them again: %s", name, ", ".join(lost))
    journal.remove_chunks(missing)
    journal.forget(missing)
    _take_in(journal, collection, unknown, also_added=session_of(collection) > journal.session())
    journal.note_written(collection.count())  # as if none of them were in the index files, which is the safe side
    start_session(journal, collection)
    return lost


def start_session(journal: Journal, collection: "Collection") -> None:
    """Leave a new number in both places, before anything is changed in Chroma."""
    numbers = session_of(collection), journal.session(), _number(collection)
    number = max(journal.generation(), 1 + max(numbers))
    note(collection, {SESSION: number})
    journal.note_session(number)


def session_of(collection: "Collection") -> int:
    """The number that the last writer left, -1 for none."""
    return collection.metadata.get(SESSION, -1)


def set_aside(path: Path) -> list[Path]:
    """What there is of journals of that path that were broken."""
    name = re.compile(rf"{re.escape(path.name)}\.broken-\d{{8}}-\d{{6}}(-wal|-shm)?")
    return [file for file in path.parent.iterdir() if name.fullmatch(file.name)]


def _is_there(folder: Path, name: str) -> bool | None:
    """None where the journal has to be made anew."""
    path = journal_path(folder, name)
    collections = collections_of(folder, name)
    if not path.is_file():
        return None if _filled(collections) else False
    try:
        with closing(Journal(path)) as journal:
            live, is_new, is_broken = journal.live(), journal.generation() == 0, journal.is_broken()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in DAMAGE:
            raise
        return None
    if live is None and not is_new and not is_broken:  # it was deleted
        return False
    is_there = live in [collection.name for collection in collections]
    return None if is_broken or (not is_there and _filled(collections)) else is_there


def _make_anew(folder: Path, name: str) -> bool:
    path = journal_path(folder, name)
    aside = _put_aside(path)
    filled = _filled(collections_of(folder, name))
    if not filled:
        log.warning("the journal of knowledge base %r is broken, and Chroma has nothing of it%s", name, aside)
        return False
    live = max(filled, key=lambda collection: (_number(collection), collection.count()))
    new = path.with_name(f"{path.name}.new")
    for file in journal_files(new):  # of a run that was killed
        file.unlink(missing_ok=True)
    with closing(Journal(new)) as journal:
        _take_in(journal, live, set(live.get(include=[])["ids"]), also_added=True)
        journal.note_written(live.count())
        journal.switch(live.name)
        start_session(journal, live)
        log.warning(
            "the journal of knowledge base %r was lost and is made anew from Chroma: %d documents, %d chunks%s",
            *(name, *journal.count(), aside),
        )
    new.replace(path)
    return True


def _put_aside(path: Path) -> str:
    """Rename the files of a journal; how to say so."""
    to = path.with_name(f"{path.name}.broken-{datetime.now():%Y%m%d-%H%M%S}")
    files = [file for file in zip(journal_files(path), journal_files(to), strict=True) if file[0].exists()]
    for file, aside in files:
        file.rename(aside)
    return f" (the former file is now {to.name})" if files else ""


def _filled(collections: Iterable["Collection"]) -> list["Collection"]:
    """Those that may have been the one that answers."""
    return [one for one in collections if not one.metadata.get(BUILDING) and one.count()]


def _number(collection: "Collection") -> int:
    """Which of its knowledge base's collections it is, see `collection.next_collection_name`; -1: the first."""
    numbered = re.fullmatch(r"kb-[0-9a-f]{32}-(\d+)", collection.name)
    return int(numbered[1]) if numbered else -1


def _differ(journal: Journal, collection: "Collection") -> bool:
    if journal.session() != session_of(collection):
        return True
    chunks = journal.count()[1]
    return not chunks <= collection.count() <= chunks + len(journal.pending())


def _take_in(journal: Journal, collection: "Collection", ids: set[str], *, also_added: bool) -> None:
    """Make the journal know chunks that Chroma has: as documents, or as pending."""
    abouts: dict[str, Any] = {}
    for some in in_batches(sorted(ids), BATCH):
        got = collection.get(ids=some, include=["metadatas"])
        abouts |= {id_: about or {} for id_, about in zip(got["ids"], got["metadatas"] or [], strict=True)}
    known = {document.source for document in journal.documents()}
    found = [
        (document, chunks)
        for document, chunks in documents_in(abouts).values()
        if document.source not in known and (also_added or document.file is not None)
    ]
    for documents in _batches(found):
        texts = _texts(collection, [id_ for _, chunks in documents for id_ in chunks])
        for document, chunks in documents:
            journal.replace(document, [StoredChunk.of(id_, texts[id_]) for id_ in chunks])
    for some in in_batches(sorted(ids.difference(*(chunks for _, chunks in found))), BATCH):
        journal.announce(StoredChunk.of(id_, text) for id_, text in _texts(collection, some).items())


def _batches(found: Iterable[Found]) -> Iterator[list[Found]]:
    """Documents with about BATCH chunks together."""
    batch: list[Found] = []
    for one in found:
        batch.append(one)
        if sum(len(chunks) for _, chunks in batch) >= BATCH:
            yield batch
            batch = []
    yield batch


def _texts(collection: "Collection", ids: Sized[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for some in in_batches(ids, BATCH):
        got = collection.get(ids=some, include=["documents"])
        texts |= {id_: text or "" for id_, text in zip(got["ids"], got["documents"] or [], strict=True)}
    return texts
