"""A model's chat template: the text it makes of turns, and the orders of turns that it takes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from llm.prompt.turns import (
    Conversation,
    Turn,
    UnsupportedContent,
    has_tool_turns,
    mended,
    one_call_a_turn,
    with_answers,
    with_short_ids,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Two system turns, neighbours of one role, nothing said, a late system turn; the assistant first; no question last.
IRREGULAR = (
    "system system user user assistant assistant silent system user",
    "assistant user",
    "system user assistant",
)
GENERATION = re.compile(r"{%[-+]?\s*(?:end)?generation\s*[-+]?%}")  # transformers' own tags, unknown to jinja2


class NoChatTemplate(ValueError):
    """Neither the tokenizer nor the settings have a chat template."""


class ChatTemplate:
    """A chat template as transformers applies it, with what trying it out has shown.

    BOS is the template's to write. Where it writes none there is none, though the tokenizer would put one before a
    plain text: vLLM's server does the same (`add_special_tokens` is false for chats).
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", text: str) -> None:
        self._tokenizer, self.text = tokenizer, text

    @cached_property
    def renders_tools(self) -> bool:
        """Whether the template uses the variable `tools`."""
        from jinja2 import Environment, meta

        parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(GENERATION.sub("", self.text))
        return "tools" in meta.find_undeclared_variables(parsed)

    @property
    def renders_calls(self) -> bool:
        """Whether the template writes what the assistant called; DeepSeek's do, and do not use `tools`."""
        return "tool_calls" in self.text

    def render(self, given: Conversation) -> str:
        """The prompt's text with the opening of the answer. Raises UnsupportedContent with the template's words."""
        return self._render(replace(given, turns=_in_parts(given.turns)) if self._wants_parts else given)

    def orders(self, turns: Sequence[Turn]) -> Iterator[list[Turn]]:
        """The turns in ever stricter orders, of which the first one that the template takes is to be used."""
        # Short conversations with every irregularity tell, once, whether turns may come as they are. For all other
        # templates they are mended at once: one that drops a turn does not say so, and to look for each content in each
        # prompt would cost time and miss those that a template trims or quotes.
        if self._takes_any_order:
            yield list(turns)
        takes_system = self._takes_system if turns[-1]["role"] == "user" else self._takes_system_if_answered
        strict = mended(turns, system_role=takes_system)
        yield strict
        if has_tool_turns(strict):
            for change in (with_short_ids, with_answers, one_call_a_turn):
                strict = change(strict)
                yield strict

    @cached_property
    def _takes_any_order(self) -> bool:
        return all(self._shows(_conversation(roles)) for roles in IRREGULAR)

    @cached_property
    def _takes_system(self) -> bool:
        return self._shows(_conversation("system user"))

    @cached_property
    def _takes_system_if_answered(self) -> bool:
        """Mistral's templates write the system's text into the last turn if that is the user's, else nowhere."""
        return self._shows(_conversation("system user assistant"))

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template writes contents only when they are lists of parts, as some for models that see do."""
        asked = _conversation("user")
        return not self._writes(asked, asked) and self._writes(_in_parts(asked), asked)

    def _shows(self, turns: Sequence[Turn]) -> bool:
        return self._writes(_in_parts(turns) if self._wants_parts else turns, turns)

    def _writes(self, given: Sequence[Turn], turns: Sequence[Turn]) -> bool:
        """Whether the template takes what is given and writes the contents of the turns, in their order."""
        try:
            text = self._render(Conversation(given))
        except UnsupportedContent:
            return False
        at = 0
        for turn in turns:
            at = text.find(turn["content"], at)
            if at < 0:
                return False
        return True

    def _render(self, given: Conversation) -> str:
        from jinja2 import TemplateError

        ours = {"chat_template": self.text, "tools": list(given.tools) or None, "tokenize": False}
        variables = {"add_generation_prompt": True, **given.options, **ours}
        try:
            return str(self._tokenizer.apply_chat_template(list(given.turns), **variables))
        except (TemplateError, TypeError) as error:
            raise UnsupportedContent(f"the model's chat template refuses these messages: {error}") from error


def _conversation(roles: str) -> list[Turn]:
    """Turns of these roles, each of which says its place; `silent` is an assistant that says nothing."""
    return [
        {"role": "assistant", "content": ""} if role == "silent" else {"role": role, "content": f"turn {at:02}"}
        for at, role in enumerate(roles.split())
    ]


def _in_parts(turns: Sequence[Turn]) -> list[Turn]:
    return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
