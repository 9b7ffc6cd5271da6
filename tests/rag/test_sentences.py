from collections.abc import AsyncGenerator, Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag.sentences import sentence_spans, until_repetition

PROSE = st.text(alphabet="abAB甲乙 \n\u3000.。!！?？；”’」)\"'3", max_size=40)


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


async def pieces(texts: Iterable[str]) -> AsyncGenerator[str, None]:
    for text in texts:
        yield text


async def shown(*texts: str) -> str:
    return "".join([text async for text in until_repetition(pieces(texts))])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Leave is 25 days. Ask HR!", ["Leave is 25 days.", "Ask HR!"]),
        ("The rate is 3.5 percent. Version 1.2.3 is out.", ["The rate is 3.5 percent.", "Version 1.2.3 is out."]),
        ('He said "stop." Then he left?! Yes.', ['He said "stop."', "Then he left?!", "Yes."]),
        ("See guide.txt (page 3.) now", ["See guide.txt (page 3.)", "now"]),
        ("年假十二天。病假呢？七天！", ["年假十二天。", "病假呢？", "七天！"]),
        ("他说：“可以。”然后走了；完", ["他说：“可以。”", "然后走了；", "完"]),
        ("（见第三条。）下一条", ["（见第三条。）", "下一条"]),
        ("- one\n- two\n\n\n  - three", ["- one", "- two", "- three"]),
        ("利率3.5%。Rate 3.5%. 完", ["利率3.5%。", "Rate 3.5%.", "完"]),
        ("no full stop at all", ["no full stop at all"]),
        ("  padded.  ", ["padded."]),
        ("", []),
        (" \n\u3000\n", []),
    ],
)
def test_a_text_is_cut_into_its_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.one_of(PROSE, st.text(max_size=60)))
def test_sentences_are_in_order_apart_and_hold_everything_but_white_space(text: str) -> None:
    spans = sentence_spans(text)
    ends = [0, *(end for _, end in spans), len(text)]
    starts = [*(start for start, _ in spans), len(text)]
    assert all(start < end for start, end in spans)
    assert all(end <= start for end, start in zip(ends, starts, strict=False))
    assert not any(text[end:start].strip() for end, start in zip(ends, starts, strict=False))
    assert all(text[start:end] == text[start:end].strip() for start, end in spans)


@example("甲。”甲。”", [2])
@example("甲。。甲。乙", [2])
@example("甲。” 甲。” 乙", [2, 6])
@example("a\n\na\n\n", [2, 5])
@given(PROSE, st.lists(st.integers(0, 40)))
async def test_what_is_shown_does_not_depend_on_how_the_text_was_cut_into_pieces(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    cut = [text[start:end] for start, end in pairwise(places)]
    expected = await shown(text)
    assert await shown(*cut) == expected
    assert await shown(*text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Leave is 25 days. Ask HR. Leave is 25 days. Ask HR. Leave", "Leave is 25 days. Ask HR."),
        ("Leave is 25 days. LEAVE  is\t25 days. More", "Leave is 25 days."),
        ("年假十二天。请问人事。年假十二天。请问人事。年假", "年假十二天。请问人事。"),
        ("他说：“可以。”他说：“可以。”他", "他说：“可以。”"),
        ("- one\n- two\n- one\n- two\n", "- one\n- two\n"),
        ("A b c. A b c.", "A b c."),
        ("年假十二天。年假十二天。", "年假十二天。"),
    ],
)
async def test_the_answer_ends_before_the_first_sentence_that_was_said_before(text: str, expected: str) -> None:
    assert (await shown(*text)).rstrip() == expected.rstrip()
    assert (await shown(text)).rstrip() == expected.rstrip()


async def test_no_piece_of_a_repeated_sentence_is_ever_shown() -> None:
    given_so_far = ""
    async for text in until_repetition(pieces("Ask HR first. Ask the boss. Ask HR first. Ask")):
        given_so_far += text
        assert "Ask HR first. Ask the boss. ".startswith(given_so_far)
    assert given_so_far.rstrip() == "Ask HR first. Ask the boss."


@given(
    st.permutations(["Leave is 25 days. ", "年假十二天。", "- one\n", "The rate is 3.5%. ", "他说：“可以。”", "Why? "])
)
async def test_a_text_without_repetition_is_shown_unchanged(order: list[str]) -> None:
    text = "".join(order).rstrip()
    assert await shown(*text) == text


async def test_a_sentence_that_only_begins_like_an_earlier_one_is_shown() -> None:
    text = "Ask HR for leave. Ask HR for travel. 年假为十二天。年假为带薪。"
    assert await shown(*text) == text
    assert await shown("Ask HR for leave now. Ask HR for leave.") == "Ask HR for leave now. Ask HR for leave."


async def test_text_that_cannot_become_a_repetition_is_shown_at_once() -> None:
    texts = until_repetition(pieces(["Ask HR. ", "Ask ", "me ", "again."]))
    assert [text async for text in texts] == ["Ask HR.", " Ask me ", "again."]


async def test_the_beginning_of_a_repetition_at_the_very_end_is_left_out() -> None:
    assert (await shown("Leave is 25 days. Leave is")).rstrip() == "Leave is 25 days."


@pytest.mark.parametrize("leave_early", [False, True])
async def test_the_input_is_closed_as_soon_as_the_stream_ends(leave_early: bool) -> None:
    closed = []

    async def texts() -> AsyncGenerator[str, None]:
        try:
            for text in ["Ask HR. ", "Ask HR. ", "never ", "asked for"]:
                yield text
        finally:
            closed.append(True)

    shown_texts = until_repetition(texts())
    if leave_early:
        await anext(shown_texts)
        await shown_texts.aclose()
    else:
        assert [text async for text in shown_texts] == ["Ask HR."]
    assert closed == [True]
