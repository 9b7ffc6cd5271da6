import os
import shutil
import zipfile
from pathlib import Path

import openpyxl
import pytest
from chromadb.api.client import Client
from chromadb.api.models.Collection import Collection
from chromadb.errors import InternalError

from ingest import pipeline
from ingest.listing import EmptyFolder, FolderNotFound
from ingest.lock import AlreadyWriting
from ingest.report import Progress, Report
from ingest.settings import IngestOptions
from ingest.writer import Writer
from tests.fakes import WordCountEmbedder
from tests.ingest.pdf import pdf


class Killed(BaseException):
    """What a process that dies raises nowhere: no one may answer it."""


def ingest(folder, knowledge_base, progress=None, **options) -> Report:
    """An ingest that reads files in this process."""
    return pipeline.ingest(folder, knowledge_base, IngestOptions(**{"workers": 0} | options), progress)


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


def answers(knowledge_base, embedder) -> list[list[str]]:
    """What both legs find for questions in both languages, best first."""
    questions = ["How many days of annual leave?", "病假有几天？", "Who approves travel?"]
    legs = [
        leg
        for one in questions
        for leg in (knowledge_base.dense(embedder.embed_query(one), 9), knowledge_base.lexical(one, 9))
    ]
    return [[id_ for id_, _ in leg] for leg in legs]


def test_a_run_interrupted_half_way_leaves_counts_and_answers_as_after_the_first(opened, embedder, folder) -> None:
    knowledge_base = opened(embedder)
    ingest(folder, knowledge_base)
    before = everything(knowledge_base), answers(knowledge_base, embedder), knowledge_base.count()

    def interrupt(progress: Progress) -> None:
        if progress.chunks:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):  # with texts to write, so that there is a half of it
            ingest(folder, knowledge_base, interrupt, batch_chunks=1, metadata={"run": 2})
        assert knowledge_base.count() == before[2]
    ingest(folder, knowledge_base)
    assert (everything(knowledge_base), answers(knowledge_base, embedder), knowledge_base.count()) == before
    assert ingest(folder, knowledge_base).summary() == "0 added, 3 unchanged, 0 removed"
    assert embedder.embedded == 3


def test_a_batch_is_found_by_its_words_as_soon_as_it_is_written(opened, embedder, folder) -> None:
    reader, found = opened(embedder), []
    for number in range(9):
        (folder / f"{number}.txt").write_text(f"Number {number} is about pigeons.", encoding="utf-8")

    def look(progress) -> None:
        found.append((progress.chunks, len(reader.lexical("pigeons leave travel 年假", 50))))

    ingest(folder, opened(embedder), look, batch_chunks=4)
    assert [chunks for chunks, _ in found][-1] == 12
    assert len(found) > 3
    assert all(chunks == hits for chunks, hits in found)


@pytest.mark.parametrize("step", ["embed", "add", "commit", "finish", "publish", "sweep"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_run_killed_at_any_step_is_made_good_by_the_next(opened, embedder, folder, monkeypatch, step, calls) -> None:
    (folder / "long.txt").write_text("\n\n".join(f"Paragraph {n} of a long file." for n in range(40)), encoding="utf-8")
    zipped(folder / "档案.zip", 甲="第一份文件", 乙="第二份文件")
    options = {"chunk_tokens": 16, "batch_chunks": 8}
    ingest(folder, opened(embedder, "whole"), **options)
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
            ingest(folder, opened(embedder), **options)
        with pytest.raises(Killed):
            ingest(folder, opened(embedder), **options)
    knowledge_base = opened(embedder)
    ingest(folder, knowledge_base, **options)
    assert everything(knowledge_base) == everything(opened(embedder, "whole"))
    assert knowledge_base.journal.pending() == []
    assert total <= embedder.embedded <= total + options["batch_chunks"]


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
    ingest(folder, knowledge_base, chunk_tokens=16)
    embedded = embedder.embedded
    assert [source for _, source, chunk in everything(knowledge_base) if "第一条" in chunk].count("a.txt") == 1
    (folder / "a.txt").unlink()
    ingest(folder, knowledge_base, chunk_tokens=16)
    assert [chunk for _, source, chunk in everything(knowledge_base) if source == "b.txt"] == [text.strip()]
    assert embedder.embedded == embedded


def test_equal_chunks_of_one_file_are_embedded_once(knowledge_base, embedder, tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text(("第一条 同上，一二三四五六七。\n\n" * 6), encoding="utf-8")
    ingest(tmp_path / "docs", knowledge_base, chunk_tokens=16)
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
    lines = [f"line {number} of the file that is long enough to be a chunk" for number in range(6000)]
    (tmp_path / "docs" / "a.txt").write_text("\n\n".join(lines), encoding="utf-8")
    ingest(tmp_path / "docs", knowledge_base, chunk_tokens=16, batch_chunks=7000)
    assert knowledge_base.count() == (1, len(lines))
    assert knowledge_base.ask(lambda collection: collection.count()) == len(lines)
    assert embedder.embedded == len(lines)
    assert not limit or max(sizes) == limit


def test_when_one_call_of_several_fails_no_text_that_is_written_is_embedded_again(
    opened, tmp_path, monkeypatch
) -> None:
    embedder, limit = WordCountEmbedder(dimension=8), 16
    monkeypatch.setattr(Client, "get_max_batch_size", lambda self: limit)
    knowledge_base, calls, upsert = opened(embedder), iter(range(9)), Collection.upsert
    (tmp_path / "docs").mkdir()
    lines = [f"line {number} of the file that is long enough to be a chunk" for number in range(200)]
    (tmp_path / "docs" / "a.txt").write_text("\n\n".join(lines), encoding="utf-8")

    def fail(self, ids, **rest):
        if next(calls, None) == 7:
            raise InternalError("database is locked")
        return upsert(self, ids, **rest)

    monkeypatch.setattr(Collection, "upsert", fail)
    with pytest.raises(InternalError):
        ingest(tmp_path / "docs", knowledge_base, chunk_tokens=16)
    assert embedder.embedded == 200
    ingest(tmp_path / "docs", knowledge_base, chunk_tokens=16)
    assert embedder.embedded == 400 - 7 * limit
    assert len(everything(knowledge_base)) == 200


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
    options = {"chunk_tokens": 16, "batch_chunks": 10}

    def stop(progress: Progress) -> None:
        if progress.chunks == 30:
            raise Killed

    with pytest.raises(Killed):
        ingest(tmp_path / "docs", knowledge_base, stop, **options)
    assert embedder.embedded == 35  # 6 batches of 5 are written, and the next is embedded
    ingest(tmp_path / "docs", knowledge_base, **options)
    assert embedder.embedded == 105  # those 5 alone are embedded again


def test_files_without_text_are_reported_and_the_others_go_in(knowledge_base, folder) -> None:
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.txt").write_text("\n \t\u3000\n", encoding="utf-8")
    (folder / "scan.pdf").write_bytes(pdf("", ""))
    openpyxl.Workbook().save(folder / "table.xlsx")
    report = ingest(folder, knowledge_base)
    assert len(report.added) == 3
    assert [source for source, _ in report.failed] == ["blank.txt", "empty.txt", "scan.pdf", "table.xlsx"]
    assert dict(report.failed).pop("empty.txt") == "is empty"
    assert all(reason.startswith("no text") for source, reason in report.failed if source != "empty.txt")
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
    with pytest.raises(EmptyFolder, match="nothing was changed"):
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


def test_progress_ends_with_every_file_done(knowledge_base, folder) -> None:
    (folder / "empty.txt").write_bytes(b"")
    told: list[Progress] = []
    ingest(folder, knowledge_base, told.append, batch_chunks=1)
    assert list(dict.fromkeys(progress.chunks for progress in told)) == [0, 1, 2, 3]
    assert told[0] == Progress(0, total=4, chunks=0)
    assert told[-1] == Progress(4, total=4, chunks=3, read=4, found=3, embedded=3)
    assert told[-1].share == 1


def test_progress_is_told_while_files_are_read_and_a_batch_is_embedded(knowledge_base, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ingest.embedder.EMBEDDED_AT_ONCE", 2)
    (tmp_path / "docs").mkdir()
    for number in range(5):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"第{number}份文件", encoding="utf-8")
    told: list[Progress] = []
    ingest(tmp_path / "docs", knowledge_base, told.append)
    before = [progress for progress in told if not progress.chunks]
    assert list(dict.fromkeys(progress.read for progress in before)) == [0, 1, 2, 3, 4, 5]
    assert list(dict.fromkeys(progress.embedded for progress in before)) == [0, 2, 4, 5]


def test_another_chunk_size_makes_every_file_changed(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    assert len(ingest(folder, knowledge_base, chunk_tokens=16).changed) == 3


def zipped(path: Path, **texts: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(f"{name}.txt", text)


def sources(knowledge_base) -> list[str]:
    return [document.source for document in knowledge_base.documents()]


def test_a_member_of_an_archive_comes_and_goes_on_its_own(knowledge_base, embedder, folder) -> None:
    zipped(folder / "档案.zip", 甲="第一份文件", 乙="第二份文件", 丙="第三份文件")
    assert ingest(folder, knowledge_base, include=["*.zip"]).added == tuple(
        f"档案.zip/{name}.txt" for name in sorted("甲乙丙")
    )
    embedder.embedded = 0
    zipped(folder / "档案.zip", 甲="第一份文件", 乙="第二份改过的文件", 丁="第四份文件")
    report = ingest(folder, knowledge_base, include=["*.zip"])
    assert (report.added, report.changed) == (("档案.zip/丁.txt",), ("档案.zip/乙.txt",))
    assert (report.unchanged, report.removed) == (1, ("档案.zip/丙.txt",))
    assert embedder.embedded == 2
    assert ingest(folder, knowledge_base, include=["*.zip"]).unchanged == 3
    assert {source for _, source, _ in everything(knowledge_base)} == {f"档案.zip/{name}.txt" for name in "甲乙丁"}


def test_an_archive_that_now_fails_keeps_its_documents_and_goes_as_a_whole(knowledge_base, folder) -> None:
    zipped(folder / "a.zip", one="The first.", two="The second.")
    ingest(folder, knowledge_base)
    (folder / "a.zip").write_bytes(b"PK torn")
    report = ingest(folder, knowledge_base)
    assert [source for source, _ in report.failed] == ["a.zip"]
    assert report.removed == ()
    assert {"a.zip/one.txt", "a.zip/two.txt"} < set(sources(knowledge_base))
    (folder / "a.zip").unlink()
    assert ingest(folder, knowledge_base).removed == ("a.zip/one.txt", "a.zip/two.txt")


def test_a_member_that_fails_keeps_its_old_version_and_is_tried_again(knowledge_base, folder) -> None:
    for torn in (False, True):
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            archive.writestr("one.pdf", b"%PDF-1.4 torn" if torn else pdf("Pigeons carry the mail"))
            archive.writestr("two.txt", f"The second, torn: {torn}.")
        report = ingest(folder, knowledge_base)
    assert (report.changed, [source for source, _ in report.failed]) == (("a.zip/two.txt",), ["a.zip/one.pdf"])
    assert len(knowledge_base.lexical("pigeons", 5)) == 1
    assert [source for source, _ in ingest(folder, knowledge_base).failed] == ["a.zip/one.pdf"]


def test_an_archive_in_place_of_a_folder_of_its_name_keeps_each_source_once(knowledge_base, folder) -> None:
    (folder / "a.zip").mkdir()
    (folder / "a.zip" / "one.txt").write_text("The first.", encoding="utf-8")
    ingest(folder, knowledge_base)
    shutil.rmtree(folder / "a.zip")
    zipped(folder / "a.zip", one="The first.")
    report = ingest(folder, knowledge_base)
    assert (report.changed, report.removed) == (("a.zip/one.txt",), ())
    assert [text for _, source, text in everything(knowledge_base) if source == "a.zip/one.txt"] == ["The first."]
    assert ingest(folder, knowledge_base).unchanged == 4


def test_a_file_changed_back_after_a_killed_update_is_read_again(knowledge_base, folder, monkeypatch) -> None:
    zipped(folder / "a.zip", one="First version.", two="First version.")
    ingest(folder, knowledge_base)
    zipped(folder / "a.zip", one="Second version.", two="Second version.")
    commit = Writer.commit

    def die(self, document):
        commit(self, document)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "commit", die)
        with pytest.raises(Killed):
            ingest(folder, knowledge_base)
    zipped(folder / "a.zip", one="First version.", two="First version.")
    assert "Second version." in [text for _, _, text in everything(knowledge_base)]
    ingest(folder, knowledge_base)
    assert not [text for _, _, text in everything(knowledge_base) if "Second" in text]


def test_worker_processes_make_the_same_knowledge_base(opened, embedder, folder) -> None:
    zipped(folder / "档案.zip", 甲="第一份文件", 乙="第二份文件")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 torn")
    report = ingest(folder, opened(embedder, "here"))
    assert ingest(folder, opened(embedder, "workers"), workers=2) == report
    assert everything(opened(embedder, "here")) == everything(opened(embedder, "workers"))


def test_a_text_is_embedded_once_though_its_first_batch_is_still_being_written(opened, embedder, folder) -> None:
    for number in range(6):
        (folder / f"copy{number}.txt").write_text("Every copy says the same.", encoding="utf-8")
    ingest(folder, opened(embedder), batch_chunks=1)
    assert embedder.embedded == 4


def test_metadata_goes_into_every_chunk_and_other_metadata_makes_every_file_changed(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    report = ingest(folder, knowledge_base, metadata={"团队": "销售", "year": 2026, "draft": False})
    assert len(report.changed) == 3
    got = knowledge_base.ask(lambda collection: collection.get(include=["metadatas"]))
    assert all((about["团队"], about["year"], about["draft"]) == ("销售", 2026, False) for about in got["metadatas"])


def test_metadata_may_not_stand_for_a_chunks_place() -> None:
    with pytest.raises(ValueError, match="page, source: kept for Groundwell and Chroma themselves"):
        IngestOptions(metadata={"source": "x", "page": 1, "team": "sales"})


@pytest.mark.parametrize("name", ["chroma:document", "chroma:uri", "$and", "#x", "groundwell:document"])
def test_metadata_may_not_have_a_name_that_chroma_or_groundwell_keeps(name: str) -> None:
    with pytest.raises(ValueError, match="kept for Groundwell and Chroma themselves"):
        IngestOptions(metadata={name: "x"})


def test_a_password_reads_nothing_anew(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    assert ingest(folder, knowledge_base, passwords=["geheim"]).unchanged == 3
    assert len(ingest(folder, knowledge_base, ocr=True).changed) == 0


def test_a_file_saved_anew_with_the_same_text_is_left_as_it_is(knowledge_base, embedder, folder) -> None:
    ingest(folder, knowledge_base)
    before, embedded = everything(knowledge_base), embedder.embedded
    path = folder / "guide.txt"
    path.write_bytes(path.read_bytes().decode().replace("\n", "\r\n").encode("utf-16"))
    assert ingest(folder, knowledge_base).unchanged == 3
    assert (everything(knowledge_base), embedder.embedded) == (before, embedded)


def test_what_was_excluded_goes_and_what_is_incomplete_is_named_again(knowledge_base, folder) -> None:
    (folder / "scan.pdf").write_bytes(pdf("Cover page", ""))
    ingest(folder, knowledge_base)
    report = ingest(folder, knowledge_base, exclude=["*.md"])
    assert report.removed == ("leave.md",)
    assert [source for source, _ in report.problems] == ["scan.pdf"]


def test_a_second_writer_is_refused_and_told_who_writes(opened, embedder, folder) -> None:
    knowledge_base = opened(embedder)
    with knowledge_base.writing(), pytest.raises(AlreadyWriting, match=rf"process {os.getpid()} \("):
        ingest(folder, opened(embedder))


def test_a_rehearsal_tells_what_would_be_done_and_does_nothing(knowledge_base, embedder, folder) -> None:
    assert pipeline.rehearse(folder, None, IngestOptions()).added == ("guide.txt", "leave.md", "travel.txt")
    ingest(folder, knowledge_base)
    before = everything(knowledge_base), embedder.embedded
    (folder / "leave.md").write_text("Changed.", encoding="utf-8")
    (folder / "新.txt").write_text("新的文件", encoding="utf-8")
    (folder / "travel.txt").unlink()
    report = pipeline.rehearse(folder, knowledge_base, IngestOptions())
    assert report.summary() == (
        "would be 1 added, 1 changed, 1 unchanged, 1 removed\nadded: 新.txt\nchanged: leave.md\nremoved: travel.txt"
    )
    assert (everything(knowledge_base), embedder.embedded) == before
    assert ingest(folder, knowledge_base).changed == report.changed
