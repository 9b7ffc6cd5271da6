"""A disk that is full in the middle of a run: one sentence, and the next run finishes.

The failures are real: a limit of the system on the size of files, which everybody may set, stands for a full disk.
"""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.disk import StoreNotWritable, told_plainly
from ingest.knowledge_bases import list_knowledge_bases
from ingest.pipeline import ingest

START = """
import os, resource, signal, sys
from pathlib import Path
import llm.embeddings
from tests.fakes import WordCountEmbedder
llm.embeddings.Embedder = lambda options: WordCountEmbedder()
"""
LIMITED = """
limit = int(sys.argv.pop(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
"""
COMMAND = "from ingest.__main__ import main; sys.exit(main())"
LISTING = "from ingest.manage import main; sys.exit(main(['knowledge-bases', 'reindex', 'default']))"
# Root may write anywhere; whoever has given up root's identity may not.
UNPRIVILEGED = """
from ingest.disk import StoreNotWritable
from ingest.store import KnowledgeBase
try:
    knowledge_base = KnowledgeBase.open(Path(sys.argv[1]), "default", WordCountEmbedder())
    if os.geteuid() == 0:
        os.seteuid(65534)
    knowledge_base.add_texts(["更多"])
except StoreNotWritable as error:
    print(type(error).__name__, error)
"""


def run(code: str, store: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GROUNDWELL_STORE__PATH": str(store), "GROUNDWELL_INGEST__BATCH_CHUNKS": "40"}
    command = [sys.executable, "-c", START + code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def sentences(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What was said on stderr, without the progress that comes every ten seconds on a slow machine."""
    return [line for line in done.stderr.splitlines() if not line.endswith(" left")]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(60):
        paragraphs = [f"文件 {number} paragraph {part} is about 年假 and word{number * part}." for part in range(40)]
        (folder / f"{number}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
    return folder


def check_whole(opened, embedder, documents: Path) -> None:
    whole, mended = opened(embedder, "whole"), opened(embedder, "default")
    ingest(documents, whole)
    ids = set(mended.journal.ids())
    assert ids == set(whole.journal.ids())
    assert set(mended.ask(lambda collection: collection.get(include=[]))["ids"]) == ids
    for id_, document in mended.stored(ids).items():
        assert mended.dense(embedder.embed_query(document.page_content), 1)[0][1] == pytest.approx(1, abs=1e-5)
        assert id_ in dict(mended.lexical(document.page_content, len(ids)))


@pytest.mark.parametrize("limit", [2_000, 60_000, 200_000, 400_000, 700_000])
def test_a_disk_that_fills_is_one_sentence_and_the_next_run_finishes(opened, embedder, documents, store, limit) -> None:
    full = run(LIMITED + COMMAND, store, limit, documents)
    assert (full.returncode, full.stdout) == (3, "")
    (said,) = sentences(full)
    assert said.startswith(f"groundwell ingest: the store {store} cannot be written: File too large (")
    assert said.endswith("then run it again, and it goes on where it stopped")
    again = run(COMMAND, store, documents)
    assert (again.returncode, sentences(again)) == (0, [])
    assert "knowledge base default: 60 documents" in again.stdout
    check_whole(opened, embedder, documents)


def test_an_update_that_meets_a_full_disk_leaves_what_was_there(opened, embedder, documents, store) -> None:
    run(COMMAND, store, documents)
    before = opened(embedder, "default").count()
    size = max(file.stat().st_size for file in store.rglob("*") if file.is_file())
    for path in documents.iterdir():
        path.write_text(path.read_text(encoding="utf-8") + "\n\n另外一段", encoding="utf-8")
    full = run(LIMITED + COMMAND, store, size + 50_000, documents, "--json")
    assert full.returncode == 3
    assert '"exit_status": 3' in full.stdout
    assert opened(embedder, "default").count()[0] == before[0]
    assert run(COMMAND, store, documents).returncode == 0
    check_whole(opened, embedder, documents)


def test_the_same_process_goes_on_when_there_is_room_again(opened, embedder, documents, store) -> None:
    code = LIMITED.replace("(limit, limit)", "(limit, resource.RLIM_INFINITY)") + (
        "from ingest.disk import StoreNotWritable; from ingest.pipeline import ingest; from ingest.settings import *\n"
        "from ingest.store import KnowledgeBase\n"
        "store, folder = map(Path, sys.argv[1:])\n"
        "knowledge_base = KnowledgeBase.open(store, 'default', WordCountEmbedder(), create=True)\n"
        "options = IngestOptions(batch_chunks=40, workers=0)\n"
        "try:\n    ingest(folder, knowledge_base, options)\n"
        "except StoreNotWritable:\n    print('full', len(knowledge_base.similarity_search('年假', k=3)))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "print(ingest(folder, knowledge_base, options).exit_status, knowledge_base.count()[0])\n"
    )
    done = run(code, store, 700_000, store, documents)
    assert done.stdout == "full 3\n0 60\n", done.stderr
    check_whole(opened, embedder, documents)


def test_a_reindex_on_a_full_disk_leaves_the_old_one(opened, embedder, documents, store) -> None:
    run(COMMAND, store, documents)
    size = max(file.stat().st_size for file in store.rglob("*") if file.is_file())
    other = "llm.embeddings.Embedder = lambda options: WordCountEmbedder('other')\n"
    full = run(other + LIMITED + LISTING, store, size + 50_000)
    assert full.returncode == 3
    assert full.stderr.splitlines()[-1].startswith("python -m ingest.manage knowledge-bases reindex: the store")
    assert [base.embedder for base in list_knowledge_bases(store)] == ["word-count"]
    assert run(other + LISTING, store).returncode == 0
    assert [base.embedder for base in list_knowledge_bases(store)] == ["other"]


def test_a_store_without_the_right_to_write(opened, embedder, store) -> None:
    opened(embedder, "default").add_texts(["文本"])
    files = [store, *store.rglob("*")]
    for file in files:
        file.chmod(0o555 if file.is_dir() else 0o444)
    try:
        said = run(UNPRIVILEGED, store, store)
    finally:
        for file in files:
            file.chmod(0o755 if file.is_dir() else 0o644)
    assert said.stdout.startswith(f"StoreNotWritable the store {store} cannot be written: Permission denied"), said
    assert "give this user the right to write there" in said.stdout


def test_a_store_that_is_a_file(documents, tmp_path) -> None:
    (tmp_path / "file").touch()
    refused = run(COMMAND, tmp_path / "file" / "store", documents)
    assert refused.returncode == 3
    assert refused.stderr.count("\n") == 1
    assert "Not a directory" in refused.stderr and "`path` in `[store]`" in refused.stderr


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full", "/elsewhere/file"), OSError(errno.EMFILE, "x"), OSError(errno.EIO, "x")]
)
def test_what_the_store_has_no_part_in_is_left_as_it_is(store, error) -> None:
    store.mkdir()
    with pytest.raises(OSError) as raised, told_plainly(store):
        raise error
    assert raised.value is error


def test_watching_goes_on_when_there_is_room_again(store, documents, monkeypatch, capsys, embedder, tmp_path) -> None:
    from ingest import __main__ as command

    def changes(*_):
        yield False
        yield False

    results = iter([StoreNotWritable(tmp_path, "No space left on device", "make room"), None])
    original = ingest

    def failing(*arguments):
        if error := next(results, None):
            raise error
        return original(*arguments)

    monkeypatch.setattr("ingest.watch.changes", changes)
    monkeypatch.setattr("ingest.pipeline.ingest", failing)
    monkeypatch.setattr(command, "RETRY_SECONDS", 0)
    monkeypatch.setattr("llm.embeddings.Embedder", lambda options: embedder)
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", str(store))
    for name in ("ANONYMIZED_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "False")
    monkeypatch.setattr(sys, "argv", ["ingest", str(documents), "--watch"])
    assert command.main() == 0
    said = capsys.readouterr()
    assert "No space left on device" in said.err
    assert "60 added" in said.out
