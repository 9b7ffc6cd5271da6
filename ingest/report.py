"""What a run did or, as a dry run, would do; for people and for machines."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ingest.output import printable

SHOWN, LONGEST = 10, 100
"""Names on a line that need not name all, and the characters of one."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: files out of those that are new or changed, and chunks."""

    files: int
    """Stored to their end, or failed."""
    total: int
    chunks: int
    """Stored."""
    read: int = 0
    """Files of which something has been read, or that failed."""
    found: int = 0
    """Chunks of what has been read."""
    embedded: int = 0

    @property
    def share(self) -> float:
        """Of the work done, from 0 to 1: what is not read yet counts as what was read, and embedding as all work."""
        read = self.read / self.total if self.total else 0.0
        return read * self.embedded / self.found if self.found else read


@dataclass(frozen=True)
class Report:
    """What a run did; every name is a source."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: int = 0
    removed: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    """Documents that are in, but not with all that their files hold; those that were in already among them."""
    skipped: tuple[str, ...] = ()
    """Files of a format that is not supported."""
    notes: tuple[str, ...] = ()
    """What else was left out, and what is probably meant otherwise, a sentence each."""
    chunks: int = 0
    dry: bool = False
    """Nothing was done: the names are the files that a run would read or take out."""

    @property
    def exit_status(self) -> int:
        """0 when every file is in, 1 when some file failed."""
        return 1 if self.failed else 0

    def summary(self) -> str:
        """One line of counts, then one for each file that failed or is incomplete, those that were skipped, and notes.

        A dry run also names every file that would be added, changed or removed.
        """
        counts = {"added": len(self.added), "changed": len(self.changed), "unchanged": self.unchanged}
        counts |= {"removed": len(self.removed), "failed": len(self.failed)}
        counts |= {"incomplete": len(self.problems), "skipped": len(self.skipped)}
        always = ("added", "unchanged", "removed")
        first = ", ".join(f"{number} {what}" for what, number in counts.items() if number or what in always)
        lines = [f"would be {first}" if self.dry else first, *(self._named() if self.dry else [])]
        lines += [f"failed: {source}: {reason}" for source, reason in self.failed]
        lines += [f"incomplete: {source}: {problem}" for source, problem in self.problems]
        lines += [*self._skipped_line(), *(f"note: {note}" for note in self.notes)]
        return "\n".join(map(printable, lines))

    def as_json(self) -> dict[str, Any]:
        """The same for a machine: the fields, `failed` and `problems` as objects, and the exit status."""
        fields: dict[str, Any] = asdict(self)
        fields["failed"] = [{"source": source, "reason": reason} for source, reason in self.failed]
        fields["problems"] = [{"source": source, "problem": problem} for source, problem in self.problems]
        return fields | {"exit_status": self.exit_status}

    def _named(self) -> list[str]:
        kinds = {"added": self.added, "changed": self.changed, "removed": self.removed}
        return [f"{kind}: {source}" for kind, sources in kinds.items() for source in sources]

    def _skipped_line(self) -> list[str]:
        return [f"skipped, format not supported: {first_of(self.skipped)}"] if self.skipped else []


def first_of(names: Sequence[str]) -> str:
    """The first of the names on a line, and the beginning of one that is long."""
    return ", ".join(map(_short, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
