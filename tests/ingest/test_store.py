import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ingest import store as store_module
from ingest.collection import collection_name
from ingest.knowledge_bases import UnknownKnowledgeBase, list_knowledge_bases
from ingest.lock import AlreadyWriting
from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import EmbedderMismatch
from tests.fakes import WordCountEmbedder


def run(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run code in another process that may import what this one does."""
    prelude = """
import sys
from pathlib import Path
from ingest.pipeline import ingest
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder
"""
    command = [sys.executable, "-c", prelude + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


INGEST = "ingest(Path(sys.argv[2]), KnowledgeBase.open(Path(sys.argv[1]), 'team', WordCountEmbedder(), create=True))"


def test_an_empty_knowledge_base_answers_with_nothing(knowledge_base, embedder) -> None:
    assert knowledge_base.count() == (0, 0)
    assert knowledge_base.dense(embedder.embed_query("leave"), 5) == []
    assert knowledge_base.lexical("leave", 5) == []
    assert knowledge_base.chunks([]) == []
    assert knowledge_base.similarities(embedder.embed_query("leave"), []) == []
    assert knowledge_base.documents() == []


def test_both_legs_find_a_chunk_and_its_document_says_where_it_is_from(knowledge_base, embedder, folder) -> None:
    ingest(folder, knowledge_base)
    question = "days of annual leave for employees"
    dense = knowledge_base.dense(embedder.embed_query(question), 10)
    lexical = knowledge_base.lexical(question, 10)
    assert len(dense) == 3
    assert dense[0][0] == lexical[0][0]
    (document,) = knowledge_base.chunks([dense[0][0]])
    assert document.page_content == "# Leave\n\nFull-time employees get 25 days of annual leave."
    assert document.id == dense[0][0]
    assert document.metadata == {"source": "leave.md", "start": 0, "end": 57, "line": 1, "heading": "Leave"}


def test_similarity_is_the_cosine_in_both_ways_of_asking(knowledge_base, embedder, folder) -> None:
    ingest(folder, knowledge_base)
    vector = embedder.embed_query("# Leave Full-time employees get 25 days of annual leave.")
    found = dict(knowledge_base.dense(vector, 3))
    assert max(found.values()) == pytest.approx(1, abs=1e-5)
    assert knowledge_base.similarities([2 * x for x in vector], list(found)) == pytest.approx(
        list(found.values()), abs=1e-5
    )
    assert knowledge_base.similarities(vector, ["no such chunk"]) == [-1]


def test_chunks_come_in_the_order_asked_and_missing_ones_are_left_out(knowledge_base, embedder, folder) -> None:
    ingest(folder, knowledge_base)
    ids = [id_ for id_, _ in knowledge_base.dense(embedder.embed_query("leave"), 3)]
    wanted = [ids[2], "no such chunk", ids[0], ids[1]]
    assert [document.id for document in knowledge_base.chunks(wanted)] == [ids[2], ids[0], ids[1]]


@pytest.mark.parametrize("name", ["team", "知识库 一", "a", "x" * 200, "../up", "kb-1", "A.b_c", "a..b", "é"])
def test_any_name_is_a_legal_collection_and_is_listed_as_given(opened, embedder, store, name) -> None:
    opened(embedder, name)
    assert [summary.name for summary in list_knowledge_bases(store)] == [name]


def test_names_never_share_a_collection() -> None:
    names = ["team", "Team", "a", "b", "知识", "知识 ", collection_name("知识")]
    assert len({collection_name(name) for name in names}) == len(names)


def test_an_unknown_name_is_refused_with_those_there_are(opened, embedder) -> None:
    opened(embedder, "team")
    with pytest.raises(UnknownKnowledgeBase, match=r"'tame'.*team"):
        opened(embedder, "tame", create=False)


def test_nothing_is_made_for_an_unknown_name(opened, embedder, store) -> None:
    with pytest.raises(UnknownKnowledgeBase, match="there is none yet"):
        opened(embedder, create=False)
    assert not store.exists()


def test_another_embedder_of_the_same_dimension_is_refused_with_the_command_that_mends_it(opened, embedder) -> None:
    opened(embedder, "my docs")
    with pytest.raises(EmbedderMismatch) as error:
        opened(WordCountEmbedder("other"), "my docs")
    for part in ("word-count", "other", "groundwell ingest FOLDER --knowledge-base 'my docs' --rebuild"):
        assert part in str(error.value)


@pytest.mark.parametrize("dimension", [384, 768])
def test_an_embedder_of_any_other_dimension_is_refused_before_it_is_asked(opened, folder, dimension) -> None:
    ingest(folder, opened(WordCountEmbedder("bge-small", dimension=384)))
    other = WordCountEmbedder("bge-base", dimension=dimension)
    with pytest.raises(EmbedderMismatch, match=r"bge-small.*bge-base.*--rebuild"):
        opened(other, create=False)
    assert other.embedded == 0
    assert len(opened(WordCountEmbedder("bge-small", dimension=384)).documents()) == 3


def test_rebuilding_takes_the_new_embedder_and_embeds_everything(opened, embedder, folder) -> None:
    ingest(folder, opened(embedder))
    other = WordCountEmbedder("other")
    knowledge_base = opened(other, rebuild=True)
    assert knowledge_base.count() == (0, 0)
    assert len(ingest(folder, knowledge_base).added) == 3
    assert other.embedded == 3
    assert knowledge_base.journal.pending() == []


def test_a_second_writer_is_refused_and_told_who_the_first_is(opened, store, folder, embedder) -> None:
    with opened(embedder).writing():
        second = run(INGEST, store, folder)
    assert second.returncode != 0
    assert "AlreadyWriting: knowledge base 'team' is being written by process" in second.stderr
    assert "since" in second.stderr


def test_a_second_writer_in_the_same_process_is_refused_too(opened, embedder) -> None:
    first, second = opened(embedder), opened(embedder)
    with first.writing(), pytest.raises(AlreadyWriting), second.writing():
        pass


def test_the_lock_of_a_killed_writer_is_free(opened, store, embedder) -> None:
    holding = "import os, sys; from pathlib import Path; from ingest.lock import writer_lock\n"
    holding += "with writer_lock(Path(sys.argv[1]), 'team'): os._exit(9)"
    knowledge_base = opened(embedder)
    killed = subprocess.run([sys.executable, "-c", holding, str(store / "team.lock")], timeout=60, check=False)
    assert killed.returncode == 9
    with knowledge_base.writing():
        pass


def test_a_reader_sees_what_another_process_writes(monkeypatch, opened, store, folder, embedder) -> None:
    monkeypatch.setattr(store_module, "REOPEN_SECONDS", 0)
    reader = opened(embedder)
    ingest(folder, opened(embedder))
    (folder / "new.txt").write_text("Pigeons carry the mail.", encoding="utf-8")
    vector = embedder.embed_query("Pigeons carry the mail.")
    assert len(reader.dense(vector, 10)) == 3
    assert run(INGEST, store, folder).returncode == 0
    id_, similarity = reader.dense(vector, 10)[0]
    assert similarity == pytest.approx(1, abs=1e-5)
    assert reader.chunks([id_])[0].metadata["source"] == "new.txt"
    assert reader.lexical("pigeons", 1)[0][0] == id_


def test_a_reader_that_is_behind_still_gets_the_vectors_of_new_chunks(opened, folder, embedder) -> None:
    reader = opened(embedder)
    ingest(folder, opened(embedder))
    ids = [id_ for id_, _ in reader.lexical("leave travel 年假", 10)]
    assert len(ids) == 3
    assert min(reader.similarities(embedder.embed_query("leave travel 年假"), ids)) > 0


def test_a_reader_is_told_when_another_has_rebuilt_with_another_embedder(opened, embedder) -> None:
    reader = opened(embedder)
    opened(WordCountEmbedder("other"), rebuild=True)
    with pytest.raises(EmbedderMismatch):
        reader.dense(embedder.embed_query("leave"), 1)


def test_chunks_of_an_unfinished_document_are_not_returned(knowledge_base, embedder, folder) -> None:
    ingest(folder, knowledge_base)
    vector = embedder.embed_query("word")
    with knowledge_base.writing() as writer:
        from ingest.load import LoadedDocument
        from ingest.prepared import PreparedDocument
        from ingest.split import split

        text = "\n\n".join(["word " * 40] * 20)
        chunks = tuple(split(LoadedDocument("big.txt", text), embedder.offsets, 64))
        writer.add([(PreparedDocument("big.txt", "hash", chunks), index) for index in range(len(chunks))])
        assert len(knowledge_base.dense(vector, 3)) == 3
        assert knowledge_base.count() == (3, 3)
        writer.sweep()
    assert len(knowledge_base.dense(vector, 100)) == 3


@pytest.mark.parametrize("same", [True, False], ids=["same-client", "other-client"])
def test_threads_may_ask_while_one_writes(opened, embedder, folder, same) -> None:
    reader = opened(embedder)
    writer = reader if same else opened(embedder)
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"Number {number} is about leave.", encoding="utf-8")
    failures: list[BaseException] = []
    finished = threading.Event()

    def ask() -> None:
        try:
            while not finished.is_set():
                ids = [id_ for id_, _ in reader.dense(embedder.embed_query("leave"), 5)]
                reader.chunks(ids + [id_ for id_, _ in reader.lexical("leave", 5)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    ingest(folder, writer, IngestOptions(batch_chunks=8))
    finished.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert reader.count() == (43, 43)


def test_chroma_keeps_the_name_the_fingerprint_and_cosine(knowledge_base, embedder) -> None:
    metadata = knowledge_base.ask(lambda collection: collection.metadata)
    assert json.loads(metadata["fingerprint"]) == embedder.fingerprint
    assert metadata["knowledge_base"] == "team"
