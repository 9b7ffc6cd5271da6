"""How strictly an answer keeps to the documents, chosen by each request on both routes."""

from typing import Any

import httpx
import pytest

from rag.grounding import REFUSALS
from tests.fakes import ScriptedEngine

SENTENCE = "Full-time employees receive 25 days of annual leave."
ASK, COMPLETIONS = "/v1/knowledge-bases/default/ask", "/v1/chat/completions"
KNOWN, UNKNOWN = "Do full-time employees receive 25 days of annual leave per year?", "谁赢了世界杯？"


async def replied(client: httpx.AsyncClient, route: str, question: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """The answer and its grounding."""
    if route == ASK:
        response = await client.post(ASK, json={"question": question, "stream": False, **more})
        return response.json()["answer"], response.json()["grounding"]
    body = {"model": "@default", "messages": [{"role": "user", "content": question}], **more}
    response = await client.post(COMPLETIONS, json=body)
    return response.json()["choices"][0]["message"]["content"], response.json()["grounding"]


@pytest.mark.parametrize("route", [ASK, COMPLETIONS])
async def test_a_request_chooses_its_mode(client: httpx.AsyncClient, engine: ScriptedEngine, route: str) -> None:
    engine.reset(f"{SENTENCE} Apples are free.")
    answer, grounding = await replied(client, route, KNOWN, grounding="strict")
    assert (answer, grounding["mode"], grounding["grounded"], grounding["score"]) == (SENTENCE, "strict", True, 1.0)
    for mode in ("balanced", "open"):
        answer, grounding = await replied(client, route, KNOWN, grounding=mode)
        assert (answer, grounding["mode"]) == (f"{SENTENCE} Apples are free.", mode)
        assert [answer[slice(*span)] for span in grounding["unsupported"]] == ["Apples are free."]
    assert (await replied(client, route, KNOWN))[1]["mode"] == "balanced"


@pytest.mark.parametrize("route", [ASK, COMPLETIONS])
async def test_a_strict_request_is_refused_without_a_call(
    client: httpx.AsyncClient, engine: ScriptedEngine, route: str
) -> None:
    answer, grounding = await replied(client, route, UNKNOWN, grounding="strict")
    assert (answer, grounding["refused"], grounding["grounded"]) == (REFUSALS["zh"], True, False)
    assert engine.submitted == []


@pytest.mark.parametrize("route", [ASK, COMPLETIONS])
async def test_an_unknown_mode_is_refused_by_name(client: httpx.AsyncClient, route: str) -> None:
    body = {"question": KNOWN, "messages": [{"role": "user", "content": KNOWN}], "grounding": "lenient"}
    if route == ASK:
        del body["messages"]
    response = await client.post(route, json=body)
    assert response.status_code in (400, 422) and "grounding" in response.text
