"""What is done with a name that today's vLLM does not take: translated, taken without effect, or refused by name."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

log = logging.getLogger(__name__)

Becomes = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class OlderName:
    """A name, as a row of docs/options.md and as what is done with it.

    `becomes` gives today's options for a value, or raises ValueError; a value in `asks_nothing` (the default then) is
    taken without a word. `since` is the version of vLLM in which the name went; `shown` the test that shows the row.
    """

    name: str
    today: str
    happens: str
    since: str
    shown: str
    becomes: Becomes
    asks_nothing: tuple[Any, ...] = (None,)


def in_todays_names(given: Mapping[str, Any], older: Mapping[str, OlderName]) -> dict[str, Any]:
    """The options in today's names.

    Raises ValueError for what cannot be done any more, with the reason, and for two names of one option with different
    values; a name whose loss changes no answer is logged.
    """
    today = {name: value for name, value in given.items() if name not in older}
    for name, row in older.items():
        if name in given and given[name] not in row.asks_nothing:
            for new, value in in_todays_names(row.becomes(given[name]), older).items():
                today[new] = _joined(name, new, today.get(new), value)
    return today


def _joined(name: str, new: str, there: Any, value: Any) -> Any:
    # OpenAI's `logprobs` is True beside the number of them; a default may be there beside what is asked for.
    if there is None or there is True or there == value:
        return value
    if isinstance(value, (bool, int, float, str)):
        raise ValueError(f"{name} makes {new} {value!r}, and {new} is given as {there!r}: say one of them")
    if not there:
        return value
    if type(there) is not type(value):
        raise ValueError(f"{name} and {new} cannot both be given: say it all in {new}")
    return there | value


def renamed(name: str, today: str, *, since: str, shown: str, happens: str = "") -> OlderName:
    """The same value under another name; "a.b" is the key b of the dict a."""

    def becomes(value: Any) -> dict[str, Any]:
        option, _, key = today.partition(".")
        return {option: {key: value} if key else value}

    return OlderName(name, today, happens or "the same under today's name", since, shown, becomes)


def translated(name: str, today: str, happens: str, becomes: Becomes, *, since: str, shown: str) -> OlderName:
    """Another name and another value."""
    return OlderName(name, today, happens, since, shown, becomes)


def dropped(name: str, today: str, why: str, *, since: str) -> OlderName:
    """A name whose loss changes no answer: taken, with one warning in each process."""

    def becomes(value: Any) -> dict[str, Any]:
        _warn_once(name, f"changes nothing any more, {why}" + (f"; today: {today}" if today else ""))
        return {}

    shown = "test_a_name_that_changes_nothing_is_logged_once"
    return OlderName(name, today, f"taken with a warning, changes nothing: {why}", since, shown, becomes)


def refused(name: str, today: str, why: str, *, since: str, unless: tuple[Any, ...] = ()) -> OlderName:
    """A name whose loss would change the answers; `unless` are the values that asked for nothing."""

    def becomes(value: Any) -> dict[str, Any]:
        raise ValueError(f"{name} cannot be had: {why}" + (f"; today: {today}" if today else ""))

    shown = "test_what_cannot_be_done_is_refused_with_the_reason"
    return OlderName(name, today, f"refused: {why}", since, shown, becomes, (None, *unless))


@cache
def _warn_once(name: str, text: str) -> None:
    log.warning("%s: %s", name, text)
