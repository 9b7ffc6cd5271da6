"""`groundwell ask`, `groundwell chat` and `groundwell search`."""

import argparse
import json
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ingest.command import CommandRefused, Parser, as_utf8, name, plainly
from ingest.output import printable, say, say_json

if TYPE_CHECKING:
    from rag.settings import Settings
    from rag.terminal.answerers import Answerer

STATUSES = "exit status: 0 done; 1 the answer failed on the way; 2 nothing was asked; 130 interrupted"
LEAVE = ("/quit", "/exit")


def add_commands(commands: Any) -> None:
    """Add the three commands to a parser's."""
    asking = "ask one question: by the running service, else by an engine started for it"
    ask = _command(commands, "ask", _ask, asking)
    ask.add_argument("question", metavar="QUESTION", type=as_utf8, help="what is asked; - reads standard input")
    ask.add_argument(
        "--history",
        metavar="FILE",
        type=Path,
        help='earlier turns, one JSON object a line: {"role": "user" or "assistant", "content": "…"}',
    )
    chat = _command(commands, "chat", _chat, "a conversation; an empty line does nothing, /quit or Ctrl-D ends it")
    chat.set_defaults(json=False)
    search = _command(commands, "search", _search, "the passages nearest a question, without an answer or an engine")
    search.add_argument(
        "question", metavar="QUESTION", type=as_utf8, help="what is searched for; - reads standard input"
    )
    for parser in (ask, chat):
        parser.add_argument("--grounding", choices=("strict", "balanced", "open"), help="default: the settings'")
    for parser in (ask, search):
        parser.add_argument("--json", action="store_true", help="print one JSON object, for programs; errors too")


def _command(commands: Any, command: str, run: Any, about: str) -> Parser:
    parser: Parser = commands.add_parser(command, help=about, description=f"{about}.", epilog=STATUSES)
    parser.set_run(run, interrupted="nothing more is asked")
    add = parser.add_argument
    add("--knowledge-base", metavar="NAME", type=name, help="name of the knowledge base (default: the settings')")
    add("--k", metavar="N", type=int, help="passages (default: the settings')")
    add("--filter", metavar="JSON", type=_json, help='conditions on metadata, e.g. \'{"year": {"$gte": 2024}}\'')
    add("--url", metavar="URL", help="the service to ask (default: the settings' address, when one runs there)")
    return parser


def _json(text: str) -> Any:
    try:
        return json.loads(as_utf8(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from error


def _ask(given: argparse.Namespace, settings: "Settings") -> int:
    from rag.terminal.answerers import answerer

    body = _body(given, _question(given.question), _history(given.history))
    with answerer(settings, given.url) as by:
        return _answered(by, _base(given, settings), body, as_json=given.json)[0]


def _chat(given: argparse.Namespace, settings: "Settings") -> int:
    from rag.terminal.answerers import answerer

    with suppress(ImportError):  # where it is built in, lines can be edited and found again
        import readline  # noqa: F401
    history: list[dict[str, str]] = []
    with answerer(settings, given.url) as by:
        say(f"{_base(given, settings)}, answered by {by.where}. /quit or Ctrl-D ends.")
        while (line := _line()) is not None:
            if not line.strip():
                continue
            body = _body(given, line, history)
            try:
                status, answer = _answered(by, _base(given, settings), body, as_json=False)
            except KeyboardInterrupt:
                say("", "(stopped)")
                continue
            except CommandRefused as error:
                say(str(error))
                continue
            if status == 0:
                history += [{"role": "user", "content": line}, {"role": "assistant", "content": answer}]
    return 0


def _line() -> str | None:
    """What is typed next; None at the end."""
    try:
        line = as_utf8(input("\n> "))
    except EOFError:
        say("")
        return None
    return None if line.strip() in LEAVE else line


def _search(given: argparse.Namespace, settings: "Settings") -> int:
    from rag.terminal.answerers import search

    body = _body(given, _question(given.question))
    found = search(settings, given.url, _base(given, settings), body)
    if given.json:
        say_json(found, indent=1)
    else:
        for passage in found["passages"]:
            say(f"[{passage['index']}] {place(passage)} ({passage['score']:.2f})", *passage["text"].split("\n"), "")
        if not found["passages"]:
            say("nothing is found")
    return 0


def _question(text: str) -> str:
    text = sys.stdin.read() if text == "-" else text
    if not text.strip():
        raise CommandRefused("the question is empty")
    return text


def _history(file: Path | None) -> list[dict[str, str]]:
    """Earlier turns. Raises CommandRefused for a line that is none."""
    from rag.schemas import Turn

    turns = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file else [], 1):
        try:
            turns.append(Turn.model_validate_json(line).model_dump())
        except ValidationError as error:
            raise CommandRefused(f"{file}, line {number}: {plainly(error)}") from error
    return turns


def _body(given: argparse.Namespace, question: str, history: list[dict[str, str]] | None = None) -> dict[str, Any]:
    """The route's body, checked here too: nothing is started for what would be refused. Raises ValidationError."""
    from rag.schemas import AskRequest, SearchRequest

    asked = {"question": question, "k": given.k, "filter": given.filter}
    if history is None:
        return SearchRequest(**asked).model_dump(exclude_none=True)
    return AskRequest(**asked, history=history, grounding=given.grounding).model_dump(exclude_none=True)


def _base(given: argparse.Namespace, settings: "Settings") -> str:
    return given.knowledge_base or settings.store.knowledge_base


def _answered(by: "Answerer", knowledge_base: str, body: dict[str, Any], *, as_json: bool) -> tuple[int, str]:
    """Print an answer as it comes, or all of it as JSON; its status and its text."""
    whole: dict[str, Any] = {}
    with closing(by.ask(knowledge_base, body)) as events:
        for event, data in events:
            if event == "token" and not as_json:
                _write(data["text"])
            elif event != "token":
                whole |= data
    if as_json:
        say_json(whole, indent=1)
    elif "error" in whole:
        say("", f"the answer failed: {whole['error']['message']}")
    else:
        say("", *_told(whole))
    return int("error" in whole), whole.get("answer", "")


def _write(text: str) -> None:
    """Print a piece of a line, or of several."""
    sys.stdout.write("\n".join(map(printable, text.split("\n"))))
    sys.stdout.flush()


def _told(whole: dict[str, Any]) -> list[str]:
    """The citations, each with its quotation."""
    lines = [
        f'   [{one["source"]}] {place(one)}: "{" ".join(one["quote"].split())}"' for one in whole.get("citations", ())
    ]
    return lines or ["   no sentence of this answer is supported by the documents"]


def place(source: dict[str, Any]) -> str:
    """File with page, slide, cell or line, else the heading."""
    where = [f"{part} {source[part]}" for part in ("page", "slide", "sheet", "cell", "line") if source.get(part)]
    return f"{source['file']}, {' '.join(where) or source['heading']}".rstrip(", ")
