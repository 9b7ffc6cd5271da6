"""Tools in plain turns, for models whose chat template knows nothing of tools.

The format is that of `hermes` (https://github.com/NousResearch/Hermes-Function-Calling): each call a JSON object
between `<tool_call>` marks. Two demonstrations, one with a call and one without, teach a small model when to call.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Turn = dict[str, Any]

INSTRUCTION = (
    "You can call these tools:\n{tools}\n"
    "To call one, write only <tool_call>\n"
    '{{"name": "tool name", "arguments": {{"argument": "value"}}}}\n</tool_call>\n'
    "The result comes back as <tool_response>. Call a tool only when it helps; otherwise answer in plain words."
)


def with_tools(conversation: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """The conversation in system, user and assistant turns of plain text only, the tools described before it.

    Takes and returns OpenAI's message dicts; a tool's result becomes a user turn. Nothing else is changed.
    """
    turns = [_plain(turn) for turn in conversation]
    if not tools:
        return turns
    system = [turn for turn in turns if turn["role"] == "system"]
    instruction = INSTRUCTION.format(tools="\n".join(_described(tool) for tool in tools))
    told = "\n\n".join([*(turn["content"] for turn in system), instruction])
    rest = [turn for turn in turns if turn["role"] != "system"]
    return [{"role": "system", "content": told}, *_demonstrations(), *rest]


def _plain(turn: Mapping[str, Any]) -> Turn:
    content = str(turn.get("content") or "")
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_call(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls") or ()]
    return {"role": turn["role"], "content": "\n".join(filter(None, [content, *calls]))}


def _call(name: str, arguments: Any) -> str:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {written}}}\n</tool_call>'


def _described(tool: Mapping[str, Any]) -> str:
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    return json.dumps(function, ensure_ascii=False)


def _demonstrations() -> list[Turn]:
    # The call stands last: after a plain answer SmolLM2-135M does not call at all.
    return [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello! How can I help you?"},
        {"role": "user", "content": "How high is the mountain Pico?"},
        {"role": "assistant", "content": _call("find_height", {"mountain": "Pico"})},
    ]
