from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest.metadata import OF_A_CHUNK, flatten, where


class Colour(Enum):
    RED = "红"


HOLDS_ITSELF: dict[str, Any] = {}
HOLDS_ITSELF["again"] = HOLDS_ITSELF


@pytest.mark.parametrize(
    ("given", "flat"),
    [
        ({"a": None}, {}),
        ({"a": "文", "b": 1, "c": 1.5, "d": True}, {"a": "文", "b": 1, "c": 1.5, "d": True}),
        ({"box": {"w": 1, "in": {"x": "甲"}}}, {"box.w": 1, "box.in.x": "甲"}),
        ({1: "one", (2, 3): "two"}, {"1": "one", "(2, 3)": "two"}),
        ({"tags": ("甲", "乙")}, {"tags": ["甲", "乙"]}),
        ({"tags": {"b", "a"}}, {"tags": ["a", "b"]}),
        ({"n": [1, 2.5]}, {"n": [1.0, 2.5]}),
        ({"n": [1, "a", True, None]}, {"n": ["1", "a", "True"]}),
        ({"n": [{"甲": 1}, [2]]}, {"n": ['{"甲": 1}', "[2]"]}),
        ({"t": time(9, 30)}, {"t": "09:30:00"}),
        ({"when": [date(2024, 2, 29)]}, {"when": ["2024-02-29"]}),
        ({"n": 2**70}, {"n": str(2**70)}),
        ({"n": Decimal("1.5"), "m": numpy.float32(0.5), "k": numpy.int64(3)}, {"n": 1.5, "m": 0.5, "k": 3}),
        (
            {"c": Colour.RED, "p": PurePosixPath("a/b"), "u": UUID(int=1)},
            {"c": "红", "p": "a/b", "u": str(UUID(int=1))},
        ),
        ({"s": "half \ud83d"}, {"s": "half \\ud83d"}),
        ({"chroma:document": 1, "$and": 2, "": 3}, {"document_chroma:document": 1, "document_$and": 2, "document_": 3}),
        ({"chroma:uri": 1, "chroma:x": {"y": 2}}, {"document_chroma:uri": 1, "document_chroma:x.y": 2}),
    ],
)
def test_each_shape_becomes_what_chroma_holds(given: dict, flat: dict) -> None:
    assert flatten(given) == (flat, [])


def test_dates_can_be_compared_by_their_seconds() -> None:
    zone = timezone(timedelta(hours=8))
    flat, _ = flatten({"a": date(2024, 2, 29), "b": datetime(2024, 2, 29, 8, tzinfo=zone)})
    assert flat["b"] == "2024-02-29T08:00:00+08:00"
    assert flat["a_ts"] == flat["b_ts"] == 1709164800.0


def test_seconds_have_no_more_digits_than_chroma_gives_back() -> None:
    moment = datetime(4825, 1, 1, 0, 0, 0, 123_456)
    assert flatten({"a": moment})[0] == {"a": "4825-01-01T00:00:00.123456", "a_ts": 90095155200.123}
    assert where({"a": {"$gte": moment}}) == {"a_ts": {"$gte": 90095155200.123}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", [], {}, [None], numpy.float32("nan")])
def test_what_cannot_be_held_is_named(value: Any) -> None:
    assert flatten({"a": {"b": value}, "kept": 1}) == ({"kept": 1}, ["a.b"])


def test_what_holds_itself_ends() -> None:
    flat, dropped = flatten(HOLDS_ITSELF | {"list": [HOLDS_ITSELF]})
    assert len(flat) + len(dropped) == 2


def test_names_of_ours_are_not_overridden() -> None:
    assert flatten({"source": "x", "page": 3, "title": "t"}, reserved=OF_A_CHUNK)[0] == {
        "document_source": "x",
        "document_page": 3,
        "title": "t",
    }


@pytest.mark.parametrize(
    ("conditions", "meant"),
    [
        (None, None),
        ({}, None),
        ({"a": 1}, {"a": 1}),
        ({"a": 1, "b": {"$gt": 2}}, {"$and": [{"a": 1}, {"b": {"$gt": 2}}]}),
        ({"d": date(2024, 2, 29)}, {"d": "2024-02-29"}),
        ({"d": {"$lt": date(2024, 2, 29)}}, {"d_ts": {"$lt": 1709164800.0}}),
        ({"d": {"$in": [date(2024, 2, 29), "x"]}}, {"d": {"$in": ["2024-02-29", "x"]}}),
        ({"$or": [{"a": 1}, {"b": 2, "c": 3}]}, {"$or": [{"a": 1}, {"$and": [{"b": 2}, {"c": 3}]}]}),
    ],
)
def test_conditions_are_put_in_chromas_terms(conditions: dict | None, meant: dict | None) -> None:
    assert where(conditions) == meant


# Chroma gives back very small and very large ones in another last digit.
FLOATS = st.integers(-(10**9), 10**9).map(lambda number: number / 8) | st.sampled_from([float("nan"), float("inf")])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text() | st.binary() | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text() | st.integers(), VALUES, max_size=5))
def test_chroma_takes_all_metadata_and_gives_back_what_was_flattened(knowledge_base, metadata: dict) -> None:
    knowledge_base.add_texts(["文本"], [metadata], ids=["1"])
    assert knowledge_base.get_by_ids(["1"])[0].metadata == flatten(metadata)[0]
