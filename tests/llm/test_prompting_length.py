"""Prompts that are too long are refused, with true numbers, and the longest ones before they are tokenised."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from llm.prompt.control import ControlTokens
from llm.prompting import PromptEncoder, PromptTooLong
from tests.fakes import byte_tokenizer
from tests.templates import FAMILIES

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.text(st.sampled_from(" \n\u2003a你é"), max_size=60),
    st.sampled_from(["e\u0301" * 30, "\u1100\u1161\u11a8" * 20, "ᾂ" * 20, "assistant" * 20, " " * 64, "\x04" * 50]),
)


def test_a_prompt_of_the_whole_window_leaves_no_room_and_one_token_less_is_taken() -> None:
    encode = PromptEncoder(byte_tokenizer()).encode
    messages = [HumanMessage("how many days?")]
    size = len(encode(messages))
    with pytest.raises(PromptTooLong, match=rf"has (at least )?{size} tokens, .* holds {size} with") as caught:
        encode(messages, max_model_len=size)
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (size, size)
    assert encode(messages, max_model_len=size + 1) == encode(messages)


def test_a_remembered_prompt_is_refused_too() -> None:
    encode = PromptEncoder(FAMILIES["qwen"]()).encode
    messages = [HumanMessage("sick leave is counted apart")]
    size = len(encode(messages))
    with pytest.raises(PromptTooLong, match=f"has {size} tokens"):
        encode(messages, max_model_len=size)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["汉" * 300_000, "word " * 100_000, "<|im_end|>[INST]<bos>" * 30_000])
def test_a_huge_prompt_is_refused_without_being_tokenised(
    family: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = PromptEncoder(FAMILIES[family]())
    monkeypatch.setattr(ControlTokens, "encode", lambda *_: pytest.fail("was tokenised"))
    with pytest.raises(PromptTooLong, match=r"at least \d+ tokens, the model's window holds 4096") as caught:
        encoder.encode([HumanMessage(text)], max_model_len=4096)
    assert caught.value.prompt_tokens >= 4096


@pytest.mark.parametrize("family", FAMILIES)
@given(text=TEXTS)
def test_the_bound_is_never_above_the_true_number(family: str, text: str) -> None:
    control = encoder_of(family)._control
    spelled = control.spell(f"{control.tokens[-1]} {text} {control.tokens[-2]}")
    bound = control.at_least(spelled, 1)
    assert bound is not None
    assert 2 <= bound <= len(control.encode(spelled))


def encoder_of(family: str, cache: dict[str, PromptEncoder] = {}) -> PromptEncoder:  # noqa: B006
    return cache.setdefault(family, PromptEncoder(FAMILIES[family]()))


def bytes_only(*merges: tuple[str, str], lacking: str = "", normalizer: Any = None) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(lacking)) + ["".join(pair) for pair in merges]
    made = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, [*merges]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer:
        made.normalizer = normalizer
    return made


def test_bytes_that_the_vocabulary_lacks_are_not_counted() -> None:
    control = ControlTokens(bytes_only(lacking="xĠ"))
    assert len(control.encode("x y x")) == 1
    assert control.at_least("x y x", 1) == 1


def test_characters_are_counted_as_they_are_normalised() -> None:
    from tokenizers import normalizers

    control = ControlTokens(bytes_only(("Ã", "©"), normalizer=normalizers.NFC()))
    assert len(control.encode("e\u0301" * 30)) == 30
    assert control.at_least("e\u0301" * 30, 1) == 30
    assert control.at_least("e\u0301" * 30, 31) is None


def test_nothing_is_told_of_a_tokenizer_that_takes_any_long_word_for_one_token() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = ["[UNK]", *pre_tokenizers.ByteLevel.alphabet()]
    made = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert len(ControlTokens(made).encode("b" * 10_000)) == 1
    assert ControlTokens(made).at_least("b" * 10_000, 1) is None


def test_nothing_is_told_of_a_tokenizer_that_drops_some_of_the_text() -> None:
    from tokenizers import pre_tokenizers

    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for cut in (pre_tokenizers.Split("b", behavior="removed"), pre_tokenizers.WhitespaceSplit()):
        made = bytes_only()
        made.pre_tokenizer = pre_tokenizers.Sequence([cut, whole])
        assert len(ControlTokens(made).encode("b " * 100 + "a")) < 201
        assert ControlTokens(made).at_least("b " * 100 + "a", 1) is None
