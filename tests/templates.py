"""Small tokenizers and templates with the markers, the order rules and the quirks of well-known model families."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

CORPUS = [
    "Employees may take up to fifteen days of paid leave per year; sick leave is counted apart.",
    "def total(prices): return sum(price for price in prices)  # the user and the assistant, a system and a tool",
    "员工每年可以休十五天年假，病假另外计算。你好，世界！只回答问题。",
    '{"type": "function", "function": {"name": "find_height", "arguments": {"mountain": "Pico"}}}',
]
WORDS = r"'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]

LLAMA = """{{- bos_token }}
{%- set said = messages[1:] if messages[0]['role'] == 'system' else messages %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + strftime_now('%d %b %Y') + '\\n\\n' }}
{%- if tools is not none %}{% for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}{% endif %}
{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}{% endif %}{{ '<|eot_id|>' }}
{%- for message in said %}
{%- if message.tool_calls is defined %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('only one tool call at once') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

QWEN = """{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools in <tools></tools>:\\n<tools>' }}{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nAnswer with <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
{{- '<|im_start|>assistant\\n' + content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not loop.first or message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

MISTRAL = """{%- set has_system = messages[0].role == 'system' %}
{%- set said = messages[1:] if has_system else messages %}
{%- set asked = said | selectattr('role', 'equalto', 'user') | list %}
{%- set turn = namespace(number=0) %}
{%- for message in said if message.role != 'tool' and message.tool_calls is not defined %}
{%- if (message.role == 'user') != (turn.number % 2 == 0) %}
{{- raise_exception('after the optional system message, user and assistant must alternate') }}{% endif %}
{%- set turn.number = turn.number + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in said %}
{%- if message.role == 'user' %}
{%- if tools and message == asked[-1] %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' }}{% if has_system and loop.last %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- message.content + '[/INST]' }}
{%- elif message.tool_calls is defined %}{{ '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('tool call ids have nine characters') }}{% endif %}
{{- call.function | tojson + ' ' + call.id | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}{{ ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{ message.content + eos_token }}
{%- else %}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception('tool call ids have nine characters') }}{% endif %}
{{- '[TOOL_RESULTS]{"content": ' + message.content | tojson + ', "id": "' + message.tool_call_id + '"}' }}
{{- '[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""

GEMMA = """{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

PHI_3 = """{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|user|>\\n' + message.content + '<|end|>\\n' }}
{%- elif message.role == 'assistant' %}{{ '<|assistant|>\\n' + message.content + '<|end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

PHI_4 = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""

SMOLLM = """{%- if messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

DEEPSEEK = """{%- set first = namespace(system='') %}
{%- for message in messages if message.role == 'system' %}
{%- set first.system = first.system + ('\\n\\n' if first.system else '') + message.content %}
{%- endfor %}
{{- bos_token + first.system }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' %}{{ '<｜Assistant｜>' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<｜tool▁call▁begin｜>' + call.function.name + '\\n' + call.function.arguments | tojson(ensure_ascii=True) }}
{{- '<｜tool▁call▁end｜>' }}
{%- endfor %}{{ eos_token }}
{%- elif message.role == 'tool' %}{{ '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""


def _trained(cut: Any, alphabet: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Pieces, in the order of their making, and merges of a BPE learnt from the corpus."""
    import json

    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + 200, initial_alphabet=[*alphabet], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return [*model["vocab"]], [(left, right) for left, right in model["merges"]]


def _wrapped(tokenizer: Any, template: str, bos: str | None, eos: str | None) -> Any:
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos)
    wrapped.chat_template = template
    return wrapped


def _added(tokens: Sequence[str], **properties: bool) -> list[Any]:
    from tokenizers import AddedToken

    return [AddedToken(token, **{"special": True, "normalized": False, **properties}) for token in tokens]


def byte_level(
    template: str,
    *tokens: str,
    plain: Sequence[str] = (),
    bos: str | None = None,
    eos: str | None = None,
    in_vocabulary: bool = False,
    normalizer: Any = None,
) -> Any:
    """A byte-level BPE with special tokens and with `plain` ones, which are added but not special.

    `in_vocabulary` puts the special ones in front of the model's own pieces too, and whole words go before merges.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    cut = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    pieces, merges = _trained(cut, alphabet)
    vocabulary = [*tokens, *pieces] if in_vocabulary else pieces
    numbered = {piece: at for at, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=numbered, merges=merges, ignore_merges=in_vocabulary))
    tokenizer.pre_tokenizer, tokenizer.decoder = cut, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(_added(tokens))
    tokenizer.add_tokens(_added(plain, special=False))
    if bos:
        pair = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=pair)
    return _wrapped(tokenizer, template, bos, eos)


def sentence_piece(
    template: str,
    *tokens: str,
    plain: Sequence[str] = (),
    words: Sequence[str] = (),
    first_blank: str = "never",
    bos: str | None = None,
    eos: str | None = None,
    **properties: bool,
) -> Any:
    """A BPE with `▁` for blanks and a piece for each byte, as made from a SentencePiece model.

    `first_blank` says where a blank is put before a text: "never" (Gemma), "first" (at the prompt's start: Mistral) or
    "always" (after each control token too: Llama 2, Phi 3). `words` are made by merges, from their left to their right.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces, merges = _trained(pre_tokenizers.Metaspace(prepend_scheme="never"), ["▁"])
    for word in words:
        merges += [(word[:end], word[end]) for end in range(1, len(word))]
    made = [*pieces, *(left + right for left, right in merges), *(part for pair in merges for part in pair)]
    vocabulary = dict.fromkeys(["<unk>", *tokens, *BYTE_PIECES, *made])
    numbered = {piece: at for at, piece in enumerate(vocabulary)}
    model = models.BPE(vocab=numbered, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    if first_blank == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        blanks = [normalizers.Replace(" ", "▁")]
        prepended = [normalizers.Prepend("▁")] if first_blank == "always" else []
        tokenizer.normalizer = normalizers.Sequence([*prepended, *blanks])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if first_blank != "never" else [])])
    tokenizer.add_special_tokens(_added(["<unk>", *tokens[:2]]))
    tokenizer.add_special_tokens(_added(tokens[2:], **properties))
    tokenizer.add_tokens(_added(plain, special=False))
    return _wrapped(tokenizer, template, bos, eos)


def unigram(template: str, *tokens: str, bos: str | None = None, eos: str | None = None) -> Any:
    """A Unigram model of single characters and bytes, in which the control tokens are the likeliest pieces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(set("".join(CORPUS)) - {" "} | {"▁"})
    pieces = [(token, 0.0) for token in ("<unk>", *tokens)] + [(piece, -20.0) for piece in BYTE_PIECES]
    pieces += [(character, -5.0) for character in characters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(_added(["<unk>", *tokens]))
    return _wrapped(tokenizer, template, bos, eos)


@cache
def llama_3() -> Any:
    tokens = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return byte_level(LLAMA, *tokens, "<|eom_id|>", "<|python_tag|>", bos="<|begin_of_text|>", eos="<|eot_id|>")


@cache
def qwen() -> Any:
    from tokenizers import normalizers

    plain = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|image_pad|>"]
    return byte_level(QWEN, *tokens, plain=plain, normalizer=normalizers.NFC(), eos="<|im_end|>")


MISTRAL_TOKENS = ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"]
MISTRAL_TOKENS += ["[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<SPECIAL_20>", "<SPECIAL_21>"]


@cache
def mistral_tekken() -> Any:
    return byte_level(MISTRAL, *MISTRAL_TOKENS, in_vocabulary=True, bos="<s>", eos="</s>")


@cache
def mistral_sentence_piece() -> Any:
    return sentence_piece(MISTRAL, *MISTRAL_TOKENS, first_blank="first", bos="<s>", eos="</s>")


@cache
def gemma() -> Any:
    """Words of HTML are tokens of its vocabulary that merges make too, and so are runs of blanks."""
    tokens = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused0>"]
    plain = ["<h1>", "</h1>", "▁▁", "▁▁▁▁", "\n\n"]
    return sentence_piece(GEMMA, *tokens, plain=plain, words=["<h1>", "</h1>"], bos="<bos>", eos="<eos>")


@cache
def phi_3() -> Any:
    """No system role: it is dropped without a word. The blanks after a control token are swallowed."""
    tokens = ["<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    return sentence_piece(PHI_3, *tokens, first_blank="always", bos="<s>", eos="<|endoftext|>", rstrip=True)


@cache
def phi_4() -> Any:
    return byte_level(PHI_4, "<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>", eos="<|im_end|>")


@cache
def smollm() -> Any:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<empty_output>"]
    return byte_level(SMOLLM, *tokens, in_vocabulary=True, bos="<|im_start|>", eos="<|im_end|>")


@cache
def deepseek() -> Any:
    """Turn tokens that are not special, system turns gathered in front, calls without `tools`, an opened thought."""
    tokens = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]
    calls = ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"]
    plain = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", *calls]
    return byte_level(DEEPSEEK, *tokens, plain=plain, bos=tokens[0], eos=tokens[1])


@cache
def unigram_gemma() -> Any:
    """Gemma's template on a Unigram model."""
    return unigram(GEMMA, "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", bos="<bos>", eos="<eos>")


FAMILIES: dict[str, Callable[[], Any]] = {
    family.__name__: family
    for family in (
        *(llama_3, qwen, mistral_tekken, mistral_sentence_piece, gemma, phi_3, phi_4, smollm, deepseek),
        unigram_gemma,
    )
}
