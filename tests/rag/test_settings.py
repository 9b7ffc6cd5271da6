from pathlib import Path

import pytest
from pydantic import ValidationError

from ingest.settings import SettingsFileNotFound
from rag.profile import AnswerOptions
from rag.settings import ServerOptions, Settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with no setting in the environment."""
    import os

    for name in [name for name in os.environ if name.startswith("GROUNDWELL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "groundwell.toml") -> None:
    (folder / name).write_text(text, encoding="utf-8")


def test_without_file_and_environment_there_are_the_defaults(here) -> None:
    settings = Settings()
    assert settings.server == ServerOptions()
    assert settings.answer == AnswerOptions()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert settings.store.knowledge_base == "default"


def test_the_file_in_the_folder_is_read(here) -> None:
    write(here, '[server]\nport = 9000\n[answer]\nretrieve = 7\nfollow_up = "join"\n[engine.vllm]\nseed = 1\n')
    settings = Settings()
    assert settings.server.port == 9000
    assert settings.server.host == "127.0.0.1"
    assert (settings.answer.retrieve, settings.answer.follow_up) == (7, "join")
    assert settings.engine.vllm == {"seed": 1}


def test_the_environment_wins_option_by_option(here, monkeypatch) -> None:
    write(here, '[engine]\nmodel = "file"\nmax_model_len = 512\n[store]\nknowledge_base = "file"\n')
    monkeypatch.setenv("GROUNDWELL_ENGINE__MODEL", "environment")
    monkeypatch.setenv("GROUNDWELL_SERVER__PORT", "9001")
    settings = Settings()
    assert (settings.engine.model, settings.engine.max_model_len) == ("environment", 512)
    assert settings.server.port == 9001
    assert settings.store.knowledge_base == "file"


def test_the_variable_names_another_file(here, monkeypatch) -> None:
    write(here, "[server]\nport = 9002\n", "other.toml")
    monkeypatch.setenv("GROUNDWELL_CONFIG", "other.toml")
    assert Settings().server.port == 9002
    monkeypatch.setenv("GROUNDWELL_CONFIG", "missing.toml")
    with pytest.raises(SettingsFileNotFound, match=r"missing\.toml"):
        Settings()


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("[servr]\nport = 1\n", "'server'"),
        ("[server]\nprot = 1\n", "'port'"),
        ("[answer]\nretreive = 1\n", "'retrieve'"),
        ("[engine]\nmax_model_length = 1\n", "'max_model_len'"),
        ("[ingest]\nchunk_token = 20\n", "'chunk_tokens'"),
    ],
)
def test_an_unknown_section_or_option_names_the_nearest(here, text: str, nearest: str) -> None:
    write(here, text)
    with pytest.raises(ValidationError, match=f"did you mean {nearest}"):
        Settings()


def test_an_unknown_option_in_the_environment_names_the_nearest(here, monkeypatch) -> None:
    monkeypatch.setenv("GROUNDWELL_SERVER__PROT", "1")
    with pytest.raises(ValidationError, match="did you mean 'port'"):
        Settings()


def test_a_value_out_of_range_names_its_option(here) -> None:
    write(here, "[server]\nport = 70000\n")
    with pytest.raises(ValidationError, match=r"server\.port"):
        Settings()


def test_settings_do_not_change(here) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().server = ServerOptions(port=1)


def test_a_misspelt_section_in_the_environment_names_the_nearest(here, monkeypatch) -> None:
    monkeypatch.setenv("GROUNDWELL_SERVR__PORT", "1")
    with pytest.raises(ValidationError, match="'servr'; did you mean 'server'"):
        Settings()
