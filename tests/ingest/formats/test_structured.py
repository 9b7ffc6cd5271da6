import json
from collections.abc import Callable

import pytest


def test_a_json_list_is_a_line_for_each_record(read: Callable) -> None:
    records = [{"代码": "E1", "box": {"w": 1}, "tags": ["a", "b"], "none": None}, {"代码": "E2", "ok": True, "n": 1.5}]
    document = read("a.json", json.dumps(records))
    assert document.text == "代码: E1; box.w: 1; tags: a, b\n代码: E2; ok: true; n: 1.5"
    assert document.line_is_unit


def test_other_json_is_a_line_for_each_value_with_its_path(read: Callable) -> None:
    document = read(
        "a.json", '{"leave": {"days": 25, "who": [{"name": "李"}, {"name": "Ann"}]}, "note": "two\\nlines"}'
    )
    assert document.text == "leave.days: 25\nleave.who.1.name: 李\nleave.who.2.name: Ann\nnote: two lines"


def test_half_a_character_in_json_is_mended(read: Callable) -> None:
    assert read("a.json", '["\\ud83d\\ude00 \\ud800 年假"]').text == "😀 \ufffd 年假"


@pytest.mark.parametrize("content", ["{torn", "[" * 100_000, '{"a": ' * 100_000, "9" * 5000])
def test_what_is_not_json_is_said_to_be_none(failure: Callable, content: str) -> None:
    assert failure("a.json", content).startswith("is not JSON")


def test_a_json_line_is_a_record_and_a_broken_one_stays_as_text(read: Callable) -> None:
    document = read("a.jsonl", '{"a": "年假"}\n\nnot json 4\n{"b": 2}\n')
    assert document.text == "a: 年假\n\nnot json 4\nb: 2\n"
    assert document.problems == ("lines that are not JSON, taken as text: 3",)
    assert document.has_lines


def test_xml_records_are_lines_and_its_paragraphs_are_not_labelled(read: Callable) -> None:
    long = "A long paragraph about leave. " * 10
    xml = (
        '<?xml version="1.0"?><r xmlns="urn:x"><!-- no --><item id="7"><code>E1</code><meaning>太热 &amp; hot</meaning>'
        f"<p>{long}</p></item><mixed>one <b>bold</b> word</mixed><empty/></r>"
    )
    assert read("a.xml", xml).text.split("\n\n") == [
        "item: id: 7; code: E1; meaning: 太热 & hot",
        long.strip(),
        "mixed: one bold word",
    ]


def test_xml_is_read_in_the_encoding_it_declares_or_in_the_one_it_has(read: Callable) -> None:
    declared = '<?xml version="1.0" encoding="GB2312"?><a>员工每年有十二天年假</a>'
    assert read("a.xml", declared.encode("gb18030")).text == "a: 员工每年有十二天年假"
    undeclared = '<?xml version="1.0"?><a>员工每年有十二天年假</a>'
    assert read("a.xml", undeclared.encode("gb18030")).text == "a: 员工每年有十二天年假"


def test_xml_reads_no_other_file_and_does_not_explode(failure: Callable, tmp_path) -> None:
    (tmp_path / "x").mkdir()
    secret = tmp_path / "x" / "secret"
    secret.write_text("secret", encoding="utf-8")
    reading = f'<!DOCTYPE a [<!ENTITY e SYSTEM "file://{secret}">]><a>&e;</a>'
    exploding = '<!DOCTYPE a [<!ENTITY e0 "ha">' + "".join(
        f'<!ENTITY e{level} "{f"&e{level - 1};" * 50}">' for level in range(1, 9)
    )
    secret.unlink()
    secret.parent.rmdir()
    for content in (reading, exploding + "]><a>&e8;</a>"):
        assert failure("a.xml", content).startswith("is not well-formed XML")


@pytest.mark.parametrize("content", ["<a><b></a>", "no markup", "<a>" * 100_000])
def test_what_is_not_xml_is_said_to_be_none(failure: Callable, content: str) -> None:
    assert failure("a.xml", content).startswith("is not well-formed XML")


def test_a_notebook_is_read_cell_by_cell_with_what_it_printed(read: Callable) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# 年假\n", "text\n", "## Sub"]},
        {
            "cell_type": "code",
            "source": "print(1)",
            "outputs": [
                {"output_type": "stream", "text": ["1\n", "2\n"]},
                {"output_type": "display_data", "data": {"image/png": "iVBOR", "text/plain": "<Figure>"}},
                {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["\x1b[0;31m"]},
            ],
        },
        {"cell_type": "code", "source": [], "outputs": []},
    ]
    document = read("a.ipynb", json.dumps({"cells": cells, "nbformat": 4}))
    assert document.text == "# 年假\n\ntext\n\n## Sub\n\nprint(1)\n\n1\n2\n\n<Figure>\n\nValueError: no"
    assert [(number, document.text[start:][:4]) for start, number in document.pages] == [(1, "# 年假"), (2, "prin")]
    assert document.place_kind == "cell"


@pytest.mark.parametrize("content", ["{}", "[]", "[1]", "{torn", '{"cells": 5}', '{"cells": ["x"]}'])
def test_what_is_no_notebook_is_said_to_be_none(failure: Callable, content: str) -> None:
    assert "is no Jupyter notebook" in failure("a.ipynb", content)
