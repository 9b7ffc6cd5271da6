"""The command line: `groundwell ingest FOLDER`, `serve`, `ask` and the others; `groundwell --help` names them all."""

import argparse
import sys

from pydantic import ValidationError

import ingest.__main__ as ingest_command
from ingest import manage
from ingest.command import Parser, plainly, refused, start
from rag.evaluation import command as eval_command
from rag.settings import Settings
from rag.terminal import command as terminal
from rag.terminal import config, doctor


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit status: 0 done, 1 done in part, 2 not begun."""
    return start(_parser(), Settings, arguments)


def _parser() -> Parser:
    parser = Parser(prog="groundwell", description="Answers questions from a team's own documents.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ingest = commands.add_parser("ingest", help="make a knowledge base equal to a folder of documents")
    ingest_command.add_arguments(ingest)
    manage.add_commands(commands)
    serve = commands.add_parser("serve", help="answer questions over HTTP")
    serve.add_argument("--host", help="address to listen on (default: the settings', 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default: the settings', 8000; 0 takes a free one)")
    serve.set_defaults(run=_serve)
    terminal.add_commands(commands)
    about = "ask questions with known answers; count what is found, cited, answered and refused"
    eval_command.add_arguments(commands.add_parser("eval", help=about, description=f"{about}."))
    config.add_command(commands)
    doctor.add_command(commands)
    return parser


def _serve(given: argparse.Namespace, settings: Settings) -> int:
    from rag.app import serve

    listen = {name: value for name in ("host", "port") if (value := getattr(given, name)) is not None}
    try:
        server = type(settings.server)(**(settings.server.model_dump() | listen))
    except ValidationError as error:
        return refused("groundwell serve", plainly(error), as_json=False)
    return serve(settings.model_copy(update={"server": server}))


if __name__ == "__main__":
    sys.exit(main())
