"""Every order of roles is answered or refused in plain words, and nothing that was said is lost or moved."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from llm.prompt.turns import Turn, mended, one_call_a_turn
from llm.prompting import NoChatTemplate, PromptEncoder, UnsupportedContent
from tests.fakes import CHATML, byte_tokenizer
from tests.templates import FAMILIES, GEMMA, MISTRAL, byte_level, gemma, llama_3, mistral_tekken, phi_3, qwen

KINDS: dict[str, type[BaseMessage]] = {"s": SystemMessage, "u": HumanMessage, "a": AIMessage}
ORDERS = ["suu", "ssu", "au", "uaau", "uasu", "usau", "s", "a", "sa", "aa", "uu", "susauas", "ua", "asu", "ssuuaasu"]


def said(order: str, *, silent: int | None = None) -> list[BaseMessage]:
    """Messages of these kinds that say their place, but for one that says nothing."""
    return [KINDS[kind]("" if at == silent else f"place {at:02}") for at, kind in enumerate(order)]


def prompt(made: Any, messages: list[BaseMessage], **options: Any) -> str:
    ids = PromptEncoder(made).encode(messages, **options)
    return made.backend_tokenizer.decode(ids, skip_special_tokens=False)


def places(text: str) -> list[str]:
    return re.findall(r"place \d\d", text)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_taken_and_all_is_said_in_order(family: str, order: str) -> None:
    found = places(prompt(FAMILIES[family](), said(order)))
    expected = [message.text for message in said(order)]
    if family.startswith("mistral"):  # whose template puts the system's text into the last user turn
        found, expected = sorted(found), sorted(expected)
    assert found == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("order", ["uau", "au", "uaau", "suasau"])
def test_an_empty_assistant_turn_is_taken(family: str, order: str) -> None:
    messages = said(order, silent=order.index("a"))
    assert sorted(places(prompt(FAMILIES[family](), messages))) == [
        message.text for message in messages if message.text
    ]


def test_a_template_that_takes_any_order_gets_the_messages_as_they_are() -> None:
    given_turns = [("system", "a"), ("system", "b"), ("assistant", ""), ("user", "c"), ("user", "d"), ("system", "e")]
    kinds = {"system": SystemMessage, "assistant": AIMessage, "user": HumanMessage}
    text = prompt(byte_tokenizer(), [kinds[role](content) for role, content in given_turns])
    assert text == "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in given_turns) + (
        "<|im_start|>assistant\n"
    )


def test_a_system_text_opens_the_first_user_turn_where_there_is_no_such_role() -> None:
    expected = "<bos><start_of_turn>user\nBe brief.\n\nhello<end_of_turn>\n<start_of_turn>model\n"
    assert prompt(gemma(), [SystemMessage("Be brief."), HumanMessage("hello")]) == expected


def test_a_system_text_that_the_template_drops_without_a_word_is_kept() -> None:
    text = prompt(phi_3(), [SystemMessage("Be brief."), HumanMessage("hello"), AIMessage("hi"), HumanMessage("why?")])
    assert text == "<|user|> Be brief.\n\nhello<|end|><|assistant|> hi<|end|><|user|> why?<|end|><|assistant|>"


def test_neighbours_of_one_role_are_one_turn_with_a_blank_line_between() -> None:
    text = prompt(mistral_tekken(), said("suuaasu"))
    assert text == (
        "<s>[INST]place 01\n\nplace 02[/INST]place 03\n\nplace 04</s>[INST]place 00\n\nplace 05\n\nplace 06[/INST]"
    )


@given(st.text("suat", max_size=8), st.lists(st.booleans(), min_size=8, max_size=8), st.booleans())
def test_mended_turns_alternate_and_say_the_same(order: str, silent: list[bool], system_role: bool) -> None:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    turns = [{"role": roles[kind], "content": "" if silent[at] else f"{at}"} for at, kind in enumerate(order)]
    changed = mended(turns, system_role=system_role)
    assert re.findall(r"\d", "".join(turn["content"] for turn in changed)) == [
        turn["content"] for turn in turns if turn["content"]
    ]
    rest = changed[1:] if changed[0]["role"] == "system" else changed
    assert rest[0]["role"] == "user"
    assert all(turn["role"] != "system" for turn in rest if turn["role"] != "tool")
    assert all(one["role"] != other["role"] or one["role"] == "tool" for one, other in pairwise(rest))
    assert system_role or changed[0]["role"] != "system"


def test_what_follows_a_call_is_not_put_before_it() -> None:
    turns: list[Turn] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [{"id": "0"}]},
        {"role": "assistant", "content": "c"},
    ]
    assert mended(turns, system_role=True) == turns


def test_a_turn_of_two_people_has_the_name_of_neither() -> None:
    one, other = ({"role": "user", "content": content, "name": content} for content in ("Ann", "李"))
    assert mended([one, other], system_role=True) == [{"role": "user", "content": "Ann\n\n李"}]
    assert mended([one, one], system_role=True) == [{"role": "user", "content": "Ann\n\nAnn", "name": "Ann"}]


def test_a_system_text_is_kept_by_a_template_that_writes_it_for_questions_only() -> None:
    written = "{% if message.role != 'system' or messages[-1].role == 'user' %}{{ message.content }}|{% endif %}"
    made = byte_tokenizer("{% for message in messages %}" + written + "{% endfor %}")
    assert prompt(made, said("sua")) == "place 00\n\nplace 01|place 02|"
    assert prompt(made, said("su")) == "place 00|place 01|"


def test_what_a_template_refuses_even_so_is_told_in_its_words() -> None:
    refusing = "{% if messages | length > 2 %}{{ raise_exception('one question only') }}{% endif %}" + CHATML
    with pytest.raises(UnsupportedContent, match="refuses these messages: one question only"):
        PromptEncoder(byte_tokenizer(refusing)).encode(said("uau"))


def test_no_message_at_all_is_refused() -> None:
    with pytest.raises(UnsupportedContent, match="no message"):
        PromptEncoder(byte_tokenizer()).encode([])


def called(*numbers: int, text: str = "") -> AIMessage:
    calls = [{"name": "find", "args": {"n": number}, "id": f"call-{number}-{'x' * 20}"} for number in numbers]
    return AIMessage(text, tool_calls=calls)


def answer(number: int) -> ToolMessage:
    return ToolMessage(f"place {number:02}", tool_call_id=f"call-{number}-{'x' * 20}")


def test_long_call_ids_are_shortened_where_the_template_wants_nine_characters() -> None:
    text = prompt(mistral_tekken(), [HumanMessage("x"), called(1, 2), answer(1), answer(2)])
    ids = re.findall(r'"([0-9a-f]{9})"', text)
    assert len(ids) == 4
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


def test_a_question_right_after_a_tools_result_is_taken_by_a_strict_template() -> None:
    text = prompt(mistral_tekken(), [HumanMessage("x"), called(1), answer(1), HumanMessage("place 02")])
    assert places(text) == ["place 01", "place 02"]


def test_a_system_text_is_kept_when_a_tools_result_stands_last() -> None:
    for made in (mistral_tekken(), llama_3(), qwen(), gemma()):
        assert "Be brief." in prompt(made, [SystemMessage("Be brief."), HumanMessage("x"), called(1), answer(1)])


def test_calls_made_at_once_stand_one_after_the_other_where_the_template_wants_it() -> None:
    text = prompt(llama_3(), [HumanMessage("x"), called(1, 2, 3), answer(3), answer(1), AIMessage("so")])
    found = re.findall(r'"n": \d|place \d\d|so<', text)
    assert found == ['"n": 1', "place 01", '"n": 2', '"n": 3', "place 03", "so<"]


def test_calls_that_follow_each_other_are_left_alone() -> None:
    calls = [{"id": str(at), "function": {"name": "find"}} for at in range(2)]
    turns: list[Turn] = [
        {"role": "assistant", "content": "a", "tool_calls": calls[:1]},
        {"role": "tool", "content": "b", "tool_call_id": "0"},
        {"role": "assistant", "content": "c", "tool_calls": calls[1:]},
        {"role": "user", "content": "d"},
    ]
    assert one_call_a_turn(turns) == turns


def test_two_templates_of_one_tokenizer_are_chosen_by_the_tools() -> None:
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
    made = byte_tokenizer({"default": CHATML, "tool_use": "{{ tools | tojson }}" + CHATML})  # type: ignore[arg-type]
    assert PromptEncoder(made).renders_tools
    assert prompt(made, [HumanMessage("hi")]).startswith("<|im_start|>user")
    assert prompt(made, [HumanMessage("hi")], tools=[tool]).startswith('[{"type": "function"')
    assert not PromptEncoder(made, chat_template="default").renders_tools


@pytest.mark.parametrize(
    ("template", "renders"),
    [
        (CHATML, False),
        ("{% if tools %}{{ tools }}{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools | tojson }}", True),
        ("{% generation %}{{ messages[0].tools }}{%- endgeneration -%}{% for a in b %}{% break %}{% endfor %}", False),
        ("{% set tools = [] %}{{ tools }}", False),
    ],
)
def test_whether_tools_are_rendered_is_read_from_the_template(template: str, renders: bool) -> None:
    assert PromptEncoder(byte_tokenizer(template)).renders_tools is renders
    assert PromptEncoder(byte_tokenizer(), chat_template=template).renders_tools is renders


def test_a_given_template_replaces_the_tokenizers_own() -> None:
    ids = PromptEncoder(byte_tokenizer(), chat_template="{{ messages[0].content }}!").encode([HumanMessage("hi")])
    assert byte_tokenizer().decode(ids) == "hi!"


def test_a_tokenizer_without_a_template_says_so() -> None:
    made = byte_tokenizer()
    made.chat_template = None
    with pytest.raises(NoChatTemplate, match="no chat template"):
        PromptEncoder(made).encode([HumanMessage("hi")])
    assert PromptEncoder(made).text_ids("hi")


def test_a_template_that_reads_parts_only_gets_parts() -> None:
    seeing = "{% for message in messages %}{% for part in message.content if part.type == 'text' %}"
    seeing += "{{ message.role }}: {{ part.text }}\n{% endfor %}{% endfor %}"
    assert prompt(byte_tokenizer(seeing), said("su")) == "system: place 00\nuser: place 01\n"


def test_options_reach_the_template() -> None:
    messages: list[BaseMessage] = [HumanMessage("hi")]
    assert prompt(qwen(), messages, template_options={"enable_thinking": False}).endswith("</think>\n\n")
    assert prompt(qwen(), messages).endswith("assistant\n")


def test_the_families_are_as_strict_as_they_are_meant_to_be() -> None:
    for template, refused in ((GEMMA, "su"), (MISTRAL, "uu"), (GEMMA, "au")):
        made = byte_level(template, "<s>", "</s>", bos="<s>", eos="</s>")
        roles = [{"s": "system", "u": "user", "a": "assistant"}[kind] for kind in refused]
        with pytest.raises(Exception, match=r"alternate|no system role"):
            made.apply_chat_template([{"role": role, "content": "x"} for role in roles], tokenize=False)
