import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import lexical


@pytest.fixture
def index() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE chunks (rowid INTEGER PRIMARY KEY, id TEXT)")
    connection.execute(lexical.SCHEMA)
    texts = [
        "Annual leave is 25 days.",
        "员工每年有十二天年假。",
        "Call read_sensor(maxTokens) on error E-104",
        "病假为七天",
    ]
    for rowid, text in enumerate(texts):
        connection.execute("INSERT INTO chunks VALUES (?, ?)", (rowid, f"c{rowid}"))
        lexical.add(connection, rowid, text)
    yield connection
    connection.close()


def found(index: sqlite3.Connection, query: str) -> list[str]:
    return [id_ for id_, _ in lexical.search(index, query, 10)]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("How many days of LEAVE?", "c0"),
        ("年假有几天？", "c1"),
        ("那病假呢", "c3"),
        ("error E-104", "c2"),
        ("read_sensor", "c2"),
        ("sensor tokens", "c2"),
        ("ｅ－104 error", "c2"),
    ],
)
def test_the_chunk_with_the_words_comes_first(index: sqlite3.Connection, query: str, best: str) -> None:
    assert found(index, query)[0] == best


def test_a_higher_score_is_better_and_comes_first(index: sqlite3.Connection) -> None:
    scores = [score for _, score in lexical.search(index, "days 年假 七天 leave", 10)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("query", ["", " ", "？！", '"" -- *'])
def test_a_query_without_a_term_finds_nothing(index: sqlite3.Connection, query: str) -> None:
    assert found(index, query) == []


@pytest.mark.parametrize(
    "query", ['leave" OR "x', "leave AND NOT (", "terms:leave", "leave*", "NEAR(leave days)", "a\x00leave"]
)
def test_search_syntax_in_a_question_is_only_words(index: sqlite3.Connection, query: str) -> None:
    assert "c0" in found(index, query)


@given(st.text())
def test_every_term_survives_the_index(text: str) -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE chunks (rowid INTEGER PRIMARY KEY, id TEXT)")
        connection.execute(lexical.SCHEMA)
        connection.execute("INSERT INTO chunks VALUES (1, 'c1')")
        lexical.add(connection, 1, text)
        assert all(lexical.search(connection, term, 1) for term in lexical.terms(text))
    connection.close()


def test_a_removed_chunk_is_not_found(index: sqlite3.Connection) -> None:
    lexical.remove(index, 0)
    assert found(index, "leave") == []


def test_terms_of_each_script() -> None:
    assert lexical.terms("HTTPServer v2") == ["httpserver", "http", "server", "v2", "v", "2"]
    assert lexical.terms("カタカナ 휴가일") == ["カタ", "タカ", "カナ", "휴가", "가일"]
    assert lexical.terms("几天") == ["几天"]
    assert lexical.terms("C++ and C#") == ["c++", "and", "c#"]
