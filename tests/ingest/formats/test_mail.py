from collections.abc import Callable
from email.message import EmailMessage

import pytest

from ingest.document import LoadedDocument
from tests.ingest.pdf import pdf


def message(**headers: str) -> EmailMessage:
    mail = EmailMessage()
    for name, value in (
        {"Subject": "年假 policy", "From": "李 <li@example.org>", "To": "all@example.org"} | headers
    ).items():
        mail[name] = value
    return mail


def texts(items: dict) -> dict[str, str]:
    return {source: item.text if isinstance(item, LoadedDocument) else item.reason for source, item in items.items()}


HEAD = "Subject: 年假 policy\nFrom: 李 <li@example.org>\nTo: all@example.org"


def test_a_mail_begins_with_its_subject_and_people(read: Callable) -> None:
    mail = message(Date="Thu, 29 Feb 2024 08:30:00 +0800")
    mail.set_content("Twelve days.\n\n十二天。\n")
    document = read("a.eml", mail.as_bytes())
    assert document.text == f"{HEAD}\nDate: Thu, 29 Feb 2024 08:30:00 +0800\n\nTwelve days.\n\n十二天。"
    assert document.metadata == {
        "subject": "年假 policy",
        "from": "李 <li@example.org>",
        "to": "all@example.org",
        "date": "2024-02-29T00:30:00+00:00",
    }


def test_of_alternatives_the_plain_one_is_read_once(read: Callable) -> None:
    mail = message()
    mail.set_content("Twelve days.")
    mail.add_alternative("<p>Twelve <b>days</b>.</p>", subtype="html")
    assert read("a.eml", mail.as_bytes()).text == f"{HEAD}\n\nTwelve days."


def test_an_empty_plain_part_gives_way_to_html(read: Callable) -> None:
    mail = message()
    mail.set_content(" \n")
    mail.add_alternative("<html><head><style>x{}</style></head><p>十二 <b>days</b>.</p>", subtype="html")
    mail.get_payload()[1].add_related(b"\x89PNG", "image", "png", cid="<logo>")
    assert read("a.eml", mail.as_bytes()).text == f"{HEAD}\n\n十二 **days**."


def test_attachments_and_attached_mails_are_sources_of_their_own(read_all: Callable) -> None:
    inner = message(Subject="Inner")
    inner.set_content("inner text")
    inner.add_attachment(b"deep", "text", "plain", filename="deep.txt")
    mail = message()
    mail.set_content("outer text")
    mail.add_attachment(pdf("page"), "application", "pdf", filename="../规定.pdf")
    mail.add_attachment("note", filename="note.txt")
    mail.add_attachment(inner)
    found = texts(read_all("a.eml", mail.as_bytes()))
    assert found.pop("a.eml") == f"{HEAD}\n\nouter text"
    assert found.pop("a.eml/规定.pdf") == "page"
    assert found.pop("a.eml/note.txt").strip() == "note"
    (mail_name,) = (source for source in found if source.endswith(".eml"))
    assert "inner text" in found.pop(mail_name)
    assert found == {f"{mail_name}/deep.txt": "deep"}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("../outside.txt", "outside.txt"),
        ("..\\x.txt", "x.txt"),
        ("/etc/x.txt", "etc/x.txt"),
        ("a/../../b.txt", "a/b.txt"),
        ("C:\\x.txt", "x.txt"),
        ("../../年假.txt", "年假.txt"),
    ],
)
def test_no_name_of_an_attachment_leaves_the_mail(read_all: Callable, name: str, path: str) -> None:
    mail = message()
    mail.set_content("text")
    mail.add_attachment("note", filename=name)
    assert list(read_all("a.eml", mail.as_bytes())) == ["a.eml", f"a.eml/{path}"]


def test_mails_in_mails_are_read_to_the_limit(read_all: Callable) -> None:
    mail = message(Subject="0")
    mail.set_content("text")
    for level in (1, 2):
        outer = message(Subject=str(level))
        outer.set_content("text")
        outer.add_attachment(mail)
        mail = outer
    found = texts(read_all("a.eml", mail.as_bytes(), max_depth=1))
    assert [source.count("/") for source in found] == [0, 1, 2]
    assert list(found.values())[-1] == "lies 2 archives or mails deep, and is not read: unpack it"


@pytest.mark.parametrize("declared", ["gb2312", "x-unknown", "utf-8", None])
def test_a_body_in_a_wrong_or_missing_charset_is_read_in_its_own(read: Callable, declared: str | None) -> None:
    kind = f'Content-Type: text/plain; charset="{declared}"\n' if declared else ""
    raw = f"Subject: x\n{kind}Content-Transfer-Encoding: 8bit\n\n".encode() + "员工每年有十二天年假，“引号”。".encode(
        "gb18030"
    )
    assert read("a.eml", raw).text == "Subject: x\n\n员工每年有十二天年假，“引号”。"


@pytest.mark.parametrize(
    "subject",
    [
        b"=?gb2312?B?xOq82Q==?=",
        b"=?utf-8?Q?=E5=B9=B4=E5=81=87?=",
        b"=?utf-8?B?5bm0?=\n =?utf-8?B?5YGH?=",
        "年假".encode(),
        "年假".encode("gb18030"),
    ],
)
def test_a_subject_is_read_however_it_is_written(read: Callable, subject: bytes) -> None:
    assert read("a.eml", b"Subject: " + subject + b"\n\ntext").metadata["subject"] == "年假"


@pytest.mark.parametrize(
    "raw",
    [
        b"Subject: =?x?B?!!!?=\nContent-Type: multipart/mixed\n\nno boundary",
        b"Subject: a\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\ntorn",
        b'Date: never\nContent-Type: text/plain; charset="\n\ntext',
        b"Subject: a\nContent-Transfer-Encoding: base64\n\n!!!!",
        b"Subject: a\nContent-Type: message/rfc822\n\nSubject: in\n\ntext",
    ],
)
def test_a_malformed_mail_is_read_as_far_as_it_goes(read_all: Callable, raw: bytes) -> None:
    assert any(isinstance(item, LoadedDocument) for item in read_all("a.eml", raw).values())
