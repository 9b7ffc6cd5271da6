"""Text files: plain text, Markdown, reStructuredText, source code."""

import re
from collections.abc import Iterator

from ingest.decode import decode
from ingest.document import LoadedDocument, LoadOptions
from ingest.formats.typesetting import rejoined_in_lines

HEADING = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t]*#*$")
FENCE = re.compile(r"[ \t]*(```|~~~)")
# https://docutils.sourceforge.io/docs/ref/rst/restructuredtext.html#sections
UNDERLINE = re.compile(r"([!-/:-@\[-`{-~])\1+[ \t]*")

CODE = """
.adoc .asm .bash .bat .c .cc .cfg .clj .cmake .conf .cpp .cs .css .cu .cuh .cxx .dart .diff .erl .ex .exs .f90 .fs .go
.gradle .graphql .groovy .h .hcl .hpp .hs .ini .java .jl .js .jsx .kt .kts .less .lisp .log .lua .m .mjs .ml .nim .patch
.php .pl .pm .proto .ps1 .properties .py .pyi .r .rb .rs .sass .scala .scss .sh .sol .sql .svelte .swift .tcl .tex .tf
.toml .ts .tsx .v .vb .vhd .vim .vue .yaml .yml .zig .zsh
""".split()  # noqa: SIM905 (a line each would be a page)
CODE_NAMES = (
    "containerfile",
    "dockerfile",
    "gemfile",
    "jenkinsfile",
    "makefile",
    "procfile",
    "rakefile",
    "vagrantfile",
)


def read_plain(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Source code and the like, as it is written."""
    return LoadedDocument(source, decode(raw), has_lines=True)


def read_prose(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Text without structure."""
    return LoadedDocument(source, rejoined_in_lines(decode(raw)), has_lines=True)


def read_markdown(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Markdown as it is written, its words mended outside of fenced blocks."""
    text = "".join(part if is_code else rejoined_in_lines(part) for part, is_code in _fenced(decode(raw)))
    return LoadedDocument(source, text, headings=markdown_headings(text), has_lines=True)


def read_restructured(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """ReStructuredText as it is written, its words mended where they are not indented, as blocks of code are."""
    text = rejoined_in_lines(decode(raw))
    return LoadedDocument(source, text, headings=_underlined_headings(text), has_lines=True)


def markdown_headings(markdown: str) -> tuple[tuple[int, int, str], ...]:
    """Start, level and title of each heading that is not in a fenced block."""
    found, start = [], 0
    for part, is_code in _fenced(markdown):
        for line in part.splitlines(keepends=True):
            if not is_code and (heading := HEADING.match(line.rstrip("\n"))):
                found.append((start, len(heading[1]), heading[2]))
            start += len(line)
    return tuple(found)


def _fenced(markdown: str) -> Iterator[tuple[str, bool]]:
    """The text in parts, and whether each is a fenced block of code, fences included."""
    lines, fence = list[str](), None
    for line in markdown.splitlines(keepends=True):
        mark = FENCE.match(line)
        if mark and fence is None:
            yield "".join(lines), False
            lines, fence = [], mark[1]
        lines.append(line)
        if mark and len(lines) > 1 and mark[1] == fence:
            yield "".join(lines), True
            lines, fence = [], None
    yield "".join(lines), fence is not None


def _underlined_headings(text: str) -> tuple[tuple[int, int, str], ...]:
    """Levels by the order in which the styles of underlining (with or without overline) are first met."""
    lines, starts, position = text.split("\n"), [], 0
    for line in lines:
        starts.append(position)
        position += len(line) + 1
    found, styles = [], list[tuple[str, bool]]()
    for number, title in enumerate(lines[:-1]):
        before = lines[number - 1].strip() if number else ""
        if _is_heading(before, title, lines[number + 1]):
            style = lines[number + 1][0], before[:1] == lines[number + 1][0] and bool(UNDERLINE.fullmatch(before))
            if style not in styles:
                styles.append(style)
            found.append((starts[number], min(styles.index(style) + 1, 6), title.strip()))
    return tuple(found)


def _is_heading(before: str, title: str, after: str) -> bool:
    is_title = bool(title.strip()) and not UNDERLINE.fullmatch(title)
    # A wide character takes two columns, so that writers of Chinese draw the line either way.
    long_enough = len(after.strip()) >= min(len(title.strip()), 3)
    # Before it: nothing, its overline, or the underline of the heading above.
    return is_title and long_enough and bool(UNDERLINE.fullmatch(after) and (not before or UNDERLINE.fullmatch(before)))
