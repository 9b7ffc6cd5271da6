"""One small valid file of each format, as its program writes it."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from typing import Any

import docx
import pptx
from msoffcrypto.format.ooxml import OOXMLFile
from openpyxl.comments import Comment
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from tests.ingest.formats import locked, outlook
from tests.ingest.formats.outlook import compound
from tests.ingest.formats.test_mail import message
from tests.ingest.formats.test_opendocument import CHART, package
from tests.ingest.formats.test_opendocument import workbook as open_workbook
from tests.ingest.formats.test_pdf import filled_form, pages
from tests.ingest.formats.test_spreadsheet import drawn_workbook, old_workbook
from tests.ingest.formats.test_web import ARTICLE, MENU, book
from tests.ingest.pdf import pdf

TEXT = "# Leave 年假\n\nEmployees get 25 days. 员工每年有十二天年假。\n\n## Sick\n\n| a | b |\n"
PASSWORD = "pass"


def samples() -> dict[str, bytes]:
    """Name → content; the protected ones open with PASSWORD."""
    texts = {"a.txt": TEXT, "a.md": TEXT, "a.rst": "Leave\n=====\n25 days\n", "a.py": "def f():\n    return 12\n"}
    texts |= {
        "a.csv": "代码,days\nA,25\n",
        "a.tsv": "代码\tdays\nA\t25\n",
        "a.jsonl": '{"a": "年假"}\n{"b": [1, {}]}\n',
    }
    texts |= {"a.json": json.dumps([{"a": {"b": ["年假", 1.5, None]}}]), "a.html": f"<nav>{MENU}</nav>{ARTICLE}"}
    texts |= {"a.xml": '<?xml version="1.0"?><r><i n="1"><a>年假</a></i><p>one <b>two</b></p></r>'}
    texts |= {"a.rtf": r"{\rtf1\ansi\ansicpg1252 Leave \b 25\b0 \u24180? days.\par}", "a.ipynb": _notebook()}
    files = {name: text.encode() for name, text in texts.items()} | _office() | _packed()
    protected = io.BytesIO()
    OOXMLFile(io.BytesIO(files["a.docx"])).encrypt(PASSWORD, protected)
    return files | {
        "utf16.txt": TEXT.encode("utf-16"),
        "gb.txt": TEXT.encode("gb18030"),
        "locked.docx": protected.getvalue(),
        "locked.odt": locked.with_aes(files["a.odt"], PASSWORD),
        "locked.ods": locked.with_argon2(files["a.ods"], PASSWORD),
    }


def _notebook() -> str:
    output = {"output_type": "stream", "text": ["25\n"]}
    cells = [
        {"cell_type": "markdown", "source": ["# Leave\n", "年假"]},
        {"cell_type": "code", "source": "f()", "outputs": [output]},
    ]
    return json.dumps({"cells": cells, "nbformat": 4})


def _office() -> dict[str, bytes]:
    cell = "<table:table-row><table:table-cell><text:p>年假</text:p></table:table-cell></table:table-row>"
    opened = package(f'<text:h text:outline-level="1">Leave</text:h><table:table>{cell}</table:table>')
    slides = package(
        "<draw:page><draw:frame><draw:text-box><text:p>Leave 年假</text:p></draw:text-box></draw:frame></draw:page>"
    )
    chapters = {"a": f"<html><body>{ARTICLE}</body></html>"}
    return {
        "a.docx": _saved(_word()),
        "a.pptx": _saved(_slides()),
        "a.xlsx": _saved(_workbook()),
        "a.xls": old_workbook(),
        "a.odt": opened,
        "a.odp": slides,
        "a.ods": open_workbook(Object=CHART),
        "a.epub": book(chapters, ["a"]),
        "a.pdf": pdf("first page", "", "third page"),
        "form.pdf": filled_form(pages("first page", "")),
    }


def _packed() -> dict[str, bytes]:
    mail = message(Date="Thu, 29 Feb 2024 08:30:00 +0800")
    mail.set_content("Twelve days 十二天.")
    mail.add_alternative("<p>Twelve</p>", subtype="html")
    mail.add_attachment("note 年假", filename="note.txt")
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sub/年假.txt", TEXT)
        archive.writestr("mail.eml", mail.as_bytes())
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        for name in ("a.txt", "b.md"):
            entry = tarfile.TarInfo(name)
            entry.size = len(TEXT.encode())
            archive.addfile(entry, io.BytesIO(TEXT.encode()))
    packed = {"a.eml": mail.as_bytes(), "a.zip": zipped.getvalue(), "a.tar": tarred.getvalue()}
    file = {"__substg1.0_3707001F": "note.txt".encode("utf-16-le"), "__substg1.0_37010102": b"note"}
    packed["a.msg"] = compound(outlook.message({"0037": "年假 policy", "1000": "Twelve days"}, sent=10**17, note=file))
    packed |= {"a.tar.gz": gzip.compress(packed["a.tar"]), "a.txt.xz": lzma.compress(TEXT.encode())}
    return packed | {"a.txt.bz2": bz2.compress(TEXT.encode())}


def _saved(document: Any) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def _word() -> Any:
    word = docx.Document()
    word.sections[0].header.paragraphs[0].text = "Acme 公司"
    word.add_heading("Leave", 1)
    paragraph = word.add_paragraph("25 days 年假")
    word.add_comment(paragraph.runs, text="check", author="Ann", initials="A")
    word.add_table(2, 2).cell(1, 1).text = "cell"
    return word


def _slides() -> Any:
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text, slide.notes_slide.notes_text_frame.text = "Leave 年假", "notes"
    values = CategoryChartData()
    values.categories = ["East", "West"]
    values.add_series("Days", (25, 12))
    place = Inches(1), Inches(1), Inches(4), Inches(3)
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *place, values)
    slide.shapes.add_table(2, 2, *place).table.cell(0, 0).text = "cell"
    return presentation


def _workbook() -> Any:
    workbook = drawn_workbook()
    workbook.active.append(["A", 25.5])
    workbook.active["A1"].comment = Comment("check", "Ann")
    workbook.create_sheet("二").append(["only"])
    return workbook
