"""One run of the command line: every way in which it can end has its exit code and at most one message.

0    answered
1    a well-formed question without a feasible answer: the reasons are printed
2    bad input, or a fact that nobody has written down
70   a defect of flopwise: one line; FLOPWISE_DEBUG=1 shows the traceback
130  interrupted; 141 the reader of the output went away
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from flopwise.cli.app import app
from flopwise.cli.render import plain_text, screen
from flopwise.errors import FlopwiseError, InfeasibleError

EXIT_INFEASIBLE, EXIT_BAD_INPUT, EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 70, 130, 141


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (the process's own arguments by default); the exit code."""
    if sys.stderr is None:  # closed by who started this
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        _complain("error", "standard output is closed: there is nowhere to answer")
        return EXIT_BAD_INPUT
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")
    try:
        ended = app.main(args=None if argv is None else list(argv), prog_name="flopwise", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 0
    except BaseException as failure:  # noqa: BLE001 - the last line of defence: each kind has its exit code below
        return _ending(failure)
    return ended if isinstance(ended, int) else 0


def _ending(failure: BaseException) -> int:
    """Print the one message that `failure` deserves; the exit code."""
    match failure:
        case BrokenPipeError():
            _forget_stdout()
            return EXIT_BROKEN_PIPE
        case click.exceptions.Abort() | KeyboardInterrupt():
            return EXIT_INTERRUPTED
        case InfeasibleError():
            _complain("no feasible answer", str(failure), [f"  - {reason}" for reason in failure.reasons])
            return EXIT_INFEASIBLE
        case FlopwiseError():
            _complain("error", str(failure))
        case click.ClickException():
            _complain("error", _usage_message(failure))
        case OSError() if failure.filename is not None:
            _complain("error", f"{failure.filename}: {failure.strerror or failure}")
        case OSError(errno=errno.ENOSPC | errno.EIO | errno.EDQUOT | errno.EFBIG | errno.EBADF):
            _forget_stdout()
            _complain("error", f"the answer cannot be written: {failure.strerror}")
        case OverflowError():
            _complain("error", "a number that was given is too large to compute with; give a smaller one")
        case _:
            return _defect(failure)
    return EXIT_BAD_INPUT


def _usage_message(failure: click.ClickException) -> str:
    """The message of click on one line, with the help to look at."""
    message = " ".join(failure.format_message().split())
    context = getattr(failure, "ctx", None)
    if context is None:
        return message
    stop = "" if message.endswith("?") else "."
    return f"{message.rstrip('.')}{stop} See `{context.command_path} --help`"


def _defect(failure: BaseException) -> int:
    """Report a bug of ours: one line, unless FLOPWISE_DEBUG asks for the traceback."""
    if os.environ.get("FLOPWISE_DEBUG"):
        raise failure
    what = " ".join(str(failure).split())[:200]
    _complain(
        "internal error",
        f"{type(failure).__name__}: {what}. Please report it, with the command and what FLOPWISE_DEBUG=1 adds",
    )
    return EXIT_DEFECT


def _complain(kind: str, message: str, details: Sequence[str] = ()) -> None:
    """Write one message to stderr; a reader who is gone is no further error."""
    paper = screen(sys.stderr)
    lines = [f"{paper.paint(kind, 'red')}: {plain_text(message)}", *(plain_text(detail) for detail in details)]
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{paper.spell(line)}\n" for line in lines))
        sys.stderr.flush()


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush has nobody to disappoint."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
