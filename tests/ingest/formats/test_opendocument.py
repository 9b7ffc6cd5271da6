from collections.abc import Callable
from io import BytesIO
from zipfile import ZipFile

import pytest

NAMES = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{long}:1.0"'
    for name, long in {
        "office": "office",
        "text": "text",
        "table": "table",
        "draw": "drawing",
        "style": "style",
        "presentation": "presentation",
    }.items()
)
DC = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'


def package(body: str, styles: str = "", meta: str = "", manifest: str = "") -> bytes:
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        archive.writestr(
            "content.xml",
            f"<office:document-content {NAMES} {DC}><office:body>{body}</office:body></office:document-content>",
        )
        archive.writestr("styles.xml", f"<office:document-styles {NAMES}>{styles}</office:document-styles>")
        archive.writestr("meta.xml", f"<office:document-meta {NAMES} {DC}>{meta}</office:document-meta>")
        if manifest:
            archive.writestr("META-INF/manifest.xml", manifest)
    return file.getvalue()


def test_text_is_read_with_headings_lists_notes_comments_and_boxes(read: Callable) -> None:
    body = (
        "<office:text><text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>"
        '<text:h text:outline-level="2">Leave 假</text:h>'
        '<text:p>25<text:s text:c="2"/>days<text:note><text:note-citation>1</text:note-citation><text:note-body>'
        "<text:p>pro rata</text:p></text:note-body></text:note><office:annotation><dc:creator>Ann</dc:creator>"
        "<dc:date>2024</dc:date><text:p>check</text:p></office:annotation>.</text:p>"
        "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
        "<text:section><text:p>in a section</text:p></text:section>"
        "<text:p><draw:frame><draw:text-box><text:p>in a box</text:p></draw:text-box></draw:frame></text:p>"
        "</office:text>"
    )
    document = read("a.odt", package(body))
    assert document.text == ("## Leave 假\n\n25  days [pro rata] [Ann check].\n\n- one\n\nin a section\n\nin a box")


def test_rows_of_a_table_keep_their_header(read: Callable) -> None:
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    rows = "".join(
        f"<table:table-row>{''.join(map(cell.format, row))}</table:table-row>" for row in (["代码", "Days"], ["A", "5"])
    )
    assert read("a.odt", package(f"<table:table>{rows}</table:table>")).text == "代码; Days\n代码: A; Days: 5"


def test_headers_and_footers_come_once_and_title_and_author_are_metadata(read: Callable) -> None:
    margins = (
        "<style:header><text:p>Acme 公司</text:p></style:header><style:footer><text:p>Page</text:p></style:footer>"
    )
    pages = "".join(f'<style:master-page style:name="{n}">{margins}</style:master-page>' for n in "12")
    meta = "<dc:title>手册</dc:title><dc:creator>Ann</dc:creator>"
    document = read("a.odt", package("<text:p>text</text:p>", pages, meta))
    assert document.text == "Acme 公司\n\ntext\n\nPage"
    assert document.metadata == {"title": "手册", "author": "Ann"}


def test_each_slide_is_a_place_with_its_notes(read: Callable) -> None:
    page = (
        "<draw:page><draw:frame><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
        "<presentation:notes><draw:frame><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
        "</presentation:notes></draw:page>"
    )
    document = read("a.odp", package(page.format("Leave", "say 慢") + page.format("Travel", "")))
    assert document.text == "Leave\n\nsay 慢\n\nTravel"
    assert (document.place_kind, document.pages) == ("slide", ((0, 1), (14, 2)))


def test_an_encrypted_one_is_said_to_be(failure: Callable) -> None:
    assert "protected by a password" in failure("a.odt", package("x", manifest="<x><encryption-data/></x>"))


@pytest.mark.parametrize("name", ["a.odt", "a.odp", "a.ods"])
def test_a_broken_one_is_said_to_be(failure: Callable, name: str) -> None:
    assert failure(name, b"PK\x03\x04 torn").startswith("is broken")
