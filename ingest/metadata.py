"""Metadata of any shape → what Chroma can hold and filter by, and filters in the same terms."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any

from langchain_core.documents import Document

Scalar = str | int | float | bool
Flat = dict[str, Scalar | list[Scalar]]

SPAN = frozenset({"start", "end"})
OF_A_CHUNK = SPAN | {"source", "heading", "page", "slide", "sheet", "cell", "line"}
"""What we store with each chunk of a file; a document's own metadata of these names gets PREFIX."""
PREFIX = "document_"
OF_A_DOCUMENT = "groundwell:document"
"""Where `ingest.imprint` writes; nobody else sees it."""
REFUSED = re.compile(rf"$|[$#]|chroma:|{OF_A_DOCUMENT}$")
"""Names that Chroma and we keep for ourselves, and none; what Chroma is given as `chroma:…` it does not give back."""
DEPTH = 10
"""Dicts in dicts that are followed; one that holds itself would have no end."""
ORDERED = frozenset({"$gt", "$gte", "$lt", "$lte"})


def flatten(metadata: Mapping[Any, Any], *, reserved: frozenset[str] = frozenset()) -> tuple[Flat, list[str]]:
    """The metadata as Chroma can hold it, and the names of values that it cannot hold in any form.

    None is left out without a word: it says nothing. A dict becomes one name for each value, `box.w`; a list keeps its
    scalars, all of one kind (whole and broken numbers as floats, other mixtures as texts) and what is nested deeper as
    JSON. A date or time becomes ISO 8601, and `<name>_ts` seconds since 1970, since only numbers can be compared
    (without a time zone: UTC). Whole numbers beyond 64 bits and all other values become texts. Left out and named:
    NaN, infinity, bytes, and lists and dicts without a value. Names become texts; those in `reserved`, and those that
    Chroma and we keep for ourselves, get `document_` in front.
    """
    flat: Flat = {}
    dropped = []
    for name, value in _leaves(metadata, "", 0):
        key = PREFIX + name if name in reserved or REFUSED.match(name) else name
        kept = _list(value) if isinstance(value, list | tuple | set | frozenset) else _scalar(value)
        if kept is not None:
            flat[key] = kept
        elif value is not None:
            dropped.append(key)
        if isinstance(value, date):
            flat[f"{key}_ts"] = _seconds(value)
    return flat, dropped


def where(conditions: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Conditions in Chroma's terms: several names must all hold, and dates are compared as they are stored.

    `{"author": "李", "pages": {"$gt": 3, "$lt": 9}}`, `{"tags": {"$contains": "甲"}}`,
    `{"when": {"$gte": date(2024, 1, 1)}}`, `{"$or": [{"author": "李"}, {"pages": {"$in": [1, 2]}}]}`. A chunk without
    the name meets `$ne`, `$nin` and `$not_contains`, and no other condition; nor does a value of another type than what
    it is compared with. Raises ValueError for `$and` and `$or` of nothing; for other conditions that it cannot read,
    Chroma does.
    """
    each = [one for name, wanted in (conditions or {}).items() for one in _conditions(name, wanted)]
    return each[0] if len(each) == 1 else {"$and": each} if each else None


def check_where(conditions: Mapping[str, Any] | None) -> None:
    """Raises ValueError where a search with these conditions would."""
    from chromadb.api.types import validate_where

    if meeting := where(conditions):
        validate_where(meeting)


def with_place(document: Document, source: str | None) -> Document:
    """The chunk with all that a citation needs; one that was added without a file may lack it: it is its own text."""
    about = document.metadata
    start, end = about.get("start"), about.get("end")
    if not (type(start) is type(end) is int and end - start == len(document.page_content)):
        start, end = 0, len(document.page_content)
    heading = about.get("heading")
    place = {"source": source or about["source"], "start": start, "end": end}
    place |= {"heading": heading if isinstance(heading, str) else ""}
    return Document(id=document.id, page_content=document.page_content, metadata=about | place)


def _conditions(name: str, wanted: Any) -> list[dict[str, Any]]:
    if name in ("$and", "$or"):
        each = [condition for one in wanted if (condition := where(one))]
        if not each or len(each) < len(wanted):
            raise ValueError(f"{name} needs a list of conditions, not {wanted!r}")
        return [each[0] if len(each) == 1 else {name: each}]
    if not isinstance(wanted, Mapping):
        return [{name: _scalar(wanted)}]
    return [_comparison(name, operator, operand) for operator, operand in wanted.items()] or [{name: {}}]


def _comparison(name: str, operator: str, operand: Any) -> dict[str, Any]:
    if operator in ORDERED and isinstance(operand, date):
        return {f"{name}_ts": {operator: _seconds(operand)}}
    return {name: {operator: _operand(operand)}}


def _operand(operand: Any) -> Any:
    return [_scalar(one) for one in operand] if isinstance(operand, list | tuple | set) else _scalar(operand)


def _leaves(values: Mapping[Any, Any], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        here = f"{path}.{_text(str(name))}" if path else _text(str(name))
        if isinstance(value, Mapping) and value and depth < DEPTH:
            yield from _leaves(value, here, depth + 1)
        else:
            yield here, b"" if isinstance(value, Mapping) else value


def _scalar(value: Any) -> Scalar | None:
    """The value as one that Chroma holds; None where there is none."""
    if hasattr(value, "item") and not hasattr(value, "__len__"):  # a number of numpy's
        value = value.item()
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bytes | bytearray):
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    return value.isoformat() if isinstance(value, date | time) else _text(str(value))


def _list(values: Iterable[Any]) -> list[Scalar] | None:
    nested = (list, tuple, set, frozenset, Mapping)
    ordered = sorted(values, key=repr) if isinstance(values, set | frozenset) else values
    kept = [_json(value) if isinstance(value, nested) else _scalar(value) for value in ordered]
    scalars = [value for value in kept if value is not None]
    kinds = {type(value) for value in scalars}
    if kinds == {int, float}:
        return [float(value) for value in scalars]
    return (scalars if len(kinds) == 1 else [str(value) for value in scalars]) or None


def _json(value: Any) -> str:
    try:
        return _text(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError):  # a key that is no text, or a value that holds itself
        return _text(str(value))


def _seconds(value: date) -> float:
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return round(seconds, 3)  # Chroma gives back a number of 16 digits in another last one


def _text(text: str) -> str:
    """Half of a surrogate pair is no character; Chroma would fail on it."""
    return text.encode("utf-8", "backslashreplace").decode()
