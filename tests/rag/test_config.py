"""`groundwell config show`: where each value comes from."""

import json
import os
from pathlib import Path

import pytest

from rag.__main__ import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a settings file, and no setting in the environment but one."""
    for name in [name for name in os.environ if name.startswith("GROUNDWELL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GROUNDWELL_SERVER__PORT", "9000")
    text = '[server]\nport = 7000\nhost = "::1"\n[store]\nknowledge_base = "销售"\n[engine]\nseed = 1\n'
    text += '[ingest]\npasswords = ["geheim"]\n[grounding.refusals]\nzh = "没有。"\n'
    (tmp_path / "groundwell.toml").write_text(text, encoding="utf-8")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["config", "show", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_environment_goes_before_the_file_and_that_before_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys)
    assert found["server.port"] == {"value": 9000, "origin": "GROUNDWELL_SERVER__PORT"}
    assert found["server.host"] == {"value": "::1", "origin": "groundwell.toml"}
    assert found["store.knowledge_base"] == {"value": "销售", "origin": "groundwell.toml"}
    assert found["engine.seed"] == {"value": 1, "origin": "groundwell.toml"}, "an option of vLLM's own"
    assert found["server.grace_seconds"] == {"value": 5.0, "origin": "default"}
    assert found["grounding.refusals"]["origin"] == "groundwell.toml"


def test_only_what_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    changed = {"server.port", "server.host", "store.knowledge_base", "engine.seed", "ingest.passwords"}
    assert shown(capsys, "--changed").keys() == changed | {"grounding.refusals"}


def test_no_password_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "geheim" not in json.dumps(shown(capsys))
    assert main(["config", "show"]) == 0
    out = capsys.readouterr().out
    assert "geheim" not in out
    assert "store.knowledge_base = '销售'" in out


def test_the_named_file_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = here / "else.toml"
    other.write_text("[server]\nhost = 'localhost'\n")
    monkeypatch.setenv("GROUNDWELL_CONFIG", str(other))
    assert shown(capsys)["server.host"] == {"value": "localhost", "origin": str(other)}
