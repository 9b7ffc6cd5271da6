"""What a run has to do: the files of a folder compared with those that were read before."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingest.listing import Listing
from ingest.prepare import Recipe
from ingest.report import Report
from ingest.rows import Failure, StoredDocument

NOT_AGAIN = (
    "{}; it was not tried again now, and will be when the file, or `file_seconds` or `file_memory_mib` in `[ingest]` of"
    " the settings file, has changed"
)


@dataclass(frozen=True)
class Earlier:
    """What earlier runs have read."""

    files: Mapping[str, str]
    """The hashes of those that were read to their end."""
    documents: Iterable[StoredDocument]
    failures: Mapping[str, Failure]
    """Those that are not to be tried again as they are."""


NOTHING = Earlier({}, (), {})


@dataclass(frozen=True)
class Plan:
    """The files of a folder, by what is to become of them."""

    todo: dict[str, tuple[Path, str]]
    """New and changed ones: the path and the hash of each."""
    unchanged: frozenset[str]
    gone: frozenset[str]
    """Files that are no longer there and have documents in the knowledge base."""
    failed: dict[str, str]
    """Files and folders that cannot be opened, and files not to be tried again, with the reason."""
    skipped: tuple[str, ...]
    notes: tuple[str, ...] = ()

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
            notes=self.notes,
            dry=True,
        )


def make_plan(listing: Listing, recipe: Recipe, limits: str, before: Earlier) -> Plan:
    """Compare a listing with what was read before; `limits` are those that a file has now."""
    todo, unchanged, failed = {}, set(), dict(listing.unreadable)
    for file, path in listing.files.items():
        try:
            content_hash = recipe.file_hash(path)
        except OSError as error:
            failed[file] = error.strerror or str(error)
            continue
        failure = before.failures.get(file)
        if before.files.get(file) == content_hash:
            unchanged.add(file)
        elif failure and (failure.content_hash, failure.limits) == (content_hash, limits):
            failed[file] = NOT_AGAIN.format(failure.reason)
        else:
            todo[file] = path, content_hash
    had = {document.file for document in before.documents} | before.files.keys() | before.failures.keys()
    gone = frozenset(file for file in had if file is not None and not listing.may_hold(file))
    return Plan(todo, frozenset(unchanged), gone, failed, listing.skipped, listing.notes)
