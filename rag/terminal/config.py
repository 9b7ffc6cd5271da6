"""`groundwell config show`: every setting in force, and where its value comes from."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from ingest.command import Parser
from ingest.output import say, say_json
from ingest.settings import ENVIRONMENT_PREFIX, settings_file

if TYPE_CHECKING:
    from rag.settings import Settings


@dataclass(frozen=True)
class Origin:
    """A setting in force; `origin` is the environment's variable, the file's path or "default"."""

    name: str
    value: Any
    origin: str


def add_command(commands: Any) -> None:
    """Add the command to a parser's."""
    about = "the settings in force: arguments of a command, then the environment, then groundwell.toml, then defaults"
    group = commands.add_parser("config", help="show the settings", description=about).add_subparsers(
        required=True, metavar="COMMAND"
    )
    show: Parser = group.add_parser("show", help="every setting, with where its value comes from", description=about)
    show.add_argument("--changed", action="store_true", help="leave out those at their default")
    show.add_argument("--json", action="store_true", help="print JSON, for programs; errors too")
    show.set_run(_show, interrupted="nothing is changed")


def _show(given: argparse.Namespace, settings: "Settings") -> int:
    found = [one for one in origins(settings) if one.origin != "default" or not given.changed]
    if given.json:
        say_json({one.name: {"value": one.value, "origin": one.origin} for one in found}, indent=1)
    else:
        width = max((len(f"{one.name} = {one.value!r}") for one in found), default=0)
        say(*(f"{f'{one.name} = {one.value!r}':<{min(width, 60)}}  # {one.origin}" for one in found))
    return 0


def origins(settings: "Settings") -> Iterator[Origin]:
    """Every setting, section by section; what is secret as stars."""
    kind = type(settings)
    environment, file = EnvSettingsSource(kind)(), TomlConfigSettingsSource(kind, toml_file=settings_file())()
    for section, options in settings:
        for name, value in _options(options):
            origin = "default"
            if name in (environment.get(section) or {}):
                origin = f"{ENVIRONMENT_PREFIX}{section.upper()}__{name.upper()}"
            elif name in (file.get(section) or {}):
                origin = str(settings_file())
            yield Origin(f"{section}.{name}", _plain(value), origin)


def _options(options: BaseModel) -> Iterator[tuple[str, Any]]:
    yield from options
    yield from (options.model_extra or {}).items()


def _plain(value: Any) -> Any:
    """As JSON takes it."""
    if isinstance(value, SecretStr):
        return str(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
