"""What the commands print: names that forge no line, JSON that every terminal can show, a reader that has left."""

import json
import os
import re
import sys
from contextlib import suppress
from typing import Any

FORGING = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it, ends a line, turns the line round, or is no character."""


class OutputNotWritten(Exception):
    """Standard output takes no more, and not because its reader has left."""


def printable(line: str) -> str:
    """The line with escapes in place of what is not to be shown as it is; one line in, one line out."""
    return FORGING.sub(lambda found: found[0].encode("unicode_escape").decode(), line)


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print the value as JSON, in characters that standard output can show. Raises OutputNotWritten."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # the stream's own escapes would be none of JSON's
        text = json.dumps(value, indent=indent)
    say(*(FORGING.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in text.split("\n")))


def say(*lines: str) -> None:
    """Print lines; one whose reader has left is not missed. Raises OutputNotWritten."""
    try:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up()
    except OSError as error:
        _give_up()
        raise OutputNotWritten(f"the output cannot be written: {error.strerror}") from error


def warn(line: str) -> None:
    """Print a line on standard error, where it can be."""
    with suppress(OSError):
        print(printable(line), file=sys.stderr, flush=True)


def _give_up() -> None:
    """Let what is still held back go nowhere: Python would try again at its end, and say so."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (a device)
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
