"""The README says what is there."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rag.__main__ import _parser
from rag.settings import Settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_IN_THE_TREE = {"__init__.py", "__pycache__"}


def settings_table() -> str:
    """The table of all settings, from the code."""
    return "\n".join(["| setting | default | what it is |", "|---|---|---|", *rows("", Settings)])


def rows(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from rows(f"{name}.", field.annotation)
            continue
        default = field.get_default(call_default_factory=True)
        assert default is not PydanticUndefined
        assert field.description, f"{prefix}{name} has no description"
        shown = "" if default is None else f"`{default}`"
        yield f"| `{prefix}{name}` | {shown} | {field.description.replace('|', '·')} |"


def test_the_settings_table_is_the_codes() -> None:
    assert settings_table() in README, f"put this into README.md:\n\n{settings_table()}"


def test_the_tree_names_every_file_and_nothing_else() -> None:
    tree = README.partition("## Where things are")[2].partition("```")[2].partition("```")[0]
    folder, named = "", set()
    for line in tree.splitlines():
        if found := re.match(r"( *)([\w./*-]+)", line):
            indent, name = found.groups()
            folder = folder if indent else ""
            named.add(folder + name)
            folder = folder or (name if name.endswith("/") else "")
    for package in ("llm", "ingest", "rag"):
        there = {
            f"{package}/{path.name}{'/' if path.is_dir() else ''}"
            for path in (ROOT / package).iterdir()
            if path.name not in NOT_IN_THE_TREE
        }
        assert {name for name in named if name.startswith(f"{package}/") and name != f"{package}/"} == there
    assert all((ROOT / name).exists() for name in named), [n for n in named if not (ROOT / n).exists()]


def test_every_command_is_one_that_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^    make ([\w-]+)", README, re.MULTILINE))
    assert named <= targets and {"demo", "test"} <= named
    commands = set(re.findall(r"groundwell (ingest|serve|[a-z]+) ", README)) & {"ingest", "serve", "ask", "eval"}
    for command in commands:
        assert command in _parser().format_help()


def test_the_configuration_example_is_valid() -> None:
    example = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    assert example
    settings = Settings(**tomllib.loads(example[1]))
    assert settings.engine.model == "Qwen/Qwen3-8B"


def test_every_event_field_in_the_readme_exists() -> None:
    from dataclasses import fields

    from rag.answer import Done
    from rag.citations import Citation

    done = re.search(r"\| `done` \| (.*) \|", README)
    assert done
    named = set(re.findall(r"`(\w+)`", done[1])) - {"stop", "length", "repetition"}
    assert named <= {field.name for field in (*fields(Done), *fields(Citation))}
