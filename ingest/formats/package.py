"""Office files and books as what they are: a ZIP archive of XML parts, with relations between them in Microsoft's."""

from io import BytesIO
from posixpath import dirname, join, normpath
from typing import Any
from zipfile import BadZipFile, ZipFile

from ingest.decode import clean
from ingest.document import LoadOptions, Unreadable
from ingest.formats.archive import Allowance
from ingest.formats.protected import opened

CORE = "docProps/core.xml"
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
FIELDS = {"title": f"{DUBLIN_CORE}title", "author": f"{DUBLIN_CORE}creator"}


class Package:
    """The parts of an office file, read on demand and no further than the options allow."""

    def __init__(self, raw: bytes, options: LoadOptions) -> None:
        """Raises Unreadable, and Protected when none of the passwords opens it."""
        self.raw = opened(raw, options.passwords)
        """The file, decrypted."""
        try:
            self._archive = ZipFile(BytesIO(self.raw))
        except (BadZipFile, ValueError, NotImplementedError) as error:
            raise Unreadable(f"is broken or not what its suffix says ({error})") from error
        # What other readers of the file unpack; a part is never longer than it says here.
        Allowance(options).spend(sum(entry.file_size for entry in self._archive.infolist()))
        self._names = set(self._archive.namelist())
        self._allowance = Allowance(options)
        self._related: dict[str, dict[str, tuple[str, str]]] = {}

    def content(self, part: str) -> bytes:
        """The bytes of a part; none when it is not there."""
        if part not in self._names:
            return b""
        with self._archive.open(part) as stream:
            return self._allowance.read(stream)

    def root(self, part: str) -> Any:
        """The root element of an XML part. Raises Unreadable."""
        from lxml import etree

        try:
            return etree.fromstring(self.content(part), etree.XMLParser(resolve_entities=False, no_network=True))
        except (etree.XMLSyntaxError, BadZipFile) as error:
            raise Unreadable(f"is broken or not what its suffix says ({part}: {error})") from error

    def related(self, part: str) -> dict[str, tuple[str, str]]:
        """Relation id → the last word of its kind, such as `header`, and the part it leads to."""
        if part not in self._related:
            path = join(dirname(part), "_rels", f"{part.rpartition('/')[2]}.rels")
            self._related[part] = {
                one.get("Id"): (one.get("Type", "").rpartition("/")[2], _absolute(part, one.get("Target", "")))
                for one in (self.root(path) if path in self._names else ())
                if one.get("TargetMode") != "External"
            }
        return self._related[part]

    def parts(self, part: str, kind: str) -> list[str]:
        """The parts of a kind that a part leads to and that are there."""
        return [path for of, path in self.related(part).values() if of == kind and path in self._names]

    def metadata(self, part: str = CORE) -> dict[str, str]:
        """Title and author, of the part that says them."""
        root = self.root(part) if part in self._names else None
        said = {name: root.findtext(f".//{tag}") or "" for name, tag in FIELDS.items()} if root is not None else {}
        return {name: " ".join(clean(text).split()) for name, text in said.items() if text.strip()}


def _absolute(part: str, target: str) -> str:
    return normpath(join("/", dirname(part), target)).lstrip("/")
