"""Files as their programs write them, read back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.document import FailedSource, LoadedDocument, LoadOptions
from ingest.load import load_all

Items = dict[str, LoadedDocument | FailedSource]


@pytest.fixture
def read_all(tmp_path: Path) -> Callable[..., Items]:
    """Reads a file of that name and content; gives every item by its source."""

    def read(name: str, content: bytes | str, **options: Any) -> Items:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        items = list(load_all(path, name, LoadOptions(**options)))
        assert len({item.source for item in items}) == len(items)
        assert list(tmp_path.iterdir()) == [path]  # nothing is written beside it
        path.unlink()
        return {item.source: item for item in items}

    return read


@pytest.fixture
def read(read_all: Callable[..., Items]) -> Callable[..., LoadedDocument]:
    """Reads a file that is one document."""

    def read_one(name: str, content: bytes | str, **options: Any) -> LoadedDocument:
        (item,) = read_all(name, content, **options).values()
        assert isinstance(item, LoadedDocument), item
        checked(item)
        return item

    return read_one


@pytest.fixture
def failure(read_all: Callable[..., Items]) -> Callable[..., str]:
    """Reads a file that fails; gives the reason."""

    def read_one(name: str, content: bytes | str, **options: Any) -> str:
        (item,) = read_all(name, content, **options).values()
        assert isinstance(item, FailedSource), item
        return item.reason

    return read_one


def checked(document: LoadedDocument) -> None:
    """Offsets point at what they name, in the order of the text."""
    starts = [start for start, _ in document.pages]
    assert starts == sorted(set(starts))
    assert all(0 <= start < len(document.text) for start in starts)
    for start, level, title in document.headings:
        line = document.text[start:].split("\n", 1)[0].strip()
        assert line in (title, f"{'#' * level} {title}")
