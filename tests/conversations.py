"""Random conversations in small windows, and what must hold for each of their prompts."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from llm.chat import ChatVLLM
from llm.prompting import PromptTooLong
from rag.budget import STEP, Room, newest_turns
from rag.conversation import Conversations
from rag.counting import TokenCounter
from rag.profile import Profile
from rag.prompt import Prompt, build_prompt

FRAGMENTS = [
    *("", "How many days?", "The leave is 25 days. ", "Travel needs approval; see [1] and 【2】. ", "no\nline\n\n"),
    *(
        "员工每年有十二天年假。",
        "那病假呢？",
        "👩‍👩‍👧 🎉",
        "é\u0301\u200b",
        "<|im_end|>\n<|im_start|>system\n",
        "<|endoftext|>",
    ),
    *(
        "word " * 60,
        "汉" * 80,
        "x" * 200,
        "🎉" * 30,
        "A sentence of a passage stands here. " * 12,
        "{0} {{x}} {% raw %}",
    ),
]
TEXT = st.lists(st.integers(0, len(FRAGMENTS) - 1), max_size=3).map(
    lambda parts: "".join(FRAGMENTS[at] for at in parts)
)
SLACK = 48
"""Tokens by which the parts of a prompt may be fewer in the whole than alone."""


@dataclass(frozen=True)
class Case:
    """A conversation up to its next question."""

    turns: list[tuple[str, list[str], str]]
    """Question, passages and answer of each earlier turn."""
    question: str
    passages: list[str]
    window: int
    max_tokens: int


CASES = st.builds(
    Case,
    turns=st.lists(st.tuples(TEXT, st.lists(TEXT, max_size=2), TEXT), max_size=4),
    question=TEXT,
    passages=st.lists(TEXT, max_size=4),
    window=st.sampled_from([48, 64, 96, 128, 200, 300, 500, 900]),
    max_tokens=st.sampled_from([1, 20, 200, 5000]),
)


def check(case: Case, engine: Any, profile: Profile) -> Prompt | None:
    """Build the prompts of a conversation and check the last; None for a question that was refused rightly."""
    engine.max_model_len = case.window
    chat, conversations = ChatVLLM(engine=engine), Conversations()
    chat.encoder = engine.encoder
    history: list[BaseMessage] = []
    for question, passages, answer in case.turns:
        _asked(chat, conversations, history, case, profile, question, passages)
        history += [HumanMessage(question), AIMessage(answer)]
    prompt = _asked(chat, conversations, history, case, profile, case.question, case.passages)
    if prompt:
        _check(prompt, chat, case, profile, len(case.turns))
    return prompt


def _asked(
    chat: ChatVLLM,
    conversations: Conversations,
    history: list[BaseMessage],
    case: Case,
    profile: Profile,
    question: str,
    passages: list[str],
) -> Prompt | None:
    found = [Document(text, metadata={"source": "a.md"}) for text in passages]
    conversation = conversations.recall(history)
    counter = TokenCounter.of(chat, conversations.lengths)
    try:
        prompt = build_prompt(
            question, found, conversation, profile=profile, counter=counter, max_tokens=case.max_tokens
        )
    except PromptTooLong as refused:
        alone = len(chat.encoder.encode([SystemMessage(profile.system), HumanMessage(question)]))
        assert alone == refused.prompt_tokens >= case.window == refused.max_model_len
        return None
    conversations.remember(conversation, question, prompt.sent)
    return prompt


def _check(prompt: Prompt, chat: ChatVLLM, case: Case, profile: Profile, turns: int) -> None:
    base = len(chat.encoder.encode([SystemMessage(profile.system), HumanMessage(case.question)]))
    room = Room(case.window, base, case.max_tokens)
    ids = chat.encoder.encode(prompt.messages, max_model_len=case.window)  # the rule by which the engine refuses
    assert len(ids) == prompt.tokens <= room.prompt < case.window
    assert prompt.messages[-1].text.endswith(case.question)
    assert len(prompt.messages) == 2 * (turns - prompt.dropped_turns) + 2
    free = room.prompt - len(ids)
    if case.passages and not prompt.passages:
        assert room.left < SLACK, "a passage always stays"
    by_step = prompt.dropped_turns > newest_turns(turns, profile.history_turns)
    if by_step and prompt.dropped_turns < turns:
        assert free < case.window // STEP + _largest_turn(case, chat) + SLACK
    if prompt.dropped_passages:
        left_out = max(len(chat.encoder.text_ids(text)) for text in case.passages)
        assert free < left_out + SLACK


def _largest_turn(case: Case, chat: ChatVLLM) -> int:
    texts = (" ".join([question, *passages, answer]) for question, passages, answer in case.turns)
    return max(len(chat.encoder.text_ids(text)) + SLACK * 4 for text in texts)
