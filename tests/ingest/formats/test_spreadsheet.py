from collections.abc import Callable
from datetime import date, datetime, time
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import openpyxl
import pytest
import xlwt
from openpyxl.chart import BarChart, Reference
from openpyxl.chart.data_source import StrData, StrVal
from openpyxl.comments import Comment


def saved(workbook: Any) -> bytes:
    file = BytesIO()
    workbook.save(file)
    return file.getvalue()


def test_each_sheet_is_a_place_and_each_row_a_line_with_its_header(read: Callable) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.title = "代码表"
    for row in (["Code", "Meaning", None], ["E1", "too\nhot", True], [], ["E2", 3.0, 12345678.5]):
        workbook.active.append(row)
    workbook.create_sheet("Empty")
    workbook.create_sheet("Other").append(["only"])
    document = read("a.xlsx", saved(workbook))
    assert document.text.split("\n") == [
        "## 代码表",
        "Code; Meaning",
        "Code: E1; Meaning: too hot; TRUE",
        "Code: E2; Meaning: 3; 12345678.5",
        "## Other",
        "only",
    ]
    assert [(name, document.text[start:].split("\n")[0]) for start, name in document.pages] == [
        ("代码表", "## 代码表"),
        ("Other", "## Other"),
    ]
    assert (document.place_kind, document.line_is_unit) == ("sheet", True)


def test_a_title_above_a_table_is_not_its_header(read: Callable) -> None:
    workbook = openpyxl.Workbook()
    for row in (["错误代码 2024"], [], ["Code", "Meaning", "Days"], ["E1", "hot", 5], ["E2"]):
        workbook.active.append(row)
    text = read("a.xlsx", saved(workbook)).text
    assert text.split("\n")[1:] == [
        "错误代码 2024",
        "Code; Meaning; Days",
        "Code: E1; Meaning: hot; Days: 5",
        "Code: E2",
    ]


def test_dates_are_read_as_dates(read: Callable) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append([date(2024, 2, 29), datetime(2024, 2, 29, 8, 30), time(8, 30)])
    text = read("a.xlsx", saved(workbook)).text
    assert text.split("\n")[1].startswith("2024-02-29")
    assert "2024-02-29 08:30:00; 08:30:00" in text


def test_comments_are_read_with_their_cell(read: Callable) -> None:
    workbook = openpyxl.Workbook()
    workbook.active.append(["Code"])
    workbook.create_sheet("二").append(["E1"])
    workbook["二"]["A1"].comment = Comment("Ask 李", "Ann")
    assert read("a.xlsx", saved(workbook)).text == "## Sheet\nCode\n## 二\nE1\nA1: Ask 李"


DRAWING = """<xdr:wsDr xmlns:xdr="http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing"
  xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"
  xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">{}</xdr:wsDr>"""
BOX = "<xdr:sp><xdr:txBody><a:p><a:r><a:t>{}</a:t></a:r><a:r><a:t> box</a:t></a:r></a:p><a:p/></xdr:txBody></xdr:sp>"
TWICE = "<mc:AlternateContent><mc:Choice>{0}</mc:Choice><mc:Fallback>{0}</mc:Fallback></mc:AlternateContent>"


def rewritten(content: bytes, part: str, change: Callable[[str], str]) -> bytes:
    """The package with one of its parts changed."""
    file = BytesIO()
    with ZipFile(BytesIO(content)) as old, ZipFile(file, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, change(text.decode()) if name == part else text)
    return file.getvalue()


def drawn_workbook() -> Any:
    """A sheet with a chart of its cells, and a sheet that is a chart."""
    workbook = openpyxl.Workbook()
    workbook.active.append(["区", "Days"])
    workbook.active.append(["East 东", 3])
    places = workbook.active.add_chart, workbook.create_chartsheet("图表页").add_chart
    for add, title in zip(places, ("销售图表", "年度 second"), strict=True):
        chart = BarChart()
        chart.title, chart.x_axis.title = title, "Month 月"
        chart.add_data(Reference(workbook.active, min_col=2, min_row=1, max_row=2), titles_from_data=True)
        chart.series[0].tx.strRef.strCache = StrData(ptCount=1, pt=[StrVal(idx=0, v="Days")])
        add(chart)
    return workbook


def test_titles_and_labels_of_charts_are_read_with_their_sheet_and_values_in_cells_once(read: Callable) -> None:
    assert read("a.xlsx", saved(drawn_workbook())).text.split("\n") == [
        "## Sheet",
        "区; Days",
        "区: East 东; Days: 3",
        "销售图表",
        "Days",
        "Month 月",
        "## 图表页",
        "年度 second",
        "Days",
        "Month 月",
    ]


def test_values_that_a_chart_brings_from_elsewhere_are_read(read: Callable) -> None:
    values = '<numRef><f>[1]Other!$B$2</f><numCache><pt idx="0"><v>7.5</v></pt></numCache></numRef>'
    labels = "<cat><strLit><pt idx='0'><v>West 西</v></pt></strLit></cat>"

    def change(text: str) -> str:
        return text.replace("<numRef><f>'Sheet'!$B$2</f></numRef>", values).replace("<val>", f"{labels}<val>")

    raw = rewritten(saved(drawn_workbook()), "xl/charts/chart1.xml", change)
    assert "Days\nWest 西; Days: 7.5\nMonth 月" in read("a.xlsx", raw).text


def test_text_boxes_and_shapes_are_read_once(read: Callable) -> None:
    shapes = DRAWING.format(
        BOX.format("文本") + TWICE.format(BOX.format("两次")) + f"<xdr:grpSp>{BOX.format('组')}</xdr:grpSp>"
    )
    raw = rewritten(saved(drawn_workbook()), "xl/drawings/drawing1.xml", lambda _: shapes)
    assert "Days: 3\n文本 box\n两次 box\n组 box\n销售图表\n" in read("a.xlsx", raw).text


def old_workbook() -> bytes:
    workbook = xlwt.Workbook()
    sheet = workbook.add_sheet("代码")
    for at, text in enumerate(["Code", "Days", "年假", 5.5]):
        sheet.write(at // 2, at % 2, text)
    return saved(workbook)


def test_an_old_workbook_is_read_and_so_is_what_else_has_its_suffix(read: Callable) -> None:
    assert read("a.xls", old_workbook()).text == "## 代码\nCode; Days\nCode: 年假; Days: 5.5"
    table = "<table><tr><td>Code</td><td>Days</td></tr><tr><td>年假</td><td>5</td></tr></table>"
    assert "Code: 年假; Days: 5" in read("a.xls", table).text
    workbook = openpyxl.Workbook()
    workbook.active.append(["年假"])
    assert read("a.xls", saved(workbook)).text == "## Sheet\n年假"


def test_an_old_workbook_under_a_new_suffix_is_said_to_be_one(failure: Callable) -> None:
    reason = "is in the format of Office 97 to 2003: save it in today's"
    assert failure("a.xlsx", old_workbook()) == reason
    assert failure("a.docx", old_workbook()) == reason


def test_an_empty_workbook_is_no_text(failure: Callable) -> None:
    assert failure("a.xlsx", saved(openpyxl.Workbook())) == "no text"


def test_a_broken_workbook_is_said_to_be_broken(failure: Callable) -> None:
    assert failure("a.xlsx", b"PK\x03\x04 torn").startswith("is broken")


@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ";"), ("a.csv", ",")])
def test_delimited_text_is_read_in_its_own_way(read: Callable, name: str, separator: str) -> None:
    rows = [["代码", "Meaning"], ["E1", "hot"], ["E2", "cold"]]
    document = read(name, "\n".join(separator.join(row) for row in rows))
    assert document.text == "代码; Meaning\n代码: E1; Meaning: hot\n代码: E2; Meaning: cold"
    assert document.has_lines
    assert document.line_is_unit


def test_a_tab_separated_file_may_hold_commas(read: Callable) -> None:
    assert read("a.tsv", "a,b\tc\n1,5\t2").text == "a,b; c\na,b: 1,5; c: 2"
