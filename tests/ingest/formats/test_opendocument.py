from collections.abc import Callable
from io import BytesIO
from zipfile import ZipFile

import pytest

from tests.ingest.formats import locked

NAMES = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{long}:1.0"'
    for name, long in {
        "office": "office",
        "text": "text",
        "table": "table",
        "draw": "drawing",
        "style": "style",
        "presentation": "presentation",
        "chart": "chart",
        "svg": "svg-compatible",
        "meta": "meta",
    }.items()
)
DC = 'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xlink="http://www.w3.org/1999/xlink"'


KIND = "application/vnd.oasis.opendocument."


def package(
    body: str, styles: str = "", meta: str = "", manifest: str = "", *, kind: str = "text", **objects: str
) -> bytes:
    """An OpenDocument file; `objects` are the bodies of those embedded in it."""
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        archive.writestr("mimetype", KIND + kind)
        archive.writestr(
            "content.xml",
            f"<office:document-content {NAMES} {DC}><office:body>{body}</office:body></office:document-content>",
        )
        archive.writestr("styles.xml", f"<office:document-styles {NAMES}>{styles}</office:document-styles>")
        archive.writestr("meta.xml", f"<office:document-meta {NAMES} {DC}>{meta}</office:document-meta>")
        archive.writestr("META-INF/manifest.xml", manifest or "<manifest/>")
        for name, content in objects.items():
            content = f"<office:document-content {NAMES}><office:body>{content}</office:body></office:document-content>"
            archive.writestr(f"{name}/content.xml", content)
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
    assert document.text == "text\n\nAcme 公司\n\nPage"
    assert document.metadata == {"title": "手册", "author": "Ann"}


@pytest.mark.parametrize("kind", ["odt", "odp"])
def test_all_but_the_content_may_be_missing(read: Callable, kind: str) -> None:
    file = BytesIO()
    body = {
        "odt": "<text:p>年假</text:p>",
        "odp": "<draw:page><draw:frame><draw:text-box><text:p>年假</text:p></draw:text-box></draw:frame></draw:page>",
    }[kind]
    with ZipFile(file, "w") as archive:
        archive.writestr(
            "content.xml",
            f"<office:document-content {NAMES} {DC}><office:body>{body}</office:body></office:document-content>",
        )
    assert "年假" in read(f"a.{kind}", file.getvalue()).text


def test_each_slide_is_a_place_with_its_notes(read: Callable) -> None:
    page = (
        "<draw:page><draw:frame><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
        "<presentation:notes><draw:frame><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>"
        "</presentation:notes></draw:page>"
    )
    document = read("a.odp", package(page.format("Leave", "say 慢") + page.format("Travel", "")))
    assert document.text == "Leave\n\nsay 慢\n\nTravel"
    assert (document.place_kind, document.pages) == ("slide", ((0, 1), (14, 2)))


CHART = (
    "<office:chart><chart:chart><chart:title><text:p>销售图表</text:p></chart:title><chart:plot-area><chart:axis>"
    "<chart:title><text:p>Month 月</text:p></chart:title></chart:axis></chart:plot-area><table:table><table:table-row>"
    "<table:table-cell/><table:table-cell><text:p>Days</text:p></table:table-cell></table:table-row><table:table-row>"
    "<table:table-cell><text:p>East 东</text:p></table:table-cell><table:table-cell><text:p>3</text:p>"
    "</table:table-cell></table:table-row></table:table></chart:chart></office:chart>"
)
DRAWN_CHART = '<draw:frame><draw:object xlink:href="./Object"><text:p/></draw:object><draw:image/></draw:frame>'
SHAPE = "<draw:custom-shape><text:p>形状 one</text:p><text:p>two</text:p></draw:custom-shape>"


def test_what_is_drawn_in_a_paragraph_comes_after_it_and_keeps_its_words_apart(read: Callable) -> None:
    box = "<draw:frame><draw:text-box><text:p>框 in a box</text:p><text:p>second</text:p></draw:text-box></draw:frame>"
    picture = "<draw:frame><draw:image/><svg:desc>a map 地图</svg:desc></draw:frame>"
    body = (
        f"<office:text><text:p>Before{box}{SHAPE} after</text:p><text:p>{DRAWN_CHART}{picture}</text:p></office:text>"
    )
    assert read("a.odt", package(body, Object=CHART)).text.split("\n\n") == [
        "Before after",
        "框 in a box",
        "second",
        "形状 one",
        "two",
        "销售图表\nMonth 月\nDays\nEast 东; Days: 3",
        "a map 地图",
    ]


def test_comments_on_headings_lists_cells_and_slides_are_read_with_their_author(read: Callable) -> None:
    comment = (
        "<office:annotation><dc:creator>李</dc:creator><meta:creator-initials>L</meta:creator-initials>"
        "<text:p>批注</text:p><text:p>check</text:p></office:annotation>"
    )
    body = (
        f"<office:text><text:h>Leave{comment}</text:h><text:list><text:list-item><text:p>one{comment}</text:p>"
        f"</text:list-item></text:list><table:table><table:table-row><table:table-cell><text:p>cell{comment}</text:p>"
        "</table:table-cell></table:table-row></table:table></office:text>"
    )
    assert read("a.odt", package(body)).text == (
        "# Leave [李 批注 check]\n\n- one [李 批注 check]\n\ncell [李 批注 check]"
    )
    slide = f"<draw:page>{comment}</draw:page>"
    assert read("a.odp", package(slide, kind="presentation")).text == "[李 批注 check]"


def workbook(**objects: str) -> bytes:
    """Two rows, many empty ones and a comment below them; a shape and a chart."""
    cell = '<table:table-cell office:value-type="string">{}<text:p>{}</text:p></table:table-cell>'
    note = "<office:annotation><dc:date>2024</dc:date><text:p>批注</text:p><text:p>check</text:p></office:annotation>"
    empty, wide = '<table:table-cell table:number-columns-repeated="{}"/>', "<table:table-row {}>{}</table:table-row>"
    rows = wide.format("", cell.format("", "区") + cell.format(note, "Days"))
    rows += wide.format('table:number-rows-repeated="8"', empty.format(2))
    rows += wide.format("", empty.format(27) + f"<table:table-cell>{note}</table:table-cell>")
    shapes = f"<table:shapes>{SHAPE}{DRAWN_CHART}</table:shapes>"
    sheet = f'<table:table table:name="表一">{shapes}{rows}</table:table>'
    meta = "<dc:title>手册</dc:title>"
    return package(f"<office:spreadsheet>{sheet}</office:spreadsheet>", meta=meta, kind="spreadsheet", **objects)


def test_comments_shapes_and_charts_of_a_workbook_are_read_with_their_sheet(read: Callable) -> None:
    document = read("a.ods", workbook(Object=CHART))
    assert document.text.split("\n") == [
        "## 表一",
        "区; Days",
        "B1: 批注 check",
        "AB10: 批注 check",
        "形状 one",
        "two",
        "销售图表",
        "Month 月",
    ]
    assert (document.pages, document.metadata) == (((0, "表一"),), {"title": "手册"})


def test_a_slide_of_a_picture_only_is_a_problem_and_an_empty_one_is_not(read: Callable, failure: Callable) -> None:
    drawn = '<draw:frame><draw:image xlink:href="Pictures"/></draw:frame>'  # whatever its content
    pages = f"<draw:page><text:p>字</text:p></draw:page><draw:page>{drawn}</draw:page><draw:page/>"
    raw = package(pages.replace("Pictures", "Object/content.xml"), kind="presentation", Object="")
    assert read("a.odp", raw).problems == ("slides of pictures without text: 2",)
    raw = package(f"<text:p>{drawn}</text:p>".replace("Pictures", "Object/content.xml"), Object="")
    assert failure("a.odt", raw) == "no text (pictures without text: 1)"


ENCRYPTIONS = [locked.with_aes, locked.with_blowfish, locked.with_argon2]
SECRET = package("<office:text><text:p>secret 年假</text:p></office:text>")
SLIDE = package("<draw:page><text:p>secret 年假</text:p></draw:page>", kind="presentation")


@pytest.mark.parametrize("encrypt", ENCRYPTIONS)
@pytest.mark.parametrize(("name", "content"), [("a.odt", SECRET), ("a.odp", SLIDE), ("a.ods", workbook())])
def test_an_encrypted_one_is_opened_by_any_of_the_passwords(read, failure, encrypt, name: str, content: bytes) -> None:
    raw = encrypt(content, "密码")
    assert read(name, raw, passwords=("wrong", "密码")).text == read(name, content).text
    assert failure(name, raw) == "is protected by a password: give it with --password"
    assert failure(name, raw, passwords=("a", "b")) == ("is protected by a password, and none of the 2 given opens it")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (
            "<x><encryption-data/></x>",
            "is protected by a password, and what it says of its encryption is damaged",
        ),
        (
            "<x><keyinfo/><encryption-data/></x>",
            "is encrypted with OpenPGP keys, which we do not open: save it without",
        ),
    ],
)
@pytest.mark.parametrize("name", ["a.odt", "a.ods"])
def test_an_encryption_that_is_not_known_is_said_to_be_one(failure, name: str, manifest: str, reason: str) -> None:
    assert failure(name, package("x", manifest=manifest), passwords=("pass",)) == reason


def test_an_encryption_that_asks_for_too_much_work_is_refused(failure: Callable) -> None:
    raw = heavier(locked.with_aes(SECRET, "pass"))
    assert failure("a.odt", raw, passwords=("pass",)).endswith("what it says of its encryption is damaged")


def heavier(raw: bytes) -> bytes:
    """The same with more rounds of key derivation than any program asks for."""
    file = BytesIO()
    with ZipFile(BytesIO(raw)) as old, ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b'iteration-count="1000"', b'iteration-count="99999999"'))
    return file.getvalue()


@pytest.mark.parametrize("name", ["a.odt", "a.odp", "a.ods"])
def test_a_broken_one_is_said_to_be(failure: Callable, name: str) -> None:
    assert failure(name, b"PK\x03\x04 torn").startswith("is broken")
