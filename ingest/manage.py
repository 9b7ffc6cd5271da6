"""The commands `groundwell documents` and `groundwell knowledge-bases`, also as `python -m ingest.manage`."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ingest.command import CommandRefused, Parser, Run, as_utf8, start
from ingest.command import name as name_of
from ingest.output import say, say_json
from ingest.settings import IngestSettings

if TYPE_CHECKING:
    from ingest.journal import Journal
    from ingest.store import KnowledgeBase

STATUSES = (
    "exit status: 0 done; 1 done in part, some names are unknown; 2 nothing was done; 3 the store cannot be written"
)


class UnknownDocument(CommandRefused):
    """There is no document of that name."""

    def __init__(self, source: str, knowledge_base: str) -> None:
        super().__init__(
            f"no document {source!r} in knowledge base {knowledge_base!r}: `groundwell documents list` names them all"
        )


def add_commands(commands: Any) -> None:
    """Add both commands to a parser's; each sets `run`, which takes the arguments and the settings."""
    documents = _group(commands, "documents", "list, show and delete the documents of a knowledge base")
    _command(documents, "list", list_documents, "every document with the number of its chunks")
    show = _command(documents, "show", show_document, "a document's chunks with their places and texts")
    show.add_argument("source", metavar="SOURCE", type=as_utf8, help="its name, as the list gives it")
    deleting = "take documents out; one whose file is still in its folder comes back with the next ingest of the folder"
    delete = _command(documents, "delete", delete_documents, deleting)
    delete.add_argument(
        "sources", metavar="SOURCE", type=as_utf8, nargs="+", help="their names, as the list gives them"
    )
    for parser in documents.choices.values():
        parser.add_argument("--knowledge-base", metavar="NAME", type=name_of, help="its name (default: the settings')")
    bases = _group(commands, "knowledge-bases", "list, create, describe, delete and re-index knowledge bases")
    _command(bases, "create", create_base, "make an empty one for the settings' embedder, e.g. to add texts to")
    _command(bases, "list", list_bases, "every knowledge base with its numbers of documents and chunks")
    _command(bases, "describe", describe_base, "documents, chunks, bytes on disk, embedder and last run of one")
    _command(bases, "delete", delete_base, "delete one with all of its files")
    reindexing = "embed all chunks of one with the settings' embedder; the old vectors answer until that is done"
    _command(bases, "reindex", reindex_base, reindexing)
    for name in ("create", "describe", "delete", "reindex"):
        bases.choices[name].add_argument("name", metavar="NAME", type=name_of, help="its name")


def _group(commands: Any, name: str, about: str) -> Any:
    parser = commands.add_parser(name, help=about, description=about, epilog=STATUSES)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def _command(group: Any, name: str, run: Run, about: str) -> Parser:
    parser: Parser = group.add_parser(name, help=about, description=about, epilog=STATUSES)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs; errors too")
    parser.set_run(run, interrupted="run it again")
    return parser


def list_documents(given: argparse.Namespace, settings: IngestSettings) -> int:
    """One line for each document."""
    with _journal(given, settings) as journal:
        documents = journal.documents()
    lines = [f"{document.chunks:>7}  {document.source}" for document in documents]
    rows = [{name: value for name, value in asdict(one).items() if name != "content_hash"} for one in documents]
    return _print(given, rows, [" chunks  document", *lines] if lines else ["no documents"])


def show_document(given: argparse.Namespace, settings: IngestSettings) -> int:
    """A document's chunks, each with its place above its text."""
    with _opened(given, settings) as knowledge_base:
        document = knowledge_base.journal.document(given.source)
        if document is None:
            raise UnknownDocument(given.source, knowledge_base.name)
        chunks = knowledge_base.chunks(list(knowledge_base.journal.ids(given.source)))
    about = {name: value for name, value in asdict(document).items() if name != "content_hash"}
    rows = [{"id": chunk.id, "text": chunk.page_content, "metadata": chunk.metadata} for chunk in chunks]
    lines = [line for chunk in chunks for line in (_place(chunk.metadata), *chunk.page_content.split("\n"), "")]
    return _print(given, about | {"chunks": rows}, lines)


def delete_documents(given: argparse.Namespace, settings: IngestSettings) -> int:
    """Take out the documents that are there; name those that are not."""
    with _opened(given, settings) as knowledge_base:
        known = {document.source for document in knowledge_base.documents()}
        there = [source for source in dict.fromkeys(given.sources) if source in known]
        missing = [source for source in dict.fromkeys(given.sources) if source not in known]
        if not there:
            raise UnknownDocument(missing[0], knowledge_base.name)
        with knowledge_base.writing() as writer:
            for source in there:
                writer.remove(source)
            writer.sweep()
    lines = [f"deleted: {source}" for source in there] + [f"unknown: {source}" for source in missing]
    _print(given, {"deleted": there, "unknown": missing}, lines)
    return 1 if missing else 0


def list_bases(given: argparse.Namespace, settings: IngestSettings) -> int:
    """One line for each knowledge base."""
    from ingest.knowledge_bases import list_knowledge_bases

    found = list_knowledge_bases(settings.store.path)
    lines = [f"{base.documents:>9}  {base.chunks:>8}  {base.name} ({base.embedder})" for base in found]
    header = "documents    chunks  knowledge base"
    return _print(given, [asdict(base) for base in found], [header, *lines] if lines else ["no knowledge bases"])


def create_base(given: argparse.Namespace, settings: IngestSettings) -> int:
    """Make an empty one."""
    from ingest.disk import told_plainly
    from ingest.knowledge_bases import make
    from ingest.recovery import is_there
    from llm.embeddings import Embedder

    if is_there(settings.store.path, given.name):
        raise CommandRefused(f"there is a knowledge base {given.name!r} already")
    embedder = Embedder(settings.embedder)
    with told_plainly(settings.store.path):
        make(settings.store.path, given.name, embedder)
    model = embedder.fingerprint["model"]
    return _print(given, {"created": given.name, "embedder": model}, [f"created: {given.name} ({model})"])


def describe_base(given: argparse.Namespace, settings: IngestSettings) -> int:
    """All that is known of one, a line for each thing."""
    from ingest.knowledge_bases import describe

    about = asdict(describe(settings.store.path, given.name))
    return _print(given, about, [f"{name.replace('_', ' ')}: {value}" for name, value in about.items()])


def delete_base(given: argparse.Namespace, settings: IngestSettings) -> int:
    """Delete one."""
    from ingest.knowledge_bases import delete

    delete(settings.store.path, given.name)
    return _print(given, {"deleted": given.name}, [f"deleted: {given.name}"])


def reindex_base(given: argparse.Namespace, settings: IngestSettings) -> int:
    """Re-index one, with a bar on a terminal."""
    from tqdm import tqdm

    from ingest.reindex import reindex
    from llm.embeddings import Embedder

    embedder = Embedder(settings.embedder)
    with tqdm(unit="chunk", disable=None, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        changed = reindex(settings.store.path, given.name, embedder, show)
    model = embedder.fingerprint["model"]
    said = (
        f"{given.name} is now embedded with {model}" if changed else f"{given.name} has the vectors of {model} already"
    )
    return _print(given, {"name": given.name, "embedder": model, "changed": changed}, [said])


def _name(given: argparse.Namespace, settings: IngestSettings) -> str:
    return given.knowledge_base or settings.store.knowledge_base


@contextmanager
def _journal(given: argparse.Namespace, settings: IngestSettings) -> "Iterator[Journal]":
    from ingest.collection import journal_path
    from ingest.journal import Journal
    from ingest.knowledge_bases import unknown
    from ingest.recovery import is_there

    folder, name = settings.store.path, _name(given, settings)
    if not is_there(folder, name):
        raise unknown(folder, name)
    with closing(Journal(journal_path(folder, name))) as journal:
        yield journal


@contextmanager
def _opened(given: argparse.Namespace, settings: IngestSettings) -> "Iterator[KnowledgeBase]":
    """The knowledge base whatever its embedder, of which none of these commands needs a vector."""
    from ingest.knowledge_bases import stored_fingerprint
    from ingest.store import KnowledgeBase

    folder, name = settings.store.path, _name(given, settings)
    embedder: Any = _Unused(stored_fingerprint(folder, name))
    with closing(KnowledgeBase.open(folder, name, embedder)) as knowledge_base:
        yield knowledge_base


@dataclass(frozen=True)
class _Unused:
    """An embedder by its fingerprint alone."""

    fingerprint: dict[str, str]
    offsets = None


def _place(metadata: dict[str, Any]) -> str:
    places = [f"{kind} {metadata[kind]}" for kind in ("page", "slide", "sheet", "cell", "line") if kind in metadata]
    return " · ".join([f"[{metadata['start']}–{metadata['end']}]", *places, *filter(None, [metadata["heading"]])])


def _print(given: argparse.Namespace, value: Any, lines: list[str]) -> int:
    if given.json:
        say_json(value, indent=2)
    else:
        say(*lines)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command `python -m ingest.manage`."""
    parser = Parser(prog="python -m ingest.manage", description="Look after knowledge bases.")
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    return start(parser, IngestSettings, arguments)


if __name__ == "__main__":
    sys.exit(main())
