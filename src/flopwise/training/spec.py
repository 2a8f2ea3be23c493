"""What people say of a training job, whichever command or file they say it in."""

from __future__ import annotations

import math

from flopwise.errors import SpecError


def batch_of_tokens(tokens: float, seq_len: int) -> int:
    """Sequences of `seq_len` that make a global batch of `tokens`: exactly, or the nearest batch that ranks can share.

    Raises:
        SpecError: fewer tokens than one sequence has.
    """
    if tokens < seq_len:
        raise SpecError(f"a global batch of {tokens:,.0f} tokens is less than one sequence of {seq_len:,}")
    sequences = tokens / seq_len
    return int(sequences) if sequences == int(sequences) else divisible_batch(sequences)


def divisible_batch(sequences: float) -> int:
    """A whole batch within an eighth of `sequences` that ranks can share: at most three significant bits."""
    exact = max(1.0, sequences)
    unit = 2 ** max(0, int(math.log2(exact)) - 2)
    return int(max(1, round(exact / unit)) * unit)
