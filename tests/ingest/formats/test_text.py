from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

from ingest.load import is_supported

RST = """\
========
 手册
========

Leave
=====
Annual
------
25 days.

====  ====
Code  Days
====  ====

Travel
======
text
----
"""


WRITTEN = (
    "The of\ufb01ce has a ware-\nhouse, is soft\u00ad\nware.\n\nDampf-\nschiff-\nfahrt.\nCOVID-\n19, ein-\nund aus\n"
)
MENDED = "The office has a warehouse,\nis software.\n\n\nDampfschifffahrt.\n\n\nCOVID-\n19, ein-\nund aus\n"


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.rst"])
def test_ligatures_and_hyphens_at_lines_ends_are_mended_and_lines_stay_the_files_lines(
    read: Callable, name: str
) -> None:
    document = read(name, WRITTEN)
    assert document.text == MENDED
    assert document.text.count("\n") == WRITTEN.count("\n")
    where = [WRITTEN.split("\n").index(line) for line in ("COVID-", "19, ein-")]
    assert [document.text.split("\n").index(line) for line in ("COVID-", "19, ein-")] == where


@pytest.mark.parametrize("name", ["a.py", "Makefile", "a.csv", "a.json", "a.tex"])
def test_what_is_no_running_text_stays_as_it_is_written(read: Callable, name: str) -> None:
    code = '["\ufb01 ware-\\nhouse"]' if name == "a.json" else "x = '\ufb01'\ny = ware-\nhouse\n"
    assert "\ufb01" in read(name, code).text
    assert "ware-" in read(name, code).text


def test_code_in_markdown_stays_as_it_is_written(read: Callable) -> None:
    code = "```\n# no heading\nx = ware-\nhouse \ufb01\n```\n"
    document = read("a.md", f"# Of\ufb01ce\n\nware-\nhouse\n{code}ware-\nhouse\n\n## B\n")
    assert document.text == f"# Office\n\nwarehouse\n\n{code}warehouse\n\n\n## B\n"
    assert [(document.text[start:][:3], title) for start, _, title in document.headings] == [
        ("# O", "Office"),
        ("## ", "B"),
    ]


def test_restructured_text_has_the_levels_of_its_underlines(read: Callable) -> None:
    document = read("a.rst", RST)
    assert [(level, title) for _, level, title in document.headings] == [
        (1, "手册"),
        (2, "Leave"),
        (3, "Annual"),
        (2, "Travel"),
        (3, "text"),
    ]
    assert [document.text[start:].strip()[:2] for start, _, _ in document.headings] == ["手册", "Le", "An", "Tr", "te"]


@pytest.mark.parametrize("name", ["a.py", "A.CPP", "Makefile", "deploy/Dockerfile", "a.yaml"])
def test_source_code_is_read_as_it_is(read: Callable, name: str) -> None:
    assert is_supported(PurePosixPath(name))
    name = PurePosixPath(name).name
    document = read(name, "def 年假():\n    return 12  # days\n")
    assert document.text == "def 年假():\n    return 12  # days\n"
    assert document.has_lines


@pytest.mark.parametrize("name", ["a", "a.exe", "a.mp3", "a.gz.exe", ".txt", "~$a.docx"])
def test_what_is_not_supported_is_said_so(read_all: Callable, name: str) -> None:
    assert not is_supported(PurePosixPath(name))
    (item,) = read_all(name, b"x").values()
    assert item.skipped
