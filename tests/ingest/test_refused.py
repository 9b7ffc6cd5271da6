"""What the commands refuse: one sentence on stderr and, where it is asked for, JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.collection import lock_path
from ingest.lock import writer_lock
from rag.__main__ import main as groundwell
from tests.fakes import WordCountEmbedder

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; gives its status, its output and its errors."""
    monkeypatch.setattr("llm.embeddings.Embedder", lambda options: WordCountEmbedder(options.model))
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", str(tmp_path / "store"))
    for name in ("ANONYMIZED_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "False")  # so that what the command sets is put back
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            status = groundwell([*map(str, arguments)])
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        return status, *capsys.readouterr()

    return run_command


REFUSED: list[tuple[list[str], str]] = [
    (["ingest", ""], "the name is empty"),
    (["ingest", "documents", "--metadata", "x"], "'x' is not KEY=VALUE"),
    (["ingest", "documents", "--knowledge-base", ""], "the name is empty"),
    (["ingest", "documents", "--knowledge-base", "  "], "the name is empty"),
    (["ingest", "documents", "--password-file", ""], "the name is empty"),
    (["ingest", "documents", "--password-file", "none"], "none: No such file or directory"),
    (["ingest", "documents", "--exclude", "[z-a].txt"], "--exclude '[z-a].txt' is no pattern"),
    (["ingest", "documents", "--include", "a\\", "--dry-run"], "--include 'a\\\\' is no pattern"),
    (["ingest", "documents", "--exclude", "a\\", "--watch"], "--exclude 'a\\\\' is no pattern"),
    (["ingest", "documents", "--nothing"], "unrecognized arguments: --nothing"),
    (["ingest", "documents", "--watch", "--dry-run"], "not allowed with"),
    (["documents", "list"], "no knowledge base 'default' (there is none yet)"),
    (["documents", "show", "a", "--knowledge-base", ""], "the name is empty"),
    (["documents", "delete"], "the following arguments are required: SOURCE"),
    (["knowledge-bases", "describe", "nope"], "no knowledge base 'nope'"),
    (["knowledge-bases", "describe", ""], "the name is empty"),
    (["knowledge-bases", "delete", "nope"], "no knowledge base 'nope'"),
    (["knowledge-bases", "reindex", "nope"], "no knowledge base 'nope'"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_every_command_tells_a_refusal_in_json_too_and_makes_nothing(
    run: Run, folder: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    status, output, errors = run(*arguments, "--json")
    refusal = json.loads(output)
    assert (status, refusal["exit_status"]) == (2, 2)
    assert said in refusal["error"] and said in errors
    assert run(*arguments)[:2] == (2, "")
    assert not (tmp_path / "store").exists()


SETTINGS = {
    "not TOML": (b"[ingest", "groundwell.toml is not TOML"),
    "not UTF-8": ('[store]\nknowledge_base = "für"\n'.encode("latin-1"), "groundwell.toml is not UTF-8"),
    "unknown": (b"[ingest]\nchunk_token = 5\n", "did you mean 'chunk_tokens'?"),
    "no path": (b'[store]\npath = ""\n', "store.path: is empty"),
    "no name": (b'[store]\nknowledge_base = ""\n', "store.knowledge_base"),
}


@pytest.mark.parametrize(("file", "said"), SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("command", [["ingest", "documents"], ["documents", "list"], ["knowledge-bases", "list"]])
def test_bad_settings_are_json_too(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], file: bytes, said: str
) -> None:
    monkeypatch.delenv("GROUNDWELL_STORE__PATH")
    (tmp_path / "groundwell.toml").write_bytes(file)
    status, output, errors = run(*command, "--json")
    assert (status, json.loads(output)["exit_status"]) == (2, 2)
    assert said in json.loads(output)["error"] and said in errors


def test_a_setting_in_the_environment_that_is_no_json_is_one_sentence(run: Run, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("GROUNDWELL_INGEST__METADATA", "team")
    status, output, _ = run("ingest", folder, "--json")
    assert (status, 'error parsing value for field "ingest' in json.loads(output)["error"]) == (2, True)


def test_an_unknown_document_is_json_too(run: Run, folder: Path) -> None:
    run("ingest", folder)
    for command in ("show", "delete"):
        status, output, _ = run("documents", command, "none.md", "--json")
        assert (status, json.loads(output)["exit_status"]) == (2, 2)
        assert "no document 'none.md'" in json.loads(output)["error"]


def test_another_writer_and_ctrl_c_are_json_too(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("ingest", folder)
    with writer_lock(lock_path(tmp_path / "store", "default"), "default"):
        status, output, _ = run("ingest", folder, "--json")
        assert (status, "is being written by process" in json.loads(output)["error"]) == (2, True)
        assert (
            "is being written by process"
            in json.loads(run("knowledge-bases", "delete", "default", "--json")[1])["error"]
        )

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ingest.pipeline.ingest", interrupted)
    status, output, _ = run("ingest", folder, "--json")
    assert (status, json.loads(output)["error"]) == (130, "interrupted; the next run finishes it")


def test_an_empty_name_empties_no_knowledge_base(run: Run, folder: Path, tmp_path: Path) -> None:
    run("ingest", folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("Another text.", encoding="utf-8")
    assert run("ingest", tmp_path / "other", "--knowledge-base", "")[0] == 2
    assert "leave.md" in run("documents", "list")[1]


@pytest.mark.parametrize("content", ["pässword".encode("latin-1"), "key".encode("utf-16")])
def test_a_password_file_in_another_encoding_is_refused_by_name(
    run: Run, folder: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "passwords").write_bytes(content)
    status, output, _ = run("ingest", folder, "--password-file", tmp_path / "passwords", "--json")
    assert status == 2
    assert json.loads(output)["error"].startswith(f"{tmp_path / 'passwords'} is not in UTF-8 (")


def test_a_port_that_is_none_is_one_sentence(run: Run) -> None:
    status, output, errors = run("serve", "--port", "99999")
    assert (status, output) == (2, "")
    assert errors.startswith("groundwell serve: port: ")


def test_a_value_after_two_strokes_does_not_ask_for_json(run: Run) -> None:
    assert run("documents", "show", "--", "--json")[:2] == (2, "")
