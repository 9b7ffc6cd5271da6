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
NOT_IN_THE_TREE = {"__init__.py"}


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
    named = set(paths(tree.splitlines()))
    assert all((ROOT / name).exists() for name in named), [n for n in named if not (ROOT / n).exists()]
    for package in ("llm", "ingest", "rag"):
        there = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
        shown = {name for name in named if name.startswith(f"{package}/") and name.endswith(".py")}
        assert shown == {path for path in there if Path(path).name not in NOT_IN_THE_TREE} - within(named)


def paths(lines: list[str]) -> Iterator[str]:
    """The paths of an indented tree; a folder's name ends in a stroke."""
    open_folders: list[tuple[int, str]] = []
    for line in lines:
        if found := re.match(r"( *)([\w./*-]+)", line):
            indent, name = len(found[1]), found[2]
            open_folders = [(depth, folder) for depth, folder in open_folders if depth < indent]
            path = "".join(folder for _, folder in open_folders) + name
            yield path
            if name.endswith("/"):
                open_folders.append((indent, name))


def within(named: set[str]) -> set[str]:
    """The files of those folders that the tree names as a whole."""
    closed = [name for name in named if name.endswith("/") and not any(n != name and n.startswith(name) for n in named)]
    return {str(path.relative_to(ROOT)) for folder in closed for path in (ROOT / folder).rglob("*.py")}


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
    from rag.grounding import Grounding

    done = re.search(r"\| `done` \| (.*) \|", README)
    assert done
    named = set(re.findall(r"`(\w+)`", done[1])) - {"stop", "length", "repetition", "refusal"}
    assert named <= {field.name for field in (*fields(Done), *fields(Citation), *fields(Grounding))}
