"""Folders of documents for the ingest's benchmarks, in any number and format, and an embedder that costs nothing."""

import json
import random
import re
import textwrap
import zipfile
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from pathlib import Path

from benchmarks.retrieval_base import DIMENSION, IN_A_DOCUMENT, Vectors
from tests.fakes import WordCountEmbedder
from tests.ingest.pdf import pdf

SENTENCES = re.compile(r"(?<=[。！？])|(?<=[.!?]) +")


class Prose:
    """Paragraphs of sentences out of the benchmarks' texts, English or Chinese, in an order of their own."""

    def __init__(self, seed: int = 0) -> None:
        from benchmarks.embedding import texts  # which imports torch

        self.chance = random.Random(seed)
        found = [one.strip() for text in texts() for one in SENTENCES.split(text) if len(one.strip()) > 10]
        chinese = [one for one in found if re.search(r"[\u4e00-\u9fff]", one)]
        self.languages = [chinese, [one for one in found if one.isascii()]]

    def paragraph(self, sentences: int = 8) -> str:
        language = self.chance.choice([language for language in self.languages if language])
        return f"{self.chance.randrange(10**9)}: " + " ".join(self.chance.choices(language, k=sentences))

    def english(self, sentences: int = 8) -> str:
        return f"{self.chance.randrange(10**9)}: " + " ".join(self.chance.choices(self.languages[1], k=sentences))


class FreeEmbedder(WordCountEmbedder):
    """Vectors that cost nothing, as long and as close to each other as a small model's, for what does not depend on
    the model."""

    def __init__(self) -> None:
        super().__init__("free", max_tokens=256, dimension=DIMENSION)
        self._vectors = Vectors()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        some = (len(texts[at : at + IN_A_DOCUMENT]) for at in range(0, len(texts), IN_A_DOCUMENT))
        return [row for count in some for row in self._vectors.of_document(count)]


def text_files(
    folder: Path, number: int, *, paragraphs: int = 1, sentences: int | Sequence[int] = 8, seed: int = 0
) -> Path:
    """A folder of so many `.txt` files, a thousand in each folder of it; several numbers of sentences come in turn."""
    prose, lengths = Prose(seed), [sentences] if isinstance(sentences, int) else sentences
    for at in range(number):
        path = folder / f"{at // 1000:03}" / f"{at:06}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n\n".join(prose.paragraph(lengths[at % len(lengths)]) for _ in range(paragraphs))
        path.write_text(text, encoding="utf-8")
    return folder


def write_docx(path: Path, paragraphs: list[str]) -> None:
    import docx

    document = docx.Document()
    for paragraph in paragraphs:
        document.add_heading(paragraph[:20], 2)
        document.add_paragraph(paragraph)
    document.save(str(path))


def write_pptx(path: Path, paragraphs: list[str]) -> None:
    import pptx

    presentation = pptx.Presentation()
    for paragraph in paragraphs:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = paragraph[:20], paragraph
    presentation.save(str(path))


def write_xlsx(path: Path, paragraphs: list[str]) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for row in [["number", "text"], *([at, paragraph] for at, paragraph in enumerate(paragraphs))]:
        book.active.append(row)
    book.save(path)


def write_mail(path: Path, paragraphs: list[str]) -> None:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = paragraphs[0][:20], "a@example.org", "b@example.org"
    mail.set_content("\n\n".join(paragraphs[1:]))
    mail.add_attachment(paragraphs[0], filename="note.txt")
    path.write_bytes(mail.as_bytes())


def write_zip(path: Path, paragraphs: list[str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for at, paragraph in enumerate(paragraphs):
            archive.writestr(f"{at}.txt", paragraph)


def as_text(join: Callable[[list[str]], str]) -> Callable[[Path, list[str]], None]:
    def write(path: Path, paragraphs: list[str]) -> None:
        path.write_text(join(paragraphs), encoding="utf-8")

    return write


def write_pdf(path: Path, paragraphs: list[str]) -> None:
    plain = [re.sub(r"[^ -~]|[()\\]", " ", paragraph) for paragraph in paragraphs]
    # The PDF's one line goes on below itself.
    path.write_bytes(pdf(*(") Tj 0 -14 Td (".join(textwrap.wrap(paragraph, 80)) for paragraph in plain)))


WRITERS: dict[str, Callable[[Path, list[str]], None]] = {
    ".txt": as_text("\n\n".join),
    ".md": as_text(lambda paragraphs: "\n\n".join(f"## {one[:20]}\n\n{one}" for one in paragraphs)),
    ".html": as_text(lambda paragraphs: "<html><body>" + "".join(f"<p>{one}</p>" for one in paragraphs)),
    ".csv": as_text(
        lambda paragraphs: "number,text\n" + "".join(f'{at},"{one}"\n' for at, one in enumerate(paragraphs))
    ),
    ".json": as_text(lambda paragraphs: json.dumps([{"text": one} for one in paragraphs], ensure_ascii=False)),
    ".pdf": write_pdf,
    ".docx": write_docx,
    ".pptx": write_pptx,
    ".xlsx": write_xlsx,
    ".eml": write_mail,
    ".zip": write_zip,
}
"""A file of paragraphs in each format; those of a PDF are ASCII."""
