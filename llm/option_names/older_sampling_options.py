"""Names of sampling options in vLLM 0.4 and later, OpenAI's API and LangChain's VLLM class that are others today."""

from typing import Any

from llm.option_names.older_names import dropped, refused, renamed, translated

SHOWN = "test_an_older_name_does_the_same_on_the_engine"


def constraint(value: Any) -> Any:
    """A constraint as a dict, also where it is given as vLLM's StructuredOutputsParams."""
    if isinstance(value, dict) or not hasattr(value, "__dict__"):
        return value
    return {key: part for key, part in vars(value).items() if part not in (None, False) and key[0] != "_"}


def _schema(value: Any) -> dict[str, Any]:
    return {"structured_outputs": {"json": value.model_json_schema() if hasattr(value, "model_json_schema") else value}}


def _guided(value: Any) -> dict[str, Any]:
    gone = ("backend", "disable_fallback")  # the engine's, not a request's
    return {"structured_outputs": {key: part for key, part in constraint(value).items() if key not in gone}}


ROWS = (
    *(
        renamed(name, "max_tokens", since=since, shown=SHOWN)
        for name, since in (("max_completion_tokens", "OpenAI"), ("max_new_tokens", "LangChain"))
    ),
    renamed(
        "top_logprobs",
        "logprobs",
        since="OpenAI",
        shown=SHOWN,
        happens="the k likeliest tokens; logprobs=True alone: the chosen token only",
    ),
    translated("guided_json", "structured_outputs", "key json", _schema, since="0.12", shown=SHOWN),
    *(
        renamed(name, f"structured_outputs.{key}", since="0.12", shown=SHOWN)
        for name, key in (("guided_regex", "regex"), ("guided_choice", "choice"), ("guided_grammar", "grammar"))
    ),
    renamed(
        "guided_whitespace_pattern",
        "structured_outputs.whitespace_pattern",
        since="0.12",
        shown="test_todays_options_of_an_older_name",
    ),
    translated(
        "guided_decoding",
        "structured_outputs",
        "a dict, or vLLM's class of then",
        _guided,
        since="0.12",
        shown=SHOWN,
    ),
    dropped("guided_decoding_backend", "structured_outputs_config of the engine", "one for all requests", since="0.12"),
    refused(
        "early_stopping",
        "length_penalty",
        "vLLM's beam search always goes on to max_tokens",
        since="0.6.3",
        unless=(False,),
    ),
    refused(
        "logits_processors",
        "logits_processors of the engine (classes, with extra_args), else logit_bias, bad_words, "
        "allowed_token_ids or structured_outputs",
        "the engine is another process and takes no functions",
        since="before 0.11",
        unless=([], ()),
    ),
    refused(
        "truncate_prompt_tokens",
        "",
        "cut the messages (LangChain's trim_messages), not ids of the template",
        since="before 0.26",
    ),
    refused("detokenize", "", "the answer is text; its token ids come along", since="", unless=(True,)),
    refused("output_kind", "stream() or invoke()", "the engine always sends what is new", since=""),
    refused("stream_interval", "stream_interval of the engine", "one for all requests", since=""),
    refused("flat_logprobs", "logprobs", "they come in one form", since="", unless=(False,)),
    refused("watermarking", "watermark_config of the engine", "one for all requests", since=""),
    *(
        refused(name, "", "not carried out by Groundwell", since="", unless=(0, False))
        for name in (
            "logprob_token_ids",
            "prompt_logprob_token_ids",
            "prompt_logprob_start",
            "repetition_detection",
            "routed_experts_prompt_start",
            "skip_clone",
            "skip_reading_prefix_cache",
            "trace_decode_token_ids",
        )
    ),
)

SAMPLING = {row.name: row for row in ROWS}
