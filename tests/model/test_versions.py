"""The installed vLLM, imported: it has what the reading of its source found."""

import inspect

import pytest

from llm import vllm_names
from llm.vllm_names import NAMES, SINCE, USES

KEYWORD = inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there_with_the_calls_that_we_make(name: str) -> None:
    thing = getattr(vllm_names, name)
    for use in USES.get(name, ()):
        member, called, arguments = use.partition("(")
        if called and f"{name}.{member}" not in SINCE:
            takes = inspect.signature(getattr(thing, member) if member else thing).parameters
            passed = arguments.rstrip(")").replace("*,", "").replace(" ", "").split(",")
            if not any(parameter.kind is KEYWORD for parameter in takes.values()):
                assert {argument for argument in passed if argument} <= takes.keys(), use
