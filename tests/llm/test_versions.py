"""What we use of vLLM is declared, the installed version has it, and older versions have something in its place."""

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm import vllm_names
from llm.vllm_names import ENVIRONMENT, NAMES, SINCE, STAND_INS, USES, unfinished_requests
from tests import vllm_versions
from tests.vllm_versions import Source, installed, lacking, lacking_of, newer_than, uses

ROOT = Path(__file__).parents[2]
LLM = ROOT / "llm"
CODE = {str(path.relative_to(LLM)): ast.parse(path.read_text(encoding="utf-8")) for path in LLM.rglob("*.py")}

TOUCHED = {
    "*": {name: name for name in NAMES}
    | {"llm": "AsyncLLM", "_llm": "AsyncLLM", "engine_core": "AsyncMPClient", "model_config": "ModelConfig"},
    "adapters.py": {"limits": "LoRAConfig", "vllm_config": "VllmConfig"},
    "reading/calls.py": {
        "_parser": "DelegatingParser",
        "call": "DeltaToolCall",
        "found": "DeltaMessage",
        "function": "DeltaFunctionCall",
    },
    "engine.py": {
        "choice": "CompletionOutput",
        "output": "RequestOutput",
        "outputs": "RequestOutputCollector",
        "search": "BeamSearchOnlineMixin",
    },
    "starting/launch.py": {"current_platform": "Platform"},
    "output.py": {
        "_request": "ChatCompletionRequest",
        "asked": "ChatCompletionRequest",
        "both": "DelegatingParser",
        "parser": "DelegatingParser",
        "reasoning": "ReasoningParser",
        "tool_parser": "ToolParser",
    },
    "reading/reader.py": {"_parser": "DelegatingParser", "found": "DeltaMessage", "parser": "DelegatingParser"},
    "starting/start.py": {"current_platform": "Platform"},
    "translation.py": {"choice": "CompletionOutput", "found": "Logprob", "output": "RequestOutput"},
}
"""Variables and attributes of our files that hold something of vLLM's."""
FOREIGN = {"AsyncEngineArgs.__dataclass_fields__", "AsyncLLM.adapters", "BeamSearchOnlineMixin.__new__"}
FOREIGN |= {"ChatCompletionRequest.model_validate", "DeltaToolCall.arguments", "DeltaToolCall.name"}
"""Not vLLM's: Python's, Pydantic's, or of another variable of that name."""


@pytest.fixture(scope="module")
def here() -> Source:
    place = installed()
    assert place, "vLLM is not installed: make install"
    return Source(place)


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_vllm_has(here: Source, name: str) -> None:
    assert sorted(set(lacking_of(here, name)) - newer_than(here.version)) == []


def test_what_the_installed_vllm_lacks_is_known(here: Source) -> None:
    assert set(lacking(here)) == newer_than(here.version)


def test_what_older_versions_lack_is_something_that_we_use() -> None:
    declared = {f"{name}.{_member(use)}" for name in NAMES for use in uses(name)}
    assert SINCE.keys() <= declared | NAMES.keys()
    assert STAND_INS.keys() == SINCE.keys() & NAMES.keys()
    assert USES.keys() <= NAMES.keys()


# Whether the declarations say all that the code takes


@pytest.mark.parametrize("file", sorted(CODE))
def test_every_name_that_is_taken_from_vllm_is_declared(file: str) -> None:
    taken = {node.attr for node in _attributes(CODE[file]) if _last(node.value) == "vllm_names"}
    assert sorted(name for name in taken if name not in NAMES and not hasattr(vllm_names, name)) == []


@pytest.mark.parametrize("file", sorted(CODE))
def test_every_member_that_is_touched_is_declared(file: str) -> None:
    kinds = TOUCHED["*"] | TOUCHED.get(file, {})
    touched = {
        f"{kinds[_last(node.value)]}.{node.attr}" for node in _attributes(CODE[file]) if _last(node.value) in kinds
    }
    declared = {f"{name}.{_member(use)}" for name in NAMES for use in uses(name)}
    assert sorted(touched - declared - FOREIGN) == []


@pytest.mark.parametrize("file", sorted(CODE))
def test_every_argument_that_is_passed_is_declared(file: str) -> None:
    kinds = TOUCHED["*"] | TOUCHED.get(file, {})
    passed = {
        (called, keyword.arg)
        for node in ast.walk(CODE[file])
        if isinstance(node, ast.Call) and (called := _called(node.func, kinds))
        for keyword in node.keywords
        if keyword.arg
    }
    declared = {
        (f"{name}.{_member(use)}", argument) for name in NAMES for use in uses(name) for argument in _names(use)
    }
    assert sorted(passed - declared) == []


def test_every_engine_argument_that_we_set_is_declared() -> None:
    keys = {
        key.value
        for node in ast.walk(CODE["starting/launch.py"])
        if isinstance(node, ast.Dict)
        for key in node.keys
        if key
    }
    keys |= {
        key.value for node in ast.walk(_function("adapters.py", "lora_fields")) for key in getattr(node, "keys", ())
    }
    declared = {
        argument for name in ("AsyncEngineArgs", "StructuredOutputsConfig") for argument in _names(uses(name)[0])
    }
    assert sorted(key for key in keys if key.islower() and key not in declared) == []


def test_every_variable_of_vllms_environment_is_declared() -> None:
    strings = {text for tree in CODE.values() for text in _strings(tree)}
    assert {text for text in strings if text.startswith("VLLM_") and text.isidentifier()} == set(ENVIRONMENT)


def test_every_dotted_path_into_vllm_is_one_of_the_names() -> None:
    strings = {text for file, tree in CODE.items() if file != "vllm_names.py" for text in _strings(tree)}
    paths = {
        text for text in strings if text.startswith("vllm.") and all(part.isidentifier() for part in text.split("."))
    }
    known = {f"{place}.{name}" for name, places in NAMES.items() for place in places}
    assert paths - {"vllm.AsyncEngineArgs", "vllm.SamplingParams"} <= known  # in messages


def _attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _called(function: ast.expr, kinds: dict[str, str]) -> str | None:
    """`AsyncLLM.abort`, `SamplingParams.`; None for what is not vLLM's."""
    if not isinstance(function, ast.Attribute):
        return None
    holder = _last(function.value)
    if holder == "vllm_names" and function.attr in NAMES:
        return f"{function.attr}."
    return f"{kinds[holder]}.{function.attr}" if holder in kinds and function.attr != "append" else None


def _member(use: str) -> str:
    return use.partition("(")[0]


def _names(use: str) -> list[str]:
    return use.partition("(")[2].rstrip(")").replace("*,", "").replace(" ", "").split(",")


def _strings(tree: ast.AST) -> Iterator[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return (value for value in constants if isinstance(value, str))


def _function(file: str, name: str) -> ast.FunctionDef:
    return next(node for node in CODE[file].body if isinstance(node, ast.FunctionDef) and node.name == name)


# Older versions


def test_the_requests_that_run_are_counted_in_every_version() -> None:
    assert unfinished_requests(SimpleNamespace(get_num_unfinished_requests=lambda: 3)) == 3
    assert unfinished_requests(SimpleNamespace(output_processor=SimpleNamespace(request_states={"a": 1, "b": 2}))) == 2


@pytest.mark.parametrize(
    ("name", "refusal", "caught"),
    [("VLLMClientError", ValueError("top_p"), True), ("GracefulHTTPError", RuntimeError("busy"), False)],
)
def test_an_exception_that_an_older_version_lacks_has_a_stand_in(
    monkeypatch: pytest.MonkeyPatch, name: str, refusal: Exception, caught: bool
) -> None:
    monkeypatch.setattr(vllm_names, "import_module", lambda place: SimpleNamespace())
    assert isinstance(refusal, getattr(vllm_names, name)) == caught


def test_a_name_without_stand_in_is_missed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_names, "import_module", lambda place: SimpleNamespace())
    with pytest.raises(ImportError, match=r"no LoRARequest in vllm\.lora\.request: install vLLM 0\.26 to 0\.33"):
        _ = vllm_names.LoRARequest


def test_the_place_of_a_name_in_an_older_version_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(place: str) -> SimpleNamespace:
        if place == "vllm.entrypoints.generate.base.protocol":
            raise ModuleNotFoundError(place, name="vllm.entrypoints.generate.base")
        return SimpleNamespace(DeltaMessage=place)

    monkeypatch.setattr(vllm_names, "import_module", import_module)
    assert vllm_names.DeltaMessage == "vllm.entrypoints.openai.engine.protocol"


@pytest.mark.parametrize(("missing", "said"), [("vllm", "vLLM is not installed"), ("torch", "No module named 'torch'")])
def test_a_vllm_that_cannot_be_imported_is_not_one_that_lacks_a_name(
    monkeypatch: pytest.MonkeyPatch, missing: str, said: str
) -> None:
    def import_module(place: str) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(vllm_names, "import_module", import_module)
    with pytest.raises(ImportError, match=said):
        _ = vllm_names.GracefulHTTPError


# The reading of a version's source

FILES = {
    "vllm/_version.py": "__version__ = version = '0.30.1'\n",
    "vllm/__init__.py": "from .deep import Engine as Motor\nfrom vllm.deep.base import size\n",
    "vllm/deep/__init__.py": "from .engine import Engine\n",
    "vllm/deep/engine.py": (
        "from .base import Base\n"
        "class Engine(Base):\n"
        "    async def ask(self, prompt, *, priority=0): self.asked: int = 1\n"
    ),
    "vllm/deep/base.py": (
        "try:\n    import fast\nexcept ImportError:\n    fast = None\n"
        "class Base:\n"
        "    width: int\n"
        "    depth: int = 1\n"
        "    @classmethod\n"
        "    def of(cls, config, **more): ...\n"
        "size = Base\n"
    ),
}


@pytest.fixture(params=["folder", "wheel"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A small library, with two names of it declared."""
    monkeypatch.setattr(vllm_versions, "NAMES", {"Motor": ("vllm.gone", "vllm"), "size": ("vllm",)})
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if request.param == "folder":
        return Source(tmp_path)
    with zipfile.ZipFile(tmp_path / "vllm-0.30.1.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    return Source(tmp_path / "vllm-0.30.1.whl")


@pytest.mark.parametrize(
    ("use", "without"),
    [
        ("ask(prompt, *, priority)", []),
        ("ask(prompt)", []),
        ("ask()", [".ask(!prompt)"]),
        ("ask(text)", [".ask(text)", ".ask(!prompt)"]),
        ("ask(prompt, priority)", [".ask(priority)"]),
        ("ask(prompt, *, adapter)", [".ask(adapter)"]),
        ("asked", []),
        ("tell()", [".tell"]),
        ("of(config, *, anything)", []),
        ("depth", []),
        ("(*, width)", []),
        ("(*, height)", ["(height)", "(!width)"]),
    ],
)
def test_what_a_version_lacks_is_named(
    source: Source, monkeypatch: pytest.MonkeyPatch, use: str, without: list[str]
) -> None:
    monkeypatch.setattr(vllm_versions, "USES", {"Motor": (use,)})
    assert list(lacking_of(source, "Motor")) == [f"Motor{each}" for each in without]


def test_a_name_is_found_where_it_comes_from_or_missed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_versions, "USES", {"size": ("of(config)", "length")})
    monkeypatch.setitem(vllm_versions.NAMES, "Wheel", ("vllm", "vllm.deep"))
    assert source.version == (0, 30, 1)
    assert list(lacking_of(source, "size")) == ["size.length"]
    assert list(lacking_of(source, "Wheel")) == ["Wheel"]


def test_the_command_fails_on_what_is_not_known_to_be_lacking(
    source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(vllm_versions, "KEYS", {"environment variable": ("vllm.envs", "environment_variables", ("X",))})
    monkeypatch.setattr(vllm_versions, "USES", {})
    monkeypatch.setattr(vllm_versions, "SINCE", {"environment variable X": "0.31"})
    assert vllm_versions.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0.30.1 lacks environment variable X\n"
    monkeypatch.setattr(vllm_versions, "SINCE", {"Motor": "0.31"})
    assert vllm_versions.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        "0.30.1 lacks environment variable X; not in SINCE: environment variable X; "
        "there, though SINCE says later: Motor\n"
    )
