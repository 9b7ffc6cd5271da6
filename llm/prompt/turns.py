"""LangChain messages → the turns that a chat template takes, in an order that strict templates take too."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages

Turn = dict[str, Any]
"""As in OpenAI's API: role, content (always a text), and tool_calls, tool_call_id, name where they are known."""

ROLES = {"system": "system", "human": "user", "ai": "assistant", "tool": "tool"}
# What a model thought stays out of its history; calls are in `tool_calls` too.
LEFT_OUT = {"reasoning", "thinking", "redacted_thinking", "reasoning_content"}
CALLS = {"tool_call", "tool_call_chunk", "invalid_tool_call", "tool_use", "function_call", "input_json_delta"}


class UnsupportedContent(ValueError):
    """A message holds something that the model's chat template cannot take."""


@dataclass(frozen=True)
class Conversation:
    """All that a template gets: turns, tools as dicts in OpenAI's shape, and further variables."""

    turns: Sequence[Turn]
    tools: Sequence[dict[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def as_turns(messages: Sequence[BaseMessage]) -> list[Turn]:
    """One turn for each message. Raises UnsupportedContent for a role or a content block that no template takes."""
    turns = [_as_turn(message) for message in convert_to_messages(messages)]
    called = {call["id"]: call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
    for turn in turns:
        if turn["role"] == "tool" and "name" not in turn and turn["tool_call_id"] in called:
            turn["name"] = called[turn["tool_call_id"]]
    return turns


def has_tool_turns(turns: Sequence[Turn]) -> bool:
    """Whether a tool is called or answers in these turns."""
    return any(turn["role"] == "tool" or turn.get("tool_calls") for turn in turns)


def mended(turns: Sequence[Turn], *, system_role: bool) -> list[Turn]:
    """The same contents in the same order, as at most one system turn (if there is such a role) and then user and
    assistant in turn, user first: neighbours are merged, a system text that stands elsewhere becomes the user's.
    """
    said = [turn for turn in turns if turn["role"] != "assistant" or turn["content"].strip() or turn.get("tool_calls")]
    first = next((at for at, turn in enumerate(said) if turn["role"] != "system"), 0) if system_role else 0
    opening = _merged(said[:first])
    rest = [{**turn, "role": "user"} if turn["role"] == "system" else turn for turn in said[first:]]
    if not rest or rest[0]["role"] != "user":
        rest.insert(0, {"role": "user", "content": ""})
    return [turn for turn in opening if turn["content"].strip()] + _merged(rest)


def with_short_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Calls under ids of nine letters and digits, the only ones that Mistral's templates take."""
    return [_with_short_ids(turn) for turn in turns]


def with_answers(turns: Sequence[Turn]) -> list[Turn]:
    """An assistant that says nothing between a tool's result and what the user says next, as Mistral's templates, which
    do not count the turns of tools, want the roles to alternate.
    """
    answered: list[Turn] = []
    for turn in turns:
        if answered and (answered[-1]["role"], turn["role"]) == ("tool", "user"):
            answered.append({"role": "assistant", "content": ""})
        answered.append(turn)
    return answered


def one_call_a_turn(turns: Sequence[Turn]) -> list[Turn]:
    """Calls made at once as calls made one after the other, each with its answer, as Llama's templates want them."""
    left = list(turns)
    parted: list[Turn] = []
    while left:
        turn = left.pop(0)
        calls = turn.get("tool_calls", [])
        for at, call in enumerate(calls[:-1]):
            parted.append({**turn, "content": "" if at else turn["content"], "tool_calls": [call]})
            answer = next((each for each in _answers(left) if each["tool_call_id"] == call["id"]), None)
            if answer:
                left.remove(answer)
                parted.append(answer)
        parted.append({**turn, "content": "", "tool_calls": calls[-1:]} if len(calls) > 1 else turn)
    return parted


def _as_turn(message: BaseMessage) -> Turn:
    role = ROLES.get(message.type) or str(getattr(message, "role", message.type))
    if role not in ROLES.values():  # a free role would be written into the prompt beside the control tokens
        raise UnsupportedContent(f"no chat template knows the role {role!r}")
    turn: Turn = {"role": role, "content": _text_of(message.content)}
    if message.name:
        turn["name"] = message.name
    if isinstance(message, AIMessage) and message.tool_calls:
        turn["tool_calls"] = [_as_call(call) for call in message.tool_calls]
    if role == "tool":
        turn["tool_call_id"] = message.tool_call_id if isinstance(message, ToolMessage) else ""
    return turn


def _as_call(call: Any) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["args"]}
    return {"id": call["id"] or "", "type": "function", "function": function}


def _text_of(content: str | list[str | dict]) -> str:
    return content if isinstance(content, str) else "".join(map(_text_of_part, content))


def _text_of_part(part: str | dict) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if kind in LEFT_OUT | CALLS:
        return ""
    raise UnsupportedContent(f"the model reads text only, a message holds {kind!r}")


def _merged(turns: Sequence[Turn]) -> list[Turn]:
    merged: list[Turn] = []
    for turn in turns:
        if merged and _can_join(merged[-1], turn):
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(turn)
    return merged


def _can_join(before: Turn, turn: Turn) -> bool:
    # A turn with calls must stay the last of its kind: what follows was said after them.
    return before["role"] == turn["role"] != "tool" and not before.get("tool_calls")


def _joined(before: Turn, turn: Turn) -> Turn:
    texts = [before["content"], turn["content"]]
    joined = {**before, **turn, "content": "\n\n".join(text for text in texts if text.strip())}
    if before.get("name") != turn.get("name"):
        joined.pop("name", None)
    return joined


def _answers(turns: Sequence[Turn]) -> Iterator[Turn]:
    for turn in turns:
        if turn["role"] != "tool":
            return
        yield turn


def _with_short_ids(turn: Turn) -> Turn:
    changed = dict(turn)
    if "tool_calls" in turn:
        changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in turn["tool_calls"]]
    if "tool_call_id" in turn:
        changed["tool_call_id"] = _short_id(turn["tool_call_id"])
    return changed


def _short_id(long: str) -> str:
    return hashlib.blake2b(long.encode(errors="surrogatepass"), digest_size=5).hexdigest()[:9]
