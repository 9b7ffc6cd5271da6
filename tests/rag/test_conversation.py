"""A conversation over many turns: what is sent again, what is pointed at, and what the engine finds in its cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from llm.chat import ChatVLLM
from rag.conversation import Conversations, Sent
from rag.counting import TokenCounter
from rag.delimit import delimited
from rag.marks import without_marks
from rag.profile import LARGE, SMALL, Profile
from rag.prompt import Prompt, build_prompt
from tests.fakes import ScriptedEngine, byte_tokenizer
from tests.rag.conftest import passage
from tests.rag.test_marks import PIECES
from tests.templates import FAMILIES

TERSE = replace(LARGE, system="Answer.")
LEAVE, TRAVEL, CANTEEN = passage("Leave is 25 days.", "leave.md"), passage("Ask Dr Adeyemi."), passage("年假十二天。")
LEAVE_TEXT, ASK_TEXT = delimited(1, "leave.md", "Leave is 25 days."), delimited(2, "guide.txt", "Ask Dr Adeyemi.")
SYSTEM_LAST = {"mistral_tekken", "mistral_sentence_piece"}
"""Their templates put the system text into the last question, whatever we do."""


@dataclass
class Talk:
    """A client that keeps plain messages, on a service that remembers."""

    chat: ChatVLLM
    profile: Profile = TERSE
    conversations: Conversations = field(default_factory=Conversations)
    history: list[BaseMessage] = field(default_factory=list)
    scope: str = ""

    def ask(self, question: str, passages: Sequence[Document], answer: str, *, shown: str | None = None) -> Prompt:
        """One turn; the client keeps the answer without marks, or `shown` in its place."""
        shown = without_marks(answer)[0] if shown is None else shown
        conversation = self.conversations.recall(self.history, scope=self.scope)
        counter = TokenCounter.of(self.chat, self.conversations.lengths)
        prompt = build_prompt(question, passages, conversation, profile=self.profile, counter=counter, max_tokens=100)
        self.conversations.remember(conversation, question, prompt.sent)
        self.conversations.answered(conversation, question, answer, shown=without_marks(answer)[0])
        self.history = [*self.history, HumanMessage(question), AIMessage(shown)]
        return prompt


@cache
def tokenizer_of(family: str) -> Any:
    return byte_tokenizer() if family == "bytes" else FAMILIES[family]()


def talk_on(family: str = "bytes", window: int = 4096, **options: Any) -> Talk:
    return Talk(ChatVLLM(engine=ScriptedEngine(max_model_len=window, tokenizer=tokenizer_of(family))), **options)


def texts(prompt: Prompt) -> list[str]:
    return [message.text for message in prompt.messages]


def test_a_passage_is_sent_in_the_turn_that_finds_it_first_and_pointed_at_afterwards() -> None:
    talk = talk_on()
    talk.ask("How many days?", [LEAVE, TRAVEL], "25 [1].")
    prompt = talk.ask("And who approves?", [TRAVEL, CANTEEN], "Dr Adeyemi [2].")
    assert texts(prompt) == [
        "Answer.",
        f"{LEAVE_TEXT}\n\n{ASK_TEXT}\n\nHow many days?",
        "25 [1].",
        f"See above: [2]\n\n{delimited(3, 'guide.txt', '年假十二天。')}\n\nAnd who approves?",
    ]
    assert prompt.sources == {1: LEAVE, 2: TRAVEL, 3: CANTEEN}
    assert prompt.passages == [TRAVEL, CANTEEN]
    assert list(talk.ask("年假？", [CANTEEN], "十二天 [3]。").sources) == [3, 1, 2]


def test_a_passage_that_was_found_but_had_no_room_keeps_its_number_and_is_sent_when_it_has() -> None:
    talk = talk_on(profile=replace(TERSE, passages=1))
    assert talk.ask("How many days?", [LEAVE, TRAVEL], "25 [1].").sources == {1: LEAVE, 2: TRAVEL}
    prompt = talk.ask("Who?", [TRAVEL, CANTEEN], "Dr Adeyemi [2].")
    assert texts(prompt)[-1] == f"{ASK_TEXT}\n\nWho?"
    assert prompt.sources == {2: TRAVEL, 3: CANTEEN, 1: LEAVE}


def test_a_passage_whose_turn_was_dropped_is_sent_again_under_its_number_when_it_is_found_again() -> None:
    talk = talk_on(window=700)
    talk.ask("How many days?", [LEAVE], "25 [1]." + "x" * 300)
    talk.ask("Who?", [TRAVEL], "Dr Adeyemi [2]." + "x" * 150)
    prompt = talk.ask("How many days again?", [LEAVE, TRAVEL], "25.")
    assert prompt.dropped_turns == 1
    assert texts(prompt)[-1] == f"See above: [2]\n\n{LEAVE_TEXT}\n\nHow many days again?"
    without = talk.ask("年假？", [CANTEEN], "12.")
    assert 3 in without.sources


def test_a_passage_that_was_cut_is_sent_again_whole() -> None:
    talk = talk_on(window=400)
    long = passage("A sentence is here. " * 30)
    assert talk.ask("What?", [long], "It.").shortened
    talk.chat = talk_on().chat
    assert texts(talk.ask("What again?", [long], "It."))[-1].startswith("<passage [1] guide.txt>\nA sentence")


@pytest.mark.parametrize("shown", ["25 days 【1】, or 26 [2, 1].", "25 days, or 26.", "25 days , or\n26 ."])
def test_an_answer_is_known_with_and_without_its_marks_and_sent_again_as_the_model_wrote_it(shown: str) -> None:
    talk = talk_on()
    written = "25 days [1], or 26 [2][1]."
    talk.ask("How many days?", [LEAVE, TRAVEL], written, shown=shown)
    prompt = talk.ask("Sure?", [LEAVE], "Yes.")
    assert texts(prompt)[1].startswith("<passage [1] leave.md>")
    assert prompt.messages[2] == AIMessage(written)


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join))
def test_an_answer_with_marks_of_any_shape_is_sent_again_as_the_model_wrote_it(written: str) -> None:
    talk = talk_on()
    talk.ask("How many days?", [LEAVE], written)
    assert talk.ask("Sure?", [LEAVE], "Yes.").messages[2] == AIMessage(written)


@pytest.mark.parametrize("shown", ["25", "", "Something else."])
def test_an_answer_that_was_cut_or_changed_is_sent_as_the_client_has_it_under_its_passages(shown: str) -> None:
    talk = talk_on()
    talk.ask("How many days?", [LEAVE], "25 days [1].", shown=shown)
    prompt = talk.ask("Sure?", [LEAVE], "Yes.")
    assert texts(prompt)[1].startswith("<passage [1] leave.md>")
    assert prompt.messages[2] == AIMessage(shown)


def test_two_ways_to_go_on_from_one_point_do_not_mix() -> None:
    talk = talk_on()
    talk.ask("How many days?", [LEAVE], "25 [1].")
    point = talk.history
    talk.ask("Who?", [TRAVEL], "Dr Adeyemi [2].")
    other = replace(talk, history=[point[0], AIMessage("26.")])
    other.ask("Who?", [CANTEEN], "十二天 [2]。")
    assert talk.ask("Sure?", [], "Yes.").sources == {1: LEAVE, 2: TRAVEL}
    assert other.ask("Sure?", [], "Yes.").sources == {1: LEAVE, 2: CANTEEN}


def test_a_conversation_of_another_scope_gets_nothing_of_this_one() -> None:
    talk = talk_on(scope="handbook")
    talk.ask("How many days?", [LEAVE], "25 [1].")
    other = replace(talk, scope="salaries").ask("Sure?", [TRAVEL], "Yes.")
    first = ASK_TEXT.replace("[2]", "[1]")
    assert texts(other)[1:] == ["How many days?", "25.", f"{first}\n\nSure?"]


def test_in_a_conversation_that_is_not_known_no_passage_gets_a_number_that_an_answer_mentions() -> None:
    history: list[BaseMessage] = [HumanMessage("1999 [5]?"), AIMessage("25 [1], 26【3, 2】, in [2024].")]
    prompt = talk_on(history=history).ask("Sure?", [LEAVE], "Yes.")
    assert prompt.messages[1:3] == history
    assert prompt.sources == {4: LEAVE}


@pytest.mark.parametrize(
    "history",
    [
        [AIMessage("Hello, what can I do?")],
        [SystemMessage("A note."), HumanMessage("q"), HumanMessage("q"), AIMessage("a"), AIMessage("b")],
        [HumanMessage("\ud800"), AIMessage("")],
    ],
)
def test_histories_of_any_shape_are_kept_as_they_are(history: list[BaseMessage]) -> None:
    turns = Conversations().recall(history).turns
    assert [message for turn in turns for message in turn.messages] == history


def test_what_is_remembered_is_bounded_and_the_oldest_is_forgotten_first() -> None:
    conversations = Conversations(characters=1000)
    for number in range(100):
        start = conversations.recall([])
        conversations.remember(start, f"q{number}", Sent("a" * 90, {}, frozenset({1})))
        conversations.answered(start, f"q{number}", "b" * 10, shown="b" * 10)
    known = [bool(conversations.recall([HumanMessage(f"q{number}")]).turns[0].sent) for number in range(100)]
    assert known == [False] * 90 + [True] * 10


def test_passages_of_one_text_at_two_places_are_two_and_one_found_twice_is_one() -> None:
    here, there = passage("Same."), passage("Same.", start=7)
    assert Conversations().recall([]).numbered([here, there, here]) == {1: here, 2: there}


@pytest.mark.parametrize("family", ["bytes", *FAMILIES])
@pytest.mark.parametrize("profile", [TERSE, replace(SMALL, history_turns=20)], ids=["large", "small"])
def test_a_turns_prompt_and_answer_are_the_beginning_of_the_next_turns_prompt(family: str, profile: Profile) -> None:
    if family in SYSTEM_LAST:
        pytest.skip("its template moves the system text")
    talk = talk_on(family, profile=profile)
    found = [[LEAVE, TRAVEL], [TRAVEL, CANTEEN], [], [LEAVE], [CANTEEN, passage("新的一段。", "新.md")]]
    before: list[int] = []
    for number, passages in enumerate(found):
        answer = f"Answer {number} 答案 [1]."
        prompt = talk.ask(f"第{number}个 question?", passages, answer, shown=f"Answer {number} 答案.")
        now = talk.chat.encoder.encode(prompt.messages)
        assert now[: len(before)] == before
        asks_next = [
            talk.chat.encoder.encode([*prompt.messages, AIMessage(answer), HumanMessage(text)]) for text in ("x", "是")
        ]
        before = common(*asks_next)
        opened = "<think>" if family == "deepseek" else ""  # a thought that was opened is no part of the answer
        kept = tokenizer_of(family).decode(common(now, before))
        assert kept + opened == tokenizer_of(family).decode(now).rstrip("\n") or common(now, before) == now


def common(one: list[int], other: list[int]) -> list[int]:
    """The ids with which both begin."""
    return [left for left, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
