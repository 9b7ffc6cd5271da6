"""What a worker makes of a document for the store; each worker imports it, so it imports little itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ingest.rows import StoredChunk, StoredDocument, chunk_id
from ingest.split import Chunk


@dataclass(frozen=True)
class PreparedDocument:
    """A document cut into chunks, not yet stored."""

    source: str
    content_hash: str
    chunks: tuple[Chunk, ...]
    problems: tuple[str, ...] = ()
    file: str | None = None
    """The file it came from: itself, or the archive or mail it is in. None: there is no file."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What is stored with each chunk besides its place."""

    def stored_chunk(self, index: int) -> StoredChunk:
        """Chunk `index` as the journal keeps it."""
        return StoredChunk.of(chunk_id(self.source, self.content_hash, index), self.chunks[index].text)

    def stored(self) -> StoredDocument:
        """The document as the journal keeps it."""
        return StoredDocument(self.source, self.content_hash, len(self.chunks), self.problems, self.file)
