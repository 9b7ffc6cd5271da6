"""Broken files of every format, read as an ingest reads them: by worker processes with limits."""

import io
import os
import random
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ingest.document import FailedSource, LoadOptions
from ingest.prepare import FileEnd, Job, Recipe
from ingest.prepared import PreparedDocument
from ingest.workers import Workers
from tests.fakes import WordCountEmbedder
from tests.ingest.formats.samples import PASSWORD, samples

SECONDS = float(os.environ.get("GROUNDWELL_FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("GROUNDWELL_FUZZ_SEED") or time.time())
FILE_SECONDS = 20
OPTIONS = LoadOptions(passwords=("wrong", PASSWORD), max_unpacked_bytes=2**26, max_member_bytes=2**25)


def broken(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled or put in."""
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 30])):
        at = chance.randrange(len(changed) + 1)
        length = chance.choice([1, 2, 8, 100])
        kind = chance.randrange(5)
        if kind == 0:
            changed[at : at + length] = chance.randbytes(length)
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = changed[at : at + length] * chance.choice([1, 2, 50])
        elif kind == 3:
            changed[at:at] = chance.choice([b"\x00", b"\xff" * 8, b"-1", b"99999999999", b"<", b"{", b"\xed\xa0\x80"])
        elif chance.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def broken_inside(content: bytes, chance: random.Random) -> bytes:
    """A package of which one part is broken: a change to the package itself rarely gets past its checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        names = old.namelist()
        victim = chance.choice(names)
        for name in names:
            new.writestr(name, broken(old.read(name), chance) if name == victim else old.read(name))
    return file.getvalue()


def broken_files(folder: Path, until: float) -> Iterator[tuple[str, Path]]:
    """Written one by one until the time is over."""
    chance, number = random.Random(SEED), 0
    sound = samples()
    while time.monotonic() < until:
        for name, content in sound.items():
            number += 1
            inside = zipfile.is_zipfile(io.BytesIO(content)) and chance.random() < 0.8
            path = folder / f"{number}-{name}"
            path.write_bytes((broken_inside if inside else broken)(content, chance))
            yield path.name, path


def test_no_broken_file_ends_the_run_hangs_it_or_writes_a_file(tmp_path: Path, monkeypatch) -> None:
    folder, elsewhere, temporary = (tmp_path / name for name in ("documents", "elsewhere", "temporary"))
    for made in (folder, elsewhere, temporary):
        made.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("TMPDIR", str(temporary))
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(elsewhere))
    job = Job(Recipe(OPTIONS), WordCountEmbedder(), 64, memory_mib=2048)
    outcomes: Counter[str] = Counter()
    slow: list[str] = []
    ended: Counter[str] = Counter()
    given = time.monotonic()
    with Workers(2, FILE_SECONDS) as workers:
        for file, read in workers.read(broken_files(folder, given + SECONDS), job):
            if isinstance(read, FileEnd):
                ended[file] += 1
                slow += [f"{file}: {read.reason}"] if read.reason else []
            elif isinstance(read, FailedSource):
                outcomes["failed"] += 1
                assert read.source == file or read.source.startswith(f"{file}/")
                assert read.reason
            else:
                assert isinstance(read, PreparedDocument)
                outcomes["read"] += 1
                assert all(chunk.text for chunk in read.chunks)
    print(f"seed {SEED}: {len(ended)} files, {dict(outcomes)}, {len(slow)} ended by their worker's limits: {slow}")
    assert outcomes["failed"] and outcomes["read"], SEED
    assert set(ended.values()) == {1}, SEED
    assert ended.keys() == {path.name for path in folder.iterdir()}, SEED
    assert list(elsewhere.iterdir()) == [], SEED
    assert {path.name for path in temporary.iterdir()} <= {"kreuzberg-pdfium"}, SEED  # a library it unpacks for itself
    assert not slow, (SEED, slow)
