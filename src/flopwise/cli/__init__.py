"""The command line: parse, call the function of the same name, render."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

_OBJECTS_BEFORE_COLLECTION = 200_000
"""Loading modules and facts makes fewer; Python's own threshold has it search them all for cycles several times."""
_PARALLEL = ("probe", "watch")
"""Commands that time products on all cores or start programs of other people: their environment is left as it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 answered, 1 no feasible answer, 2 bad input (`flopwise.cli.run`)."""
    if argv is None:  # the process is this one run: what it makes lives to its end
        gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
        if sys.argv[1:2] not in ([name] for name in _PARALLEL):  # no product here is large enough to share
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flopwise.cli.run import run

    code = run(argv)
    if argv is None:
        gc.freeze()
    return code
