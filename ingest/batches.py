"""Long rows of things, some at a time."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def in_batches(values: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The values in lists of `size`, the last one shorter."""
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch
