from collections.abc import Callable
from io import BytesIO

import docx
import openpyxl
import pptx
import pytest
from msoffcrypto.format.ooxml import OOXMLFile


def word() -> BytesIO:
    file, written = BytesIO(), docx.Document()
    written.add_paragraph("secret 年假")
    written.save(file)
    return file


def workbook() -> BytesIO:
    file, written = BytesIO(), openpyxl.Workbook()
    written.active.append(["secret 年假"])
    written.save(file)
    return file


def slides() -> BytesIO:
    file, written = BytesIO(), pptx.Presentation()
    written.slides.add_slide(written.slide_layouts[5]).shapes.title.text = "secret 年假"
    written.save(file)
    return file


@pytest.fixture(params=[("a.docx", word), ("a.xlsx", workbook), ("a.pptx", slides)], ids=lambda param: param[0])
def protected(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    name, make = request.param
    file = BytesIO()
    OOXMLFile(make()).encrypt("pass", file)
    return name, file.getvalue()


def test_an_office_file_is_opened_by_any_of_the_passwords(read: Callable, protected: tuple[str, bytes]) -> None:
    assert "secret 年假" in read(*protected, passwords=("wrong", "pass")).text


def test_without_the_password_it_is_said_to_be_protected(failure: Callable, protected: tuple[str, bytes]) -> None:
    assert failure(*protected) == "is protected by a password: give it with --password"
    assert failure(*protected, passwords=("a", "b")).endswith("none of the 2 given opens it")


def test_a_broken_container_is_said_to_be_one(failure: Callable) -> None:
    assert failure("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)).startswith("is broken")


@pytest.mark.parametrize(("name", "make"), [("a.docx", word), ("a.xlsx", workbook), ("a.pptx", slides)])
def test_an_office_file_that_unpacks_to_too_much_is_refused(failure: Callable, name: str, make: Callable) -> None:
    reason = failure(name, make().getvalue(), max_unpacked_bytes=2000)
    assert reason == "unpacks to more than 0 MB, which is the limit"
