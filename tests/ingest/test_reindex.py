import threading

import pytest

from ingest import reindex as reindex_module
from ingest.knowledge_bases import list_knowledge_bases
from ingest.lock import AlreadyWriting
from ingest.pipeline import ingest
from ingest.reindex import ChunksTooLong, reindex
from ingest.store import EmbedderMismatch
from llm.embeddings import Embedder
from llm.options import EmbedderOptions
from tests.fakes import WordCountEmbedder

OTHER = WordCountEmbedder("other", dimension=64)


@pytest.fixture(autouse=True)
def filled(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    knowledge_base.add_texts(["没有文件的文本"], [{}], ids=["一"])


def everything(knowledge_base) -> dict:
    return {id_: knowledge_base.stored([id_])[id_] for id_ in knowledge_base.journal.ids()}


def test_the_same_chunks_answer_with_the_new_vectors(knowledge_base, opened, store) -> None:
    told = []
    before = everything(knowledge_base)
    assert reindex(store, "team", OTHER, lambda *progress: told.append(progress))
    again = opened(OTHER)
    assert everything(again) == before
    assert again.similarity_search("没有文件的文本", k=1)[0].id == "一"
    assert again.lexical("annual leave", 5)
    assert told == [(4, 4)]
    assert [summary.embedder for summary in list_knowledge_bases(store)] == ["other"]
    assert len(again._client.list_collections()) == 1


def test_the_old_embedder_is_told_also_by_a_reader_that_was_open(knowledge_base, embedder, store, opened) -> None:
    reindex(store, "team", OTHER)
    for _ in range(2):
        with pytest.raises(EmbedderMismatch, match="knowledge-bases reindex team"):
            knowledge_base.dense(embedder.embed_query("leave"), 1)
    with pytest.raises(EmbedderMismatch):
        opened(embedder)


@pytest.mark.parametrize("batch", [2, 3, 1000])
def test_each_text_is_embedded_once_however_many_chunks_have_it(
    knowledge_base, opened, store, folder, monkeypatch, batch
) -> None:
    for number in range(7):
        (folder / f"同{number}.txt").write_text("每个文件都一样。", encoding="utf-8")
        (folder / f"same{number}.txt").write_text("Every file says the same.", encoding="utf-8")
    ingest(folder, knowledge_base)
    monkeypatch.setattr(reindex_module, "BATCH", batch)
    before, other = everything(knowledge_base), WordCountEmbedder("other", dimension=32)
    assert reindex(store, "team", other)
    assert other.embedded == 6
    again = opened(other)
    assert everything(again) == before
    for text in ("每个文件都一样。", "Every file says the same."):
        assert [score for _, score in again.dense(other.embed_query(text), 7)] == pytest.approx([1] * 7, abs=1e-5)


@pytest.mark.model
def test_a_real_model_takes_over_and_hands_back(knowledge_base, opened, store, embedder) -> None:
    before, model = everything(knowledge_base), Embedder(EmbedderOptions(device="cpu"))
    assert reindex(store, "team", model)
    again = opened(model)
    assert everything(again) == before
    assert again.similarity_search("How many days off do I get?", k=1)[0].metadata["source"] == "leave.md"
    for id_, document in before.items():
        assert again.dense(model.embed_documents([document.page_content])[0], 1)[0][0] == id_
    embedder.embedded = 0
    assert reindex(store, "team", embedder)
    assert (everything(opened(embedder)), embedder.embedded) == (before, 4)


def test_with_the_same_embedder_nothing_is_done(embedder, store) -> None:
    embedded = embedder.embedded
    assert not reindex(store, "team", embedder)
    assert embedder.embedded == embedded


def test_an_unchanged_folder_stays_unchanged_and_a_changed_file_is_embedded_anew(opened, store, folder) -> None:
    reindex(store, "team", OTHER)
    again = opened(OTHER)
    assert ingest(folder, again).unchanged == 3
    (folder / "leave.md").write_text("# Leave\n\nThirty days.\n", encoding="utf-8")
    assert ingest(folder, again).changed == ("leave.md",)
    assert again.lexical("thirty", 1)


def test_chunks_that_the_new_embedder_does_not_read_whole_are_refused_with_the_numbers(store, opened, embedder) -> None:
    short = WordCountEmbedder("short", max_tokens=8)
    with pytest.raises(ChunksTooLong) as error:
        reindex(store, "team", short)
    for part in ("2 of the 4 chunks", "8 tokens that short reads", "the longest has 17", "--rebuild"):
        assert part in str(error.value)
    assert short.embedded == 0
    assert opened(embedder).count() == (4, 4)


@pytest.mark.parametrize("step", ["_copy", "make_collection", "drop_others"])
def test_a_killed_run_leaves_one_answer_and_the_next_writer_drops_the_rest(
    knowledge_base, opened, store, embedder, monkeypatch, step
) -> None:
    original, calls = getattr(reindex_module, step), []

    def die(*arguments, **named):
        result = original(*arguments, **named)
        calls.append(step)
        if step != "drop_others" or len(calls) == 2:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(reindex_module, step, die)
        with pytest.raises(KeyboardInterrupt):
            reindex(store, "team", OTHER)
    right = opened(OTHER if step == "drop_others" else embedder)
    assert right.similarity_search("没有文件的文本", k=1)[0].id == "一"
    with right.writing():
        pass
    assert len(right._client.list_collections()) == 1


def test_it_is_refused_while_another_writes(knowledge_base, store) -> None:
    with knowledge_base.writing(), pytest.raises(AlreadyWriting):
        reindex(store, "team", OTHER)


def test_readers_go_on_until_the_swap(knowledge_base, embedder, store, monkeypatch) -> None:
    reading, go = threading.Event(), threading.Event()
    original = reindex_module._copy

    def wait(*arguments) -> None:
        original(*arguments)
        reading.set()
        assert go.wait(60)

    monkeypatch.setattr(reindex_module, "_copy", wait)
    thread = threading.Thread(target=reindex, args=(store, "team", OTHER))
    thread.start()
    assert reading.wait(60)
    assert len(knowledge_base.similarity_search("leave", k=9)) == 4
    go.set()
    thread.join()
    with pytest.raises(EmbedderMismatch):
        knowledge_base.similarity_search("leave", k=9)
