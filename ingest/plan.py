"""What a run has to do: the files of a folder compared with those that were read before."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingest.journal import StoredDocument
from ingest.listing import Listing
from ingest.prepare import Recipe
from ingest.report import Report


@dataclass(frozen=True)
class Plan:
    """The files of a folder, by what is to become of them."""

    todo: dict[str, tuple[Path, str]]
    """New and changed ones: the path and the hash of each."""
    unchanged: frozenset[str]
    gone: frozenset[str]
    """Files that are no longer there and have documents in the knowledge base."""
    failed: dict[str, str]
    """Files and folders that cannot be opened, with the reason."""
    skipped: tuple[str, ...]

    def as_report(self, documents: Iterable[StoredDocument]) -> Report:
        """What a run would do, as far as it can be told without reading the files."""
        had = {document.file for document in documents}
        return Report(
            added=tuple(file for file in self.todo if file not in had),
            changed=tuple(file for file in self.todo if file in had),
            unchanged=len(self.unchanged),
            removed=tuple(sorted(self.gone)),
            failed=tuple(sorted(self.failed.items())),
            skipped=self.skipped,
            dry=True,
        )


def make_plan(listing: Listing, recipe: Recipe, files: Mapping[str, str], documents: Iterable[StoredDocument]) -> Plan:
    """Compare a listing with the hashes of the `files` that were read to their end, and the documents that are in."""
    todo, unchanged, failed = {}, set(), dict(listing.unreadable)
    for file, path in listing.files.items():
        try:
            content_hash = recipe.file_hash(path)
        except OSError as error:
            failed[file] = error.strerror or str(error)
            continue
        if files.get(file) == content_hash:
            unchanged.add(file)
        else:
            todo[file] = path, content_hash
    had = {document.file for document in documents if document.file is not None} | files.keys()
    gone = frozenset(file for file in had if not listing.may_hold(file))
    return Plan(todo, frozenset(unchanged), gone, failed, listing.skipped)
