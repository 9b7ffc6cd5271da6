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
