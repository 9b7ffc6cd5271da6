"""R13: what a follow-up asks for is found though it does not say it, and what was searched for can be seen."""

from collections.abc import Sequence

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever

from llm.chat import ChatVLLM
from rag.answer import Question, Sources, answer
from rag.conversation import Conversations
from rag.profile import LARGE, SMALL, Profile
from rag.search import search
from tests.rag.conftest import passage

TALKS = [
    ("年假有几天？", "十二天。", "那病假呢？", "sick-zh.txt"),
    ("年假有几天？", "十二天。", "不对，我问的是外包人员", "contractors-zh.txt"),
    ("Who approves travel?", "The line manager, Dr Adeyemi.", "And what is her limit?", "limits.md"),
    ("Where do bicycles go?", "To the cellar.", "Is parking there free?", "handbook.pdf"),
    ("年假有几天？", "十二天。", "When does the canteen open?", "canteen.txt"),
    ("When does the canteen open?", "At noon.", "远程办公每周最多几天？", "remote-zh.txt"),
]


def conversation(*turns: tuple[str, str]) -> list[BaseMessage]:
    return [message for asked, said in turns for message in (HumanMessage(asked), AIMessage(said))]


async def sources(scripted, retriever, question: str, history: Sequence[BaseMessage], profile: Profile) -> Sources:
    events = answer(
        Question(question, history),
        chat=ChatVLLM(engine=scripted("…")),
        retriever=retriever,
        profile=profile,
        conversations=Conversations(),
    )
    first, *_ = [event async for event in events]
    assert isinstance(first, Sources)
    return first


@pytest.mark.parametrize("profile", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(("asked", "said", "question", "file"), TALKS)
@pytest.mark.parametrize("between", [[], [("谢谢！", "不客气。")], [("Thanks!", "You are welcome.")]])
async def test_the_passage_of_a_follow_up_is_among_the_sources_and_the_search_can_be_seen(
    scripted, retriever, asked, said, question, file, between, profile
) -> None:
    history = conversation((asked, said), *between)
    found = await sources(scripted, retriever, question, history, profile)
    assert file in [document.metadata["source"] for document in found.passages]
    assert f"{asked}\n{said}\n{question}" in found.searched
    assert found.question in found.searched


@pytest.mark.parametrize("profile", [SMALL, LARGE], ids=["small", "large"])
async def test_a_follow_up_of_an_earlier_turn_is_found_too(scripted, retriever, profile) -> None:
    history = conversation(("Who approves travel?", "Dr Adeyemi, the line manager."), ("年假有几天？", "十二天。"))
    found = await sources(scripted, retriever, "And what is her limit?", history, profile)
    assert "limits.md" in [document.metadata["source"] for document in found.passages]


class Listed(BaseRetriever):
    """Finds what it is told for each text."""

    found: dict[str, list[Document]]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return self.found[query]


def scored(text: str, score: float) -> Document:
    return passage(text, score=score)


async def test_of_several_searches_the_best_scores_are_the_turns_passages_each_passage_once() -> None:
    retriever = Listed(found={"a": [scored("1", 0.9), scored("2", 0.2)], "b": [scored("3", 0.5), scored("1", 0.4)]})
    question, passages = await search(["b", "a"], retriever)
    assert question == "a"
    assert [(each.page_content, each.metadata["score"]) for each in passages] == [("1", 0.9), ("3", 0.5)]


async def test_of_a_retriever_without_scores_each_searchs_passages_are_taken_in_turns() -> None:
    retriever = Listed(found={"a": [passage("1"), passage("2")], "b": [passage("3"), passage("1")], "c": []})
    assert await search(["a", "b"], retriever) == ("a", [passage("1"), passage("3")])
    assert await search(["c"], retriever) == ("c", [])
