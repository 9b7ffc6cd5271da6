"""Settings to be compared: `k=3,5,8` and the like → one variant of the settings for each combination."""

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ingest.command import CommandRefused, plainly
from rag.settings import Settings

SHORT = {"k": "answer.retrieve"}
"""Names that have become usual for a setting."""
OF_A_QUESTION = {"answer", "grounding", "reranker", "retrieval"}
"""Sections that can change from one question to the next."""
KNOWLEDGE_BASE = "store.knowledge_base"
OF_RETRIEVAL = {"answer.follow_up", "answer.retrieve", "grounding.bar", KNOWLEDGE_BASE}
"""What says something about retrieval alone, beside the sections `retrieval` and `reranker`."""
NOT_HERE = {
    "embedder": "documents would be embedded anew: run `groundwell knowledge-bases reindex`, and eval again",
    "engine": "another engine would have to start: run eval once for each value with --json FILE, then --compare FILE",
    "ingest": f"ingest into a knowledge base for each value, then --sweep {KNOWLEDGE_BASE}=NAME,NAME",
    "server": "it changes no answer",
    "store": f"of it only {KNOWLEDGE_BASE} can be swept",
}
MOST = 64
"""Variants of one command: more is a typing error, and a chart that nobody can read."""


class BadSweep(CommandRefused):
    """A sweep names no setting that can be changed, or a value that it cannot have."""


@dataclass(frozen=True)
class Variant:
    """Settings under a name, as `k=3, grounding.mode=strict`."""

    name: str
    settings: Settings
    swept: dict[str, str]
    """What differs from the user's settings, as it was written."""


def variants(settings: Settings, sweeps: Sequence[str], *, retrieval_only: bool = False) -> list[Variant]:
    """One for each combination of the values, in their order; without sweeps the settings as they are.

    Raises BadSweep.
    """
    axes = [_axis(sweep) for sweep in sweeps]
    names = [name for name, _ in axes]
    for name in names:
        _check(name, retrieval_only=retrieval_only)
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadSweep(f"{', '.join(sorted(twice))} is swept twice: put all values behind one =")
    combinations = list(itertools.product(*(values for _, values in axes)))
    if len(combinations) > MOST:
        raise BadSweep(f"these sweeps make {len(combinations)} variants; {MOST} are the most")
    return [_variant(settings, dict(zip(names, values, strict=True)), retrieval_only) for values in combinations]


def _axis(sweep: str) -> tuple[str, list[str]]:
    name, _, values = sweep.partition("=")
    wanted = [value.strip() for value in values.split(",")]
    if not name.strip() or not all(wanted):
        raise BadSweep(f"{sweep!r} is not NAME=VALUE,VALUE, as k=3,5,8")
    if len(set(wanted)) < len(wanted):
        raise BadSweep(f"{sweep!r} has a value twice")
    return SHORT.get(name.strip(), name.strip()), wanted


def _check(name: str, *, retrieval_only: bool) -> None:
    """Raise BadSweep for a setting that is none, or that cannot be swept, with the reason."""
    section, _, option = name.partition(".")
    known = [f"{one}.{field}" for one in OF_A_QUESTION for field in _options(one)] + [KNOWLEDGE_BASE, *SHORT]
    if section in NOT_HERE and option and name != KNOWLEDGE_BASE:
        raise BadSweep(f"{name} cannot be swept: {NOT_HERE[section]}")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        near = near or [one for one in sorted(known) if one.endswith(f".{name}")][:1]
        raise BadSweep(f"there is no setting {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    if retrieval_only and section not in ("retrieval", "reranker") and name not in OF_RETRIEVAL:
        raise BadSweep(f"{name} changes nothing that --retrieval-only measures: leave one of the two out")


def _options(section: str) -> dict[str, Any]:
    return Settings.model_fields[section].default.__class__.model_fields


def _variant(settings: Settings, swept: dict[str, str], retrieval_only: bool) -> Variant:
    changed = settings
    for name, value in swept.items():
        changed = _with(changed, name, value)
    short = {long: one for one, long in SHORT.items()}
    shown = ", ".join(f"{short.get(name, name)}={value}" for name, value in swept.items())
    return Variant(shown or ("retrieval" if retrieval_only else settings.grounding.mode), changed, swept)


def _with(settings: Settings, name: str, value: str) -> Settings:
    """The settings with one in place of its own; `none` stands for no value. Raises BadSweep."""
    section, _, option = name.partition(".")
    old = getattr(settings, section)
    given = None if value.lower() == "none" else value
    try:
        new = type(old)(**old.model_dump() | {option: given})
    except ValidationError as error:
        raise BadSweep(f"{name}={value}: {plainly(error)}") from error
    return settings.model_copy(update={section: new})
