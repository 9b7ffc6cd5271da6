from collections.abc import Callable
from io import BytesIO
from typing import Any

import pypdf
import pytest
from pypdf.annotations import FreeText, Highlight, Link, Popup, Text
from pypdf.generic import ArrayObject, DictionaryObject, FloatObject, NameObject, TextStringObject

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


PLACE = (50, 450, 200, 550)


def written(writer: pypdf.PdfWriter) -> bytes:
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def pages(*texts: str) -> pypdf.PdfWriter:
    return pypdf.PdfWriter(clone_from=pypdf.PdfReader(BytesIO(pdf(*texts))))


def test_notes_on_a_page_are_read_with_it_and_do_not_make_a_scan_a_page_of_text(read: Callable) -> None:
    writer = pages("first page", "")
    note = writer.add_annotation(0, Text(rect=PLACE, text="便签：年假十二天"))
    writer.add_annotation(0, Popup(rect=PLACE, parent=note))
    writer.add_annotation(0, Link(rect=PLACE, url="https://example.org/"))
    marked = Highlight(rect=PLACE, quad_points=ArrayObject(map(FloatObject, [*PLACE, *PLACE])))
    marked[NameObject("/Contents")] = TextStringObject("高亮批注")
    writer.add_annotation(0, marked)
    writer.add_annotation(1, FreeText(text="自由文本 free", rect=PLACE))
    document = read("a.pdf", written(writer))
    assert document.text == "first page\n\n便签：年假十二天\n\n高亮批注\n\n自由文本 free"
    assert (document.pages, document.problems) == (((0, 1), (28, 2)), ("pages without text: 2",))


def named(**entries: Any) -> DictionaryObject:
    return DictionaryObject({NameObject(f"/{name}"): value for name, value in entries.items()})


def form(writer: pypdf.PdfWriter, *fields: tuple[int, DictionaryObject], **more: Any) -> bytes:
    """The fields on their pages, in a form."""
    written_fields = ArrayObject()
    for number, field in fields:
        field[NameObject("/Subtype")] = NameObject("/Widget")
        field[NameObject("/Rect")] = ArrayObject(map(FloatObject, PLACE))
        written_fields.append(writer._add_object(field))
        annotations = writer.pages[number].setdefault(NameObject("/Annots"), ArrayObject())
        annotations.append(written_fields[-1])
    writer._root_object[NameObject("/AcroForm")] = named(Fields=written_fields, **more)
    return written(writer)


def filled_form(writer: pypdf.PdfWriter) -> bytes:
    """Text, a choice of two, boxes that are ticked and not, a field with a long name of its own, an empty one."""
    text, button = NameObject("/Tx"), NameObject("/Btn")
    parent = writer._add_object(named(FT=text, T=TextStringObject("person 人"), V=TextStringObject("李雷\n与 韩梅梅")))
    several = ArrayObject([TextStringObject("苏州"), TextStringObject("上海")])
    return form(
        writer,
        (0, named(T=TextStringObject("name"), Parent=parent)),
        (0, named(FT=button, T=TextStringObject("agree"), V=NameObject("/Yes"))),
        (0, named(FT=button, T=TextStringObject("refuse"), V=NameObject("/Off"))),
        (1, named(FT=NameObject("/Ch"), T=TextStringObject("x7"), TU=TextStringObject("City 城市"), V=several)),
        (1, named(FT=text, T=TextStringObject("empty"), V=TextStringObject(""))),
    )


FILLED = "first\n\nperson 人.name: 李雷 与 韩梅梅\nagree: Yes\n\nthird\n\nCity 城市: 苏州, 上海"


def test_what_is_filled_into_a_form_is_read_with_its_page(read: Callable) -> None:
    document = read("a.pdf", filled_form(pages("first", "third")))
    assert (document.text, document.problems) == (FILLED, ())


def test_a_protected_form_is_read_with_its_password(read: Callable) -> None:
    writer = pages("first", "third")
    filled_form(writer)
    writer.encrypt("pass", algorithm="AES-256")
    assert read("a.pdf", written(writer), passwords=("wrong", "pass")).text == FILLED


def test_a_form_that_is_not_read_is_named(read: Callable) -> None:
    dynamic = form(pages("first"), XFA=TextStringObject("<xdp/>"))
    assert read("a.pdf", dynamic).problems == (
        "a form in XFA, of which only what stands on its pages is read: print it to a new PDF",
    )
    writer = pages("first")
    form(writer, (0, named(T=TextStringObject("name"))))
    writer.pages[0][NameObject("/Annots")] = TextStringObject("no list")
    broken = read("a.pdf", written(writer))
    assert (broken.text, broken.problems) == ("first", ("form fields cannot be read (AttributeError)",))
