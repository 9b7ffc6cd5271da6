import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfWriter

from ingest.collection import lock_path
from ingest.lock import writer_lock
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


def test_a_dry_run_says_that_another_process_is_writing(run, folder, tmp_path) -> None:
    run(folder)
    assert "note" not in run(folder, "--dry-run")[1]
    with writer_lock(lock_path(tmp_path / "store", "default"), "default"):
        status, output, _ = run(folder, "--dry-run")
    assert (status, "note: knowledge base 'default' is being written by process " in output) == (0, True)


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
