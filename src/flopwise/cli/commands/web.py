"""`flopwise web`: the local web app and REST API."""

from __future__ import annotations

import os
import secrets
import sys
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

import click

from flopwise.cli import options
from flopwise.cli.app import app
from flopwise.cli.options import Flag, add, usage_error
from flopwise.cli.progress import clear
from flopwise.errors import MissingFactError
from flopwise.files import read_limited
from flopwise.options import FILE, FLAG, argument_text, name, whole

NEEDS = ("starlette", "uvicorn")
TOKEN = "FLOPWISE_WEB_TOKEN"  # noqa: S105 - the name of a variable
SHORTEST_TOKEN = 16
NOT_SHOWN = (
    "output_file", "output", "from_file", "old", "compare", "to", "force", "plan.address", "plan.workers", "facts",
    "calibration", "store", "explain", "sweep", "weak", "rank",
)  # fmt: skip
"""Options that pages do not have, or that the page of one command has not, besides those that name a file."""
CONFIG = "config.json"
"""What a page calls the file that its link holds."""
WITH_MODEL = ("plan", "serve", "estimate")
"""Pages of questions about a model."""
MOST_BYTES = 1 << 20


@options.command("web", "flopwise web --openapi")
@add(
    "--host",
    name("host", 255),
    "Address to listen on; a token is required where other machines can reach it.",
    default="127.0.0.1",
)
@add("--port", whole(low=0, high=65_535), "Port; 0 takes a free one.", default=8321)
@add(
    "--token", name("token"), f"Token that requests must send (default: {TOKEN}, else generated where one is required)."
)
@add("--open/--no-open", FLAG, "Open the page in a browser.", field="opens", default=True)
@add("--openapi", FLAG, "Print the OpenAPI description instead.", default=False)
def command(*, openapi: bool, **settings: Any) -> None:
    """The local web app and REST API: planning pages, and the commands over HTTP.

    Runs until it is interrupted. /api/v1/openapi.json describes the API: its nouns are commands, its answers the
    documents of --json. Needs the extra `web`: pip install flopwise[web]
    """
    if openapi:
        options.refuse(settings, "not with --openapi, which starts no server")
        from flopwise.cli.output import write_document
        from flopwise.web.openapi import document
        from flopwise.web.questions import nouns

        write_document(document(nouns(app)))
        return
    run_server(**settings)


def _page_query(without_argument: bool = False) -> str:
    """The argument and options that the running command line says, as the address of its page has them."""
    from urllib.parse import urlencode

    context = click.get_current_context()
    params = context.command.params
    files = [p.name or "" for p in params if isinstance(p, Flag) and p.declared.kind is FILE]
    own = [name.rpartition(".")[2] for name in NOT_SHOWN if name.partition(".")[0] in (name, context.command.name)]
    options.refuse({*own, *files}, "not with --web")
    arguments = [p.name or "" for p in params if isinstance(p, click.Argument) and context.params[p.name or ""]]
    if without_argument:
        arguments = []
    pairs: list[tuple[str, str]] = []
    for field, spelled in (dict.fromkeys(arguments, "") | options.spellings(context, settings=True)).items():
        value = context.params[field]
        for one in value if isinstance(value, tuple | list) else (value,):
            text = ",".join(f"{k}={v}" for k, v in one.items()) if isinstance(one, dict) else argument_text(one)
            text = CONFIG if field in arguments and _is_config(one) else text
            pairs.append(
                (spelled.lstrip("-").replace("-", "_") or field, text.lower() if isinstance(one, bool) else text)
            )
    return urlencode([(key, text) for key, text in pairs if key != "web"])


def _is_config(value: object) -> bool:
    """True if an argument names a config.json on this machine."""
    return isinstance(value, str) and value.lower().endswith(".json")


def _packed_config() -> str | None:
    """The config.json that an argument of the running command names, as a link holds it; None where none does.

    Raises: SpecError: it cannot be read, or is too large for a link.
    """
    import base64
    import zlib

    from flopwise.web.server import LONGEST_LINK

    context = click.get_current_context()
    values = [context.params[p.name or ""] for p in context.command.params if isinstance(p, click.Argument)]
    file = next((value for value in values if _is_config(value)), None)
    if file is None:
        return None
    too_large = "drop it onto the page instead"
    packer = zlib.compressobj(level=9, wbits=-zlib.MAX_WBITS)
    data = packer.compress(read_limited(file, MOST_BYTES, too_large=too_large)) + packer.flush()
    code = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    if len(code) > LONGEST_LINK:
        raise usage_error(f"{file}: too large for a link; {too_large}")
    return code


def run_server(
    page: str = "", *, host: str = "127.0.0.1", port: int = 0, token: str | None = None, opens: bool = True,
    text: str | None = None, head: str = "",
) -> None:  # fmt: skip
    """Serve until interrupted; the start page is printed and opened, or `page` with what the running command says.

    `text`: the fleet file that stands on the page. `head`: the start of its address's query.

    Raises: MissingFactError: the extra is not installed. SpecError: the token is too short. OSError: no such address.
    """
    missing = [module for module in NEEDS if find_spec(module) is None]
    if missing:
        raise MissingFactError(f"{' and '.join(missing)} not installed: pip install 'flopwise[web]'")
    from flopwise.web.guard import Access, is_loopback
    from flopwise.web.server import listen, serve

    parameters = "&".join(filter(None, (head, _page_query(text is not None)))) if page else ""
    config = _packed_config() if page in WITH_MODEL else None
    path = f"/{page}{f'?{parameters}' if parameters else ''}"
    token = token or os.environ.get(TOKEN) or None
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise usage_error(f"--token: give at least {SHORTEST_TOKEN} printable characters, hard to guess")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    clear()
    with listen(host, port) as socket:
        shown = f"[{host}]" if ":" in host else "localhost" if is_loopback(host) else host
        address = f"http://{shown}:{socket.getsockname()[1]}{path}"
        parts = {"token": token, "fleet": text, CONFIG: config}
        behind = "&".join(f"{key}={quote(part, safe='')}" for key, part in parts.items() if part)
        behind = f"#{behind}" if behind else ""
        if options.output_form() == "json":
            options.answer({"url": address, "token": token}, lambda *_: ())
        else:
            click.echo(address + behind)
        sys.stdout.flush()
        if opens:
            import webbrowser

            webbrowser.open(address + behind)
        serve(socket, app, Access.of(host, token))
