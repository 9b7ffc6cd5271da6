"""`groundwell ingest --watch`, with changes as a test makes them."""

import json

from ingest import __main__ as command
from ingest.store import KnowledgeBase
from llm.options import EmbedderOptions
from tests.fakes import WordCountEmbedder


def test_watching_ingests_at_once_after_a_change_and_again_after_another_writer(
    run, folder, tmp_path, monkeypatch
) -> None:
    def changes(*_):
        yield False  # nothing has changed yet
        (folder / "新.txt").write_text("新的文件", encoding="utf-8")
        yield True
        yield False
        knowledge_base = KnowledgeBase.open(tmp_path / "store", "default", WordCountEmbedder(EmbedderOptions().model))
        with knowledge_base.writing():
            (folder / "新.txt").unlink()
            yield True
        knowledge_base.close()
        yield False

    monkeypatch.setattr("ingest.watch.changes", changes)
    monkeypatch.setattr(command, "RETRY_SECONDS", 0)
    status, output, errors = run(folder, "--watch")
    assert status == 0
    assert [line for line in output.splitlines() if "added" in line] == [
        "3 added, 0 unchanged, 0 removed",
        "1 added, 3 unchanged, 0 removed",
        "0 added, 3 unchanged, 1 removed",
    ]
    assert "is being written by process" in errors


def test_ctrl_c_while_watching_ends_with_the_last_runs_status_and_in_a_run_it_interrupts(
    run, folder, monkeypatch
) -> None:
    def changes(*_):
        yield False
        raise KeyboardInterrupt

    monkeypatch.setattr("ingest.watch.changes", changes)
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 torn")
    status, _, errors = run(folder, "--watch")
    assert (status, errors) == (1, "")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ingest.pipeline.ingest", interrupted)
    status, _, errors = run(folder, "--watch")
    assert (status, errors) == (130, "groundwell ingest: interrupted; the next run finishes it\n")


def test_watching_goes_on_when_the_folder_is_emptied_and_loses_nothing(run, folder, monkeypatch) -> None:
    def changes(*_):
        yield False
        for path in folder.iterdir():
            path.unlink()
        yield True
        (folder / "a.txt").write_text("新的文件", encoding="utf-8")
        yield True

    monkeypatch.setattr("ingest.watch.changes", changes)
    status, output, errors = run(folder, "--watch", "--json")
    first, refused, last = map(json.loads, output.splitlines())
    assert (status, len(first["added"]), refused["exit_status"]) == (0, 3, 2)
    assert "nothing was changed" in errors
    assert (last["added"], len(last["removed"])) == (["a.txt"], 3)


def test_watching_says_once_that_another_command_has_changed_the_knowledge_base(
    run, folder, tmp_path, monkeypatch
) -> None:
    def changes(*_):
        yield False
        yield False
        knowledge_base = KnowledgeBase.open(tmp_path / "store", "default", WordCountEmbedder(EmbedderOptions().model))
        with knowledge_base.writing() as writer:
            writer.remove("leave.md")
            writer.remove_file("leave.md")
        knowledge_base.close()
        yield False
        yield False

    monkeypatch.setattr("ingest.watch.changes", changes)
    status, output, errors = run(folder, "--watch")
    assert (status, output.count("added")) == (0, 1)
    assert errors == (
        "groundwell ingest: knowledge base 'default' was changed by another command; it becomes equal to the folder"
        " again when something in that changes\n"
    )


def test_watching_ends_with_the_reason_when_the_folder_is_gone(run, folder, tmp_path, monkeypatch) -> None:
    def changes(*_):
        yield False
        folder.rename(tmp_path / "elsewhere")
        yield False

    monkeypatch.setattr("ingest.watch.changes", changes)
    status, output, errors = run(folder, "--watch")
    assert (status, output.count("added"), errors) == (2, 1, f"groundwell ingest: there is no folder {folder}\n")
