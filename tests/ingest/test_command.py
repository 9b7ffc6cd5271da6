import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfWriter

from ingest import __main__ as command
from ingest.settings import IngestSettings, SettingsFileNotFound
from ingest.store import KnowledgeBase
from llm.options import EmbedderOptions
from tests.fakes import WordCountEmbedder
from tests.ingest.pdf import pdf

ROOT = Path(__file__).parents[2]
MAIN = """
import sys
import llm.embeddings
from llm.options import EmbedderOptions
from tests.fakes import WordCountEmbedder
llm.embeddings.Embedder = lambda options: WordCountEmbedder()
from ingest.__main__ import main
status = main()
print("rag" in sys.modules, "torch" in sys.modules)
sys.exit(status)
"""


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command in this process; gives its status, its output and its errors."""
    monkeypatch.setattr("llm.embeddings.Embedder", lambda options: WordCountEmbedder(options.model))
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ingest", *map(str, arguments)])
        status = command.main()
        return status, *capsys.readouterr()

    return run_command


@pytest.fixture(autouse=True)
def unchanged_environment(monkeypatch) -> None:
    for name in ("ANONYMIZED_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # so that it is put back even where it was not there
        monkeypatch.delenv(name)


def test_the_report_goes_to_stdout_and_nothing_else_is_said(run, folder) -> None:
    expected = "3 added, 0 unchanged, 0 removed\nknowledge base default: 3 documents, 3 chunks\n"
    assert run(folder) == (0, expected, "")
    assert run(folder)[1].startswith("0 added, 3 unchanged, 0 removed\n")


def test_a_failed_file_is_exit_status_1_and_one_line(run, folder) -> None:
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 torn")
    status, output, _ = run(folder, "--knowledge-base", "知识库")
    assert status == 1
    assert "3 added, 0 unchanged, 0 removed, 1 failed\nfailed: broken.pdf: is broken" in output
    assert "knowledge base 知识库: 3 documents" in output


@pytest.mark.parametrize("options", [[], ["--watch"], ["--dry-run"], ["--rebuild"]])
def test_a_missing_folder_is_one_sentence_and_makes_no_knowledge_base(run, tmp_path, options) -> None:
    status, output, errors = run(tmp_path / "nowhere", *options)
    assert (status, output) == (2, "")
    assert errors == f"groundwell ingest: there is no folder {tmp_path / 'nowhere'}\n"
    assert not (tmp_path / "store").exists()


def test_another_embedder_is_refused_until_rebuilt(run, folder, monkeypatch) -> None:
    run(folder)
    monkeypatch.setenv("GROUNDWELL_EMBEDDER__MODEL", "other/model")
    status, _, errors = run(folder)
    assert status == 2
    assert "--knowledge-base default --rebuild" in errors
    assert run(folder, "--rebuild")[:2] == (
        0,
        "3 added, 0 unchanged, 0 removed\nknowledge base default: 3 documents, 3 chunks\n",
    )


def test_a_dry_run_names_what_would_be_done_and_makes_no_store(run, folder, tmp_path) -> None:
    planned = "added: guide.txt\nadded: leave.md\nadded: travel.txt\n"
    assert run(folder, "--dry-run") == (0, f"would be 3 added, 0 unchanged, 0 removed\n{planned}", "")
    assert not (tmp_path / "store").exists()
    run(folder)
    (folder / "leave.md").unlink()
    assert run(folder, "--dry-run")[1].startswith(
        "would be 0 added, 2 unchanged, 1 removed\nremoved: leave.md\nknowledge base default: 3 documents"
    )
    assert run(folder, "--dry-run", "--rebuild")[1].startswith("would be 2 added")
    assert run(folder)[1].startswith("0 added, 2 unchanged, 1 removed\n")


def test_json_is_one_report_on_stdout(run, folder) -> None:
    (folder / "坏.pdf").write_bytes(b"%PDF-1.4 torn")
    (folder / "song.mp3").write_bytes(b"")
    status, output, errors = run(folder, "--json", "--exclude", "/travel.txt")
    report = json.loads(output)
    assert (status, errors, report["exit_status"]) == (1, "", 1)
    assert (report["added"], report["skipped"]) == (["guide.txt", "leave.md"], ["song.mp3"])
    assert report["failed"][0]["source"] == "坏.pdf"
    assert report["knowledge_base"] == {"name": "default", "documents": 2, "chunks": 2}


def test_json_tells_a_refusal_too(run, tmp_path) -> None:
    status, output, _ = run(tmp_path / "nowhere", "--json")
    refusal = {"error": f"there is no folder {tmp_path / 'nowhere'}", "exit_status": 2}
    assert (status, json.loads(output)) == (2, refusal)


def test_metadata_has_the_type_that_json_gives_it(run, folder, tmp_path) -> None:
    given = [
        "team=销售",
        "year=2026",
        "share=0.5",
        "draft=true",
        'code="7"',
        "version=1.2.3",
        "zip=007",
        "none=null",
        f"big={10**30}",
    ]
    status, _, _ = run(folder, *(part for pair in given for part in ("--metadata", pair)), "--metadata", "nan=NaN")
    knowledge_base = KnowledgeBase.open(tmp_path / "store", "default", WordCountEmbedder(EmbedderOptions().model))
    about = knowledge_base.chunks([id_ for id_, _ in knowledge_base.lexical("leave", 1)])[0].metadata
    knowledge_base.close()
    assert status == 0
    expected = {"team": "销售", "year": 2026, "share": 0.5, "draft": True, "code": "7"}
    expected |= {"version": "1.2.3", "zip": "007", "none": "null", "nan": "NaN", "big": str(10**30)}
    assert {name: about[name] for name in expected} == expected
    assert about["draft"] is True


@pytest.mark.parametrize("given", ["team", "=sales"])
def test_metadata_that_is_no_pair_is_refused(run, folder, capsys, given) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(folder, "--metadata", given)
    assert stopped.value.code == 2
    assert f"{given!r} is not KEY=VALUE" in capsys.readouterr().err


def test_metadata_of_our_own_names_is_refused(run, folder) -> None:
    status, _, errors = run(folder, "--metadata", "source=x")
    assert status == 2
    assert "source: kept for Groundwell and Chroma themselves" in errors


def test_a_protected_file_is_read_with_a_password_from_a_file(run, folder, tmp_path) -> None:
    writer = PdfWriter(clone_from=BytesIO(pdf("Pigeons carry the mail")))
    writer.encrypt("key-7", algorithm="RC4-128")
    writer.write(folder / "秘密.pdf")
    status, output, _ = run(folder)
    assert status == 1
    assert "protected by a password: give it with --password" in output
    (tmp_path / "passwords").write_text("密码\n\nkey-7\n", encoding="utf-8")
    assert run(folder, "--password-file", tmp_path / "passwords")[0] == 0
    assert run(folder)[1].startswith("0 added, 4 unchanged")


def test_a_password_file_that_is_not_there_is_one_sentence(run, folder, tmp_path) -> None:
    status, _, errors = run(folder, "--password-file", tmp_path / "none")
    assert (status, errors) == (2, f"groundwell ingest: {tmp_path / 'none'}: No such file or directory\n")


def test_the_lock_does_not_tell_passwords(run, folder, tmp_path, monkeypatch) -> None:
    knowledge_base = KnowledgeBase.open(
        tmp_path / "store", "default", WordCountEmbedder(EmbedderOptions().model), create=True
    )
    monkeypatch.setattr(sys, "argv", ["groundwell", "ingest", "--password", "geheim", "--password=geheim", "docs"])
    with knowledge_base.writing():
        status, _, errors = run(folder)
    knowledge_base.close()
    assert status == 2
    assert "(groundwell ingest --password … --password=… docs)" in errors


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


def test_watching_puts_back_what_another_ingest_has_taken_out(run, folder, tmp_path, monkeypatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.txt").write_text("另一个文件", encoding="utf-8")

    def changes(*_):
        yield False
        yield False
        assert run(tmp_path / "other")[0] == 0
        yield False  # it is seen
        yield False  # and met

    monkeypatch.setattr("ingest.watch.changes", changes)
    monkeypatch.setattr(command, "RETRY_SECONDS", 0)
    status, output, errors = run(folder, "--watch", "--json")
    *_, last = map(json.loads, output.splitlines())
    assert (status, last["removed"], len(last["added"])) == (0, ["b.txt"], 3)
    assert errors.count("another process has changed knowledge base 'default'") == 1


def test_watching_says_that_the_folder_is_gone_and_goes_on_when_it_is_back(run, folder, tmp_path, monkeypatch) -> None:
    def changes(*_):
        yield False
        folder.rename(tmp_path / "away")
        yield True
        (tmp_path / "away").rename(folder)
        yield True

    monkeypatch.setattr("ingest.watch.changes", changes)
    status, output, _ = run(folder, "--watch", "--json")
    first, refused, last = map(json.loads, output.splitlines())
    assert (status, refused["error"]) == (0, f"there is no folder {folder}")
    assert (len(first["added"]), last["unchanged"], last["removed"]) == (3, 3, [])


def test_help_tells_the_exit_statuses(run, capsys) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "130 interrupted; the next run finishes it" in said
    assert "3 the store cannot be written" in said


def test_help_and_a_rebuild_tell_what_it_takes_away(run, folder, tmp_path, capsys, caplog) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "--rebuild empty the knowledge base first" in said
    assert "what was added without a file is gone" in said
    run(folder)
    model = WordCountEmbedder(EmbedderOptions().model)
    knowledge_base = KnowledgeBase.open(tmp_path / "store", "default", model)
    knowledge_base.add_texts(["没有文件的文本"], ids=["一"])
    status, output, _ = run(folder, "--rebuild")
    assert (status, output.splitlines()[-1]) == (0, "knowledge base default: 3 documents, 3 chunks")
    assert "(1) are taken out: added://一" in caplog.text
    knowledge_base.close()


@pytest.mark.parametrize("output", [{}, {"PYTHONIOENCODING": "cp1252"}], ids=["ascii", "cp1252"])
def test_under_another_locale_text_and_names_are_the_same_and_nothing_asks_it(folder, tmp_path, output) -> None:
    (folder / "引号.txt").write_text("中文“引号”", encoding="utf-8")
    (folder / "坏.pdf").write_bytes(b"%PDF-1.4 torn")
    store = tmp_path / "store"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONWARNDEFAULTENCODING": "1"} | output
    environment = os.environ | {"GROUNDWELL_STORE__PATH": str(store)} | locale
    process = subprocess.run(
        [sys.executable, "-c", MAIN, str(folder)], env=environment, capture_output=True, timeout=60, check=False
    )
    assert process.returncode == 1, process.stderr
    said = process.stdout.decode()
    assert "failed: \\u574f.pdf: is broken" in said
    assert said.endswith("4 documents, 4 chunks\nFalse False\n")
    ours = [line for line in process.stderr.decode().splitlines() if "EncodingWarning" in line and str(ROOT) in line]
    assert [line for line in ours if "site-packages" not in line] == []
    knowledge_base = KnowledgeBase.open(store, "default", WordCountEmbedder())
    (document,) = knowledge_base.chunks([id_ for id_, _ in knowledge_base.lexical("引号", 5)])
    assert (document.metadata["source"], document.page_content) == ("引号.txt", "中文“引号”")
    knowledge_base.close()


def test_the_environment_wins_over_the_settings_file(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "groundwell.toml").write_text(
        '[store]\npath = "from-file"\nknowledge_base = "team"\n[engine]\nmodel = "x"\n', encoding="utf-8"
    )
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", "from-environment")
    settings = IngestSettings()
    assert settings.store.path == Path("from-environment")
    assert settings.store.knowledge_base == "team"
    assert settings.ingest.chunk_tokens == 320


def test_an_unknown_setting_is_refused_with_the_nearest_name(run, folder, tmp_path, capsys) -> None:
    (tmp_path / "groundwell.toml").write_text("[ingest]\nchunk_token = 5\n", encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        run(folder)
    assert stopped.value.code == 2
    assert "did you mean 'chunk_tokens'?" in capsys.readouterr().err


def test_a_settings_file_that_is_named_must_be_there(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GROUNDWELL_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(SettingsFileNotFound, match=r"none\.toml"):
        IngestSettings()
