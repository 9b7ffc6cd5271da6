"""`python -m ingest FOLDER`: the same command as `groundwell ingest`, without the rest of Groundwell."""

import argparse
import json
import math
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.command import CommandRefused, Parser, as_utf8, name, refused, start
from ingest.output import say, say_json, warn
from ingest.settings import IngestSettings

PROG = "groundwell ingest"
FOLDER = (
    "folder of documents; the knowledge base becomes equal to it. Hidden files, links out of the folder and a store in"
    " it are left out; links to folders are not followed"
)
EXIT_STATUSES = """exit status:
  0    every file is in, though perhaps not with all that it holds: the report names such ones
  1    some file failed; the report names it, the others are in; or the report could not be printed
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
WATCH = (
    "go on, and ingest again whenever the folder changes, until Ctrl-C; when another command changes the knowledge base"
    " meanwhile, it is said, and the folder's next change puts it right"
)
RETRY_SECONDS = 5.0
"""After another writer or a full disk was met while watching."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingest.document import Scalar
    from ingest.report import Report
    from ingest.settings import IngestOptions
    from ingest.store import KnowledgeBase


def add_arguments(parser: Parser) -> None:
    """The arguments of an ingest."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXIT_STATUSES
    parser.set_run(run, prog=PROG, interrupted="the next run finishes it")
    add = parser.add_argument
    add("folder", type=_path, help=FOLDER)
    add("--knowledge-base", metavar="NAME", type=name, help="name of the knowledge base (default: the settings')")
    add("--rebuild", action="store_true", help=REBUILD)
    add("--include", metavar="GLOB", action="append", help="only files like this, as in .gitignore; repeatable")
    add("--exclude", metavar="GLOB", action="append", help="no files or folders like this; repeatable")
    add("--metadata", metavar="KEY=VALUE", type=_metadata, action="append", default=[], help=METADATA)
    add("--password", metavar="TEXT", action="append", default=[], help="tried on protected files; repeatable")
    add("--password-file", metavar="FILE", type=_path, help="a file with a password on each line, in UTF-8")
    add("--ocr", action="store_true", help="read pages without text with tesseract, where it is installed")
    add("--json", action="store_true", help="print the report, or why there is none, as one line of JSON")
    once = parser.add_mutually_exclusive_group()
    once.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    once.add_argument("--watch", action="store_true", help=WATCH)


def _path(text: str) -> Path:
    name(text)  # Path("") would be the current folder
    return Path(text)


def _metadata(text: str) -> "tuple[str, Scalar]":
    key, equals, value = as_utf8(text).partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        parsed = json.loads(value, parse_constant=str)
    except json.JSONDecodeError:
        return key, value
    return key, parsed if isinstance(parsed, str | int | float | bool) else value


def run(arguments: argparse.Namespace, settings: IngestSettings) -> int:
    """Ingest and print the report; returns one of EXIT_STATUSES."""
    options = _options(arguments, settings.ingest)
    return (_watch if arguments.watch else _run)(arguments, settings, options)


def _options(arguments: argparse.Namespace, options: "IngestOptions") -> "IngestOptions":
    """The settings with what the arguments say in their place; metadata and passwords are added to them."""
    from ingest.settings import IngestOptions

    given: dict[str, Any] = {name: value for name in ("include", "exclude") if (value := getattr(arguments, name))}
    given["metadata"] = options.metadata | dict(arguments.metadata)
    given["passwords"] = (*options.passwords, *arguments.password, *_passwords(arguments.password_file))
    given["ocr"] = options.ocr or arguments.ocr
    return IngestOptions(**options.model_dump() | given)


def _passwords(file: Path | None) -> list[str]:
    try:
        return [*filter(None, file.read_text(encoding="utf-8-sig").splitlines())] if file else []
    except UnicodeDecodeError as error:
        raise CommandRefused(f"{file} is not in UTF-8 ({error.reason} at byte {error.start}): save it so") from error


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

    tell = partial(refused, PROG, as_json=arguments.json)
    with suppress(EmptyFolder):  # it may fill
        _check_folder(arguments, options)
    status, due, idle = 0, 0.0, True
    seen: int | None = None
    with _opened(arguments, settings) as knowledge_base:
        try:
            for changed in changes(arguments.folder, settings.store.path):
                if not arguments.folder.is_dir():
                    _check_folder(arguments, options)
                if not changed and time.monotonic() < due:
                    seen = _tell_of_others(knowledge_base, seen)
                    continue
                due, idle = math.inf, False
                try:
                    report = _ingest(arguments, knowledge_base, options)
                except (EmptyFolder, FolderNotFound, AlreadyWriting) as error:
                    due = time.monotonic() + RETRY_SECONDS if isinstance(error, AlreadyWriting) else due
                    idle, status = True, tell(str(error))
                except StoreNotWritable as error:
                    due, idle, status = time.monotonic() + RETRY_SECONDS, True, tell(str(error), 3)
                else:
                    idle = True  # before the report is seen, after which Ctrl-C interrupts nothing
                    seen = knowledge_base.journal.generation() if knowledge_base else None
                    status = _print(report, knowledge_base, as_json=arguments.json)
        except KeyboardInterrupt:
            if not idle:
                raise
    return status


def _tell_of_others(knowledge_base: "KnowledgeBase | None", seen: int | None) -> int | None:
    """Say once that another command has changed what the last run left; two watchers would undo each other for ever."""
    if knowledge_base and seen not in (None, knowledge_base.journal.generation()):
        what = f"knowledge base {knowledge_base.name!r} was changed by another command"
        warn(f"{PROG}: {what}; it becomes equal to the folder again when something in that changes")
        return None
    return seen


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

    base = arguments.knowledge_base or settings.store.knowledge_base
    embedder = Embedder(settings.embedder)
    dry, rebuild = arguments.dry_run, arguments.rebuild
    try:
        found = (
            None
            if dry and rebuild
            else KnowledgeBase.open(settings.store.path, base, embedder, create=not dry, rebuild=rebuild)
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
        say_json(report.as_json() | {"knowledge_base": about or None})
        return report.exit_status
    total = ["knowledge base {name}: {documents} documents, {chunks} chunks".format(**about)] if about else []
    say(*report.summary().split("\n"), *total)
    return report.exit_status


def main() -> int:
    """The command `python -m ingest`."""
    parser = Parser(prog="python -m ingest", description="Make a knowledge base equal to a folder.")
    add_arguments(parser)
    return start(parser, IngestSettings, None)


if __name__ == "__main__":
    sys.exit(main())
