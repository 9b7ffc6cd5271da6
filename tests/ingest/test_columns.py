"""Filters answered in memory are Chroma's own, for metadata and filters of any shape."""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ingest import columns as columns_module
from ingest.collection import open_chroma
from ingest.columns import Columns, Unanswerable

NAMES = st.sampled_from(["a", "b", "作者"])
SCALARS = st.one_of(
    st.booleans(),
    st.sampled_from([0, 1, 2, -1, 2**53, 2**53 + 1, 2**62]),
    st.sampled_from([0.0, 1.0, 1.5, -1.0, 2.0**53]),
    st.sampled_from(["", "a", "1", "true", "李雷", "李"]),
)
LISTS = st.one_of(
    *(
        st.lists(st.sampled_from(kind), min_size=1, max_size=3)
        for kind in ([True, False], [0, 1, 2], [0.0, 1.0, 1.5], ["a", "李雷"])
    )
)
ABOUTS = st.lists(st.dictionaries(NAMES, SCALARS | LISTS, max_size=3), min_size=1, max_size=8)
COMPARED = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$contains", "$not_contains"]), SCALARS),
    st.tuples(st.sampled_from(["$in", "$nin"]), LISTS | st.lists(SCALARS, max_size=3)),
)
CONDITIONS = st.one_of(
    st.builds(lambda name, value: {name: value}, NAMES, SCALARS),
    st.builds(lambda name, compared: {name: dict([compared])}, NAMES, COMPARED),
)
FILTERS = st.recursive(
    CONDITIONS,
    lambda some: st.builds(
        lambda name, each: {name: each}, st.sampled_from(["$and", "$or"]), st.lists(some, min_size=2, max_size=3)
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Any:
    return open_chroma(tmp_path_factory.mktemp("store"))


def of_chroma(client: Any, abouts: list[dict], where: dict) -> list[bool] | None:
    """Which of these meet it; None where Chroma refuses the filter."""
    from chromadb.errors import ChromaError

    name = uuid.uuid4().hex
    collection = client.create_collection(name, embedding_function=None)
    ids = [str(number) for number in range(len(abouts))]
    collection.add(ids=ids, embeddings=[[1.0, 0.0]] * len(ids), metadatas=[about or None for about in abouts])
    try:
        there = set(collection.get(where=where, include=[])["ids"])
        return [id_ in there for id_ in ids]
    except (ValueError, ChromaError):
        return None
    finally:
        client.delete_collection(name)


def of_ours(abouts: list[dict], where: dict) -> list[bool] | None:
    columns = Columns()
    for about in abouts:  # one by one, so that they grow
        columns.add([about])
    try:
        return columns.meeting(where, len(abouts)).tolist()
    except Unanswerable:
        return None


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ABOUTS, FILTERS)
@example([{"a": True}, {"a": 1}, {"a": 1.0}, {"a": [1]}, {}], {"a": {"$ne": 1}})
@example([{"作者": "李雷"}, {"作者": ["李雷"]}, {"b": 1}], {"作者": {"$nin": ["李雷", "李"]}})
@example([{"a": 2**53}, {"a": 2**53 + 1}, {"a": 2.0**53}], {"a": {"$gt": 2**53}})
@example([{"a": 1}, {"a": 2}], {"a": {"$gt": True}})
@example([{"a": 1}], {"a": {"$in": []}})
def test_a_filter_that_is_answered_in_memory_is_answered_as_chroma_does(client, abouts, where) -> None:
    ours = of_ours(abouts, where)
    assert ours is None or ours == of_chroma(client, abouts, where)


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"a": 1, "b": 1},
        {"a": {"$gt": 1, "$lt": 3}},
        {"a": None},
        {"a": [1]},
        {"a": {"$in": []}},
        {"a": {"$in": [1, "a"]}},
        {"a": {"$gt": "a"}},
        {"a": {"$gt": True}},
        {"a": {"$regex": "a"}},
        {"$and": [{"a": 1}]},
        {"$or": []},
        {"$not": {"a": 1}},
    ],
    ids=str,
)
def test_a_filter_that_chroma_refuses_is_left_to_it(client, where) -> None:
    assert of_chroma(client, [{"a": 1}], where) is None
    assert of_ours([{"a": 1}], where) is None


@pytest.mark.parametrize(
    "where", [{"a": 1}, {"a": {"$ne": 1}}, {"a": {"$in": [1, 2]}}, {"a": {"$gte": 1.5}}, {"作者": {"$contains": "李"}}]
)
def test_usual_filters_need_no_chroma(where) -> None:
    assert of_ours([{"a": 1}, {"作者": ["李"]}, {}], where) is not None


def test_a_name_with_too_many_values_is_left_to_chroma(monkeypatch) -> None:
    monkeypatch.setattr(columns_module, "DIFFERENT", 3)
    abouts = [{"a": number, "b": "甲"} for number in range(5)]
    assert of_ours(abouts, {"a": 1}) is None
    assert of_ours(abouts, {"b": "甲"}) == [True] * 5


def test_who_asked_for_fewer_rows_gets_so_many() -> None:
    columns = Columns()
    columns.add([{"a": 1}] * 3)
    assert columns.meeting({"a": 1}, 2).tolist() == [True, True]
    assert columns.meeting({"no such": {"$ne": 1}}, 2).tolist() == [True, True]
