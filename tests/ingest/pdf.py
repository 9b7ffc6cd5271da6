"""The smallest PDF files that a reader takes."""


def pdf(*pages: str) -> bytes:
    """A PDF with one line of ASCII text on each page; an empty one has a drawn square only, as a scan has an image."""
    return _pages([_line(700, 12, text) if text else "72 600 100 100 re f" for text in pages])


def pdf_of_lines(lines: list[tuple[int, int, str]]) -> bytes:
    """A PDF of one page; each line with its height on the page and its size."""
    return _pages(["\n".join(_line(*line) for line in lines)])


def _line(height: int, size: int, text: str) -> str:
    return f"BT /F1 {size} Tf 72 {height} Td ({text}) Tj ET"


def _pages(streams: list[str]) -> bytes:
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for stream in streams:
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >>"
            f" /Contents {len(objects) + 2} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    return _file(objects)


def _file(objects: list[str]) -> bytes:
    body, starts = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        starts.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{start:010} 00000 n \n" for start in starts)
    size = len(objects) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    return f"{body}xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode()
