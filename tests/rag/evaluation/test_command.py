"""`groundwell eval` on the scripted engine and the word-count embedder: what it asks, prints, writes and refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rag.evaluation.conftest import LEAVE, QUESTIONS

PNG = b"\x89PNG\r\n\x1a\n"


def size(png: Path) -> tuple[int, int]:
    """Width and height, as the header says."""
    head = png.read_bytes()[:24]
    assert head.startswith(PNG)
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def figures(file: Path, run: int = 0) -> dict[str, float]:
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    return {name: one["value"] for name, one in runs[run]["figures"].items()}


def row(out: str, label: str) -> list[str]:
    found = next(line for line in out.splitlines() if line.strip().startswith(label))
    return found.strip().removeprefix(label).split()


def test_every_question_is_asked_and_counted(run, write, engine, tmp_path) -> None:
    status, out, err = run(write(*QUESTIONS), "--json", tmp_path / "now.json", "--concurrency", 1)
    assert (status, err) == (0, "")
    assert len(engine.submitted) == 5  # the first question once more, before: what it loads is not measured
    found = figures(tmp_path / "now.json")
    assert found["recall@5"] == found["place_recall@1"] == 1
    assert found["recall@1"] == pytest.approx(2 / 3)  # joined with what was said before, the follow-up finds that first
    assert found["answer_right"] == pytest.approx(1 / 3)  # every answer is the one about leave
    assert found["citation_file_precision"] == found["citation_recall"] == pytest.approx(1 / 3)
    assert (found["answered"], found["refused"], found["errors"]) == (1, 0, 0)
    assert row(out, "right file among the first 1") == ["0.667", "2/3", "0.500", "1/2", "1.000", "1/1"]
    assert row(out, "questions") == ["4", "3", "1"]
    assert row(out, "condense (follow-ups)")[1] == "/"


def test_what_went_wrong_is_listed_with_what_was_expected_and_what_came(run, write) -> None:
    _, out, _ = run(write(*QUESTIONS))
    assert "went wrong: 3 of 4 questions\n  年假: 员工每年有几天年假？\n" in out
    assert f"\n      answer: expected “十二天年假”, got “{LEAVE}”\n" in out
    assert f"no document answers it, and it was answered: “{LEAVE}”" in out
    _, out, _ = run(write(*QUESTIONS), "--failures", 1)
    assert "  … and 2 more: --failures 3 shows all" in out and "no document answers" not in out
    _, out, _ = run(write(*QUESTIONS), "--failures", 0)
    assert "went wrong" not in out


def test_strict_mode_refuses_what_no_document_answers(run, write, engine, tmp_path) -> None:
    sweep = ["--sweep", "grounding.mode=balanced,strict"]
    run(write(*QUESTIONS), *sweep, "--json", tmp_path / "now.json")
    balanced, strict = (figures(tmp_path / "now.json", number) for number in (0, 1))
    assert (balanced["refused"], strict["refused"], strict["refused_or_flagged"]) == (0, 1, 1)
    assert strict["below_bar"] == 1


def test_the_models_own_refusal_counts(run, write, engine, tmp_path) -> None:
    engine.reset("The text does not say so.")
    run(write(*QUESTIONS), "--json", tmp_path / "now.json")
    found = figures(tmp_path / "now.json")
    assert (found["refused"], found["answered"], found["answer_right"]) == (1, 0, 0)


def test_the_search_alone_needs_no_engine(run, write, engine, tmp_path) -> None:
    status, out, _ = run(write(*QUESTIONS), "--retrieval-only", "--json", tmp_path / "now.json")
    assert status == 0 and not engine.submitted
    assert set(figures(tmp_path / "now.json")) >= {"recall@5", "mrr", "ndcg", "place_mrr", "above_bar", "below_bar"}
    assert "citations" not in out and "first token" not in out and "retrieve" in out


def test_the_search_alone_finds_what_the_whole_turn_finds(run, write, tmp_path) -> None:
    for name, flags in (("turns.json", []), ("search.json", ["--retrieval-only"])):
        run(write(*QUESTIONS), *flags, "--json", tmp_path / name)
    turns, search = (json.loads((tmp_path / name).read_text())["runs"][0] for name in ("turns.json", "search.json"))
    assert [one["found"] for one in turns["records"]] == [one["found"] for one in search["records"]]


def test_a_sweep_asks_once_for_each_combination_on_one_engine(run, write, tmp_path) -> None:
    sweeps = ["--sweep", "k=1,3", "--sweep", "retrieval.diversity=0,0.5"]
    status, out, _ = run(write(*QUESTIONS), *sweeps, "--json", tmp_path / "now.json")
    runs = json.loads((tmp_path / "now.json").read_text())["runs"]
    assert status == 0 and [one["k"] for one in runs] == [1, 1, 3, 3]
    assert [one["name"] for one in runs][1:3] == ["k=1, retrieval.diversity=0.5", "k=3, retrieval.diversity=0"]
    assert [len(one["records"][0]["found"]) for one in runs] == [1, 1, 3, 3]
    assert row(out, "right file among the first 3")[:2] == ["–", "–"]
    assert "k=3, retrieval.diversity=0 compared with k=1, retrieval.diversity=0, on the 4 questions" in out


def test_knowledge_bases_are_swept_by_name(run, write, tmp_path) -> None:
    status, out, _ = run(write(*QUESTIONS), "--retrieval-only", "--sweep", "store.knowledge_base=default,另一个")
    assert status == 0 and "store.knowledge_base=另一个" in out


@pytest.mark.parametrize(
    ("sweep", "told"),
    [
        ("engine.model=a,b", "run eval once for each value with --json FILE, then --compare FILE"),
        ("embedder.model=a", "reindex"),
        ("ingest.chunk_tokens=100,200", "ingest into a knowledge base for each value"),
        ("server.port=1", "changes no answer"),
        ("store.path=a", "only store.knowledge_base can be swept"),
        ("retrieval.diversty=0.1", "did you mean 'retrieval.diversity'?"),
        ("neighbours=1", "did you mean 'retrieval.neighbours'?"),
        ("k=0", "greater than or equal to 1"),
        ("k=many", "valid integer"),
        ("k=", "is not NAME=VALUE,VALUE"),
        ("k", "is not NAME=VALUE,VALUE"),
        ("k=3,3", "has a value twice"),
        ("store.knowledge_base=default,无", "无"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_anything_starts(run, write, engine, sweep: str, told: str) -> None:
    status, out, err = run(write(*QUESTIONS), "--sweep", sweep)
    assert (status, out) == (2, "") and told in err and not engine.submitted


def test_a_sweep_of_what_the_search_does_not_see_is_refused(run, write) -> None:
    status, _, err = run(write(*QUESTIONS), "--retrieval-only", "--sweep", "answer.max_tokens=10,20")
    assert status == 2 and "changes nothing that --retrieval-only measures" in err
    status, _, err = run(write(*QUESTIONS), "--sweep", "k=1,2", "--sweep", "answer.retrieve=3")
    assert status == 2 and "swept twice" in err


def test_follow_ups_that_a_model_rewrites_are_not_for_the_search_alone(run, write, monkeypatch, engine) -> None:
    monkeypatch.setenv("GROUNDWELL_ANSWER__FOLLOW_UP", "rewrite")
    status, _, err = run(write(*QUESTIONS), "--retrieval-only")
    assert status == 2 and "add --sweep answer.follow_up=join" in err
    assert run(write(*QUESTIONS), "--retrieval-only", "--sweep", "answer.follow_up=join")[0] == 0
    assert run(write(QUESTIONS[0]), "--retrieval-only")[0] == 0
    assert run(write(*QUESTIONS))[0] == 0 and len(engine.submitted) == 6  # one of them rewrites


def test_a_run_is_compared_with_an_older_one_question_by_question(run, write, engine, tmp_path) -> None:
    file = write(*QUESTIONS)
    engine.reset("I do not know.")
    assert run(file, "--json", tmp_path / "基线.json")[0] == 0
    engine.reset(LEAVE)
    status, out, _ = run(file, "--compare", tmp_path / "基线.json", "--chart", tmp_path / "both.png")
    assert status == 0 and "balanced compared with 基线: balanced, on the 4 questions that both were asked" in out
    assert "answers: right" in out and "+0.333" in out and "noise" in out
    assert size(tmp_path / "both.png")[0] == 1440


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not what `groundwell eval --json FILE` writes"),
        ("[]", "is not what"),
        ('{"format": 1, "runs": [{"name": "a"}]}', "is not what"),
        ('{"format": 99, "runs": []}', "another version"),
        ('{"format": 1, "runs": []}', "holds no run"),
        (None, "No such file"),
    ],
)
def test_what_cannot_be_compared_with_is_refused_first(run, write, engine, tmp_path, text, told) -> None:
    if text is not None:
        (tmp_path / "old.json").write_text(text)
    status, out, err = run(write(*QUESTIONS), "--compare", tmp_path / "old.json")
    assert (status, out) == (2, "") and told in err and not engine.submitted


def test_runs_of_other_questions_or_of_several_names_are_not_compared(run, write, tmp_path) -> None:
    old = tmp_path / "old.json"
    run(write(*QUESTIONS), "--retrieval-only", "--sweep", "k=1,3", "--json", old)
    status, _, err = run(write(*QUESTIONS), "--retrieval-only", "--compare", old)
    assert status == 2 and "none of the runs to compare with is called 'retrieval': there are 'k=1', 'k=3'" in err
    status, _, err = run(write({"question": "Else?"}), "--retrieval-only", "--sweep", "k=3", "--compare", old)
    assert status == 2 and "no question in common" in err


def test_a_chart_is_a_picture_with_chinese_names(run, write, tmp_path) -> None:
    sweep = ["--retrieval-only", "--sweep", "store.knowledge_base=default,另一个"]
    status, _, err = run(write(*QUESTIONS, name="问题.jsonl"), *sweep, "--chart", tmp_path / "图.png")
    assert status == 0
    width, height = size(tmp_path / "图.png")
    assert width == 1440 and height > 400
    assert err == "" or "the chart calls it run 2" in err  # where no font of the machine has Chinese


def test_a_name_that_no_font_draws_goes_by_its_number(tmp_path, monkeypatch) -> None:
    from rag.evaluation import chart
    from rag.evaluation.figures import Run
    from tests.rag.evaluation.test_figures import record

    monkeypatch.setattr(chart, "_fonts", lambda text: [])
    records = [record(1, {"total": 1.0}, answered=(1, 1))]
    runs = [Run(name, 5, {}, records) for name in ("旧的", "_new $x$", "x" * 200)]
    notes = chart.draw(runs, "标题", tmp_path / "chart.png")
    assert notes == ["no font here draws “旧的”: the chart calls it run 1"]
    assert size(tmp_path / "chart.png")[0] == 1440


@pytest.mark.parametrize("flag", ["--chart", "--json"])
def test_where_nothing_can_be_written_nothing_is_asked(run, write, engine, tmp_path, flag: str) -> None:
    status, _, err = run(write(*QUESTIONS), flag, tmp_path / "none" / "file.png")
    assert status == 2 and "no such folder" in err and not engine.submitted


def test_a_chart_is_a_png_and_needs_matplotlib(run, write, engine, monkeypatch) -> None:
    status, _, err = run(write(*QUESTIONS), "--chart", "chart.pdf")
    assert status == 2 and "does not end in .png" in err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, err = run(write(*QUESTIONS), "--chart", "chart.png")
    assert status == 2 and "pip install 'groundwell[eval]'" in err and not engine.submitted


def test_a_figure_below_its_least_ends_with_one(run, write) -> None:
    file = write(*QUESTIONS)
    assert run(file, "--retrieval-only", "--at-least", "recall@5=0.97", "--at-least", "place_mrr=1")[0] == 0
    status, _, err = run(file, "--at-least", "answer_right=0.9")
    assert status == 1 and "balanced: answer_right is 0.3333, and should be at least 0.9" in err
    status, _, err = run(file, "--retrieval-only", "--at-least", "answer_right=0.9")
    assert status == 1 and "nothing to count" in err


@pytest.mark.parametrize(
    "bar",
    [
        "recal@5=0.9",
        "recall@5",
        "recall@5=97",
        "recall@5=",
        "recall@10=0.9",
        "recall@4=0.9",
        "mrr=-1",
        "mrr=nan",
        "mrr=.",
    ],
)
def test_a_least_that_nothing_can_be_held_against_is_refused(run, write, engine, bar: str) -> None:
    status, out, _ = run(write(*QUESTIONS), "--at-least", bar)
    assert (status, out) == (2, "") and not engine.submitted


def test_bad_lines_are_told_before_anything_starts(run, write, engine) -> None:
    status, out, err = run(write(QUESTIONS[0], '{"question": }', {"anwser": "x"}))
    assert (status, out) == (2, "") and not engine.submitted
    assert "line 2: not JSON at character 14" in err and "line 3: no field is called 'anwser'" in err


def test_a_file_that_is_not_there_is_one_sentence(run) -> None:
    status, out, err = run("none.jsonl")
    assert (status, out, err) == (2, "", "groundwell eval: none.jsonl: No such file or directory\n")


def test_an_unknown_or_empty_knowledge_base_is_told_before_anything_starts(run, write, engine) -> None:
    status, _, err = run(write(*QUESTIONS), "--knowledge-base", "无")
    assert status == 2 and "无" in err and "default" in err
    status, _, err = run(write(*QUESTIONS), "--knowledge-base", "空")
    assert status == 2 and "is empty: run `groundwell ingest FOLDER`" in err and not engine.submitted


def test_expected_files_that_are_not_in_the_knowledge_base_are_named(run, write, engine) -> None:
    elsewhere: dict[str, Any] = {"question": "Else?", "file": "else/其他.md"}
    status, _, err = run(write(*QUESTIONS, elsewhere), "--retrieval-only")
    assert status == 0 and "not in knowledge base 'default', but expected: else/其他.md" in err
    status, _, err = run(write(elsewhere), "--retrieval-only")
    assert status == 2 and "`file` is the name that `groundwell documents list` gives" in err


def test_a_question_that_is_refused_is_counted_and_the_others_are_asked(run, write, engine, tmp_path) -> None:
    long = {"id": "long", "question": "汉" * 9000, "answerable": True}
    status, out, _ = run(write(*QUESTIONS, long), "--json", tmp_path / "now.json")
    assert status == 1 and "failed: " in out
    assert figures(tmp_path / "now.json")["errors"] == pytest.approx(1 / 5)


def test_an_engine_that_ends_is_one_sentence_and_no_figures(run, write, engine) -> None:
    from llm.protocol import EngineUnavailable

    engine.refusal = EngineUnavailable("the engine has died")
    status, out, err = run(write(*QUESTIONS))
    assert (status, out, err) == (2, "", "groundwell eval: the engine has died\n")


def test_a_file_without_an_expectation_is_asked_all_the_same(run, write) -> None:
    status, out, _ = run(write({"question": "What is it?"}))
    assert status == 0 and "retrieval" not in out and "whole" in out
