from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import docx
import pytest

from ingest.load import FORMATS, FailedSource, LoadedDocument, UnreadableFile, load, load_all
from tests.ingest.pdf import pdf


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[str, bytes | str], LoadedDocument]:
    def load_one(name: str, content: bytes | str) -> LoadedDocument:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path, name)

    return load_one


def titles(document: LoadedDocument) -> list[str]:
    """Each heading, read back from its offset in the text."""
    for start, level, title in document.headings:
        assert document.text[start:].startswith(f"{'#' * level} {title}")
    return [title for _, _, title in document.headings]


def test_markdown_headings_are_found_and_those_in_code_are_not(loaded) -> None:
    document = loaded("a.md", "# One\n\ntext\n```sh\n# a comment\n```\n## Two ##\n#hashtag\n")
    assert titles(document) == ["One", "Two"]


def test_html_gives_its_text_and_headings_without_its_head(loaded) -> None:
    page = (
        '<head><title>T</title><meta name="author" content="x"></head><h1>年假 &amp; a_b</h1><script>x()</script><p>1*2'
    )
    document = loaded("a.html", page)
    assert document.text.strip() == "# 年假 & a_b\n\n1*2"
    assert titles(document) == ["年假 & a_b"]


def test_html_is_decoded_as_it_declares(loaded) -> None:
    document = loaded("a.html", '<meta charset="gb2312"><p>年假十二天</p>'.encode("gb18030"))
    assert document.text.strip() == "年假十二天"


def test_docx_gives_its_text_headings_and_tables(loaded) -> None:
    file, written = BytesIO(), docx.Document()
    written.add_heading("Main_part", 1)
    written.add_paragraph("中文内容 a_b * c #d")
    written.add_table(1, 2).cell(0, 0).text = "cell"
    written.save(file)
    document = loaded("a.docx", file.getvalue())
    assert titles(document) == ["Main_part"]
    assert "中文内容 a_b * c #d" in document.text
    assert "cell" in document.text


def test_pdf_pages_are_recorded_and_empty_ones_reported(loaded) -> None:
    document = loaded("a.pdf", pdf("first page", "", "third page", ""))
    assert [(document.text[start:].split("\n")[0], number) for start, number in document.pages] == [
        ("first page", 1),
        ("third page", 3),
    ]
    assert document.problems == ("pages without text: 2, 4",)


def test_a_pdf_of_images_only_is_no_text(loaded) -> None:
    with pytest.raises(match=r"no text \(pages without text: 1, 2\)"):
        loaded("scan.pdf", pdf("", ""))


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.csv", "a.html"])
@pytest.mark.parametrize("content", ["\n", "\n \t\u3000\n"])
def test_a_file_without_text_is_said_to_have_none(loaded, name: str, content: str) -> None:
    with pytest.raises(UnreadableFile, match="no text"):
        loaded(name, content)


@pytest.mark.parametrize("name", ["a.pdf", "a.docx"])
def test_a_broken_file_is_unreadable_with_a_plain_reason(loaded, name: str) -> None:
    with pytest.raises(UnreadableFile, match="is broken or not what its suffix says"):
        loaded(name, b"%PDF-1.4 or not")


def test_a_missing_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="No such file"):
        load(tmp_path / "gone.txt", "gone.txt")


def test_each_row_of_a_table_stands_alone_on_its_own_line(loaded) -> None:
    document = loaded("a.csv", 'code;meaning;\nE1;"too; hot";now\n\nE2;;\n')
    assert document.text == "code; meaning\ncode: E1; meaning: too; hot; now\n\ncode: E2"
    assert document.line_is_unit


def test_only_a_format_whose_text_is_the_file_has_lines(tmp_path: Path) -> None:
    for name, has_lines in (("a.md", True), ("a.txt", True), ("a.csv", True), ("a.html", False)):
        (tmp_path / name).write_text("<p>one</p>\n\ntwo,three\n", encoding="utf-8")
        assert load(tmp_path / name, name).has_lines is has_lines


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_without_a_byte_is_said_to_be_empty_whatever_its_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"")
    assert list(load_all(path, "a")) == [FailedSource("a", "is empty")]
