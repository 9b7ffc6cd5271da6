"""What the journal notes about the knowledge base as a whole: what answers, who wrote it when, how it is searched."""

from ingest.relevance import Relevance
from ingest.sqlite_file import SQLiteFile

NOTE = "INSERT OR REPLACE INTO about VALUES (?, ?)"


class About(SQLiteFile):
    """Facts of which there is one each. Only the generation tells a reader that it is behind."""

    def generation(self) -> int:
        """The number of changes so far."""
        return self._rows("SELECT number FROM generation")[0][0]

    def live(self) -> str | None:
        """The Chroma collection that answers; None when the knowledge base is deleted or not yet made."""
        return self._about("live")

    def last_run(self) -> str | None:
        """When it was last written, ISO 8601."""
        return self._about("last_run")

    def session(self) -> int:
        """The number that the last writer left here and in Chroma, -1 for none: restored, one of them has another."""
        return int(self._about("session") or -1)

    def note_session(self, number: int) -> None:
        """Note that number; changes are counted on from there at least."""
        with self._transaction(changing=False) as connection:
            connection.execute(NOTE, ("session", number))
            connection.execute("UPDATE generation SET number = max(number, ?)", (number,))

    def unwritten(self) -> int:
        """How many rows were put into Chroma, or taken out, since its index files were written."""
        return int(self._about("unwritten") or 0)

    def note_written(self, since: int) -> None:
        """Note that Chroma's index files were written, and that so many rows at most have come since."""
        self._note("unwritten", since)

    def note_run(self, when: str) -> None:
        """Note when a run ended; not a change that a reader must see."""
        self._note("last_run", when)

    def relevance(self) -> Relevance:
        """What was measured last of how each leg finds these chunks."""
        return Relevance.from_json(self._about("relevance"))

    def note_relevance(self, measured: Relevance) -> None:
        """Keep it for those who search."""
        self._note("relevance", measured.to_json())

    def _note(self, name: str, value: str | int) -> None:
        with self._transaction(changing=False) as connection:
            connection.execute(NOTE, (name, value))

    def _about(self, name: str) -> str | None:
        found = self._rows("SELECT value FROM about WHERE name = ?", (name,))
        return found[0][0] if found else None
