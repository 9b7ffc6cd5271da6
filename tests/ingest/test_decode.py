from contextlib import suppress
from encodings.aliases import aliases

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.decode import UndecodableText, clean, decode

CHINESE, WESTERN = "员工每年有十二天年假，“病假”七天。", "Größe 5 µm © 2024"
SENTENCES = {
    "gb18030": [
        "年假",
        "病假为七天",
        "中文“引号”",
        "员工每年有十二天年假。",
        "error E-12: 温度 too high",
        "公司规定：员工每年有十二天年假，病假为七天。加班须经批准，费用在月底前报销，逾期不予受理。",
    ],
    "big5": [
        "病假為七天",
        "員工每年有十二天年假。",
        "error E-12: 溫度 too high",
        "公司規定：員工每年有十二天年假，病假為七天。加班須經批准，費用在月底前報銷，逾期不予受理。",
    ],
    "cp932": [
        "有給休暇は十二日です",
        "エラー E-12: 温度が高い",
        "会社の規定により、従業員は年に十二日の有給休暇を取得できます。病気休暇は七日間です。",
    ],
    "euc-jp": [
        "有給休暇は十二日です",
        "エラー E-12: 温度が高い",
        "会社の規定により、従業員は年に十二日の有給休暇を取得できます。病気休暇は七日間です。",
    ],
    "iso2022_jp": ["休暇", "エラー E-12: 温度が高い", "従業員は年に十二日の休暇があります。"],
    "euc-kr": [
        "휴가",
        "연차 휴가는 십이일입니다",
        "오류 E-12: 온도가 높음",
        "회사 규정에 따라 직원은 일년에 십이일의 연차 휴가를 사용할 수 있습니다. 병가는 칠일입니다.",
    ],
    "cp1251": [
        "Отпуск",
        "error E-12: высокая температура",
        "Сотрудники имеют двенадцать дней отпуска. Больничный — семь дней.",
    ],
    "koi8-r": ["Сотрудники имеют двенадцать дней отпуска."],
    "cp866": ["Сотрудники имеют двенадцать дней отпуска."],
    "cp1250": ["Zażółć gęślą jaźń", "Zaměstnanci mají dvacet dní dovolené. Náklady se proplácejí do konce měsíce."],
    "cp1252": [
        "Größe",
        WESTERN,
        "été",
        "Los empleados tienen doce días de vacaciones al año.",
        "Überstunden müssen vorher genehmigt werden; Reisekosten „bis Monatsende“ – ohne Ausnahme.",
        "Les frais de déplacement sont remboursés ; « sans exception », même à l’étranger.",
    ],
    "cp1253": ["Οι εργαζόμενοι έχουν δώδεκα ημέρες άδεια."],
    "cp1254": ["Çalışanların yılda on iki gün izni vardır. Şirket giderleri öder."],
}
LONGER = sorted({sentences[-1] for sentences in SENTENCES.values()})
WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030", *WIDE])
def test_chinese_comes_out_right_in_each_encoding(encoding: str) -> None:
    assert decode(CHINESE.encode(encoding)) == CHINESE


@pytest.mark.parametrize(
    ("text", "encoding"), [(text, encoding) for encoding, sentences in SENTENCES.items() for text in sentences]
)
def test_an_undeclared_encoding_is_recognised(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "cp932", "euc-kr", "cp1251"])
def test_a_long_text_is_recognised_too_wherever_it_stops_being_ascii(encoding: str) -> None:
    for shift in range(4):  # so that the part that is looked at ends within a character
        text = "plain\n" * 30_000 + SENTENCES[encoding][-1][shift:] * 3000
        assert decode(text.encode(encoding)) == text


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize("text", [*LONGER, "version 2.1 发布说明\n\n1. fixed bug 2. 修复了登录问题", "plain ASCII\r\n"])
def test_wide_encodings_need_no_byte_order_mark(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    "text", ["bush hid the facts", "\x1b[1mbold\x1b$ 年假", "a\x01b and a stray control character in ASCII text " * 3]
)
def test_ascii_is_not_taken_for_a_wide_encoding(text: str) -> None:
    assert decode(text.encode()) == text


def test_the_declared_encoding_decides_where_the_bytes_do_not() -> None:
    assert decode("ž".encode("cp1250"), declared="windows-1250") == "ž"
    assert decode("年假".encode("gb18030"), declared="gb2312") == "年假"
    assert decode("年假".encode(), declared="gb2312") == "年假"
    assert decode("休暇".encode("cp932"), declared="Shift_JIS") == "休暇"


@pytest.mark.parametrize("declared", ["x-no-such-thing", "base64", "rot13", "a\x00b"])
def test_what_is_no_encoding_is_passed_over(declared: str) -> None:
    assert decode(WESTERN.encode("cp1252"), declared=declared) == WESTERN


@pytest.mark.parametrize(
    "raw", [bytes(range(256)) * 2, b"PK\x03\x04" + b"\x00" * 50, b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x05\x01\xff" * 9]
)
def test_binary_data_is_a_named_failure(raw: bytes) -> None:
    with pytest.raises(UndecodableText, match="is binary"):
        decode(raw)


def test_a_broken_text_behind_a_byte_order_mark_is_a_named_failure() -> None:
    with pytest.raises(UndecodableText, match="utf-8-sig"):
        decode(b"\xef\xbb\xbfGr\xf6\xdfe")


@pytest.mark.parametrize("declared", [None, "gbk"])
def test_utf8_with_a_broken_byte_is_a_named_failure_and_not_other_characters(declared: str | None) -> None:
    raw = "员工每年".encode() + b"\xe5" + "有十二天年假。".encode()
    with pytest.raises(UndecodableText, match=r"is UTF-8 with broken characters \(1, the first at byte 12"):
        decode(raw, declared=declared)


def test_line_ends_are_unified_and_letters_composed() -> None:
    assert decode("a\r\nb\rc u\u0308".encode()) == "a\nb\nc ü"


def test_what_no_reader_sees_is_taken_out_and_halves_of_a_character_are_mended() -> None:
    assert clean("年\u00ad假\x00 soft\u00adware\ufeff") == "年假 software"
    assert clean("soft\u00ad\r\nware") == "soft-\nware"
    assert clean("\ud83d\ude00 \ud800 年假") == "😀 \ufffd 年假"


@pytest.mark.parametrize(
    "text", ["MKNUL abc\0def\0\0 ghi", "abcdefgh\0ijklmnop\0qr", "年假\0 and a few words", "abcd\0" * 500]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030"])
def test_stray_nuls_are_taken_out_of_a_text(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text.replace("\0", "")


@pytest.mark.parametrize("text", ["年假a", "年假\n", "hello 年假 world"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_the_nuls_of_a_short_wide_text_are_not_stray(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"pair \xed\xa0\xbd\xed\xb8\x80.", "pair 😀."),
        (b"half \xed\xa0\xbd.", "half \ufffd."),
        ("年假".encode() + b"\xed\xb8\x80", "年假\ufffd"),
        ("Größe".encode() + b"\xed\xa0\xbd\xed\xb8\x80\xc0\x80.", "Größe😀."),
        (b"\xef\xbb\xbf\xed\xa0\xbd\xed\xb8\x80", "😀"),
        (b"\xff\xfeb\x00\x3d\xd8", "b\ufffd"),
    ],
)
def test_surrogates_in_utf8_become_their_character_or_one_that_is_missing(raw: bytes, text: str) -> None:
    assert decode(raw) == text


@given(st.text())
def test_utf8_never_loses_a_character(text: str) -> None:
    assert decode(b"\xef\xbb\xbf" + ("x" * 1000 + text).encode()) == clean("x" * 1000 + text)


def is_utf8_but_for_surrogates(raw: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        return bool(raw.decode("utf-8", "surrogatepass"))
    return False


def whole_texts(raw: bytes) -> set[str]:
    """What the bytes are in each encoding that takes all of them."""
    found = (
        {clean(raw.decode("utf-8", "surrogatepass"))} if b"\xed" in raw and is_utf8_but_for_surrogates(raw) else set()
    )
    for encoding in {*aliases.values(), "utf-8"}:
        with suppress(UnicodeError, LookupError):  # Python's own that are no text
            found.add(clean(raw.decode(encoding)))
    return found


@example("aaa。a二a", 0, 0.875, False)
@given(st.text("年假员工每有十二天，。abcé \n", min_size=4), st.integers(0, 255), st.floats(0, 1), st.booleans())
def test_of_bytes_with_a_broken_one_all_become_text_or_none(text: str, byte: int, where: float, cut: bool) -> None:
    raw = text.encode()
    at = int(where * (len(raw) - 1))
    raw = raw[:at] + (b"" if cut else bytes([byte])) + raw[at + 1 :]
    try:
        decoded = decode(raw)
    except UndecodableText:
        return
    assert decoded in whole_texts(raw)


@given(st.text("年假员工每有十二天，。abc \n", min_size=8), st.sampled_from(WIDE))
def test_a_wide_text_never_comes_out_as_other_characters(text: str, encoding: str) -> None:
    text = "员工每年有十二天年假。\n" * 3 + text
    assert decode(text.encode(encoding)) == text
