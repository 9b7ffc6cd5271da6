"""Which model a name means, and what the list of models says."""

from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest

from tests.fakes import ScriptedEngine
from tests.http.test_openai import COMPLETIONS, MESSAGES


async def test_the_list_has_the_model_and_each_knowledge_base(official: openai.AsyncOpenAI) -> None:
    names = [model.id async for model in official.models.list()]
    assert names[0] == "scripted"
    assert {"scripted@default", "scripted@three", "scripted@空"} <= set(names)
    assert (await official.models.retrieve("scripted@空")).id == "scripted@空"
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await official.models.retrieve("nobody")


@pytest.mark.parametrize(
    ("model", "more", "source"),
    [
        ("", {}, "leave.md"),
        ("@", {}, "leave.md"),
        ("@default", {}, "leave.md"),
        ("scripted@default", {}, "leave.md"),
        ("@three", {}, "added://"),
        ("scripted", {"extra_body": {"knowledge_base": "default"}}, "leave.md"),
        ("scripted", {"extra_headers": {"X-Knowledge-Base": "default"}}, "leave.md"),
        ("@three", {"extra_headers": {"X-Knowledge-Base": "default"}}, "leave.md"),
    ],
)
async def test_a_name_a_field_or_a_header_names_the_documents(
    official: openai.AsyncOpenAI, model: str, more: Any, source: str
) -> None:
    got: Any = await official.chat.completions.create(model=model, messages=MESSAGES, **more)
    assert got.sources and all(one["file"].startswith(source) for one in got.sources)
    assert got.model == (model or "scripted")


async def test_a_header_names_chinese_percent_encoded(official: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.ConflictError, match="空"):
        await official.chat.completions.create(
            model="scripted", messages=MESSAGES, extra_headers={"X-Knowledge-Base": quote("空")}
        )


async def test_the_model_itself_gets_no_documents(official: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.reset("Hello!")
    got: Any = await official.chat.completions.create(model="scripted", messages=MESSAGES)
    assert got.choices[0].message.content == "Hello!"
    assert not hasattr(got, "sources")
    assert "annual leave per year" not in engine.tokenizer.decode(engine.submitted[-1].prompt_ids)


@pytest.mark.parametrize("name", ["gpt-4o", "nobody@default", "scripted "])
async def test_an_unknown_model_is_a_404_that_names_those_that_are(client: httpx.AsyncClient, name: str) -> None:
    response = await client.post(COMPLETIONS, json={"model": name, "messages": MESSAGES})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert "scripted" in error["message"]
