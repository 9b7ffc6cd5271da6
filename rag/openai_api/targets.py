"""Which model, and which documents, a request means."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from llm.protocol import EngineLike

HEADER = "x-knowledge-base"


class UnknownModel(Exception):
    """No model of that name is served."""

    def __init__(self, name: str, served: Iterable[str]) -> None:
        super().__init__(
            f"the model {name!r} is not served: {', '.join(served)}; one of these with @ and a knowledge base's name, "
            "such as @default, answers from documents"
        )


class NotOffered(ValueError):
    """A field's value that this model or embedder does not have."""


@dataclass(frozen=True)
class Target:
    """The base model or one of its adapters; with the name of a knowledge base, an answer from its documents."""

    adapter: str | None = None
    knowledge_base: str | None = None


def served(engine: EngineLike) -> list[str]:
    """The names of the base model and its adapters."""
    return [engine.model, *(adapter.name for adapter in engine.adapters.list())]


def target(
    engine: EngineLike, model: str, *, default: str, named: str | None = None, header: str | None = None
) -> Target:
    """What is meant by the name of a model.

    `MODEL` is the model itself, `MODEL@BASE` its answer from a knowledge base, `@BASE` that of the base model, and no
    name its answer from the default knowledge base. A knowledge base in the body (`named`), else in the header (percent
    encoded), goes before the name's. Raises UnknownModel.
    """
    given = named or (unquote(header) if header else None)
    if not model:
        return Target(None, given or default)
    names = served(engine)
    for at, name in enumerate(names):
        adapter = name if at else None
        if model == name:
            return Target(adapter, given)
        if model.startswith(f"{name}@"):  # names of either may have an @ of their own
            return Target(adapter, given or model[len(name) + 1 :] or default)
    if model.startswith("@"):
        return Target(None, given or model[1:] or default)
    raise UnknownModel(model, names)
