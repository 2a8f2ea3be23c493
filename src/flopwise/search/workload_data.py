"""What a training job of a workload file reads: tokens, sequences and batches in base units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError
from flopwise.units import parse_count, parse_whole

if TYPE_CHECKING:
    from flopwise.search.workload import Data


def training_tokens(data: Data) -> tuple[float | None, int | None, int | None]:
    """Tokens of the whole run, sequence length and global batch (sequences).

    Raises:
        SpecError: a quantity that cannot be read, or two for one; starts with the key's path.
    """
    seq = whole(data.seq_len, "data.seq_len", 10**8)
    epochs = positive(parse_count(data.epochs, "data.epochs"), "data.epochs")
    if data.tokens is not None and data.samples is not None:
        raise SpecError("data.samples: give either tokens or samples, not both")
    tokens = maybe(data.tokens, parse_count, "data.tokens")
    if data.samples is not None:
        if seq is None:
            raise SpecError("data.samples: needs data.seq_len, the tokens of one sample")
        each = maybe(data.mean_length, parse_count, "data.mean_length") or seq
        tokens = positive(parse_count(data.samples, "data.samples"), "data.samples") * each
    batch = whole(data.global_batch, "data.global_batch")
    if data.global_batch_tokens is not None and batch is not None:
        raise SpecError("data.global_batch_tokens: give either global_batch (sequences) or global_batch_tokens")
    return (None if tokens is None else tokens * epochs), seq, batch


def check_packing(data: Data) -> None:
    """Refuse lengths of documents without a way of packing them, and the other way round.

    Raises:
        SpecError: starts with the key's path.
    """
    if (data.packing is None) != (data.mean_length is None):
        given, needed = ("mean_length", "packing") if data.packing is None else ("packing", "mean_length")
        raise SpecError(f"data.{given}: needs data.{needed}, too")
    if data.packing is not None and data.padded_frac:
        raise SpecError("data.padded_frac: follows from data.packing; leave one of them out")
    if not 0 <= data.length_spread < 100:
        raise SpecError(f"data.length_spread: standard deviation over mean, 0 to 100, not {data.length_spread}")


def maybe(value: Any, parse: Any, what: str) -> float | None:
    """A quantity as `parse` of `flopwise.units` reads it, above zero; None where none is given."""
    return None if value is None else positive(parse(value, what), what)


def whole(value: Any, what: str, high: int = 10**9) -> int | None:
    """A whole number from 1; None where none is given."""
    return None if value is None else parse_whole(value, what, high=high)


def positive(value: float, what: str) -> float:
    """The value itself. Raises SpecError: it is not above zero."""
    if value <= 0:
        raise SpecError(f"{what}: must be more than zero, not {value:g}")
    return value
