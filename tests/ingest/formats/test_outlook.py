from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.ingest.formats.outlook import compound, message
from tests.ingest.formats.test_mail import texts

PEOPLE = {"0037": "年假 policy", "0C1A": "李", "5D01": "li@example.org", "0E04": "All; Ann"}
HEAD = "Subject: 年假 policy\nFrom: 李 <li@example.org>\nTo: All; Ann"
SENT = int((datetime(2024, 2, 29, 0, 30, tzinfo=UTC) - datetime(1601, 1, 1, tzinfo=UTC)).total_seconds()) * 10**7


def test_a_message_is_read_like_any_mail(read: Callable) -> None:
    document = read("a.msg", compound(message(PEOPLE | {"1000": "Twelve days.\r\n十二天。"}, sent=SENT)))
    assert document.text == f"{HEAD}\nDate: Thu, 29 Feb 2024 00:30:00 +0000\n\nTwelve days.\n十二天。"
    assert document.metadata["date"] == "2024-02-29T00:30:00+00:00"
    assert document.metadata["subject"] == "年假 policy"


def test_of_its_alternatives_the_plain_one_is_read_and_else_html(read: Callable) -> None:
    html = {"__substg1.0_10130102": "<p>十二 <b>days</b></p>".encode()}
    assert read("a.msg", compound(message(PEOPLE) | html)).text == f"{HEAD}\n\n十二 **days**"
    assert read("a.msg", compound(message(PEOPLE | {"1000": "plain"}) | html)).text == f"{HEAD}\n\nplain"


def test_a_text_in_rtf_only_is_said_to_be_missing(read: Callable) -> None:
    rich = {"__substg1.0_10090102": b"compressed"}
    assert read("a.msg", compound(message(PEOPLE) | rich)).problems == (
        "the text of this mail is there in RTF only, which is not read: save the mail as .eml",
    )
    assert not read("a.msg", compound(message(PEOPLE | {"1000": "十二天。"}) | rich)).problems


def test_attached_files_and_messages_are_sources_of_their_own(read_all: Callable) -> None:
    file = {"__substg1.0_3707001F": "../规定.txt".encode("utf-16-le"), "__substg1.0_37010102": "规定".encode()}
    inner = message({"0037": "Inner", "1000": "inner text"}, header=24, deep=file)
    mail = {"__substg1.0_3001001F": "Inner".encode("utf-16-le"), "__substg1.0_3701000D": inner}
    found = texts(read_all("a.msg", compound(message(PEOPLE | {"1000": "outer"}, a=file, b=mail))))
    assert found == {
        "a.msg": f"{HEAD}\n\nouter",
        "a.msg/规定.txt": "规定",
        "a.msg/Inner.eml": "Subject: Inner\n\ninner text",
        "a.msg/Inner.eml/规定.txt": "规定",
    }


def test_texts_in_a_code_page_are_read_in_it(read: Callable) -> None:
    narrow = {
        "__substg1.0_0037001E": "年假".encode("gb18030"),
        "__substg1.0_1000001E": "病假为七天。".encode("gb18030"),
    }
    assert read("a.msg", compound(narrow)).text == "Subject: 年假\n\n病假为七天。"


@pytest.mark.parametrize("content", [b"torn", compound(message(PEOPLE))[:700]])
def test_a_broken_message_is_said_to_be_broken(read_all: Callable, content: bytes) -> None:
    assert all("is broken" in reason for reason in texts(read_all("a.msg", content)).values())
