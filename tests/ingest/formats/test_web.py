from collections.abc import Callable
from io import BytesIO
from zipfile import ZipFile

import pytest

MENU = '<ul><li><a href="/">Home</a><li><a href="/p">Products</a><li><a href="/c">Contact us</a></ul>'
ARTICLE = "<h1>Leave</h1><p>员工每年有十二天年假。</p>"


@pytest.mark.parametrize(
    "around",
    [
        f"<nav>{MENU}</nav>",
        f"<div id=side>{MENU}</div>",
        MENU,
        "<div><a href=1>Home</a> | <a href=2>News</a> | <a href=3>About</a></div>",
        "<footer><p>Copyright Home 2024</p></footer>",
        "<div role=navigation>Home</div>",
        "<script>Home()</script><style>Home {}</style><!-- Home --><svg><text>Home</text></svg>",
    ],
)
@pytest.mark.parametrize("page", ["{1}{0}{1}", "<div>{1}</div><main>{0}</main>", "<article>{0}</article>{1}"])
def test_what_is_around_an_article_is_left_out(read: Callable, around: str, page: str) -> None:
    document = read("a.html", f"<html><body>{page.format(ARTICLE, around)}</body></html>")
    assert document.text.strip() == "# Leave\n\n员工每年有十二天年假。"


def test_words_are_mended_in_text_and_left_alone_in_code(read: Callable) -> None:
    page = "<p>Of\ufb01ce ware-\n  house, <b>so</b> soft&shy;\nware</p><pre>ware-\nhouse \ufb01</pre>"
    text = read("a.html", f"<html><body>{page}</body></html>").text
    assert text.strip() == "Office warehouse, **so** software\n\n```\nware-\nhouse \ufb01\n```"


def test_what_is_in_an_article_stays(read: Callable) -> None:
    sources = "<ul><li><a href=1>Leave Act</a><li><a href=2>Travel Act</a><li><a href=3>Pay Act</a></ul>"
    page = f"<main>{ARTICLE}<aside>Note well</aside><form>Apply here</form><footer>By Ann</footer>{sources}</main>"
    text = read("a.html", page).text
    for kept in ("Note well", "Apply here", "By Ann", "Travel Act"):
        assert kept in text


@pytest.mark.parametrize("page", [MENU, f"<nav>{MENU}</nav>", "<footer>Home</footer>"])
def test_a_page_of_nothing_else_keeps_its_menu(read: Callable, page: str) -> None:
    assert "Home" in read("a.html", page).text


def test_an_article_of_links_in_running_text_stays(read: Callable) -> None:
    page = "<p>See <a href=1>the act</a>, <a href=2>the rules</a> and <a href=3>the form</a> before you apply.</p>"
    assert "before you apply" in read("a.html", page + ARTICLE).text


def test_each_row_of_a_table_keeps_its_header(read: Callable) -> None:
    rows = "<tr><th>代码</th><th>Days</th></tr><tr><td><div>A</div></td><td><p>5</td></tr><tr><td>B</td><td></td></tr>"
    text = read("a.html", f"<p>x</p><table><caption>Kinds</caption><tbody>{rows}</table>after").text
    assert text.split("\n\n") == ["x", "Kinds", "代码; Days", "代码: A; Days: 5", "代码: B", "after\n"]


def test_merged_cells_keep_the_others_under_their_header(read: Callable) -> None:
    rows = (
        "<tr><th>Kind<th>代码<th>Days<tr><td rowspan=2>hot<td>E1<td>5<tr><td>E2<td>7"
        "<tr><td colspan=2>all<td>9<tr><td colspan=99999999 rowspan=x>end"
    )
    lines = read("a.html", f"<table>{rows}</table>").text.split("\n\n")
    assert lines[1:] == [
        "Kind: hot; 代码: E1; Days: 5",
        "Kind: hot; 代码: E2; Days: 7",
        "Kind: all; Days: 9",
        "Kind: end\n",
    ]


def test_a_table_of_cells_that_span_everything_does_not_explode(read: Callable) -> None:
    rows = "<tr><td colspan=9999 rowspan=9999>x<td>y" * 2000
    assert read("a.html", f"<table>{rows}</table>").text.count("\n\n") == 1999


def test_a_picture_gives_its_description_only(read: Callable) -> None:
    page = '<p>a<img alt="Chart 图" src="data:image/png;base64,AAAA">b<img src=x.png></p>'
    assert read("a.html", page).text.strip() == "aChart 图b"


@pytest.mark.parametrize("tag", ["div", "b", "blockquote", "table><tr><td", "ul><li"])
@pytest.mark.parametrize("depth", [10, 50, 600])
def test_text_however_deep_is_not_lost(read: Callable, tag: str, depth: int) -> None:
    text = read("a.html", f"{ARTICLE}{f'<{tag}>' * depth}deep 深<p>below</p>").text
    assert "员工每年有十二天年假" in text
    assert "deep 深" in text
    assert "below" in text


def test_a_page_that_is_too_deep_to_be_read_is_said_to_be(failure: Callable) -> None:
    assert "more than 2,048 elements in each other" in failure("a.html", f"{ARTICLE}{'<div>' * 5000}deep")


def test_a_table_that_arranges_the_page_is_no_table(read: Callable) -> None:
    inner = "<h2>年假</h2><ul><li>one</ul><table><tr><th>Code<th>Days<tr><td>A<td>5</table>"
    page = f"<table><tr><td><table><tr><td>{inner}<td>side</table><td>right<tr><td>below<td></table>"
    words = "## 年假 - one Code; Days Code: A; Days: 5 side right below"
    assert " ".join(read("a.html", page).text.split()) == words


def test_a_page_of_many_elements_is_read_in_a_moment(read: Callable) -> None:
    """Quadratic work would take minutes, and the test's limit of time."""
    row = "<div><p>para <a href=1>link</a> more words</p></div>"
    assert read("a.html", row * 50_000).text.count("more words") == 50_000


def test_the_title_is_metadata(read: Callable) -> None:
    page = f"<title>Leave\n policy</title>{ARTICLE}<svg><title>no</title></svg>"
    assert read("a.html", page).metadata == {"title": "Leave policy"}


def book(chapters: dict[str, str], spine: list[str]) -> bytes:
    items = "".join(f'<item id="{name}" href="text/{name}%20x.xhtml"/>' for name in chapters)
    references = "".join(f'<itemref idref="{name}"/>' for name in spine)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
        f"<dc:title>手册</dc:title><dc:creator>Ann</dc:creator></metadata><manifest>{items}</manifest>"
        f"<spine>{references}</spine></package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    )
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("OEBPS/book.opf", package)
        for name, text in chapters.items():
            archive.writestr(f"OEBPS/text/{name} x.xhtml", text)
    return file.getvalue()


def test_a_book_is_read_in_its_reading_order(read: Callable) -> None:
    page = '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title>t</title></head><body>{}</body></html>'
    chapters = {"b": page.format("<h1>第二章</h1><p>two</p>"), "a": page.format("<p>preface</p><h1>One</h1><p>one</p>")}
    document = read("a.epub", book(chapters, ["a", "b"]))
    assert document.text == "preface\n\n# One\n\none\n\n# 第二章\n\ntwo"
    assert [title for _, _, title in document.headings] == ["One", "第二章"]
    assert document.metadata == {"title": "手册", "author": "Ann"}


@pytest.mark.parametrize("content", [b"PK\x03\x04 torn", b"torn"])
def test_a_broken_book_is_said_to_be_broken(failure: Callable, content: bytes) -> None:
    assert failure("a.epub", content).startswith("is broken")
