import pytest

from ingest.knowledge_bases import UnknownKnowledgeBase
from ingest.pipeline import ingest
from ingest.settings import IngestOptions, StoreOptions
from ingest.store import EmbedderMismatch, KnowledgeBase
from rag.library import EmptyKnowledgeBase, Library
from tests.fakes import WordCountEmbedder


@pytest.fixture
def library(tmp_path, embedder):
    KnowledgeBase.open(tmp_path / "store", "team", embedder, create=True).close()
    library = Library(StoreOptions(path=tmp_path / "store"), embedder, k=2)
    yield library
    library.close()


def fill(library: Library, folder, name: str = "team") -> None:
    folder.mkdir()
    (folder / "a.txt").write_text("The canteen opens at noon.\n", encoding="utf-8")
    knowledge_base = KnowledgeBase.open(library._store.path, name, WordCountEmbedder(), create=True)
    ingest(folder, knowledge_base, IngestOptions(workers=0))
    knowledge_base.close()


def test_an_unknown_knowledge_base_is_refused_with_those_there_are(library) -> None:
    with pytest.raises(UnknownKnowledgeBase, match=r"'nobody' \(there are: team\)"):
        library.retriever("nobody")


def test_an_empty_one_is_refused_with_the_command_that_fills_it(library) -> None:
    with pytest.raises(EmptyKnowledgeBase, match=r"'team' is empty: run `groundwell ingest FOLDER`"):
        library.retriever("team")


def test_one_that_was_filled_after_it_was_opened_answers(library, tmp_path) -> None:
    with pytest.raises(EmptyKnowledgeBase):
        library.retriever("team")
    fill(library, tmp_path / "documents")
    retriever = library.retriever("team")
    assert retriever.k == 2
    assert [document.metadata["source"] for document in retriever.invoke("canteen")] == ["a.txt"]


def test_a_knowledge_base_is_opened_once(library, tmp_path) -> None:
    fill(library, tmp_path / "documents")
    assert library.retriever("team").knowledge_base is library.retriever("team").knowledge_base


def test_one_made_with_another_embedder_is_refused(library) -> None:
    other = Library(library._store, WordCountEmbedder("another"), k=2)
    with pytest.raises(EmbedderMismatch, match=r"word-count .*another"):
        other.retriever("team")


def test_all_are_listed_by_name(library, tmp_path) -> None:
    fill(library, tmp_path / "documents", "annex")
    assert [(summary.name, summary.documents) for summary in library.list()] == [("annex", 1), ("team", 0)]
