"""Structured data: JSON, JSON Lines, XML; each record a line that can stand alone."""

import json
from collections.abc import Iterator
from typing import Any

from ingest.decode import UndecodableText, clean, decode
from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.assembly import Assembly, one_line

LONG = 200
"""Characters: a text of more is a paragraph of its own, not a value in a record's line."""


def read_json(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """A list gives a line for each of its items, anything else a line for each of its values, with its path."""
    content = _parsed(decode(raw))
    lines = map(_record, content) if isinstance(content, list) else (f"{k}: {v}" if k else v for k, v in _flat(content))
    return LoadedDocument(source, clean("\n".join(filter(None, lines))), line_is_unit=True)


def read_json_lines(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Line n is record n. A line that is not JSON stays as it is, and is a problem."""
    lines, broken = [], []
    for number, line in enumerate(decode(raw).split("\n"), 1):
        try:
            lines.append(_record(_parsed(line)) if line.strip() else "")
        except Unreadable:
            lines.append(one_line(line))
            broken.append(str(number))
    problems = (f"lines that are not JSON, taken as text: {', '.join(broken[:20])}",) if broken else ()
    return LoadedDocument(source, clean("\n".join(lines)), line_is_unit=True, has_lines=True, problems=problems)


def read_xml(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Each element with text is a line `name: text`; the short ones of one parent share a line."""
    parts = Assembly()
    for block in _blocks(_tree(raw)):
        parts.block(block)
    return parts.document(source)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"is not JSON ({error})") from error


def _record(value: Any) -> str:
    return "; ".join(f"{path}: {text}" if path else text for path, text in _flat(value))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each value with the path to it; a list of plain values is one value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value, 1):
            yield from _flat(inner, f"{path}.{number}" if path else str(number))
    elif text := ", ".join(filter(None, map(_scalar, value))) if isinstance(value, list) else _scalar(value):
        yield one_line(path), text


def _scalar(value: Any) -> str:
    """As JSON writes it, but text without quotes and nothing for null."""
    return "" if value is None else one_line(value) if isinstance(value, str) else json.dumps(value)


def _tree(raw: bytes) -> Any:
    """The root element; without what another file or the network would have to give."""
    from lxml import etree

    parser = {"resolve_entities": "internal", "no_network": True, "remove_comments": True, "remove_pis": True}
    try:
        return etree.fromstring(raw, etree.XMLParser(**parser))
    except etree.XMLSyntaxError as error:
        reason = f"is not well-formed XML ({error})"
    try:  # in an encoding that it does not declare
        text = decode(raw)
        return etree.fromstring(text[text.index("<", text.find("?>") + 1) :].encode(), etree.XMLParser(**parser))
    except (etree.XMLSyntaxError, UndecodableText, ValueError) as error:
        raise Unreadable(reason) from error


def _blocks(element: Any) -> Iterator[str]:
    """Lines of an element: its attributes and short leaves together, then what is longer or deeper."""
    name = _name(element)
    if _is_text(element):
        text = one_line("".join(element.itertext()))
        line = "; ".join(filter(None, [_attributes(element), text]))
        if line:
            yield line if len(text) > LONG else f"{name}: {line}"
        return
    leaves = [child for child in element if _is_leaf(child)]
    fields = [f"{_name(child)}: {one_line(child.text)}" for child in leaves if child.text and child.text.strip()]
    line = "; ".join(filter(None, [_attributes(element), *fields]))
    if line:
        yield f"{name}: {line}"
    for child in element:
        if not _is_leaf(child):
            yield from _blocks(child)


def _is_text(element: Any) -> bool:
    """Whether it holds running text: text of its own, perhaps with marked words in it, or nothing."""
    return not len(element) or bool(
        (element.text or "").strip() or any((child.tail or "").strip() for child in element)
    )


def _is_leaf(element: Any) -> bool:
    return not len(element) and not element.attrib and len(element.text or "") <= LONG


def _attributes(element: Any) -> str:
    return "; ".join(f"{_local(name)}: {one_line(value)}" for name, value in element.attrib.items() if value.strip())


def _name(element: Any) -> str:
    return _local(element.tag)


def _local(name: str) -> str:
    return name.rpartition("}")[2]
