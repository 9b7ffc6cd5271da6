"""What it takes to lay out and fit a turn's prompt: `python -m benchmarks.prompts`; no engine is started.

A conversation of 25 turns with five new passages each, SmolLM2's tokenizer, on windows of three sizes: milliseconds of
a turn (median and worst of the last ten), and of encoding its prompt once, which has to be done in any case.
"""

import random
import time
from statistics import median

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from llm.chat import ChatVLLM
from llm.models import resolve
from llm.prompting import PromptEncoder
from rag.conversation import Conversations
from rag.counting import TokenCounter
from rag.profile import LARGE
from rag.prompt import Prompt, build_prompt
from tests.fakes import ScriptedEngine

WORDS = (
    "the",
    "leave",
    "of",
    "employees",
    "travel",
    "approves",
    "25",
    "days",
    "年假",
    "十二天",
    "canteen",
    "opens",
    "policy",
)


def text(words: int) -> str:
    """So many words in a sentence."""
    return " ".join(random.choices(WORDS, k=words)) + "."


def conversation(chat: ChatVLLM, turns: int, passage_words: int) -> tuple[list[float], Prompt]:
    """Seconds of each turn, and the last prompt."""
    conversations, seconds = Conversations(), []
    history: list[BaseMessage] = []
    for number in range(turns):
        found = [Document(text(passage_words), metadata={"source": f"{number}-{at}.md"}) for at in range(5)]
        question, answer = text(15), text(60)
        began = time.perf_counter()
        known = conversations.recall(history)
        counter = TokenCounter.of(chat, conversations.lengths)
        prompt = build_prompt(question, found, known, profile=LARGE, counter=counter, max_tokens=512)
        conversations.remember(known, question, prompt.sent)
        seconds.append(time.perf_counter() - began)
        conversations.answered(known, question, answer, shown=answer)
        history += [HumanMessage(question), AIMessage(answer)]
    return seconds, prompt


def main() -> None:
    """Print the table."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("HuggingFaceTB/SmolLM2-135M-Instruct"))
    print("| window | tokens | turns in it | a turn, median | worst | encoding once |")
    print("|---|---|---|---|---|---|")
    for window in (2048, 8192, 32768):
        chat = ChatVLLM(engine=ScriptedEngine(max_model_len=window, tokenizer=tokenizer))
        seconds, prompt = conversation(chat, 25, window // 100)
        last = [1000 * one for one in seconds[-10:]]
        encoder = PromptEncoder(tokenizer)
        encoder.encode([HumanMessage("warm")])
        began = time.perf_counter()
        encoder.encode(prompt.messages)
        once = 1000 * (time.perf_counter() - began)
        kept = 24 - prompt.dropped_turns
        print(f"| {window} | {prompt.tokens} | {kept} | {median(last):.1f} ms | {max(last):.1f} ms | {once:.1f} ms |")


if __name__ == "__main__":
    main()
