from collections.abc import Callable
from io import BytesIO
from typing import Any

import docx
import pytest
from docx.opc.constants import CONTENT_TYPE, RELATIONSHIP_TYPE
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

from ingest.split import split
from tests.fakes import WordCountEmbedder

BOX = (
    "<w:txbxContent><w:p><w:r><w:t>In a box 框</w:t></w:r></w:p><w:tbl><w:tr><w:tc>"
    "<w:p><w:r><w:t>boxed cell</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:txbxContent>"
)
TEXT_BOX = f"""<w:r {nsdecls("w")} xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"
  xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" xmlns:v="urn:schemas-microsoft-com:vml">
  <mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wps:wsp><wps:txbx>{BOX}</wps:txbx></wps:wsp></w:drawing>
  </mc:Choice><mc:Fallback><w:pict><v:textbox>{BOX}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"""
NOTE = '<w:r {}><w:{}Reference w:id="2"/></w:r>'
NOTES = '<w:{0}s {1}><w:{0} w:id="2"><w:p><w:r><w:t>{2}</w:t></w:r></w:p></w:{0}></w:{0}s>'


def saved(word: Any) -> bytes:
    file = BytesIO()
    word.save(file)
    return file.getvalue()


def add_note(word: Any, paragraph: Any, kind: str, text: str) -> None:
    """A note, which python-docx has no call for."""
    content = NOTES.format(kind, nsdecls("w"), text).encode()
    uri, type_ = PackURI(f"/word/{kind}s.xml"), getattr(CONTENT_TYPE, f"WML_{kind.upper()}S")
    word.part.relate_to(Part(uri, type_, content, word.part.package), getattr(RELATIONSHIP_TYPE, f"{kind.upper()}S"))
    paragraph._p.append(parse_xml(NOTE.format(nsdecls("w"), kind)))


def test_notes_and_comments_stand_where_they_are_called(read: Callable) -> None:
    word = docx.Document()
    paragraph = word.add_paragraph("Leave is 25 days")
    add_note(word, paragraph, "footnote", "Part-time staff pro rata.")
    add_note(word, paragraph, "endnote", "尾注")
    word.add_comment(paragraph.runs, text="Check with HR", author="Ann", initials="A")
    text = read("a.docx", saved(word)).text
    assert text == "Leave is 25 days [Part-time staff pro rata.] [尾注] [Ann: Check with HR]"


def test_headers_and_footers_come_once(read: Callable) -> None:
    word = docx.Document()
    for text in ("Section one", "Section two"):
        section = word.sections[-1]
        section.header.is_linked_to_previous = section.footer.is_linked_to_previous = False
        section.header.paragraphs[0].text, section.footer.paragraphs[0].text = "Acme 公司 handbook", "Confidential"
        word.add_paragraph(text)
        word.add_section()
    lines = read("a.docx", saved(word)).text.split("\n\n")
    assert lines == ["Section one", "Section two", "Acme 公司 handbook", "Confidential"]


def test_a_header_does_not_take_the_first_chunk_its_heading(read: Callable) -> None:
    word = docx.Document()
    word.sections[0].header.paragraphs[0].text = "Acme 公司 handbook"
    word.add_heading("Leave", 1)
    word.add_paragraph("Twenty-five days.")
    (chunk,) = split(read("a.docx", saved(word)), WordCountEmbedder().offsets, 60)
    assert chunk.heading == "Leave"
    assert "Acme 公司 handbook" in chunk.text


def test_a_text_box_is_read_once_with_its_table(read: Callable) -> None:
    word = docx.Document()
    word.add_paragraph("Before")._p.append(parse_xml(TEXT_BOX))
    word.add_paragraph("After")
    assert read("a.docx", saved(word)).text.split("\n\n") == ["Before", "In a box 框", "boxed cell", "After"]


CHART = """<c:chartSpace xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"
  xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><c:chart><c:title><c:tx><c:rich><a:p><a:r>
  <a:t>销售图表</a:t></a:r></a:p></c:rich></c:tx></c:title><c:plotArea><c:pieChart><c:ser><c:tx><c:strRef><c:strCache>
  <c:pt idx="0"><c:v>Days</c:v></c:pt></c:strCache></c:strRef></c:tx><c:cat><c:strRef><c:f>Sheet1!$A$2</c:f><c:strCache>
  <c:pt idx="0"><c:v>East 东</c:v></c:pt></c:strCache></c:strRef></c:cat><c:val><c:numRef><c:f>Sheet1!$B$2</c:f>
  <c:numCache><c:pt idx="0"><c:v>3</c:v></c:pt></c:numCache></c:numRef></c:val></c:ser></c:pieChart></c:plotArea>
  </c:chart></c:chartSpace>""".encode()
DIAGRAM = """<dgm:dataModel xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram"
  xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><dgm:ptLst><dgm:pt><dgm:t><a:p><a:r><a:t>步骤 one
  </a:t></a:r></a:p></dgm:t></dgm:pt><dgm:pt><dgm:t><a:p/></dgm:t></dgm:pt></dgm:ptLst></dgm:dataModel>""".encode()


def test_a_chart_and_a_diagram_come_after_the_text(read: Callable) -> None:
    word = docx.Document()
    word.add_paragraph("Text 正文")
    for kind, content in (("chart", CHART), ("diagramData", DIAGRAM)):
        part = Part(PackURI(f"/word/{kind}1.xml"), "application/xml", content, word.part.package)
        word.part.relate_to(part, f"http://schemas.openxmlformats.org/officeDocument/2006/relationships/{kind}")
    assert read("a.docx", saved(word)).text.split("\n\n") == [
        "Text 正文",
        "销售图表\nDays\nEast 东; Days: 3",
        "步骤 one",
    ]


def test_a_row_keeps_its_header_and_a_cell_its_inner_table(read: Callable) -> None:
    word = docx.Document()
    table = word.add_table(3, 2)
    for cell, text in zip(
        (cell for row in table.rows for cell in row.cells), ["代码", "Meaning", "E1", "hot"], strict=False
    ):
        cell.text = text
    table.cell(2, 0).text = "E2"
    table.cell(2, 1).add_table(1, 1).cell(0, 0).text = "inner"
    assert read("a.docx", saved(word)).text == "代码; Meaning\n代码: E1; Meaning: hot\n代码: E2; Meaning: inner"


def test_merged_cells_keep_the_others_under_their_header(read: Callable) -> None:
    word = docx.Document()
    table = word.add_table(3, 3)
    for at, text in enumerate(["Kind", "代码", "Days", "hot", "E1", "5", "", "E2", ""]):
        table.cell(at // 3, at % 3).text = text
    table.cell(1, 0).merge(table.cell(2, 0))
    table.cell(2, 1).merge(table.cell(2, 2))
    lines = read("a.docx", saved(word)).text.split("\n")
    assert lines == ["Kind; 代码; Days", "Kind: hot; 代码: E1; Days: 5", "Kind: hot; 代码: E2"]


def test_inserted_text_is_read_and_deleted_text_is_not(read: Callable) -> None:
    word = docx.Document()
    paragraph = word.add_paragraph("Now ")
    for tag, text in (("ins", "<w:t>in</w:t>"), ("del", "<w:delText>out</w:delText>")):
        paragraph._p.append(parse_xml(f'<w:{tag} {nsdecls("w")} w:id="1"><w:r>{text}</w:r></w:{tag}>'))
    assert read("a.docx", saved(word)).text == "Now in"


def test_headings_have_the_level_of_their_style(read: Callable) -> None:
    word = docx.Document()
    word.add_heading("手册", 0)
    word.add_heading("Leave", 1)
    word.add_heading("Sick\nleave", 2)
    word.add_paragraph("text")
    own = word.styles.add_style("Our clause", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    own.base_style = word.styles["Heading 3"]
    word.add_paragraph("A clause", style="Our clause")
    headings = [(level, title) for _, level, title in read("a.docx", saved(word)).headings]
    assert headings == [(1, "手册"), (1, "Leave"), (2, "Sick leave"), (3, "A clause")]


def test_title_and_author_are_metadata(read: Callable) -> None:
    word = docx.Document()
    word.add_paragraph("text")
    word.core_properties.title, word.core_properties.author = "手册", "Ann"
    assert read("a.docx", saved(word)).metadata == {"title": "手册", "author": "Ann"}


def test_ligatures_are_taken_apart_in_text_and_headings(read: Callable) -> None:
    word = docx.Document()
    word.add_heading("Of\ufb01ce", 1)
    word.add_paragraph("The of\ufb01ce")
    document = read("a.docx", saved(word))
    assert (document.text, document.headings) == ("# Office\n\nThe office", ((0, 1, "Office"),))


def test_rich_text_is_read_with_its_characters(read: Callable) -> None:
    rtf = r"{\rtf1\ansi\ansicpg936{\fonttbl{\f0 Arial;}}\f0 Leave is \b 25\b0  days.\par \u24180?\u20551? Gr\'fc\par}"
    text = read("a.rtf", rtf.replace("936", "1252")).text
    assert "Leave is" in text
    assert "25" in text
    assert "年假 Grü" in text


def test_rows_of_rich_text_keep_their_header(read: Callable) -> None:
    row = r"\trowd\cellx100\cellx200 {} \cell {} \cell\row"
    rtf = r"{\rtf1\ansi before\par " + row.format("Code", "a|b") + row.format("E1", "hot") + r"\pard after}"
    assert read("a.rtf", rtf).text.split("\n\n") == ["before", "Code; a|b\nCode: E1; a|b: hot", "after\n"]


@pytest.mark.parametrize("name", ["a.docx", "a.rtf", "a.odt"])
def test_a_broken_file_is_said_to_be_broken(failure: Callable, name: str) -> None:
    assert failure(name, b"PK\x03\x04 torn").startswith(("is broken", "no text"))
