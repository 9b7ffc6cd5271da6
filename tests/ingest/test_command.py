import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingest import __main__ as command
from ingest.settings import IngestSettings, SettingsFileNotFound
from tests.fakes import WordCountEmbedder

MAIN = """
import sys
import llm.embeddings
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


def test_a_missing_folder_is_one_sentence_and_makes_no_knowledge_base(run, tmp_path) -> None:
    status, output, errors = run(tmp_path / "nowhere")
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


def test_under_an_ascii_locale_text_and_names_are_the_same(folder, tmp_path) -> None:
    (folder / "引号.txt").write_text("中文“引号”", encoding="utf-8")
    store = tmp_path / "store"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "GROUNDWELL_STORE__PATH": str(store)}
    process = subprocess.run(
        [sys.executable, "-c", MAIN, str(folder)], env=environment, capture_output=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.decode().endswith("4 documents, 4 chunks\nFalse False\n")
    from ingest.store import KnowledgeBase

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
