"""`python -m ingest FOLDER`: the same command as `groundwell ingest`, without the rest of Groundwell."""

import argparse
import json
import math
import os
import sys
import time
import tomllib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ingest.settings import IngestSettings, SettingsFileNotFound

SETTINGS_ERRORS = (SettingsFileNotFound, ValidationError, tomllib.TOMLDecodeError)

EXIT_STATUSES = """exit status:
  0    every file is in, though perhaps not with all that it holds: the report names such ones
  1    some file failed; the report names it, the others are in
  2    nothing was done: bad arguments or settings, no folder, an empty one, another writer, another embedder
  3    the store cannot be written (disk full, no right to): what is in stays, and the next run finishes it
  130  interrupted; the next run finishes it"""
METADATA = (
    'stored with every chunk; a JSON number, true, false or "text" as such, else text; repeatable; not one of the names'
    " that each chunk has (source, page, …) nor a name that begins with `$`, `#` or `chroma:`"
)
REBUILD = (
    "empty the knowledge base first, and read and embed every file anew, e.g. with another embedder; until that is done"
    " it answers with what is in again, and what was added without a file is gone (`groundwell knowledge-bases reindex`"
    " keeps it, and answers with the old vectors until the new ones are complete)"
)
CHANGED_BY_ANOTHER = (
    "groundwell ingest: another process has changed knowledge base {!r}: it is made equal to the folder"
)
WATCH = "go on, and ingest again whenever the folder changes, or another process has changed the knowledge base"
RETRY_SECONDS = 5.0
"""After another writer, what it has written or a full disk was met while watching."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.document import Scalar
    from ingest.report import Report
    from ingest.settings import IngestOptions
    from ingest.store import KnowledgeBase


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of an ingest."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXIT_STATUSES
    add = parser.add_argument
    add("folder", type=_path, help="folder of documents; the knowledge base becomes equal to it")
    add("--knowledge-base", metavar="NAME", help="name of the knowledge base (default: the settings')")
    add("--rebuild", action="store_true", help=REBUILD)
    add("--include", metavar="GLOB", action="append", help="only files like this, as in .gitignore; repeatable")
    add("--exclude", metavar="GLOB", action="append", help="no files or folders like this; repeatable")
    add("--metadata", metavar="KEY=VALUE", type=_metadata, action="append", default=[], help=METADATA)
    add("--password", metavar="TEXT", action="append", default=[], help="tried on protected files; repeatable")
    add("--password-file", metavar="FILE", type=Path, help="a file with a password on each line")
    add("--ocr", action="store_true", help="read pages without text with tesseract, where it is installed")
    add("--json", action="store_true", help="print the report as one line of JSON")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    once.add_argument("--watch", action="store_true", help=WATCH)


def _path(text: str) -> Path:
    if not text:  # a script's variable that is not set; Path("") would be the current folder
        raise argparse.ArgumentTypeError("the folder's name is empty")
    return Path(text)


def _metadata(text: str) -> "tuple[str, Scalar]":
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        parsed = json.loads(value, parse_constant=str)
    except json.JSONDecodeError:
        return key, value
    return key, parsed if isinstance(parsed, str | int | float | bool) else value


def run(arguments: argparse.Namespace, settings: IngestSettings) -> int:
    """Ingest and print the report; returns one of EXIT_STATUSES."""
    from ingest.disk import StoreNotWritable
    from ingest.listing import EmptyFolder, FolderNotFound
    from ingest.lock import AlreadyWriting
    from ingest.store import EmbedderMismatch
    from ingest.workers import EmbedderNotShared, WorkerNotStarted
    from llm.models import ModelNotFound

    refusals = (AlreadyWriting, EmbedderMismatch, EmptyFolder, FolderNotFound, ModelNotFound)
    try:
        options = _options(arguments, settings.ingest)
        return (_watch if arguments.watch else _run)(arguments, settings, options)
    except ValidationError as error:
        return _refused(arguments, plainly(error))
    except (*refusals, EmbedderNotShared, WorkerNotStarted) as error:
        return _refused(arguments, str(error))
    except StoreNotWritable as error:
        return _refused(arguments, str(error), status=3)
    except OSError as error:  # the password file
        return _refused(arguments, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("groundwell ingest: interrupted; the next run finishes it", file=sys.stderr)
        return 130


def _refused(arguments: argparse.Namespace, reason: str, status: int = 2) -> int:
    print(f"groundwell ingest: {reason}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"error": reason, "exit_status": status}, ensure_ascii=False))
    return status


def _options(arguments: argparse.Namespace, options: "IngestOptions") -> "IngestOptions":
    """The settings with what the arguments say in their place; metadata and passwords are added to them."""
    from ingest.settings import IngestOptions

    given: dict[str, Any] = {name: value for name in ("include", "exclude") if (value := getattr(arguments, name))}
    passwords = [*arguments.password]
    if arguments.password_file:
        passwords += filter(None, arguments.password_file.read_text(encoding="utf-8").splitlines())
    given["metadata"] = options.metadata | dict(arguments.metadata)
    given["passwords"] = (*options.passwords, *passwords)
    given["ocr"] = options.ocr or arguments.ocr
    return IngestOptions(**options.model_dump() | given)


def _run(arguments: argparse.Namespace, settings: IngestSettings, options: "IngestOptions") -> int:
    _check_folder(arguments, options)
    with _opened(arguments, settings) as knowledge_base:
        report = _ingest(arguments, knowledge_base, options)
        return _print(report, knowledge_base, as_json=arguments.json)


def _watch(arguments: argparse.Namespace, settings: IngestSettings, options: "IngestOptions") -> int:
    """Ingest now and after every change, until Ctrl-C; returns the last run's status."""
    from ingest.disk import StoreNotWritable
    from ingest.listing import EmptyFolder, FolderNotFound
    from ingest.lock import AlreadyWriting
    from ingest.watch import changes

    with suppress(EmptyFolder):  # it may fill
        _check_folder(arguments, options)
    status, due, idle = 0, 0.0, True
    with _opened(arguments, settings) as knowledge_base:
        assert knowledge_base
        left = knowledge_base.journal.generation()
        try:
            for changed in changes(arguments.folder, settings.store.path):
                if (now := knowledge_base.journal.generation()) != left:
                    left = now
                    if due == math.inf:
                        due = time.monotonic() + RETRY_SECONDS
                        print(CHANGED_BY_ANOTHER.format(knowledge_base.name), file=sys.stderr)
                if not changed and time.monotonic() < due:
                    continue
                due, idle = math.inf, False
                try:
                    report = _ingest(arguments, knowledge_base, options)
                except (EmptyFolder, FolderNotFound, AlreadyWriting) as error:
                    due = time.monotonic() + RETRY_SECONDS if isinstance(error, AlreadyWriting) else due
                    idle, status = True, _refused(arguments, str(error))
                except StoreNotWritable as error:
                    due, idle, status = time.monotonic() + RETRY_SECONDS, True, _refused(arguments, str(error), 3)
                else:
                    idle = True  # before the report is seen, after which Ctrl-C interrupts nothing
                    status = _print(report, knowledge_base, as_json=arguments.json)
                left = knowledge_base.journal.generation()
        except KeyboardInterrupt:
            if not idle:
                raise
    return status


def _check_folder(arguments: argparse.Namespace, options: "IngestOptions") -> None:
    """Before an empty knowledge base is made for a mistyped name."""
    from ingest.listing import list_files

    list_files(arguments.folder, include=options.include, exclude=options.exclude)


@contextmanager
def _opened(arguments: argparse.Namespace, settings: IngestSettings) -> "Iterator[KnowledgeBase | None]":
    """The knowledge base, made when it is not there; for a dry run None then, and when it would be made anew."""
    from ingest.knowledge_bases import UnknownKnowledgeBase
    from ingest.store import KnowledgeBase
    from llm.embeddings import Embedder

    name = arguments.knowledge_base or settings.store.knowledge_base
    embedder = Embedder(settings.embedder)
    dry, rebuild = arguments.dry_run, arguments.rebuild
    try:
        found = (
            None
            if dry and rebuild
            else KnowledgeBase.open(settings.store.path, name, embedder, create=not dry, rebuild=rebuild)
        )
    except UnknownKnowledgeBase:
        found = None
    try:
        yield found
    finally:
        if found:
            found.close()


def _ingest(
    arguments: argparse.Namespace, knowledge_base: "KnowledgeBase | None", options: "IngestOptions"
) -> "Report":
    from ingest.pipeline import ingest, rehearse
    from ingest.progress import shown

    if arguments.dry_run or knowledge_base is None:
        return rehearse(arguments.folder, knowledge_base, options)
    with shown() as progress:
        return ingest(arguments.folder, knowledge_base, options, progress)


def _print(report: "Report", knowledge_base: "KnowledgeBase | None", *, as_json: bool) -> int:
    """Print the report, and what the knowledge base holds now; returns the exit status."""
    about = {}
    if knowledge_base:
        documents, chunks = knowledge_base.count()
        about = {"name": knowledge_base.name, "documents": documents, "chunks": chunks}
    if as_json:
        print(json.dumps(report.as_json() | {"knowledge_base": about or None}, ensure_ascii=False), flush=True)
        return report.exit_status
    print(report.summary())
    if about:
        print("knowledge base {name}: {documents} documents, {chunks} chunks".format(**about), flush=True)
    return report.exit_status


def quiet_libraries() -> None:
    """No telemetry, no warnings of the tokenizer about forks, and output that cannot fail on a character."""
    os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def plainly(error: Exception) -> str:
    """What is wrong with the settings, without pydantic's dress."""
    if isinstance(error, tomllib.TOMLDecodeError):
        return f"{os.environ.get('GROUNDWELL_CONFIG') or 'groundwell.toml'} is not TOML: {error}"
    if not isinstance(error, ValidationError):
        return str(error)
    places = [(".".join(map(str, one["loc"])), one["msg"].removeprefix("Value error, ")) for one in error.errors()]
    return "; ".join(f"{place}: {message}" if place else message for place, message in places)


def main() -> int:
    """The command `python -m ingest`."""
    quiet_libraries()
    parser = argparse.ArgumentParser(prog="python -m ingest", description="Make a knowledge base equal to a folder.")
    add_arguments(parser)
    arguments = parser.parse_args()
    try:
        settings = IngestSettings()
    except SETTINGS_ERRORS as error:
        parser.error(plainly(error))
    return run(arguments, settings)


if __name__ == "__main__":
    sys.exit(main())
