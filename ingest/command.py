"""What all commands share: parser, settings, and how it is told what they refuse, in JSON where it is asked for."""

import argparse
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_settings import SettingsError

from ingest.output import OutputNotWritten, say, say_json, warn
from ingest.settings import IngestSettings, SettingsFileNotFound

SETTINGS_ERRORS = (SettingsFileNotFound, SettingsError, ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError)
Run = Callable[[argparse.Namespace, Any], int]


class CommandRefused(Exception):
    """What was asked for cannot be done, and nothing was."""


class Parser(argparse.ArgumentParser):
    """One whose errors are JSON too where `--json` is among the arguments; so are its commands' parsers."""

    as_json = False

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """As argparse's."""
        given = sys.argv[1:] if args is None else list(args)
        options = takewhile(lambda one: one != "--", given)
        self.as_json = any(len(one) > 2 and "--json".startswith(one) for one in options)  # argparse takes `--js` too
        return super().parse_known_args(given, namespace)

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and end with status 2."""
        self.print_usage(sys.stderr)
        raise SystemExit(refused(self.prog, message, as_json=self.as_json))

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help of which not all can be printed ends nothing; older versions of argparse let the error through."""
        if file is None or file is not sys.stdout:
            with suppress(OSError):
                super()._print_message(message, file)
            return
        try:
            say(*message.rstrip("\n").split("\n"))
        except OutputNotWritten as error:
            warn(f"{self.prog}: {error}")

    def set_run(self, run: Run, *, prog: str | None = None, interrupted: str) -> None:
        """What the command does; `interrupted` is said when Ctrl-C ends it."""
        self.set_defaults(run=partial(_told, prog or self.prog, interrupted, run))


def start(parser: Parser, settings: type[IngestSettings], arguments: Sequence[str] | None) -> int:
    """Run the command that the arguments name; returns its exit status."""
    quiet_libraries()
    given = parser.parse_args(arguments)
    try:
        found = settings()
    except SETTINGS_ERRORS as error:
        parser.error(plainly(error))
    return given.run(given, found)


def refused(command: str, reason: str, status: int = 2, *, as_json: bool) -> int:
    """Say why nothing, or no more, was done; returns the exit status."""
    warn(f"{command}: {reason}")
    if as_json:
        say_json({"error": reason, "exit_status": status})
    return status


def _told(command: str, interrupted: str, run: Run, given: argparse.Namespace, settings: Any) -> int:
    """Run a command; what can go wrong is one sentence, and JSON where it is asked for."""
    from ingest.disk import StoreNotWritable

    tell = partial(refused, command, as_json=given.json)
    try:
        try:
            return run(given, settings)
        except StoreNotWritable as error:
            return tell(str(error), 3)
        except _refusals() as error:
            return tell(plainly(error))
        except KeyboardInterrupt:
            return tell(f"interrupted; {interrupted}", 130)
    except OutputNotWritten as error:
        warn(f"{command}: {error}")
        return 1


def _refusals() -> tuple[type[Exception], ...]:
    """Looked up when something was raised: most of them have been imported by then."""
    from ingest.knowledge_bases import EmbedderMismatch, UnknownKnowledgeBase
    from ingest.listing import EmptyFolder, FolderNotFound
    from ingest.lock import AlreadyWriting
    from ingest.patterns import BadPattern
    from ingest.reindex import ChunksTooLong
    from ingest.workers import EmbedderNotShared, WorkerNotStarted
    from llm.models import ModelNotFound

    of_folders = (BadPattern, EmptyFolder, FolderNotFound)
    of_stores = (AlreadyWriting, ChunksTooLong, EmbedderMismatch, UnknownKnowledgeBase)
    of_the_machine = (EmbedderNotShared, ModelNotFound, OSError, WorkerNotStarted)
    return (*of_folders, *of_stores, *of_the_machine, CommandRefused, ValidationError)


def quiet_libraries() -> None:
    """No telemetry, no warnings of the tokenizer about forks, and output that cannot fail on a character."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # One that was closed before the start would be the next file that anybody opens.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w", encoding="utf-8") for stream in (sys.stdout, sys.stderr))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def plainly(error: Exception) -> str:
    """What is wrong, without pydantic's dress, and with the file's name where there is one."""
    if isinstance(error, tomllib.TOMLDecodeError | UnicodeDecodeError):
        kind = "not TOML" if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        return f"{os.environ.get('GROUNDWELL_CONFIG') or 'groundwell.toml'} is {kind}: {error}"
    if isinstance(error, SettingsError):
        return f"{error}: {error.__cause__}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if not isinstance(error, ValidationError):
        return str(error)
    places = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in error.errors()]
    return "; ".join(f"{place}: {message}" if place else message for place, message in places)


def as_utf8(text: str) -> str:
    """An argument; under LC_ALL=C Python holds what is not ASCII in it as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def name(text: str) -> str:
    """An argument that names something; a script's variable that is not set would name the default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return as_utf8(text)
