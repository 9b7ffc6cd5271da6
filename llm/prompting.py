"""LangChain messages → the model's chat template → token ids, counted exactly as they are sent."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from llm.prompt.control import ControlTokens, UnsupportedTokenizer, backend_of
from llm.prompt.stand_ins import StandIns
from llm.prompt.template import ChatTemplate, NoChatTemplate
from llm.prompt.tool_turns import with_tools
from llm.prompt.turns import Conversation, UnsupportedContent, as_turns, has_tool_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["NoChatTemplate", "PromptEncoder", "PromptTooLong", "UnsupportedContent", "UnsupportedTokenizer"]

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
KEPT = 64  # prompts whose ids are remembered between counting and sending


class PromptTooLong(ValueError):
    """The prompt leaves no room for an answer in the model's window.

    `prompt_tokens` is exact unless the prompt was refused by its length alone; then it has at least so many.
    """

    def __init__(self, prompt_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
        self.prompt_tokens, self.max_model_len = prompt_tokens, max_model_len
        super().__init__(
            f"the prompt has {'at least ' if at_least else ''}{prompt_tokens} tokens, the model's window holds "
            f"{max_model_len} with the answer: shorten the question, or start the engine with a larger max_model_len"
        )


class PromptEncoder:
    """Turns messages into the ids that the engine gets. Thread-safe; remembers the last prompts' ids.

    Control tokens of the vocabulary that stand in a text of a message or a tool are encoded as the plain text they are,
    so no document, question or file name can open or close a turn. A prompt without them has exactly the ids of
    `tokenizer.apply_chat_template`. `chat_template` (a text, or a name where the tokenizer has several) replaces the
    tokenizer's own. Making one takes a fraction of a second. Raises UnsupportedTokenizer without a tokenizer.json.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, chat_template: str | None = None) -> None:
        self._tokenizer, self._chat_template = tokenizer, chat_template
        # Made here: were they made at first use, two threads could each get half of two secret spellings.
        self._control = ControlTokens(backend_of(tokenizer))
        self._stand_ins = StandIns(self._control.tokens, self._control.pattern)
        self._kept: OrderedDict[str, list[int]] = OrderedDict()
        self._lock = threading.Lock()

    def encode(
        self,
        messages: Sequence[BaseMessage],
        *,
        tools: Sequence[dict[str, Any]] = (),
        template_options: Mapping[str, Any] = NO_OPTIONS,
        max_model_len: int | None = None,
    ) -> list[int]:
        """The ids of the messages with the opening of the answer after them; BOS is there once, from the template.

        `tools` are dicts as in OpenAI's API; for a template that does not know them they are put into words.
        `template_options` are further variables of the template. The order of roles is mended where the template wants
        it (`llm.prompt.turns.mended`). Raises UnsupportedContent for a role, a content block or an order of turns that
        the template does not take even so, and PromptTooLong for a prompt of `max_model_len` tokens or more.
        """
        given = Conversation(as_turns(messages), tools, template_options)
        if not given.turns:
            raise UnsupportedContent("there is no message to answer")
        template = self._templates[bool(tools)]
        spelled = self._spelled(template, _in_words(given) if _is_beyond(template, given) else given)
        if max_model_len and (fewest := self._control.at_least(spelled, max_model_len)):
            raise PromptTooLong(fewest, max_model_len, at_least=True)
        ids = self._ids(spelled)
        if max_model_len and len(ids) >= max_model_len:
            raise PromptTooLong(len(ids), max_model_len)
        return ids

    def text_ids(self, text: str) -> list[int]:
        """The ids of a plain text, in which nothing is a control token."""
        return self._control.encode(text)

    @cached_property
    def renders_tools(self) -> bool:
        """Whether the chat template itself tells the model of tools."""
        return self._templates[True].renders_tools

    @cached_property
    def _templates(self) -> dict[bool, ChatTemplate]:
        """The template for a conversation without tools and the one for tools, mostly the same."""
        plain = ChatTemplate(self._tokenizer, self._template_text(None))
        for_tools = self._template_text([])
        return {False: plain, True: plain if for_tools == plain.text else ChatTemplate(self._tokenizer, for_tools)}

    def _template_text(self, tools: list[dict[str, Any]] | None) -> str:
        try:
            return self._tokenizer.get_chat_template(self._chat_template, tools)
        except ValueError as error:
            raise NoChatTemplate(f"the tokenizer has no chat template to use by itself: name one ({error})") from error

    def _ids(self, spelled: str) -> list[int]:
        # The text that is encoded is the key: what it was made of (messages, tools, options, the date) is all in it.
        with self._lock:
            if spelled in self._kept:
                self._kept.move_to_end(spelled)
                return self._kept[spelled]
        ids = self._control.encode(spelled)
        with self._lock:
            self._kept[spelled] = ids
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return ids

    def _spelled(self, template: ChatTemplate, given: Conversation) -> str:
        """The prompt's text, in the first order of turns that the template takes."""
        refusals: list[UnsupportedContent] = []
        for turns in template.orders(given.turns):
            try:
                return self._rendered(template, replace(given, turns=turns))
            except UnsupportedContent as error:
                refusals.append(error)
        raise refusals[0]

    def _rendered(self, template: ChatTemplate, given: Conversation) -> str:
        """The prompt's text with the template's control tokens in their secret spelling and all others as they are."""
        hidden = self._stand_ins.hide(given, template=template.text)
        text = template.render(hidden.conversation)
        if self._stand_ins.may_be_parts(given):
            broken = self._stand_ins.hide(given, template=template.text, parts=True)
            without = template.render(broken.conversation)
            written = self._control.pattern.findall
            if written(text) != written(without):
                hidden, text = broken, without
        return _whole(hidden.show(self._control.spell(text)))


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedContent(f"a message holds half a character: {text[error.start]!r}") from error
    return text


def _is_beyond(template: ChatTemplate, given: Conversation) -> bool:
    """Whether the conversation needs tools that the template does not write."""
    if template.renders_tools:
        return False
    return bool(given.tools) or (has_tool_turns(given.turns) and not template.renders_calls)


def _in_words(given: Conversation) -> Conversation:
    return replace(given, turns=with_tools(given.turns, given.tools), tools=())
