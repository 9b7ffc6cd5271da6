import os
import shutil
from pathlib import Path

import pytest
from chromadb.api.client import Client
from chromadb.api.models.Collection import Collection

from ingest.pipeline import EmptyFolder, FolderNotFound, Progress, ingest
from ingest.settings import IngestOptions
from ingest.writer import Writer
from tests.fakes import WordCountEmbedder
from tests.ingest.pdf import pdf


class Killed(BaseException):
    """What a process that dies raises nowhere: no one may answer it."""


def everything(knowledge_base) -> list[tuple[str, str, str]]:
    """Each chunk in the store with its id, whatever the journal says."""
    got = knowledge_base.ask(lambda collection: collection.get(include=["documents", "metadatas"]))
    return sorted(zip(got["ids"], [about["source"] for about in got["metadatas"]], got["documents"], strict=True))


def test_a_second_run_changes_nothing_and_embeds_nothing(knowledge_base, embedder, folder) -> None:
    assert ingest(folder, knowledge_base).added == ("guide.txt", "leave.md", "travel.txt")
    before, embedded = everything(knowledge_base), embedder.embedded
    report = ingest(folder, knowledge_base)
    assert report.summary() == "0 added, 3 unchanged, 0 removed"
    assert (everything(knowledge_base), embedder.embedded) == (before, embedded)


@pytest.mark.parametrize("step", ["add", "commit", "sweep", "_vectors"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_run_killed_at_any_step_is_made_good_by_the_next(opened, embedder, folder, monkeypatch, step, calls) -> None:
    (folder / "long.txt").write_text("\n\n".join(f"Paragraph {n} of a long file." for n in range(40)), encoding="utf-8")
    options = IngestOptions(chunk_tokens=16, batch_chunks=8)
    ingest(folder, opened(embedder, "whole"), options)
    total = embedder.embedded
    embedder.embedded, left = 0, iter(range(calls))
    original = getattr(Writer, step)

    def die(self, *arguments):
        result = original(self, *arguments)
        if next(left, None) == calls - 1:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Writer, step, die)
        if step == "sweep" and calls == 2:
            ingest(folder, opened(embedder), options)
        with pytest.raises(Killed):
            ingest(folder, opened(embedder), options)
    knowledge_base = opened(embedder)
    ingest(folder, knowledge_base, options)
    assert everything(knowledge_base) == everything(opened(embedder, "whole"))
    assert knowledge_base.journal.pending() == []
    assert total <= embedder.embedded <= total + options.batch_chunks


def test_a_changed_file_replaces_its_old_chunks_and_embeds_only_new_text(knowledge_base, embedder, folder) -> None:
    path = folder / "two.txt"
    path.write_text("Old paragraph " + "x " * 60 + "\n\nKept paragraph " + "y " * 60, encoding="utf-8")
    ingest(folder, knowledge_base)
    embedder.embedded = 0
    path.write_text("New paragraph " + "z " * 60 + "\n\nKept paragraph " + "y " * 60, encoding="utf-8")
    assert ingest(folder, knowledge_base).changed == ("two.txt",)
    assert embedder.embedded == 1
    texts = [text for _, source, text in everything(knowledge_base) if source == "two.txt"]
    assert sorted(text.split()[0] for text in texts) == ["Kept", "New"]
    assert knowledge_base.lexical("old", 5) == []


def test_a_deleted_file_is_taken_out(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    (folder / "leave.md").unlink()
    assert ingest(folder, knowledge_base).removed == ("leave.md",)
    assert [document.source for document in knowledge_base.documents()] == ["guide.txt", "travel.txt"]
    assert {source for _, source, _ in everything(knowledge_base)} == {"guide.txt", "travel.txt"}


def test_equal_paragraphs_and_equal_files_all_stay_and_go_on_their_own(knowledge_base, embedder, folder) -> None:
    text = "第一条 同上。\n\n第一条 同上。\n"
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(text, encoding="utf-8")
    ingest(folder, knowledge_base, IngestOptions(chunk_tokens=16))
    embedded = embedder.embedded
    assert [source for _, source, chunk in everything(knowledge_base) if "第一条" in chunk].count("a.txt") == 1
    (folder / "a.txt").unlink()
    ingest(folder, knowledge_base, IngestOptions(chunk_tokens=16))
    assert [chunk for _, source, chunk in everything(knowledge_base) if source == "b.txt"] == [text.strip()]
    assert embedder.embedded == embedded


def test_equal_chunks_of_one_file_are_embedded_once(knowledge_base, embedder, tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text(("第一条 同上，一二三四五六七。\n\n" * 6), encoding="utf-8")
    ingest(tmp_path / "docs", knowledge_base, IngestOptions(chunk_tokens=16))
    assert knowledge_base.count() == (1, 6)
    assert embedder.embedded == 1


@pytest.mark.parametrize("limit", [pytest.param(None, marks=pytest.mark.slow), 166])
def test_more_chunks_than_one_call_may_hold_go_in(opened, tmp_path, monkeypatch, limit) -> None:
    embedder = WordCountEmbedder(dimension=8)
    if limit:
        monkeypatch.setattr(Client, "get_max_batch_size", lambda self: limit)
        sizes = record_sizes(monkeypatch)
    knowledge_base = opened(embedder)
    (tmp_path / "docs").mkdir()
    lines = [f"line {number} of the file that is long enough to be a chunk" for number in range(500 if limit else 5500)]
    (tmp_path / "docs" / "a.txt").write_text("\n\n".join(lines), encoding="utf-8")
    ingest(tmp_path / "docs", knowledge_base, IngestOptions(chunk_tokens=16, batch_chunks=6000))
    assert knowledge_base.count() == (1, len(lines))
    assert knowledge_base.ask(lambda collection: collection.count()) == len(lines)
    assert embedder.embedded == len(lines)
    assert not limit or max(sizes) == limit


def record_sizes(monkeypatch) -> list[int]:
    sizes, upsert = [], Collection.upsert

    def counted(self, ids, **rest):
        sizes.append(len(ids))
        return upsert(self, ids, **rest)

    monkeypatch.setattr(Collection, "upsert", counted)
    return sizes


def test_what_was_embedded_before_a_failed_write_is_not_embedded_again(knowledge_base, embedder, tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    paragraphs = [f"paragraph {number} is one chunk of this file and no more" for number in range(100)]
    (tmp_path / "docs" / "a.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
    options = IngestOptions(chunk_tokens=16, batch_chunks=10)
    limit = iter([None] * 5)

    def stop(progress: Progress) -> None:
        if next(limit, progress):
            raise Killed

    with pytest.raises(Killed):
        ingest(tmp_path / "docs", knowledge_base, options, stop)
    assert embedder.embedded == 60
    ingest(tmp_path / "docs", knowledge_base, options)
    assert embedder.embedded == 100


def test_files_without_text_are_reported_and_the_others_go_in(knowledge_base, folder) -> None:
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.txt").write_text("\n \t\u3000\n", encoding="utf-8")
    (folder / "scan.pdf").write_bytes(pdf("", ""))
    report = ingest(folder, knowledge_base)
    assert len(report.added) == 3
    assert [source for source, _ in report.failed] == ["blank.txt", "empty.txt", "scan.pdf"]
    assert all(reason.startswith("no text") for _, reason in report.failed)
    assert report.exit_status == 1


def test_pages_without_text_are_reported_though_the_file_is_in(knowledge_base, tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "scan.pdf").write_bytes(pdf("Cover page", "", "", "", "", ""))
    report = ingest(tmp_path / "docs", knowledge_base)
    assert (
        report.summary()
        == "1 added, 0 unchanged, 0 removed, 1 incomplete\nincomplete: scan.pdf: pages without text: 2, 3, 4, 5, 6"
    )
    assert knowledge_base.documents()[0].problems == ("pages without text: 2, 3, 4, 5, 6",)
    ((id_, _),) = knowledge_base.lexical("cover", 1)
    assert knowledge_base.chunks([id_])[0].metadata["page"] == 1
    assert "line" not in knowledge_base.chunks([id_])[0].metadata


def test_a_file_that_now_fails_keeps_its_old_version(knowledge_base, folder) -> None:
    (folder / "a.pdf").write_bytes(pdf("Pigeons carry the mail"))
    ingest(folder, knowledge_base)
    (folder / "a.pdf").write_bytes(b"%PDF-1.4 torn")
    report = ingest(folder, knowledge_base)
    assert report.failed[0][0] == "a.pdf"
    assert report.removed == ()
    assert len(knowledge_base.lexical("pigeons", 5)) == 1


def test_an_emptied_or_missing_folder_takes_nothing_out(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(EmptyFolder, match=r"\.docx.*nothing was changed"):
        ingest(folder, knowledge_base)
    shutil.rmtree(folder)
    with pytest.raises(FolderNotFound):
        ingest(folder, knowledge_base)
    assert knowledge_base.count() == (3, 3)


def test_a_folder_that_cannot_be_listed_is_reported_and_its_documents_stay(knowledge_base, folder, monkeypatch) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("In the folder below.", encoding="utf-8")
    ingest(folder, knowledge_base)
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = ingest(folder, knowledge_base)
    assert report.failed == (("sub", "Permission denied"),)
    assert report.removed == ()
    assert knowledge_base.count() == (4, 4)


def test_hidden_files_and_other_formats_are_left_out_and_the_latter_named(knowledge_base, folder) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "a.txt").write_text("hidden", encoding="utf-8")
    (folder / ".hidden.txt").write_text("hidden", encoding="utf-8")
    (folder / "song.mp3").write_bytes(b"")
    report = ingest(folder, knowledge_base)
    assert len(report.added) == 3
    assert report.skipped == ("song.mp3",)
    assert report.summary().endswith("skipped, format not supported: song.mp3")
    assert report.exit_status == 0


def test_links_that_leave_the_folder_are_not_followed(knowledge_base, folder, tmp_path) -> None:
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "outside").symlink_to(tmp_path / "outside")
    (folder / "inside.txt").symlink_to(folder / "travel.txt")
    assert ingest(folder, knowledge_base).added == ("guide.txt", "inside.txt", "leave.md", "travel.txt")
    assert knowledge_base.lexical("secret", 5) == []


def test_progress_ends_with_every_file_done(knowledge_base, folder) -> None:
    (folder / "empty.txt").write_bytes(b"")
    told: list[Progress] = []
    ingest(folder, knowledge_base, IngestOptions(batch_chunks=1), told.append)
    assert [progress.chunks for progress in told] == [1, 2, 3]
    assert (told[-1].files, told[-1].total) == (4, 4)


def test_another_chunk_size_makes_every_file_changed(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    assert len(ingest(folder, knowledge_base, IngestOptions(chunk_tokens=16)).changed) == 3
