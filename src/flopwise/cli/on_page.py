"""Commands whose question a page of `flopwise web` shows as well."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast
from urllib.parse import urlencode

import click

from flopwise.cli import options
from flopwise.cli.options import Function

NAMES = {"estimate": "question", "catalog": "list"}
"""By page, the key of its address that names the command."""


def on_page(page: str, *left_out: str) -> Callable[[Function], Function]:
    """--web: a page shows the question in place of the command's answer; `left_out`: options that the page lacks."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(*, web: bool, **given: Any) -> None:
            if not web:
                function(**given)
                return
            from flopwise.cli.commands.web import run_server

            options.refuse(left_out, "not with --web")
            name = click.get_current_context().command.name
            run_server(page, head=urlencode({NAMES[page]: name}) if page in NAMES else "")

        return options.web_flag(cast("Function", run))

    return decorate
