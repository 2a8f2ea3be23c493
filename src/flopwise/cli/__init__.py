"""The command line: parse, call the function of the same name, render."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 answered, 1 no feasible answer, 2 bad input (`flopwise.cli.run`)."""
    from flopwise.cli.run import run

    return run(argv)
