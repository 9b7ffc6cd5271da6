"""A file that crashed its reader, or went past a limit, costs that once."""

import zipfile

import pytest

from ingest import pipeline
from ingest.pipeline import ingest, rehearse
from ingest.settings import IngestOptions
from tests.ingest.troublesome import TroublesomeEmbedder

OPTIONS = {"workers": 1, "file_seconds": 0.5, "file_memory_mib": 1024}


@pytest.fixture
def tried(monkeypatch) -> list[list[str]]:
    """The files that each run reads."""
    runs, read = [], pipeline._reads

    def noted(plan, *rest):
        runs.append(list(plan.todo))
        return read(plan, *rest)

    monkeypatch.setattr(pipeline, "_reads", noted)
    return runs


@pytest.fixture
def troubled(opened):
    return opened(TroublesomeEmbedder())


def run(folder, knowledge_base, **options):
    return ingest(folder, knowledge_base, IngestOptions(**OPTIONS | options))


@pytest.mark.parametrize("trouble", ["it crashes", "it hangs", "it takes memory"])
def test_it_is_not_tried_again_as_it_is_and_still_reported(troubled, folder, tried, trouble) -> None:
    (folder / "坏.txt").write_text(trouble, encoding="utf-8")
    first, second, third = (run(folder, troubled) for _ in range(3))
    assert tried == [["guide.txt", "leave.md", "travel.txt", "坏.txt"]]
    assert (second.exit_status, second.unchanged, [source for source, _ in second.failed]) == (1, 3, ["坏.txt"])
    assert second.failed[0][1].startswith(first.failed[0][1])
    assert "not tried again now" in second.failed[0][1] and "`file_seconds`" in second.failed[0][1]
    assert third == second
    assert rehearse(folder, troubled, IngestOptions(**OPTIONS)).failed == second.failed


@pytest.mark.parametrize("change", [{"file_seconds": 0.6}, {"file_memory_mib": 1025}, {"chunk_tokens": 300}], ids=str)
def test_other_limits_or_another_recipe_try_it_again(troubled, folder, tried, change) -> None:
    (folder / "bad.txt").write_text("it crashes", encoding="utf-8")
    run(folder, troubled)
    run(folder, troubled, **change)
    assert "bad.txt" in tried[1]
    assert "tried again" in run(folder, troubled, **change).failed[0][1]


def test_another_content_is_read_and_the_failure_forgotten(troubled, folder, tried) -> None:
    (folder / "bad.txt").write_text("it crashes", encoding="utf-8")
    run(folder, troubled)
    (folder / "bad.txt").write_text("it is well", encoding="utf-8")
    assert run(folder, troubled).added == ("bad.txt",)
    assert troubled.journal.failures() == {}
    assert run(folder, troubled).unchanged == 4


def test_a_file_that_is_gone_is_forgotten(troubled, folder, tried) -> None:
    (folder / "bad.txt").write_text("it crashes", encoding="utf-8")
    run(folder, troubled)
    (folder / "bad.txt").unlink()
    assert run(folder, troubled).exit_status == 0
    assert troubled.journal.failures() == {}


@pytest.mark.parametrize("trouble", ["it fails", "it is killed"])
def test_what_costs_nothing_or_came_from_outside_is_tried_again(troubled, folder, tried, trouble) -> None:
    (folder / "bad.txt").write_text(trouble, encoding="utf-8")
    for _ in range(2):
        assert run(folder, troubled).exit_status == 1
    assert tried[1] == ["bad.txt"]


def test_what_is_in_of_it_stays_and_comes_back_when_it_was_deleted(troubled, folder, tried) -> None:
    with zipfile.ZipFile(folder / "档案.zip", "w") as archive:
        archive.writestr("a.txt", "一切正常")
        archive.writestr("b.txt", "it crashes")
    run(folder, troubled)
    assert (run(folder, troubled).unchanged, len(tried)) == (4, 1)
    with troubled.writing() as writer:
        writer.remove("档案.zip/a.txt")
        writer.sweep()
    assert run(folder, troubled).added == ("档案.zip/a.txt",)
