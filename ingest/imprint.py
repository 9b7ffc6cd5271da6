"""What Chroma is told of a document beside its chunks' places, from which the journal can be made anew."""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ingest.metadata import OF_A_DOCUMENT
from ingest.rows import StoredDocument, chunk_id

ADDED = "added://"
"""Before the id of an added text it makes the name of its document; no file's path has `//` in it."""
OF_A_FILE = ("source", "start", "end", "heading")
"""What every chunk of a file has; these came before imprints did."""

Metadata = Mapping[str, Any]
Found = tuple[StoredDocument, list[str]]
"""A document and the ids of its chunks, in its order."""


def imprint(document: StoredDocument, index: int) -> dict[str, str]:
    """What chunk `index` holds besides: the first one all of its document, the others of an added one its name."""
    about: dict[str, Any] = {"source": document.source} if document.file is None else {}
    if index == 0:
        about |= {"hash": document.content_hash, "chunks": document.chunks}
        # Chroma keeps it three times (rows, their index, its log), so what is usual is left out.
        about |= {"file": document.file} if document.file not in (None, document.source) else {}
        about |= {"problems": document.problems} if document.problems else {}
    return {OF_A_DOCUMENT: json.dumps(about, separators=(",", ":"))} if about else {}


def documents_in(abouts: Mapping[str, Metadata]) -> dict[str, Found]:
    """The documents whose chunks have these metadata, by source.

    One whose chunks are not all there, or that is from before imprints, has what there is of it and no content hash:
    its file counts as changed. Of two versions of a document the later one is meant.
    """
    told = {id_: _told(id_, about) for id_, about in abouts.items()}
    found: dict[str, Found] = {}
    for document in told.values():
        ids = [chunk_id(document.source, document.content_hash, index) for index in range(document.chunks)]
        if ids and all(id_ in told for id_ in ids):
            found[document.source] = document, ids
    return found | {source: _part(ids, told, abouts) for source, ids in _rest(told, found).items()}


def _rest(told: Mapping[str, StoredDocument], found: Mapping[str, Found]) -> dict[str, list[str]]:
    rest = defaultdict(list)
    for id_, document in told.items():
        if document.source not in found:
            rest[document.source].append(id_)
    return rest


def _part(ids: list[str], told: Mapping[str, StoredDocument], abouts: Mapping[str, Metadata]) -> Found:
    first = max((told[id_] for id_ in ids), key=lambda document: document.chunks)
    ordered = sorted(ids, key=lambda id_: abouts[id_].get("start", 0))
    return StoredDocument(first.source, "", len(ids), first.problems, first.file), ordered


def _told(id_: str, about: Metadata) -> StoredDocument:
    """The document of a chunk, as far as the chunk tells it; `chunks` is 0 where it does not."""
    if OF_A_DOCUMENT in about:
        said = json.loads(about[OF_A_DOCUMENT])
        source = said.get("source") or about["source"]
        file = None if "source" in said else said.get("file", source)
        problems = tuple(said.get("problems", ()))
        return StoredDocument(source, said.get("hash", ""), said.get("chunks", 0), problems, file)
    if about.keys() >= set(OF_A_FILE):
        return StoredDocument(about["source"], "", 0, (), about["source"])
    return StoredDocument(ADDED + id_, "", 0)
