import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.load import LoadedDocument
from ingest.split import Chunk, split
from tests.fakes import WordCountEmbedder

LIMIT = 20
COUNT = WordCountEmbedder().offsets


def pieces(text: str) -> list[tuple[int, int]]:
    """Tokens of three characters at most, so that a word may be cut in two and then has one more."""
    return [match.span() for match in re.finditer(r"\w{1,3}|[^\w\s]", text)]


def chunks_of(text: str, limit: int = LIMIT, **about) -> list[Chunk]:
    return split(LoadedDocument("a", text, **about), COUNT, limit)


def nothing_is_lost(document: LoadedDocument, chunks: list[Chunk]) -> bool:
    end = 0
    for chunk in chunks:
        if document.text[end : chunk.start].strip() or document.text[chunk.start : chunk.end] != chunk.text:
            return False
        end = chunk.end
    return not document.text[end:].strip()


@given(
    st.text("ab1 \n.。！“”年假,#()", max_size=400), st.integers(1, 30), st.sampled_from([COUNT, pieces]), st.booleans()
)
def test_chunks_are_exact_within_the_limit_and_lose_nothing(text, limit, offsets, line_is_unit) -> None:
    document = LoadedDocument("a", text, line_is_unit=line_is_unit)
    chunks = split(document, offsets, limit)
    assert nothing_is_lost(document, chunks)
    assert all(len(offsets(chunk.text)) <= limit for chunk in chunks)
    assert all(chunk.text and chunk.text == chunk.text.strip() for chunk in chunks)


@given(st.lists(st.text("ab \n.年", min_size=1).filter(str.strip), min_size=1, max_size=5), st.integers(1, 20))
def test_a_chunk_never_crosses_a_page(texts: list[str], limit: int) -> None:
    starts = [sum(len(text) + 2 for text in texts[:index]) for index in range(len(texts))]
    pages = tuple((start, number) for number, start in enumerate(starts, 1))
    document = LoadedDocument("a", "\n\n".join(texts), pages=pages)
    chunks = split(document, COUNT, limit)
    assert nothing_is_lost(document, chunks)
    for chunk in chunks:
        start = starts[chunk.page - 1]
        assert start <= chunk.start < chunk.end <= start + len(texts[chunk.page - 1])
        assert chunk.line is None


@given(
    st.lists(st.text("ab \n.年", min_size=1).filter(str.strip), min_size=1, max_size=5),
    st.sampled_from(["page", "slide", "sheet", "cell"]),
    st.integers(0, 9),
)
def test_a_chunk_knows_its_place_whatever_is_counted(texts: list[str], kind: str, intro: int) -> None:
    """Text before the first place, such as a header, has none."""
    before = "x" * intro
    text, places = before, []
    for number, one in enumerate(texts, 1):
        text += "\n\n" if text else ""
        places.append((len(text), f"表{number}" if kind == "sheet" else number))
        text += one
    chunks = split(LoadedDocument("a", text, pages=tuple(places), place_kind=kind), COUNT, 8)
    for chunk in chunks:
        above = [name for start, name in places if start <= chunk.start]
        assert chunk.place == (above[-1] if above else None)
        assert chunk.place_kind == kind
        assert chunk.page == (chunk.place if kind == "page" else None)


@given(st.lists(st.text("ab1 .年假", max_size=60), max_size=300), st.integers(1, 40))
def test_a_long_text_is_tokenised_in_parts_and_cut_the_same(paragraphs: list[str], limit: int) -> None:
    text = "\n\n".join(paragraphs) * 3
    document = LoadedDocument("a", text)
    in_parts = split(document, pieces, limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingest.split.TOKENISED_AT_ONCE", 10**9)
        assert split(document, pieces, limit) == in_parts
    assert nothing_is_lost(document, in_parts)


@pytest.mark.parametrize(
    "text", ["员工每年有十二天年假。" * 2000, "Sie haben Urlaub. " * 2000, "Urlaub " * 5000, "QUJD" * 9000]
)
def test_a_line_without_end_is_tokenised_in_parts_at_ends_of_sentences_or_words(text: str) -> None:
    tokenised: list[str] = []

    def noted(part: str) -> list[tuple[int, int]]:
        tokenised.append(part)
        return COUNT(part)

    chunks = split(LoadedDocument("a", text), noted, LIMIT)
    assert max(map(len, tokenised)) <= 4000
    assert nothing_is_lost(LoadedDocument("a", text), chunks)
    ends = {part[-1] for part in tokenised if len(part) >= 1000 and not text.endswith(part)}
    assert ends <= {"。", " ", "D"}


def test_lines_are_counted_from_the_files_first() -> None:
    text = "\n\n\n".join(f"Paragraph number {number} of the text." for number in range(50))
    for chunk in chunks_of(text, has_lines=True):
        assert text.split("\n")[chunk.line - 1].startswith(chunk.text.split("\n")[0])


@pytest.mark.parametrize(
    "text", ["汉字测试句子很好。还有一句？真的！“引用的话；”" * 435, "汉" * 5000, "中文 mixed 英文 text，再来。" * 400]
)
def test_text_without_spaces_is_cut_within_the_limit(text: str) -> None:
    chunks = chunks_of(text, limit=100)
    assert nothing_is_lost(LoadedDocument("a", text), chunks)
    assert all(len(COUNT(chunk.text)) <= 100 for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks) == text or " " in text
    assert not any(chunk.text.startswith(tuple("。！？；，”")) for chunk in chunks)


def test_punctuation_and_closing_quotes_end_their_sentence() -> None:
    chunks = chunks_of("他说：“年假有十二天。”她说：“病假有七天！”" * 50)
    assert all(chunk.text.startswith(("他说", "她说")) and chunk.text.endswith("”") for chunk in chunks)


def test_one_endless_word_does_not_make_one_endless_chunk() -> None:
    assert all(len(chunk.text) <= 160 for chunk in chunks_of("QUJD" * 2000))


def test_a_paragraph_is_not_cut_when_it_fits() -> None:
    paragraphs = [f"Paragraph {number} has just a few words." for number in range(9)]
    chunks = chunks_of("\n\n".join(paragraphs))
    assert [part for chunk in chunks for part in chunk.text.split("\n\n")] == paragraphs


def test_rows_of_a_table_are_not_cut_when_they_fit() -> None:
    rows = [f"code: E{number}; meaning: it is hot. Or cold" for number in range(9)]
    chunks = chunks_of("\n".join(rows), line_is_unit=True, has_lines=True)
    assert [row for chunk in chunks for row in chunk.text.split("\n")] == rows
    assert [chunk.line for chunk in chunks] == [1 + rows.index(chunk.text.split("\n")[0]) for chunk in chunks]


def test_a_section_begins_a_chunk_that_knows_its_headings() -> None:
    long = "One two three four five six seven eight. " * 5
    text = f"# Leave\n\n{long}\n\n## Sick leave\n\n{long}\n\n# Travel\n\nShort."
    headings = tuple((text.index(line), line.count("#"), line.lstrip("# ")) for line in re.findall("#+ .*", text))
    chunks = chunks_of(text, limit=60, headings=headings, has_lines=True)
    assert [(chunk.heading, chunk.text.split("\n")[0]) for chunk in chunks] == [
        ("Leave", "# Leave"),
        ("Leave > Sick leave", "## Sick leave"),
        ("Travel", "# Travel"),
    ]
    assert [chunk.line for chunk in chunks] == [1, 5, 9]


def test_a_tiny_section_goes_with_what_follows() -> None:
    (chunk,) = chunks_of("# Leave\n\n## Sick leave\n\nSeven days.", headings=((0, 1, "Leave"), (9, 2, "Sick leave")))
    assert chunk.heading == "Leave > Sick leave"
