"""`python -m ingest FOLDER`: the same command as `groundwell ingest`, without the rest of Groundwell."""

import argparse
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ingest.settings import IngestSettings, SettingsFileNotFound

SETTINGS_ERRORS = (SettingsFileNotFound, ValidationError, tomllib.TOMLDecodeError)

if TYPE_CHECKING:
    from ingest.pipeline import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of an ingest."""
    parser.add_argument("folder", type=_path, help="folder of documents; the knowledge base becomes equal to it")
    parser.add_argument("--knowledge-base", metavar="NAME", help="name of the knowledge base (default: the settings')")
    parser.add_argument("--rebuild", action="store_true", help="embed everything anew, e.g. with another embedder")


def _path(text: str) -> Path:
    if not text:  # a script's variable that is not set; Path("") would be the current folder
        raise argparse.ArgumentTypeError("the folder's name is empty")
    return Path(text)


def run(arguments: argparse.Namespace, settings: IngestSettings) -> int:
    """Ingest and print the report.

    Returns 0 when every file is in, 1 when some failed, 2 when nothing was done, 130 when it was interrupted.
    """
    from ingest.lock import AlreadyWriting
    from ingest.pipeline import EmptyFolder, FolderNotFound
    from ingest.store import EmbedderMismatch
    from llm.models import ModelNotFound

    try:
        return _ingest(arguments, settings)
    except (AlreadyWriting, EmbedderMismatch, EmptyFolder, FolderNotFound, ModelNotFound) as error:
        print(f"groundwell ingest: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("groundwell ingest: interrupted; the next run finishes it", file=sys.stderr)
        return 130


def _ingest(arguments: argparse.Namespace, settings: IngestSettings) -> int:
    from ingest.pipeline import ingest, list_files
    from ingest.store import KnowledgeBase
    from llm.embeddings import Embedder

    list_files(arguments.folder)  # before an empty knowledge base is made for a mistyped name
    name = arguments.knowledge_base or settings.store.knowledge_base
    knowledge_base = KnowledgeBase.open(
        settings.store.path, name, Embedder(settings.embedder), create=True, rebuild=arguments.rebuild
    )
    with progress_bar() as progress:
        report = ingest(arguments.folder, knowledge_base, settings.ingest, progress)
    print(report.summary())
    documents, chunks = knowledge_base.count()
    print(f"knowledge base {name}: {documents} documents, {chunks} chunks")
    knowledge_base.close()
    return report.exit_status


@contextmanager
def progress_bar() -> Iterator[Callable[["Progress"], None]]:
    """A bar of files with chunks per second, on a terminal only."""
    from tqdm import tqdm

    with tqdm(unit="file", disable=None, file=sys.stderr) as bar:

        def show(progress: "Progress") -> None:
            bar.total = progress.total
            bar.set_postfix_str(f"{progress.chunks / (bar.format_dict['elapsed'] or 1):.0f} chunks/s", refresh=False)
            bar.update(progress.files - bar.n)

        yield show


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
