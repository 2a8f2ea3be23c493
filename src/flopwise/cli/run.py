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

import click

from flopwise.cli.app import app
from flopwise.cli.render import plain_text, screen
from flopwise.errors import FlopwiseError, InfeasibleError
from flopwise.values import dataclass

EXIT_INFEASIBLE, EXIT_BAD_INPUT, EXIT_DEFECT, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 70, 130, 141
NO_ROOM = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF)
"""What a stream says that takes no more."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (the process's own arguments by default); the exit code."""
    if sys.stderr is None:  # closed by who started this
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as long as the process
    if sys.stdout is None:
        _complain("error", "standard output is closed: the answer cannot be written")
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
        return _ending(failure, "--json" in (sys.argv[1:] if argv is None else argv))
    return ended if isinstance(ended, int) else 0


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run without an answer: exit code, kind and message."""

    code: int
    kind: str = ""
    message: str = ""
    details: tuple[str, ...] = ()


def ending(failure: BaseException) -> Ending:
    """The ending that belongs to `failure`; the failure itself where FLOPWISE_DEBUG asks for its traceback."""
    match failure:
        case BrokenPipeError():
            return Ending(EXIT_BROKEN_PIPE)
        case click.exceptions.Abort() | KeyboardInterrupt():
            return Ending(EXIT_INTERRUPTED)
        case InfeasibleError():
            return Ending(EXIT_INFEASIBLE, "no feasible answer", str(failure), failure.reasons)
        case FlopwiseError():
            message = str(failure)
        case click.ClickException():
            message = _usage_message(failure)
        case OSError() if failure.filename is not None:
            message = f"{failure.filename}: {failure.strerror or failure}"
        case OSError() if failure.errno in NO_ROOM:
            message = f"the answer cannot be written: {failure.strerror}"
        case OverflowError():
            message = "a given number is too large to compute with; give a smaller one"
        case _:
            return _defect(failure)
    return Ending(EXIT_BAD_INPUT, "error", message)


def _ending(failure: BaseException, as_json: bool) -> int:
    """Print the one message that `failure` deserves, as a document, too, where that was asked for; the exit code."""
    ended = ending(failure)
    full = isinstance(failure, OSError) and failure.filename is None and failure.errno in NO_ROOM
    if full or ended.code == EXIT_BROKEN_PIPE:
        _forget_stdout()
    if as_json and ended.kind and not full and not isinstance(failure, InfeasibleError):  # that has its document
        from flopwise.cli.output import write_document

        with contextlib.suppress(OSError):
            write_document({"error": {"kind": ended.kind, "message": ended.message, "exit_code": ended.code}})
            sys.stdout.flush()
    if ended.kind:
        _complain(ended.kind, ended.message, [f"  - {reason}" for reason in ended.details])
    return ended.code


def _usage_message(failure: click.ClickException) -> str:
    """The message of click on one line, with the help to look at."""
    message = " ".join(failure.format_message().split())
    context = getattr(failure, "ctx", None)
    if context is None:
        return message
    stop = "" if message.endswith("?") else "."
    return f"{message.rstrip('.')}{stop} See `{context.command_path} --help`"


def _defect(failure: BaseException) -> Ending:
    """A bug of ours: one line, unless FLOPWISE_DEBUG asks for the traceback."""
    if os.environ.get("FLOPWISE_DEBUG"):
        raise failure
    what = " ".join(str(failure).split())[:200]
    message = f"{type(failure).__name__}: {what}. Please report it, with the command and what FLOPWISE_DEBUG=1 adds"
    return Ending(EXIT_DEFECT, "internal error", message)


def _complain(kind: str, message: str, details: Sequence[str] = ()) -> None:
    """Write one message to stderr; a reader who is gone is no further error."""
    paper = screen(sys.stderr)
    lines = [f"{paper.paint(kind, 'red')}: {plain_text(message)}", *(plain_text(detail) for detail in details)]
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{paper.spell(paper.wrap(line))}\n" for line in lines))
        sys.stderr.flush()


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush has nobody to disappoint."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
