import os
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingest import lexical
from ingest.lexical import DamagedIndex, LexicalIndex, Mark
from ingest.terms import terms

TEXTS = {
    "c0": "Annual leave is 25 days.",
    "c1": "员工每年有十二天年假。",
    "c2": "Call read_sensor(maxTokens) on error E-104",
    "c3": "病假为七天",
    "c4": "有給休暇はカタカナで申請する",
    "c5": "연차 휴가는 십오일이다",
}


def chunks(texts: dict[str, str]) -> list[tuple[str, str]]:
    return [(id_, " ".join(terms(text))) for id_, text in texts.items()]


@pytest.fixture
def index(tmp_path: Path) -> LexicalIndex:
    return LexicalIndex(tmp_path / "team.lexical")


@pytest.fixture
def mark(index: LexicalIndex) -> Mark:
    return index.write(index.make(), (), chunks(TEXTS))


def found(index: LexicalIndex, mark: Mark, query: str) -> list[str]:
    return [id_ for id_, _ in index.search(mark, query, 10)]


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
        ("休暇の申請", "c4"),
        ("カタカナ", "c4"),
        ("휴가", "c5"),
    ],
)
def test_the_chunk_with_the_words_comes_first(index: LexicalIndex, mark: Mark, query: str, best: str) -> None:
    assert found(index, mark, query)[0] == best


def test_a_higher_score_is_better_and_comes_first(index: LexicalIndex, mark: Mark) -> None:
    scores = [score for _, score in index.search(mark, "days 年假 七天 leave", 10)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("k", "hits"), [(-1, 0), (0, 0), (1, 1), (2**40, 2)])
def test_there_are_as_many_as_are_wanted_or_found(index: LexicalIndex, mark: Mark, k: int, hits: int) -> None:
    assert len(index.search(mark, "leave 年假", k)) == hits


def test_an_empty_index_finds_nothing(index: LexicalIndex) -> None:
    assert index.search(index.make(), "leave 年假", 10) == []


def test_equal_scores_come_by_id(index: LexicalIndex, mark: Mark) -> None:
    for id_ in ("c9", "c7", "c8"):  # in segments of their own
        mark = index.write(mark, (), chunks({id_: "pigeons carry the mail 鸽子"}))
    assert found(index, mark, "the pigeons 鸽子 carry mail") == ["c7", "c8", "c9"]


@pytest.mark.parametrize("query", ["", " ", "？！", '"" -- *'])
def test_a_query_without_a_term_finds_nothing(index: LexicalIndex, mark: Mark, query: str) -> None:
    assert found(index, mark, query) == []


@pytest.mark.parametrize(
    "query", ['leave" OR "x', "leave AND NOT (", "terms:leave", "leave*", "NEAR(leave days)", "a\x00leave", "/leave/"]
)
def test_search_syntax_in_a_question_is_only_words(index: LexicalIndex, mark: Mark, query: str) -> None:
    assert "c0" in found(index, mark, query)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(min_size=1), max_size=50))
def test_every_term_survives_the_index(index: LexicalIndex, texts: list[str]) -> None:
    numbered = {f"t{number}": text for number, text in enumerate(texts)}
    mark = index.write(index.make(), (), chunks(numbered))
    for id_, text in numbered.items():
        assert all(id_ in dict(index.search(mark, term, 50)) for term in terms(text))


def test_a_removed_chunk_is_not_found_and_a_changed_one_by_its_new_words(index: LexicalIndex, mark: Mark) -> None:
    mark = index.write(mark, ["c0", "c1"], chunks({"c1": "鸽子"}))
    assert found(index, mark, "leave 年假 鸽子") == ["c1"]


def test_what_is_written_twice_is_there_once(index: LexicalIndex, mark: Mark) -> None:
    again = index.write(mark, TEXTS, chunks(TEXTS))
    index.check(again, len(TEXTS))
    assert found(index, again, "leave") == ["c0"]


def test_a_reader_goes_on_while_the_writer_merges_and_sees_each_commit(index: LexicalIndex, mark: Mark) -> None:
    reader = LexicalIndex(index.folder)
    for number in range(20):  # tantivy merges eight segments into one
        mark = index.write(mark, [f"n{number - 1}"], chunks({f"n{number}": "pigeons"}))
        assert found(reader, mark, "pigeons") == [f"n{number}"]
        assert found(reader, mark, "年假")[0] == "c1"
    reader.check(mark, len(TEXTS) + 1)


def test_an_index_made_anew_takes_nothing_from_a_reader(index: LexicalIndex, mark: Mark) -> None:
    reader = LexicalIndex(index.folder)
    assert found(reader, mark, "leave") == ["c0"]
    new = index.write(index.make(), (), chunks({"c0": "鸽子"}))
    index.sweep(new)
    assert found(reader, mark, "leave") == ["c0"]
    assert found(reader, new, "leave 鸽子") == ["c0"]
    assert [path.name for path in index.folder.iterdir()] == [new.name]


@pytest.mark.parametrize("value", [None, "", "1", f"0 {'a' * 16} 7"])
def test_no_mark_or_one_of_other_terms_is_damage(value: str | None) -> None:
    with pytest.raises(DamagedIndex, match="version"):
        Mark.read(value)


def test_a_mark_is_read_as_it_was_written(mark: Mark) -> None:
    assert Mark.read(str(mark)) == mark


def overwritten(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.unlink()  # a reader keeps the file that it has open
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: (path.unlink(), path.touch()),
    "cut off": lambda path: (content := path.read_bytes(), path.unlink(), path.write_bytes(content[:-20])),
    "overwritten": overwritten,
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("file", ["idx", "term", "fieldnorm", "store", "fast", "del"])
def test_any_damaged_file_is_noticed(index: LexicalIndex, mark: Mark, file: str, kind: str) -> None:
    mark = index.write(mark, ["c0"], ())
    index.check(mark, len(TEXTS) - 1)
    (path,) = (index.folder / mark.name).glob(f"*.{file}")
    DAMAGE[kind](path)
    with pytest.raises(DamagedIndex):
        LexicalIndex(index.folder).check(mark, len(TEXTS) - 1)


def test_a_search_in_a_damaged_file_answers_or_says_so(index: LexicalIndex) -> None:
    """tantivy panics over some of them."""
    chance = random.Random(1)
    many = {f"c{number}": " ".join(f"w{chance.randrange(300)}" for _ in range(50)) for number in range(1000)}
    mark = index.write(index.make(), (), chunks(many))
    for number in range(20):
        copy = shutil.copytree(index.folder, index.folder.with_name(f"copy {number}"))
        for path in [path for kind in ("idx", "term", "store") for path in copy.rglob(f"*.{kind}")]:
            content = bytearray(path.read_bytes())
            for _ in range(8):
                content[chance.randrange(len(content) - 120)] = chance.randrange(256)
            path.write_bytes(content)
        with suppress(DamagedIndex):
            assert len(LexicalIndex(copy).search(mark, "w1 w2 w3", 20)) <= 20
        with pytest.raises(DamagedIndex):
            LexicalIndex(copy).check(mark, len(many))


def test_an_index_of_which_most_is_gone_is_made_anew(index: LexicalIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical, "MAY_BE_GONE", 0)
    many = {f"c{number}": f"w{number} 年假" for number in range(9)}
    mark = index.write(index.make(), (), chunks(many))
    for gone, left in ((["c0", "c1", "c2", "c3"], 5), (["c4"], 4)):
        mark = index.write(mark, gone, ())
        with pytest.raises(DamagedIndex, match="5 chunks that are gone, beside 4") if left == 4 else nullcontext():
            index.check(mark, left)


def test_an_index_that_lost_its_last_commit_is_noticed(index: LexicalIndex, mark: Mark) -> None:
    former = shutil.copytree(index.folder, index.folder.with_name("former"))
    after = index.write(mark, TEXTS, chunks(TEXTS))
    with pytest.raises(DamagedIndex, match="is at commit"):
        LexicalIndex(former).check(after, len(TEXTS))


def test_no_thread_is_left_after_writing_and_closing(tmp_path: Path) -> None:
    before = psutil.Process().num_threads()
    index = LexicalIndex(tmp_path)
    mark = index.write(index.make(), (), chunks(TEXTS))
    assert found(index, mark, "leave") == ["c0"]
    index.close()
    while psutil.Process().num_threads() > before:  # the watch on its files looks twice a second whether to end
        pass


def test_a_fork_waits_for_the_end_of_a_commit_and_for_no_thread(index: LexicalIndex, mark: Mark) -> None:
    def fork() -> None:
        if not (child := os.fork()):
            index.close()  # which lets go of tantivy's objects, and of nobody else's
            os._exit(0)
        os.waitpid(child, 0)

    forking = threading.Thread(target=fork)
    with lexical._forks.kept_off():
        forking.start()
        forking.join(0.2)
        assert forking.is_alive()
    forking.join()
    assert found(index, mark, "leave") == ["c0"]
