from collections.abc import Callable
from io import BytesIO

import pypdf
import pytest

from ingest.formats.pdf import mended
from tests.ingest.pdf import pdf, pdf_of_lines


def protected(password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=pypdf.PdfReader(BytesIO(pdf("secret page"))))
    writer.add_metadata({"/Title": "手册", "/Author": "Ann"})
    writer.encrypt(password)
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def test_a_protected_file_is_opened_by_any_of_the_passwords(read: Callable) -> None:
    document = read("a.pdf", protected("pass"), passwords=("wrong", "pass"))
    assert document.text == "secret page"
    assert document.metadata == {"title": "手册", "author": "Ann"}


@pytest.mark.parametrize(
    ("passwords", "reason"),
    [
        ((), "is protected by a password: give it with --password"),
        (("a", "b"), "is protected by a password, and none of the 2 given opens it"),
    ],
)
def test_without_the_password_it_is_said_to_be_protected(failure: Callable, passwords, reason: str) -> None:
    assert failure("a.pdf", protected("pass"), passwords=passwords) == reason


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("ofﬁce ﬂow eﬀect", "office flow effect"),
        ("hyphen-\nated line", "hyphenated line"),
        ("hyphen\u2010\nated", "hyphenated"),
        ("soft\u00ad\nware", "software"),
        ("COVID-\n19", "COVID-\n19"),
        ("hyphen\x02ated, sev\x02\r\neral, COVID\x0219, Bus\x02Ticket", "hyphenated, several, COVID-19, Bus-Ticket"),
        ("Bus-\nTicket", "Bus-\nTicket"),
        ("年假-\n十二天", "年假-\n十二天"),
        ("１２ ½ ㎡", "１２ ½ ㎡"),
    ],
)
def test_words_are_mended_and_other_characters_are_left_alone(written: str, text: str) -> None:
    assert mended(written) == text


def test_headings_are_found_by_their_size(read: Callable) -> None:
    sentence = "Employees of the company get twenty-five days of leave in every year."
    lines = [(780, 20, "Leave"), *((750 - 14 * at, 10, sentence) for at in range(9))]
    lines += [(600, 20, "Travel"), *((570 - 14 * at, 10, sentence) for at in range(9))]
    document = read("a.pdf", pdf_of_lines(lines))
    assert [title for _, _, title in document.headings] == ["Leave", "Travel"]
