import re
from pathlib import Path

from tests.ingest.formats.unreadable import messages

LIST = Path(__file__).parents[3] / "docs" / "unreadable.md"
ROW = re.compile(r"^\| (.+) \| (.+) \|$", re.MULTILINE)


def without_the_librarys_words(message: str) -> str:
    return re.sub(r" \(.*", "", message)


def test_the_list_of_what_cannot_be_read_says_what_an_ingest_says() -> None:
    listed = dict(ROW.findall(LIST.read_text(encoding="utf-8"))[1:])
    said = messages()
    assert list(listed) == list(said), "python -m tests.ingest.formats.unreadable prints the list"
    for kind, message in said.items():
        assert without_the_librarys_words(listed[kind]) == without_the_librarys_words(message)
