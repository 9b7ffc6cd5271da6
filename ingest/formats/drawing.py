"""Charts, text boxes and diagrams as Microsoft's office files hold them: parts of their own, in DrawingML."""

from collections.abc import Iterator
from typing import Any

from ingest.formats.assembly import one_line, table
from ingest.formats.package import Package

FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
LABELS, VALUES = ("{*}cat", "{*}xVal"), ("{*}val", "{*}yVal")


def on_a_sheet(package: Package, sheet: str) -> Iterator[str]:
    """The text boxes, charts and diagrams on a sheet of a workbook; what a chart shows of the cells is in the cells."""
    for drawing in package.parts(sheet, "drawing"):
        yield from _boxes(package.root(drawing))
        yield from related(package, drawing, in_cells=True)


def related(package: Package, part: str, *, in_cells: bool = False) -> Iterator[str]:
    """The charts and the diagrams (SmartArt) that a part leads to."""
    for path in package.parts(part, "chart"):
        yield chart(package.root(path), in_cells=in_cells)
        for shapes in package.parts(path, "chartUserShapes"):
            yield from _boxes(package.root(shapes))
    for kind in ("chartEx", "diagramData"):
        for path in package.parts(part, kind):
            yield "\n".join(_paragraphs(package.root(path)))


def chart(root: Any, *, in_cells: bool = False) -> str:
    """The title, one line for each category with the value of each series, then the other labels.

    Values that are `in_cells` of the workbook itself are left out, but the names of their series are not.
    """
    title = root.find("{*}chart/{*}title")
    titles = [] if title is None else _written(title)
    plots = [list(plot.iterchildren("{*}ser")) for plot in root.iterfind("{*}chart/{*}plotArea/*")]
    tables = [_plot(series, in_cells=in_cells) for series in plots if series]
    others = [text for axis in root.iterfind("{*}chart/{*}plotArea//{*}title") for text in _written(axis)]
    others += [text for label in root.iter("{*}dLbl") for text in _paragraphs(label)]
    return "\n".join(filter(None, [*titles, *tables, *others]))


def _plot(series: list[Any], *, in_cells: bool) -> str:
    names = ["; ".join(_written(name)) if (name := one.find("{*}tx")) is not None else "" for one in series]
    if in_cells and not any(map(_is_from_elsewhere, series)):
        return "; ".join(filter(None, names))
    columns = [_points(one, VALUES) for one in series]
    labels = next(filter(None, (_points(one, LABELS) for one in series)), {})
    places = sorted({at for column in (labels, *columns) for at in column})
    rows = [[labels.get(at, ""), *(_number(column.get(at, "")) for column in columns)] for at in places]
    return table([["", *names], *rows])


def _is_from_elsewhere(series: Any) -> bool:
    """Whether its values are written in the chart, or come from another workbook."""
    references = [(one.text or "") for tag in VALUES for part in series.iterchildren(tag) for one in part.iter("{*}f")]
    return not references or any(reference.lstrip("'").startswith("[") for reference in references)


def _points(series: Any, tags: tuple[str, ...]) -> dict[int, str]:
    """Place → value or label; of labels on several levels the outer one stands first."""
    found: dict[int, str] = {}
    for part in series.iterchildren(*tags):
        for point in part.iter("{*}pt"):
            at, text = point.get("idx", ""), one_line(point.findtext("{*}v") or "")
            if at.isdecimal() and len(at) < 9:
                found[int(at)] = f"{text} {found[int(at)]}" if int(at) in found else text
    return found


def _number(text: str) -> str:
    try:
        return f"{float(text):.15g}"
    except ValueError:
        return text


def _boxes(root: Any) -> Iterator[str]:
    """The text of each shape, once: a shape may be written a second time for old programs."""
    for body in root.iter("{*}txBody"):
        if not any(above.tag == FALLBACK for above in body.iterancestors()):
            yield "\n".join(_paragraphs(body))


def _written(element: Any) -> list[str]:
    """What is written in it: paragraphs, or the text of a cell that it takes."""
    return _paragraphs(element) or [text for one in element.iter("{*}v") if (text := one_line(one.text or ""))]


def _paragraphs(root: Any) -> list[str]:
    texts = (one_line("".join(t.text or "" for t in p.iter("{*}t"))) for p in root.iter("{*}p"))
    return [text for text in texts if text]
