import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.decode import UndecodableText, clean, decode

CHINESE, WESTERN = "员工每年有十二天年假，“病假”七天。", "Größe 5 µm © 2024"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "gb18030"])
def test_chinese_comes_out_right_in_each_encoding(encoding: str) -> None:
    text = CHINESE if encoding != "utf-16-le" else "leave: 12 days, 年假"
    assert decode(text.encode(encoding)) == text


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (WESTERN, "cp1252"),
        ("Größe", "cp1252"),
        ("Los empleados tienen doce días de vacaciones al año.", "cp1252"),
        ("中文", "gb18030"),
        ("中文“引号”", "gb18030"),
        ("error E-12: 温度 too high", "gb18030"),
        ("員工每年有十二天年假，請假需要主管同意。", "big5"),
        ("従業員は年に十二日の休暇があります。", "shift_jis"),
        ("従業員は年に十二日の休暇があります。", "euc-jp"),
        ("직원은 일년에 십이일의 휴가가 있습니다.", "euc-kr"),
        ("Сотрудники имеют двенадцать дней отпуска.", "cp1251"),
        ("Zażółć gęślą jaźń", "cp1250"),
    ],
)
def test_an_undeclared_encoding_is_recognised(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


def test_the_declared_encoding_decides_where_the_bytes_do_not() -> None:
    assert decode("ž".encode("cp1250"), declared="windows-1250") == "ž"
    assert decode("年假".encode("gb18030"), declared="gb2312") == "年假"
    assert decode("年假".encode(), declared="gb2312") == "年假"


def test_an_unknown_declared_encoding_is_passed_over() -> None:
    assert decode(WESTERN.encode("cp1252"), declared="x-no-such-thing") == WESTERN


@pytest.mark.parametrize("raw", [bytes(range(256)) * 2, b"PK\x03\x04" + b"\x00" * 50])
def test_binary_data_is_a_named_failure(raw: bytes) -> None:
    with pytest.raises(UndecodableText, match="is binary"):
        decode(raw)


def test_a_broken_text_behind_a_byte_order_mark_is_a_named_failure() -> None:
    with pytest.raises(UndecodableText, match="utf-8-sig"):
        decode(b"\xef\xbb\xbfGr\xf6\xdfe")


def test_line_ends_are_unified_and_letters_composed() -> None:
    assert decode("a\r\nb\rc u\u0308".encode()) == "a\nb\nc ü"


@given(st.text())
def test_utf8_never_loses_a_character(text: str) -> None:
    assert decode(b"\xef\xbb\xbf" + ("x" * 1000 + text).encode()) == clean("x" * 1000 + text)
