from collections.abc import Callable
from io import BytesIO
from typing import Any

import pptx
from PIL import Image
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

PLACE = Inches(1), Inches(1), Inches(4), Inches(3)


def saved(presentation: Any) -> bytes:
    file = BytesIO()
    presentation.save(file)
    return file.getvalue()


def test_each_slide_is_a_place_with_its_notes(read: Callable) -> None:
    presentation = pptx.Presentation()
    for title, notes in (("Leave 假期", "Say it slowly"), ("Travel", "备注")):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, "first\nsecond"
        slide.notes_slide.notes_text_frame.text = notes
    document = read("a.pptx", saved(presentation))
    assert document.place_kind == "slide"
    assert [(number, document.text[start:].split("\n")[0]) for start, number in document.pages] == [
        (1, "## Leave 假期"),
        (2, "## Travel"),
    ]
    assert "first\nsecond\n\nSay it slowly" in document.text
    assert document.text.endswith("备注")


def test_a_chart_is_read_with_its_title_its_series_and_its_values(read: Callable) -> None:
    presentation = pptx.Presentation()
    values = CategoryChartData()
    values.categories = ["East", "西"]
    values.add_series("Sales", (19.2, 1234567.25))
    values.add_series("Costs", (3, None))
    shapes = presentation.slides.add_slide(presentation.slide_layouts[6]).shapes
    chart = shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *PLACE, values).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "Quarter"
    assert read("a.pptx", saved(presentation)).text == (
        "Quarter\nSales; Costs\nEast; Sales: 19.2; Costs: 3\n西; Sales: 1234567.25"
    )


def test_tables_and_grouped_shapes_are_read(read: Callable) -> None:
    presentation = pptx.Presentation()
    shapes = presentation.slides.add_slide(presentation.slide_layouts[6]).shapes
    grid = shapes.add_table(2, 2, *PLACE).table
    for at, text in enumerate(["Code", "含义", "E1", "hot"]):
        grid.cell(at // 2, at % 2).text = text
    shapes.add_group_shape().shapes.add_group_shape().shapes.add_textbox(*PLACE).text_frame.text = "deep inside"
    assert read("a.pptx", saved(presentation)).text == "Code; 含义\nCode: E1; 含义: hot\n\ndeep inside"


def test_a_slide_of_a_picture_only_is_a_problem_and_an_empty_one_is_not(read: Callable) -> None:
    presentation = pptx.Presentation()
    presentation.slides.add_slide(presentation.slide_layouts[5]).shapes.title.text = "Words"
    picture = BytesIO()
    Image.new("RGB", (9, 9)).save(picture, "PNG")
    presentation.slides.add_slide(presentation.slide_layouts[6]).shapes.add_picture(picture, *PLACE)
    presentation.slides.add_slide(presentation.slide_layouts[6])
    document = read("a.pptx", saved(presentation))
    assert document.problems == ("slides of pictures without text: 2",)
    assert document.pages == ((0, 1),)
