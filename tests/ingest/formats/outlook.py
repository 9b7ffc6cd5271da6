"""The smallest OLE files that a reader takes: https://learn.microsoft.com/openspecs/windows_protocols/ms-cfb"""

import struct

Folder = dict[str, "bytes | Folder"]
FREE, END, FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
SECTOR, SMALL_SECTOR, SMALL = 512, 64, 4096


class Chains:
    """Sectors, and the table of which follows which."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sectors: list[bytes] = []
        self.next: list[int] = []

    def add(self, raw: bytes) -> int:
        """The number of the first sector."""
        if not raw:
            return END
        first = len(self.sectors)
        self.sectors += [raw[at : at + self.size].ljust(self.size, b"\x00") for at in range(0, len(raw), self.size)]
        self.next += [*range(first + 1, len(self.sectors)), END]
        return first

    def table(self) -> bytes:
        return struct.pack(f"<{len(self.next)}L", *self.next)


def compound(content: Folder) -> bytes:
    """An OLE file with those streams and storages."""
    large, small = Chains(SECTOR), Chains(SMALL_SECTOR)
    entries = [b""]

    def added(folder: Folder) -> int:
        """The first of the folder's entries; each is the right one of the one before."""
        following = FREE
        for name, inner in reversed(folder.items()):
            number = len(entries)
            entries.append(b"")
            if isinstance(inner, bytes):
                start = (small if len(inner) < SMALL else large).add(inner)
                entries[number] = _entry(name, 2, following, FREE, start, len(inner))
            else:
                entries[number] = _entry(name, 1, following, added(inner), 0, 0)
            following = number
        return following

    child = added(content)
    all_small = b"".join(small.sectors)
    entries[0] = _entry("Root Entry", 5, FREE, child, large.add(all_small), len(all_small))
    small_table = large.add(small.table().ljust(-(-len(small.next) // 128) * SECTOR, b"\xff"))
    directory = large.add(b"".join(entries).ljust(-(-len(entries) // 4) * SECTOR, b"\x00"))
    tables = 1
    while len(large.sectors) + tables > tables * SECTOR // 4:
        tables += 1
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    small_tables = -(-len(small.next) // 128)
    header += struct.pack("<LLLLLLLLL", 0, tables, directory, 0, SMALL, small_table, small_tables, END, 0)
    header += struct.pack("<109L", *(len(large.sectors) + at if at < tables else FREE for at in range(109)))
    large.next += [FAT] * tables
    return header + b"".join(large.sectors) + large.table().ljust(tables * SECTOR, b"\xff")


def _entry(name: str, kind: int, right: int, child: int, start: int, size: int) -> bytes:
    raw = name.encode("utf-16-le")
    about = struct.pack("<HBBLLL36xLQ", len(raw) + 2, kind, 1, FREE, right, child, start, size)
    return raw.ljust(64, b"\x00") + about


def message(texts: dict[str, str], *, sent: int = 0, header: int = 32, **attached: Folder) -> Folder:
    """A message of those properties (tag → text), sent that many ticks after 1601."""
    fixed = struct.pack("<LLQ", 0x00390040, 0, sent) if sent else b""
    folder: Folder = {f"__substg1.0_{tag}001F": text.encode("utf-16-le") for tag, text in texts.items()}
    folder["__properties_version1.0"] = bytes(header) + fixed
    for number, attachment in enumerate(attached.values()):
        folder[f"__attach_version1.0_#{number:08}"] = attachment
    return folder
