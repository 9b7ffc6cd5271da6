"""`groundwell ask`, `chat` and `search` with a running service; and the same answers from the parts themselves."""

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from llm.bridge import LoopThread
from llm.protocol import EngineUnavailable
from rag.__main__ import main
from rag.app import build_service
from rag.settings import Settings
from rag.terminal.answerers import Local
from tests.fakes import ScriptedEngine, WordCountEmbedder

ANSWER = "Full-time employees receive 25 days of annual leave."
Command = Callable[..., "asyncio.Future[tuple[int, str, str]]"]


@pytest.fixture
def command(client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command against the service."""

    async def run(*arguments: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        try:
            status = await asyncio.to_thread(main, [arguments[0], "--url", str(client.base_url), *arguments[1:]])
        except SystemExit as error:
            status = int(str(error.code))
        return status, *capsys.readouterr()

    return run


async def test_an_answer_is_printed_with_its_quotations(command: Command) -> None:
    status, out, _ = await command("ask", "How many days of annual leave?")
    assert status == 0
    assert out.startswith(f"{ANSWER}\n")
    assert '] leave.md, line 3: "Full-time employees receive 25 days of annual leave per year' in out


async def test_json_is_one_object(command: Command) -> None:
    status, out, _ = await command("ask", "--json", "-", typed="How many days of annual leave?\n")
    whole = json.loads(out)
    assert status == 0
    assert whole["answer"] == ANSWER
    assert whole["sources"] and whole["citations"] and whole["usage"]


async def test_the_options_reach_the_service(command: Command, engine: ScriptedEngine, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "年假多少天?"}, {"role": "assistant", "content": "二十五天。"}]
    file = tmp_path / "turns.jsonl"
    file.write_text("".join(f"{json.dumps(turn, ensure_ascii=False)}\n" for turn in turns), encoding="utf-8")
    options = ["--knowledge-base", "three", "--filter", '{"部门": "人事部"}', "--k", "2", "--grounding", "open"]
    status, out, _ = await command("ask", *options, "--history", str(file), "--json", "病假呢?")
    whole = json.loads(out)
    assert status == 0
    assert [one["text"] for one in whole["sources"]] == ["病假为七天。"]
    assert whole["grounding"]["mode"] == "open"
    assert "二十五天。" in engine.tokenizer.decode(engine.submitted[-1].prompt_ids)


async def test_a_search_prints_places_and_texts(command: Command, engine: ScriptedEngine) -> None:
    status, out, _ = await command("search", "病假几天?")
    assert status == 0
    assert "leave.md" in out and "员工每年有十八天病假。" in out
    status, out, _ = await command("search", "--json", "--k", "1", "--knowledge-base", "three", "annual leave")
    assert [passage["index"] for passage in json.loads(out)["passages"]] == [1]
    assert not engine.submitted


@pytest.mark.parametrize("command_name", ["ask", "search"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([" "], "the question is empty"),
        (["--k", "0", "x"], "k: "),
        (["--filter", "{", "x"], "is no JSON"),
        (["--filter", '{"a": {"$foo": 1}}', "x"], "$foo"),
        (["--knowledge-base", "nobody", "x"], "nobody"),
        (["--knowledge-base", "空", "x"], "空"),
    ],
    ids=["empty", "k", "json", "filter", "unknown", "nothing in it"],
)
async def test_what_cannot_be_asked_is_one_sentence(
    command: Command, engine: ScriptedEngine, command_name: str, arguments: list[str], says: str
) -> None:
    status, out, err = await command(command_name, *arguments)
    assert status == 2
    assert not out
    assert says in err.splitlines()[-1]
    assert not engine.submitted


async def test_a_line_that_is_no_turn_is_named(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text('{"role": "user", "content": "x"}\n{"role": "robot", "content": "x"}\n')
    status, _, err = await command("ask", "--history", str(file), "x")
    assert status == 2
    assert "line 2" in err


async def test_a_failure_on_the_way_is_told(command: Command, engine: ScriptedEngine) -> None:
    engine.reset(EngineUnavailable("the vLLM engine has died"))
    status, out, _ = await command("ask", "--grounding", "open", "How many days of annual leave?")
    assert status == 1
    assert "the answer failed: the vLLM engine has died" in out


async def test_no_service_at_the_address_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(main, ["ask", "--url", "http://127.0.0.1:9", "x"]) == 2
    assert "no service answers at http://127.0.0.1:9" in capsys.readouterr().err


async def test_a_conversation_remembers_its_turns(command: Command, engine: ScriptedEngine) -> None:
    status, out, _ = await command("chat", typed="How many days of annual leave?\n\nAnd 病假?\n/quit\nnot asked\n")
    assert status == 0
    assert out.count(ANSWER) == 2
    prompt = engine.tokenizer.decode(engine.submitted[-1].prompt_ids)
    assert "How many days of annual leave?" in prompt and "And 病假?" in prompt
    assert len(engine.submitted) == 2


def test_the_parts_themselves_answer_the_same(store: Path) -> None:
    engine = ScriptedEngine(ANSWER)
    with LoopThread() as thread:
        engine.loop = thread.loop
        local = Local(build_service(Settings(store={"path": store}), engine, WordCountEmbedder()))
        events = list(local.ask("default", {"question": "How many days of annual leave?"}))
        assert (events[0][0], events[-1][0]) == ("sources", "done")
        assert events[-1][1]["answer"] == ANSWER
        assert local.search("three", {"question": "病假", "k": 1})["passages"][0]["text"] == "病假为七天。"
        local.service.library.close()
