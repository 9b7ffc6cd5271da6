"""Where a knowledge base lies: the names of its files and collections, and Chroma's client."""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

    from ingest.embedder import EmbedderLike

LEGAL_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]")
"""Chroma allows up to 512 characters; 63 also fit a file's name and a Chroma server of before 1.0."""
NEVER = 2**31 - 1
"""Rows after which Chroma would write its index of its own accord; `ingest.index` says why it must not."""
SESSION, BUILDING = "session", "building"
"""In a collection's metadata: see `ingest.recovery`."""

_opening = threading.Lock()


def collection_name(name: str) -> str:
    """The first Chroma collection of a knowledge base, and its files; names that Chroma would refuse get a hash."""
    if LEGAL_NAME.fullmatch(name) and ".." not in name and not name.startswith("kb-"):
        return name
    return _hashed(name)


def next_collection_name(name: str, number: int) -> str:
    """One of its later collections; no other knowledge base is ever called so."""
    return f"{_hashed(name)}-{number}"


def _hashed(name: str) -> str:
    return f"kb-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def journal_path(folder: Path, name: str) -> Path:
    """The SQLite file of a knowledge base."""
    return folder / f"{collection_name(name)}.sqlite3"


def journal_files(path: Path) -> list[Path]:
    """All that SQLite keeps of the file."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]


def lexical_path(journal: Path) -> Path:
    """The folder of the lexical index that belongs to a journal."""
    return journal.with_suffix(".lexical")


def lock_path(folder: Path, name: str) -> Path:
    """The file that its writer holds."""
    return folder / f"{collection_name(name)}.lock"


def index_lock_path(folder: Path, name: str) -> Path:
    """The file that guards the loading and writing of its index."""
    return folder / f"{collection_name(name)}.index.lock"


def index_backup_path(folder: Path, name: str) -> Path:
    """The folder that holds its index files as they were, while they are being written."""
    return folder / f"{collection_name(name)}.index.before"


def open_chroma(folder: Path) -> "ClientAPI":
    """A client with an index of its own. Never close it: `close` stops every client of that folder."""
    import chromadb
    from chromadb.api.shared_system_client import SharedSystemClient
    from chromadb.config import Settings

    with _opening:
        SharedSystemClient.clear_system_cache()
        return chromadb.PersistentClient(str(folder / "chroma"), Settings(anonymized_telemetry=False))


def make_collection(
    client: "ClientAPI",
    collection: str,
    name: str,
    embedder: "EmbedderLike",
    *,
    sync_threshold: int = NEVER,
    session: int = -1,
    building: bool = False,
) -> "Collection":
    """An empty collection of a knowledge base, for this embedder."""
    about = {"fingerprint": json.dumps(embedder.fingerprint), SESSION: session, BUILDING: building}
    return client.create_collection(
        collection,
        configuration={"hnsw": {"space": "cosine", "sync_threshold": sync_threshold}},
        metadata={"knowledge_base": name, **about},
        embedding_function=None,
    )


def drop_others(client: "ClientAPI", name: str, live: str | None) -> None:
    """Drop the collections of a knowledge base that do not answer: what a killed run left."""
    for collection in _of(client, name):
        if collection.name != live:
            client.delete_collection(collection.name)


def collections_of(folder: Path, name: str) -> list["Collection"]:
    """The collections of a knowledge base: at most one answers, the others are being filled or dropped."""
    return _of(open_chroma(folder), name) if (folder / "chroma").is_dir() else []


def _of(client: "ClientAPI", name: str) -> list["Collection"]:
    return [one for one in client.list_collections() if (one.metadata or {}).get("knowledge_base") == name]


def note(collection: "Collection", about: Mapping[str, Any]) -> None:
    """Put something into a collection's metadata."""
    collection.modify(metadata={**collection.metadata, **about})


def fingerprint(collection: "Collection") -> dict[str, str]:
    """That of the embedder whose vectors the collection holds."""
    return json.loads(collection.metadata["fingerprint"])
