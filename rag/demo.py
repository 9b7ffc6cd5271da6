"""`make demo`: ingest the sample, start the service, ask scripted questions over HTTP, check the sources, stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from rag.terminal.answerers import events
from rag.terminal.command import place

GROUNDWELL = [sys.executable, "-m", "rag"]
START_SECONDS, STOP_SECONDS = 300, 15


def main(data: Path) -> int:
    """Run the demo on `data/sample` and `data/demo.jsonl`; 1 when an expected source is missing or the stop failed."""
    print("1. Ingesting data/sample", flush=True)
    if status := subprocess.run([*GROUNDWELL, "ingest", str(data / "sample")]).returncode:
        return status
    print("\n2. Starting the service (vLLM in process)", flush=True)
    questions = [json.loads(line) for line in (data / "demo.jsonl").read_text().splitlines()]
    with running_service() as address:
        print("\n3. Asking", flush=True)
        found = ask_all(address, questions)
        print("\n4. Stopping", flush=True)
    print(f"\n{sum(found)} of {len(found)} expected sources found.")
    return 0 if all(found) else 1


@contextmanager
def running_service() -> Iterator[str]:
    """A `groundwell serve` on a free port, as its address; stopped by SIGTERM. Raises when it does not start or end."""
    process = subprocess.Popen([*GROUNDWELL, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(STOP_SECONDS)
    if status:
        raise RuntimeError(f"the service ended with status {status}")


def _address(process: "subprocess.Popen[str]") -> str:
    """The address that the service prints once it answers."""
    started = time.monotonic()
    assert process.stdout
    for line in process.stdout:
        print(line, end="", flush=True)
        if "http://" in line:
            print(f"Started in {time.monotonic() - started:.0f} s", flush=True)
            return line.split()[-1]
        if time.monotonic() - started > START_SECONDS:
            break
    raise RuntimeError("the service did not start; its output is above")


def ask_all(address: str, questions: list[dict[str, Any]]) -> list[bool]:
    """Ask each question, a follow-up with the turn before it; whether each expected source was found."""
    turns: dict[str, list[dict[str, str]]] = {}
    found = []
    for question in questions:
        history = turns.get(question["history_of"], [])
        print(f"\nQ: {question['question']}", flush=True)
        sources, done = ask(address, question["question"], history)
        asked = {"role": "user", "content": question["question"]}
        turns[question["id"]] = [*history, asked, {"role": "assistant", "content": done["answer"] or "-"}]
        show(sources, done)
        if question["file"]:
            found.append(expected_in(sources, question))
            print("   expected source found" if found[-1] else f"   MISSING: {question['file']}", flush=True)
    return found


def ask(address: str, question: str, history: list[dict[str, str]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Ask over HTTP, print the answer as it streams; return the sources and the last event."""
    body = {"question": question, "history": history, "stream": True}
    url = f"{address}v1/knowledge-bases/default/ask"
    sources: list[dict[str, Any]] = []
    print("A: ", end="", flush=True)
    with httpx.stream("POST", url, json=body, timeout=120, trust_env=False) as response:
        if response.status_code != 200:
            raise RuntimeError(response.read().decode())
        for name, data in events(response.iter_lines()):
            if name == "sources":
                sources = data["sources"]
            elif name == "token":
                print(data["text"], end="", flush=True)
            elif name == "error":
                raise RuntimeError(data["error"]["message"])
            elif name == "done":
                print(flush=True)
                return sources, data
    raise RuntimeError("the stream ended without `done`")


def show(sources: list[dict[str, Any]], done: dict[str, Any]) -> None:
    """Print what supports the answer, else where the nearest passage is, and the time to the first token."""
    for citation in done["citations"]:
        print(f'   [{citation["source"]}] {place(citation)}: "{" ".join(citation["quote"].split())}"')
    if not done["citations"]:
        print(f"   no sentence of this answer is supported by the documents; nearest: {place(sources[0])}")
    first = done["timings"].get("first_token")
    print(f"   first token after {first:.2f} s, {done['usage']['completion_tokens']} tokens", flush=True)


def expected_in(sources: list[dict[str, Any]], question: dict[str, Any]) -> bool:
    """Whether the file, and the page where one is expected, is among the sources."""
    return any(source["file"] == question["file"] and question["page"] in (None, source["page"]) for source in sources)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # both models came as wheels: nothing is looked up
    sys.exit(main(Path(sys.argv[1])))
