"""The fields of vLLM's `AsyncEngineArgs` and their types, read from its source: importing vLLM takes 7–12 s."""

import ast
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

# The types that can be checked without vLLM; any other annotation is left to vLLM's own configuration.
PLAIN = {"Any": Any, "Literal": Literal} | {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str)}


@cache
def engine_fields() -> dict[str, str]:
    """Name → annotation of each field of the installed vLLM's AsyncEngineArgs; empty where vLLM is not installed."""
    spec = importlib.util.find_spec("vllm")  # of a top-level name: imports nothing
    if spec is None or not spec.submodule_search_locations:
        return {}
    source = Path(spec.submodule_search_locations[0], "engine", "arg_utils.py").read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    fields = [field for name in ("EngineArgs", "AsyncEngineArgs") for field in classes[name].body]
    return {
        field.target.id: ast.unparse(field.annotation)
        for field in fields
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_"
    }


def as_field(name: str, value: Any) -> Any:
    """The value as vLLM's field `name` wants it: text of an environment variable becomes a number, a truth or a dict.

    Raises ValueError for what is not of a plain type; classes of vLLM's configuration check their own values later.
    """
    annotation = engine_fields().get(name, "Any")
    value = _unwrapped(value, annotation)
    kind = _plain_type(annotation)
    if kind is None:
        return value
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{name}: {error.errors()[0]['msg']}, not {value!r:.100}") from error


def from_text(value: Any) -> Any:
    """What the text of an environment variable says in JSON (`true`, `4`, `{"a": 1}`); anything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.lower() if value.lower() in ("true", "false") else value
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return value


def _unwrapped(value: Any, annotation: str) -> Any:
    if not isinstance(value, str):
        return value
    members = {member.strip() for member in annotation.split("|")}
    if "str" not in members:
        return from_text(value)
    return from_text(value) if value[:1] in ("[", "{") and members - {"str", "None"} else value


@cache
def _plain_type(annotation: str) -> Any:
    try:  # the annotation is source text of the installed vLLM
        kind = eval(annotation, {"__builtins__": {}}, PLAIN)
    except (NameError, TypeError):
        return None
    return None if isinstance(kind, str) else kind
