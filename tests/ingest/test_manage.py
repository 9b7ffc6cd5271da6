import json
import os
from pathlib import Path

import pytest

from ingest import manage
from ingest.knowledge_bases import UnknownKnowledgeBase, list_knowledge_bases, make
from ingest.pipeline import ingest
from ingest.settings import IngestSettings
from ingest.store import KnowledgeBase
from rag.__main__ import main as groundwell
from tests.fakes import WordCountEmbedder


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a command in this process; gives its status, its output and its errors."""
    monkeypatch.setattr("llm.embeddings.Embedder", lambda options: WordCountEmbedder(options.model))
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        status = groundwell([*arguments])
        return status, *capsys.readouterr()

    return run_command


@pytest.fixture(autouse=True)
def unchanged_environment(monkeypatch) -> None:
    for name in ("ANONYMIZED_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "False")  # so that what the command sets is put back


@pytest.fixture
def filled(opened, embedder, folder) -> KnowledgeBase:
    knowledge_base = opened(embedder, "default")
    ingest(folder, knowledge_base)
    knowledge_base.add_texts(["添加的文本"], ids=["一"])
    return knowledge_base


def test_documents_are_listed_for_people_and_for_programs(run, filled) -> None:
    status, output, _ = run("documents", "list")
    assert (status, output.splitlines()[1:]) == (
        0,
        ["      1  added://一", "      1  guide.txt", "      1  leave.md", "      1  travel.txt"],
    )
    rows = json.loads(run("documents", "list", "--json")[1])
    assert rows[0] == {"source": "added://一", "chunks": 1, "problems": [], "file": None}
    assert rows[2]["file"] == "leave.md"


def test_a_document_is_shown_with_the_places_of_its_chunks_whatever_the_embedder(run, filled, monkeypatch) -> None:
    monkeypatch.setenv("GROUNDWELL_EMBEDDER__MODEL", "other/model")
    status, output, _ = run("documents", "show", "leave.md")
    assert status == 0
    assert output.startswith("[0–57] · line 1 · Leave\n# Leave\n\nFull-time employees")
    shown = json.loads(run("documents", "show", "guide.txt", "--json")[1])
    assert shown["chunks"][0]["text"] == "员工每年有十二天年假。病假为七天。"
    assert shown["source"] == "guide.txt"


def test_deleted_documents_leave_both_legs_and_come_back_with_their_folder(run, filled, embedder, folder) -> None:
    status, output, _ = run("documents", "delete", "leave.md", "added://一", "none.md")
    assert (status, output) == (1, "deleted: leave.md\ndeleted: added://一\nunknown: none.md\n")
    assert filled.lexical("annual leave", 5) == []
    assert len(filled.dense(embedder.embed_query("annual"), 9)) == 2
    assert ingest(folder, filled).added == ("leave.md",)


def test_equal_files_are_listed_each_and_deleted_on_their_own(run, opened, embedder, folder) -> None:
    knowledge_base = opened(embedder, "default")
    for name in ("甲.txt", "乙.txt"):
        (folder / name).write_text("第一条 同上。\n\n第一条 同上。\n", encoding="utf-8")
    ingest(folder, knowledge_base)
    rows = json.loads(run("documents", "list", "--json")[1])
    assert {row["source"] for row in rows} > {"甲.txt", "乙.txt"}
    assert run("documents", "delete", "甲.txt")[1] == "deleted: 甲.txt\n"
    for found in (knowledge_base.lexical("第一条", 9), knowledge_base.dense(embedder.embed_query("第一条 同上"), 9)):
        sources = [chunk.metadata["source"] for chunk in knowledge_base.chunks([id_ for id_, _ in found])]
        assert (sources[0], "甲.txt" in sources) == ("乙.txt", False)


@pytest.mark.parametrize("command", [["show"], ["delete"]])
def test_an_unknown_document_is_status_2_and_one_sentence(run, filled, command) -> None:
    status, output, errors = run("documents", *command, "none.md")
    assert (status, output) == (2, "")
    assert "no document 'none.md' in knowledge base 'default'" in errors


@pytest.mark.parametrize(
    "command",
    [
        ["documents", "list", "--knowledge-base", "无"],
        ["documents", "show", "a", "--knowledge-base", "无"],
        ["knowledge-bases", "describe", "无"],
        ["knowledge-bases", "delete", "无"],
        ["knowledge-bases", "reindex", "无"],
    ],
)
def test_an_unknown_knowledge_base_is_status_2_and_names_those_there_are(run, filled, command) -> None:
    status, output, errors = run(*command)
    assert (status, output) == (2, "")
    assert "no knowledge base '无' (there are: default)" in errors


def test_knowledge_bases_are_listed_and_described(run, filled, store, embedder) -> None:
    make(store, "知识库 二", embedder)
    assert run("knowledge-bases", "list")[1].splitlines()[1:] == [
        "        4         4  default (word-count)",
        "        0         0  知识库 二 (word-count)",
    ]
    about = json.loads(run("knowledge-bases", "describe", "default", "--json")[1])
    assert (about["documents"], about["chunks"], about["embedder"], about["revision"]) == (4, 4, "word-count", "1")
    assert about["bytes"] > 10_000
    assert about["last_run"][:2] == "20"
    assert "last run: 20" in run("knowledge-bases", "describe", "default")[1]


def test_the_bytes_of_all_knowledge_bases_are_those_on_disk(run, filled, store, embedder, opened, folder) -> None:
    ingest(folder, opened(embedder, "second"))
    described = [json.loads(run("knowledge-bases", "describe", name, "--json")[1]) for name in ("default", "second")]
    on_disk = sum(path.stat().st_size for path in store.rglob("*") if path.is_file() and path.suffix != ".lock")
    assert sum(about["bytes"] for about in described) == pytest.approx(on_disk, rel=0.01)


def test_an_empty_knowledge_base_is_created_once(run, store) -> None:
    assert run("knowledge-bases", "create", "知识库 二", "--json")[0] == 0
    assert [(one.name, one.chunks) for one in list_knowledge_bases(store)] == [("知识库 二", 0)]
    status, _, errors = run("knowledge-bases", "create", "知识库 二")
    assert (status, "there is a knowledge base '知识库 二' already" in errors) == (2, True)
    assert run("documents", "list", "--knowledge-base", "知识库 二")[:2] == (0, "no documents\n")


def test_a_deleted_knowledge_base_leaves_no_file_and_its_readers_are_told(run, filled, store, embedder, opened) -> None:
    filled.close()
    reader = opened(embedder, "default")
    other = opened(embedder, "团队")
    assert run("knowledge-bases", "delete", "default")[:2] == (0, "deleted: default\n")
    assert not list(store.glob("default*"))
    with pytest.raises(UnknownKnowledgeBase, match="团队"):
        reader.dense(embedder.embed_query("leave"), 1)
    assert other.dense(embedder.embed_query("leave"), 1) == []


def test_a_reader_sees_a_knowledge_base_that_was_deleted_and_made_again(
    run, filled, embedder, opened, folder, monkeypatch
) -> None:
    monkeypatch.setattr("ingest.store.REOPEN_SECONDS", 0)
    run("knowledge-bases", "delete", "default")
    again = opened(embedder, "default")
    assert again.count() == (0, 0)
    ingest(folder, again)
    assert len(filled.dense(embedder.embed_query("leave"), 9)) == 3


@pytest.mark.parametrize("step", ["drop_others", "open_chroma"])
def test_a_delete_that_was_killed_half_way_is_finished_by_whoever_makes_it_again(
    filled, store, embedder, opened, monkeypatch, step
) -> None:
    from ingest import knowledge_bases

    with monkeypatch.context() as patch:
        patch.setattr(knowledge_bases, step, lambda *rest, **named: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            knowledge_bases.delete(store, "default")
    assert list_knowledge_bases(store) == []
    again = opened(embedder, "default")
    assert again.count() == (0, 0)
    assert again.ask(lambda collection: collection.count()) == 0
    assert len(again._client.list_collections()) == 1


def test_an_unknown_command_and_help_name_the_exit_statuses(run, capsys) -> None:
    with pytest.raises(SystemExit):
        run("documents", "delete", "--help")
    assert "exit status: 0 done" in capsys.readouterr().out


def test_they_run_without_rag_too(run, filled, capsys) -> None:
    assert manage.main(["knowledge-bases", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "default"
    assert IngestSettings().store.path == Path(os.environ["GROUNDWELL_STORE__PATH"])
