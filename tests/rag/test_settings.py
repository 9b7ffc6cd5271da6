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
    write(here, '[server]\nport = 9000\n[answer]\nretrieve = 7\nfollow_up = "join"\n[engine]\nseed = 1\n')
    settings = Settings()
    assert settings.server.port == 9000
    assert settings.server.host == "127.0.0.1"
    assert (settings.answer.retrieve, settings.answer.follow_up) == (7, "join")
    assert settings.engine.vllm == {"seed": 1}


def test_fields_of_vllm_are_engine_options_in_file_and_environment(here, monkeypatch) -> None:
    write(
        here, '[engine]\nseed = 1\nenforce_eager = false\nserved_model_name = ["a"]\n[engine.vllm]\nblock_size = 64\n'
    )
    monkeypatch.setenv("GROUNDWELL_ENGINE__ENFORCE_EAGER", "true")
    monkeypatch.setenv("GROUNDWELL_ENGINE__MAX_LOGPROBS", "5")
    monkeypatch.setenv("GROUNDWELL_ENGINE__STRUCTURED_OUTPUTS_CONFIG__BACKEND", "guidance")
    monkeypatch.setenv("GROUNDWELL_ENGINE__HF_OVERRIDES", '{"名字": 1}')
    monkeypatch.setenv("GROUNDWELL_ENGINE__MAX_MODEL_LEN", "auto")
    settings = Settings()
    assert settings.engine.max_model_len == -1
    assert settings.engine.vllm == {
        "seed": 1,
        "enforce_eager": True,
        "served_model_name": ["a"],
        "block_size": 64,
        "max_logprobs": 5,
        "structured_outputs_config": {"backend": "guidance"},
        "hf_overrides": {"名字": 1},
    }


def test_a_name_of_an_older_vllm_is_translated_in_the_environment_too(here, monkeypatch) -> None:
    monkeypatch.setenv("GROUNDWELL_ENGINE__WORKER_USE_RAY", "true")
    monkeypatch.setenv("GROUNDWELL_ENGINE__NUM_SPECULATIVE_TOKENS", "3")
    monkeypatch.setenv("GROUNDWELL_ENGINE__SPECULATIVE_MODEL", "[ngram]")
    assert Settings().engine.vllm == {
        "distributed_executor_backend": "ray",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }
    monkeypatch.setenv("GROUNDWELL_ENGINE__LONG_LORA_SCALING_FACTORS", "[4.0]")
    with pytest.raises(ValidationError, match="long_lora_scaling_factors cannot be had"):
        Settings()


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
        ("[engine]\nenforce_eagr = true\n", "'enforce_eager'"),
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
    monkeypatch.delenv("GROUNDWELL_SERVER__PROT")
    monkeypatch.setenv("GROUNDWELL_ENGINE__ENFORCE_EAGR", "1")
    with pytest.raises(ValidationError, match="did you mean 'enforce_eager'"):
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
