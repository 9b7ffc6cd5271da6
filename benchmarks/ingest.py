"""What an ingest costs: `python -m benchmarks.ingest [PART [SIZE]]`, all parts in small sizes without arguments.

    speed CHUNKS     chunks/s of an ingest over the embedder alone, in turn, and the CPU seconds of each stage
    formats FILES    files/s of loading, for each format
    memory FILES     peak memory for so many small files, and for a twentieth of them
    updates FILES    a second run, and one after a change of one file, over the first run
    rows CHUNKS      rows/s, disk and memory per chunk as the knowledge base grows, without a model
    peers FILES      LangChain's and LlamaIndex's ways with the same folder: see benchmarks/ingest_peers.py

`speed` and `updates` embed with the real model; whatever else the machine does, they share by turns.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ingest_files import WRITERS, FreeEmbedder, Prose, text_files
from ingest.document import FailedSource
from ingest.load import load_all
from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from ingest.writer import Writer
from llm.embeddings import Embedder

ROUNDS = 3


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def processor() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    start, used = time.perf_counter(), processor()
    call()
    return time.perf_counter() - start, processor() - used


@contextmanager
def stages() -> Iterator[dict[str, float]]:
    """CPU seconds of the thread in each step of the writer, and of the workers."""
    seconds: dict[str, float] = defaultdict(float)
    originals = {name: getattr(Writer, name) for name in ("add", "commit", "finish", "sweep")}

    def measured(name: str) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            start = time.thread_time()
            result = originals[name](*arguments)
            seconds[name] += time.thread_time() - start
            return result

        return step

    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    for name in originals:
        setattr(Writer, name, measured(name))
    try:
        yield seconds
    finally:
        for name, original in originals.items():
            setattr(Writer, name, original)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds["reading (workers)"] = after.ru_utime + after.ru_stime - workers.ru_utime - workers.ru_stime


def ingest_anew(documents: Path, embedder: Any, options: IngestOptions = IngestOptions()) -> int:  # noqa: B008
    """Into an empty knowledge base; the number of chunks."""
    with folder() as store:
        knowledge_base = KnowledgeBase.open(store, "bench", embedder, create=True)
        chunks = ingest(documents, knowledge_base, options).chunks
        knowledge_base.close()
    return chunks


def chunk_texts(documents: Path, embedder: Any) -> list[str]:
    with folder() as store:
        free = FreeEmbedder()
        free.max_tokens, free.offsets = embedder.max_tokens, embedder.offsets  # type: ignore[method-assign]
        knowledge_base = KnowledgeBase.open(store, "bench", free, create=True)
        ingest(documents, knowledge_base, IngestOptions(workers=0))
        texts = knowledge_base.ask(lambda collection: collection.get(include=["documents"]))["documents"]
        knowledge_base.close()
    return texts


def speed(chunks: int) -> None:
    embedder = Embedder()
    embedder.embed_query("warm-up")
    with folder() as documents:
        text_files(documents, max(1, chunks // 5), paragraphs=5)
        texts = chunk_texts(documents, embedder)
        alone, whole, shares = [], [], []
        for _ in range(ROUNDS):
            alone.append(timed(lambda: embedder.embed_documents(texts)))
            with stages() as seconds:
                whole.append(timed(lambda: ingest_anew(documents, embedder)))
            shares.append(seconds)
    clock, used = (
        statistics.median(one[which] / two[which] for one, two in zip(alone, whole, strict=True)) for which in (0, 1)
    )
    print(f"\n{len(texts)} chunks, median of {ROUNDS} rounds in turn\n\n| | chunks/s | CPU seconds |\n|---|---|---|")
    for name, runs in (("embedder alone", alone), ("ingest", whole)):
        rate, cost = len(texts) / statistics.median(one[0] for one in runs), statistics.median(one[1] for one in runs)
        print(f"| {name} | {rate:.1f} | {cost:.1f} |")
    print(f"| ratio | {clock:.3f} | {used:.3f} |\n\n| stage | CPU seconds |\n|---|---|")
    for name in shares[0]:
        print(f"| {name} | {statistics.median(one[name] for one in shares):.2f} |")


def formats(files: int) -> None:
    prose = Prose()
    print(f"\n{files} files of 6 paragraphs of each format\n\n| format | files/s | characters/s |\n|---|---|---|")
    for suffix, write in WRITERS.items():
        with folder() as documents:
            paths = [documents / f"{at}{suffix}" for at in range(files)]
            for path in paths:
                write(path, [prose.english() for _ in range(6)])
            list(load_all(paths[0], "warm-up"))
            start = time.perf_counter()
            loaded = [one for path in paths for one in load_all(path, path.name)]
            seconds = time.perf_counter() - start
            assert not [one for one in loaded if isinstance(one, FailedSource)]
            characters = sum(len(one.text) for one in loaded if not isinstance(one, FailedSource))
            print(f"| {suffix} | {files / seconds:.0f} | {characters / seconds:,.0f} |", flush=True)


def memory(files: int) -> None:
    peaks = {}
    print("\n| small files | peak memory, MiB | of the largest worker, MiB |\n|---|---|---|")
    for number in (files // 20, files):
        with folder() as made:
            text_files(made / "documents", number, sentences=2)
            command = [sys.executable, "-m", "benchmarks.ingest", "peak", str(made)]
            peak, worker = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            peaks[number] = int(peak)
            print(f"| {number} | {peak} | {worker} |", flush=True)
    print(f"\nratio {peaks[files] / peaks[files // 20]:.2f}")


def peak(made: str) -> None:
    ingest_anew(Path(made) / "documents", FreeEmbedder())
    print(*(resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def updates(files: int) -> None:
    embedder = Embedder()
    embedder.embed_query("warm-up")
    with folder() as made:
        documents = text_files(made / "documents", files)
        knowledge_base = KnowledgeBase.open(made / "store", "bench", embedder, create=True)
        seconds = {"first run": timed(lambda: ingest(documents, knowledge_base))[0]}
        seconds["nothing changed"] = timed(lambda: ingest(documents, knowledge_base))[0]
        (documents / "000" / "000000.txt").write_text(Prose(1).paragraph(), encoding="utf-8")
        seconds["one file changed"] = timed(lambda: ingest(documents, knowledge_base))[0]
        knowledge_base.close()
    print(f"\n| {files} files | seconds | of the first |\n|---|---|---|")
    for name, taken in seconds.items():
        print(f"| {name} | {taken:.2f} | {taken / seconds['first run']:.1%} |")


def rows(chunks: int) -> None:
    """Ten files at a time of a thousand chunks each, into one knowledge base."""
    paragraph = " ".join(f"word{number}" for number in range(60))
    print("\n| chunks | rows/s since the last line | rows a CPU second | disk, bytes a chunk | memory, bytes a chunk |")
    print("|---|---|---|---|---|")
    with folder() as made:
        (made / "documents").mkdir()
        knowledge_base = KnowledgeBase.open(made / "store", "bench", FreeEmbedder(), create=True)
        before, done, step = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0, min(chunks, 10_000)
        while done < chunks:
            for file in range(done, done + step, 1000):
                text = "\n\n".join(f"{number} {paragraph}" for number in range(file, file + 1000))
                (made / "documents" / f"{file:07}.txt").write_text(text, encoding="utf-8")
            options = IngestOptions(chunk_tokens=64)
            seconds, used = timed(lambda: ingest(made / "documents", knowledge_base, options))  # noqa: B023
            disk = sum(path.stat().st_size for path in (made / "store").rglob("*") if path.is_file())
            taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            grown, done = knowledge_base.count()[1] - done, knowledge_base.count()[1]
            rates = f"{grown / seconds:.0f} | {grown / used:.0f}"
            print(f"| {done} | {rates} | {disk / done:.0f} | {taken / done:.0f} |", flush=True)
            step = min(done, chunks - done)
        knowledge_base.close()


def peers(files: int) -> None:
    """Articles whose chunks are nearly all as long as the model reads, and five times as many notes of all lengths."""
    from benchmarks.ingest_peers import compare

    for name, number, paragraphs, sentences in (("articles", files, 5, 8), ("notes", 5 * files, 1, range(1, 9))):
        with folder() as made:
            print(f"\n### {name}", flush=True)
            compare(text_files(made / "documents", number, paragraphs=paragraphs, sentences=sentences))


PARTS: dict[str, tuple[Callable[[int], None], int]] = {
    "speed": (speed, 500),
    "formats": (formats, 50),
    "memory": (memory, 4000),
    "updates": (updates, 200),
    "rows": (rows, 20_000),
    "peers": (peers, 40),
}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["peak"]:
        peak(arguments[1])
        return
    for name in arguments[:1] or PARTS:
        part, size = PARTS[name]
        print(f"\n## {name}", flush=True)
        part(int(arguments[1]) if len(arguments) > 1 else size)


if __name__ == "__main__":
    main(sys.argv[1:])
