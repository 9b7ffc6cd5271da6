"""What of vLLM we use, looked up in the source of a version that need not be installed.

Run: `python -m tests.vllm_versions [WHEEL_OR_FOLDER …]` (the folder that holds `vllm/`; none: the installed version).
It prints what a version lacks and ends with 1 when that is not known to `llm.vllm_names.SINCE`. No code of that version
is run.
"""

import ast
import importlib.util
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path

from llm.options import SamplingOptions
from llm.reading.parsers import REASONING_MARKS, TOOL_MARKS
from llm.translation import OURS
from llm.vllm_names import ENVIRONMENT, NAMES, SINCE, USES

Function = ast.FunctionDef | ast.AsyncFunctionDef

KEYS = {
    "environment variable": ("vllm.envs", "environment_variables", ENVIRONMENT),
    "tool call parser": ("vllm.tool_parsers", "_TOOL_PARSERS_TO_REGISTER", TOOL_MARKS.values()),
    "reasoning parser": ("vllm.reasoning", "_REASONING_PARSERS_TO_REGISTER", REASONING_MARKS.values()),
}
"""What we use of vLLM's tables: the module, the table, and the keys."""


@dataclass(frozen=True)
class Found:
    """A statement that defines a name, and the module that it stands in."""

    module: str
    node: ast.stmt


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function, or field of a class that is made from its fields."""

    name: str
    required: bool
    positional: bool = True


class Source:
    """The source of one vLLM: a wheel, or a folder that holds `vllm/`."""

    def __init__(self, place: Path) -> None:
        self._root: Traversable = zipfile.Path(place) if place.suffix == ".whl" else place
        self._modules: dict[str, dict[str, ast.stmt] | None] = {}

    @cached_property
    def version(self) -> tuple[int, ...]:
        """Of `0.27.1` (0, 27, 1)."""
        text = self._root.joinpath("vllm", "_version.py").read_text(encoding="utf-8")
        found = re.search(r"version = ['\"](\d+(?:\.\d+)*)", text)
        assert found, text
        return tuple(int(part) for part in found[1].split("."))

    def find(self, module: str, name: str) -> Found | None:
        """The definition of a name that a module holds, of its own or imported; None where it has none."""
        names = self._names(module)
        if names is None or name not in names:
            return None
        node = names[name]
        if isinstance(node, ast.ImportFrom):
            origin = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return self.find(_imported_from(node, module, package=self._is_package(module)), origin)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            return self.find(module, node.value.id)
        return Found(module, node)

    def keys(self, module: str, name: str) -> set[str]:
        """The keys of a dict of that name; none where the version has no such dict."""
        found = self.find(module, name)
        table = found.node.value if found and isinstance(found.node, ast.Assign | ast.AnnAssign) else None
        keys = table.keys if isinstance(table, ast.Dict) else []
        return {key.value for key in keys if isinstance(key, ast.Constant)}

    def family(self, found: Found) -> Iterator[tuple[str, ast.ClassDef]]:
        """A class and those that it is derived from within vLLM, itself first."""
        if not isinstance(found.node, ast.ClassDef):
            return
        yield found.module, found.node
        for base in found.node.bases:
            parent = self.find(found.module, base.id) if isinstance(base, ast.Name) else None
            if parent:
                yield from self.family(parent)

    def members(self, found: Found) -> dict[str, ast.stmt]:
        """What a class and its parents define: methods, fields, and what a method sets on `self`."""
        members: dict[str, ast.stmt] = {}
        for _, node in self.family(found):
            for name, member in _defined(node.body):
                members.setdefault(name, member)
            for method in node.body:
                for name in _set_on_self(method):
                    members.setdefault(name, method)
        return members

    def parameters(self, found: Found) -> tuple[list[Parameter], bool]:
        """What a function or a class is called with, and whether it takes any keyword beside."""
        if isinstance(found.node, Function):
            return _parameters(found.node)
        members = self.members(found)
        if isinstance(own := members.get("__init__"), Function):
            return _parameters(own)
        fields = [
            Parameter(name, required=member.value is None)
            for name, member in members.items()
            if isinstance(member, ast.AnnAssign) and "ClassVar" not in ast.unparse(member.annotation)
        ]
        return fields, False

    def _names(self, module: str) -> dict[str, ast.stmt] | None:
        if module not in self._modules:
            place = self._place(module)
            tree = ast.parse(place.read_text(encoding="utf-8")) if place else None
            self._modules[module] = dict(_defined(tree.body)) if tree else None
        return self._modules[module]

    def _place(self, module: str) -> Traversable | None:
        path = self._root.joinpath(*module.split("."))
        beside = self._root.joinpath(*module.split(".")[:-1], f"{path.name}.py")
        return next((file for file in (path.joinpath("__init__.py"), beside) if file.is_file()), None)

    def _is_package(self, module: str) -> bool:
        place = self._place(module)
        return place is not None and place.name == "__init__.py"


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names that statements define, also under `if` and `try`."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _defined([*node.body, *node.orelse])


def _set_on_self(method: ast.stmt) -> Iterator[str]:
    nodes = ast.walk(method) if isinstance(method, Function) else ()
    stored = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    yield from (node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self")


def _imported_from(node: ast.ImportFrom, module: str, *, package: bool) -> str:
    if not node.level:
        return node.module or ""
    kept = module.split(".")[: len(module.split(".")) - node.level + package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _parameters(function: Function) -> tuple[list[Parameter], bool]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    without_default = len(positional) - len(given.defaults)
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    bound = bool(positional) and positional[0].arg in ("self", "cls") and not static
    found = [Parameter(each.arg, required=at < without_default) for at, each in enumerate(positional)][bound:]
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(Parameter(each.arg, required=default is None, positional=False))
    return found, given.kwarg is not None


def uses(name: str) -> tuple[str, ...]:
    """What `USES` says of a name, and the fields of vLLM's that `SamplingOptions` sets."""
    if name != "SamplingParams":
        return USES.get(name, ())
    fields = ", ".join(field for field in SamplingOptions.model_fields if field not in OURS)
    return (*USES[name], f"(*, {fields})")


def lacking(source: Source) -> Iterator[str]:
    """What of our uses a version has not, as `AsyncLLM`, `AsyncLLM.abort`, `AsyncLLM.abort(request_id)`."""
    for name in NAMES:
        yield from lacking_of(source, name)
    for kind, (module, table, wanted) in KEYS.items():
        yield from (f"{kind} {key}" for key in wanted if key not in source.keys(module, table))


def lacking_of(source: Source, name: str) -> Iterator[str]:
    """The same of one of `NAMES`."""
    found = next((found for place in NAMES[name] if (found := source.find(place, name))), None)
    if found is None:
        yield name
        return
    for use in uses(name):
        yield from (f"{name}{without}" for without in _lacking_use(source, found, use))


def _lacking_use(source: Source, found: Found, use: str) -> Iterator[str]:
    member, called, arguments = use.partition("(")
    if member:
        node = source.members(found).get(member)
        if node is None:
            yield f".{member}"
            return
        found = Found(found.module, node)
    if called:
        dotted = f".{member}" if member else ""
        yield from (f"{dotted}({problem})" for problem in _refused(source, found, f"({arguments}"))


def _refused(source: Source, found: Found, call: str) -> Iterator[str]:
    """The arguments of a call that are not taken, and with a `!` those that are missing."""
    parsed = ast.parse(f"def call{call}: ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    by_place, by_name = [each.arg for each in parsed.args.args], [each.arg for each in parsed.args.kwonlyargs]
    taken, any_keyword = source.parameters(found)
    places = [parameter.name for parameter in taken if parameter.positional]
    yield from (name for at, name in enumerate(by_place) if places[at : at + 1] != [name])
    names = {parameter.name for parameter in taken}
    yield from (name for name in by_name if name not in names and not any_keyword)
    yield from (f"!{each.name}" for each in taken if each.required and each.name not in (*by_place, *by_name))


def newer_than(version: tuple[int, ...]) -> set[str]:
    """What `SINCE` says is not in a version yet."""
    return {name for name, since in SINCE.items() if tuple(map(int, since.split("."))) > version}


def installed() -> Path | None:
    """The folder that holds the installed vLLM, which is not imported."""
    spec = importlib.util.find_spec("vllm")
    return Path(spec.submodule_search_locations[0]).parent if spec and spec.submodule_search_locations else None


def main(places: list[str]) -> int:
    """Print a line for each version; return 1 when one lacks, or has, what `SINCE` does not say."""
    failed = 0
    for place in places or [str(installed())]:
        source = Source(Path(place))
        found, known = set(lacking(source)), newer_than(source.version)
        failed |= found != known
        print(".".join(map(str, source.version)), "lacks", ", ".join(sorted(found)) or "nothing", end="")
        print("".join(f"; {title}: {', '.join(sorted(names))}" for title, names in _surprises(found, known)))
    return failed


def _surprises(found: set[str], known: set[str]) -> Iterator[tuple[str, set[str]]]:
    if found - known:
        yield "not in SINCE", found - known
    if known - found:
        yield "there, though SINCE says later", known - found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
