"""The service on real models over a real socket."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from llm.engine import Engine
from tests.model.conftest import DATA
from tests.model.gauges import wait_until, wait_until_idle

ASK = "/v1/knowledge-bases/default/ask"
QUESTIONS = [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
DEMO = [json.loads(line) for line in (DATA / "demo.jsonl").read_text(encoding="utf-8").splitlines()]
HISTORY = [{"role": "user", "content": "What is a Terrano 3?"}, {"role": "assistant", "content": "A probe."}]


def ask(client: httpx.Client, question: str, **more: Any) -> dict[str, Any]:
    response = client.post(ASK, json={"question": question, "stream": False, **more})
    assert response.status_code == 200, response.text
    return response.json()


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def test_every_demo_question_finds_its_source(client: httpx.Client) -> None:
    asked = {question["id"]: question["question"] for question in DEMO}
    for question in DEMO:
        if question["file"]:
            earlier = asked.get(question["history_of"])
            history = [{"role": "user", "content": earlier}, {"role": "assistant", "content": "-"}] if earlier else []
            sources = ask(client, question["question"], history=history, max_tokens=1)["sources"]
            assert question["file"] in [source["file"] for source in sources]


def test_a_citation_is_the_very_words_of_its_source(client: httpx.Client) -> None:
    wholes = [ask(client, question["question"]) for question in [*DEMO, *QUESTIONS[:60:6]]]
    cited = [(whole, citation) for whole in wholes for citation in whole["citations"]]
    assert cited, [whole["answer"] for whole in wholes]
    for whole, citation in cited:
        source = whole["sources"][citation["source"] - 1]
        start = citation["start"] - source["start"]
        assert source["text"][start : start + len(citation["quote"])] == citation["quote"]
        assert citation["file"] == source["file"] and citation["page"] == source["page"]


def test_a_stream_says_what_the_whole_answer_says(client: httpx.Client) -> None:
    question = "How many days of annual leave do full-time employees get?"
    with client.stream("POST", ASK, json={"question": question}) as response:
        got = list(events(response))
    whole = ask(client, question)
    assert "".join(data["text"] for name, data in got if name == "token") == whole["answer"]
    assert got[-1][1]["citations"] == whole["citations"]
    usage = got[-1][1]["usage"]
    assert got[0][1]["prompt_tokens"] == usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_the_right_file_is_among_the_sources(client: httpx.Client) -> None:
    """All questions that the documents answer, English and Chinese."""
    answerable = [question for question in QUESTIONS if question["answerable"]]
    missed = []
    for question in answerable:
        sources = ask(client, question["question"], max_tokens=1)["sources"]
        if question["file"] not in [source["file"] for source in sources]:
            missed.append(question["id"])
    assert len(missed) <= 0.03 * len(answerable), missed


def test_a_client_that_leaves_while_the_prompt_is_read_frees_the_engine(client: httpx.Client, engine: Engine) -> None:
    body = {"question": "Explain. " * 700, "max_tokens": 2000}
    with client.stream("POST", ASK, json=body) as response:
        stream = events(response)
        assert next(stream)[0] == "sources"
        assert engine.unfinished == 1
    wait_until_idle(engine)


def test_a_client_that_leaves_while_condensing_frees_the_engine(client: httpx.Client, engine: Engine) -> None:
    long_history = [*HISTORY, {"role": "user", "content": "Why? " * 700}, {"role": "assistant", "content": "So."}]
    body = {"question": "And what does it cost?", "history": long_history}
    before = time.monotonic()
    with pytest.raises(httpx.ReadTimeout):
        client.post(ASK, json=body, timeout=httpx.Timeout(5, read=1.0))
    assert time.monotonic() - before < 3
    wait_until_idle(engine)


def test_a_follow_up_is_rewritten_by_the_model_and_finds_its_passage(client: httpx.Client) -> None:
    history = [
        {"role": "user", "content": "How many days of annual leave do full-time employees get?"},
        {"role": "assistant", "content": "Full-time employees receive 25 days of annual leave per year."},
    ]
    whole = ask(client, "And how many days of sick leave?", history=history, max_tokens=1)
    rewritten, alone = whole["searched"]
    assert alone == "And how many days of sick leave?" != rewritten
    assert "handbook/leave.md" in [source["file"] for source in whole["sources"]]


def test_a_question_longer_than_the_window_is_refused_and_the_next_one_answered(client: httpx.Client) -> None:
    response = client.post(ASK, json={"question": "汉" * 300_000})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert len(re.findall(r"\d{4,}", message)) == 2, message
    assert ask(client, "What is a Terrano 3?", max_tokens=2)["answer"]


def test_ready_names_the_model_and_nothing_unfinished(client: httpx.Client, engine: Engine) -> None:
    wait_until(lambda: engine.unfinished == 0)
    ready = client.get("/health/ready").json()
    assert ready == {"status": "ready", "model": engine.model, "unfinished_requests": 0}
