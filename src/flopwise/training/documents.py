"""Documents shorter than a sequence: padded to the longest of a micro-batch, or packed one after the other.

Their lengths are a distribution of few values, so that every expectation over it is a sum.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.files import read_at_most
from flopwise.ops.columns import distinct
from flopwise.ops.types import Array, Floats, Ints
from flopwise.values import dataclass

Packing = Literal["padded", "packed"]
QUANTILES = 1024
"""Lengths of equal probability that stand for a continuous distribution."""
PACKED_SEQUENCES = 256
"""Sequences that are filled to find how full they become."""
MOST_LINES, MOST_BYTES = 1_000_000, 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Lengths of documents in tokens, ascending, none beyond a sequence, with their shares (sum 1)."""

    lengths: tuple[float, ...]
    shares: tuple[float, ...]
    packing: Packing
    seq_len: int  # tokens of a full sequence; what is longer is cut off

    @property
    def mean(self) -> float:
        """Mean length, in tokens."""
        return float(np.dot(self.lengths, self.shares))

    @property
    def per_sequence(self) -> float:
        """Tokens of documents in one sequence: one document, or as many as are packed."""
        return self.mean if self.packing == "padded" else self.seq_len * filled_frac(self)

    def within(self, seq_len: int) -> Documents:
        """The documents truncated to sequences of `seq_len` tokens."""
        return histogram(np.array(self.lengths), np.array(self.shares), seq_len, self.packing)

    def computed_lengths(self, micro_batch: Ints, *, masked: bool) -> tuple[Floats, Floats]:
        """(tokens of a sequence, tokens that attention works on at a time) as computed; shape of `micro_batch`.

        Packed documents under a mask attend to themselves: as many pairs as sequences of E[l^2] / E[l] tokens have,
        token for token. Padded micro-batches are as wide as their longest, W: E[W] tokens a sequence, attention as of
        E[W^2] / E[W].

        Source: Krell et al. 2021 (arXiv:2107.02027) sections 2 and 3.2; counting pairs, the sum of l (l + 1) / 2.
        Assumes: kernels skip what the mask hides (`masked`: flash attention with sequence lengths); else packed
        sequences are attended to in full; padding is computed.
        """
        if self.packing == "padded":
            mean, square = self.longest_moments(micro_batch)
            return mean, np.maximum(np.rint(square / mean), 1.0)
        if not masked:
            return self.seq_len, self.seq_len
        pairs = float(np.dot(self.shares, np.square(self.lengths)))
        return self.seq_len, max(1.0, float(np.rint(pairs / self.mean)))

    def longest_moments(self, many: Ints) -> tuple[Array, Array]:
        """(mean, mean square) of the longest of `many` documents drawn at random; shape of `many`.

        Source: order statistics: the longest is at most x with probability F(x)^n.
        Assumes: documents are drawn independently, not sorted or grouped by length.
        """
        (values,), back = distinct(many)
        below = np.cumsum(self.shares)
        below[-1] = 1.0
        upto = below ** values.astype(np.float64)[:, None]
        shares = np.diff(upto, axis=1, prepend=0.0)
        lengths = np.array(self.lengths)
        mean, square = ((shares * each).sum(axis=1) for each in (lengths, lengths**2))  # row by row, as BLAS is not
        return mean[back], square[back]

    def waiting_frac(self, micro_batch: Ints, replicas: Ints, num_micro: Floats, *, each: Ints) -> Floats:
        """Share by which the replica with the longest documents takes longer than the mean; broadcasts.

        Of one micro-batch the widest of n replicas is the longest of n times as many documents: e over the mean. Over m
        micro-batches the part a = c sigma / mean of it that a normal variable would have (c: expected largest of n)
        shrinks as 1 / sqrt(m), and what skewness adds as 1 / m: a / sqrt(m) + (e - a) / m. `each`: 1 where replicas
        wait for one another every micro-batch (ZeRO 3), else 0.

        Source: order statistics; Cornish and Fisher 1938, first term; Blom 1958 for c. Sampled in
        tests/training/test_documents.py.
        Assumes: time in proportion to tokens; packed sequences are alike.
        """
        if self.packing == "packed":
            return 0.0
        one, square = self.longest_moments(micro_batch)
        excess = self.longest_moments(np.asarray(micro_batch) * np.asarray(replicas))[0] / one - 1.0
        usual = np.minimum(_largest_normal(replicas) * np.sqrt(np.maximum(square / one**2 - 1.0, 0.0)), excess)
        many = np.where(np.asarray(each) > 0, 1.0, np.maximum(num_micro, 1.0))
        waited: Array = usual / np.sqrt(many) + (excess - usual) / many
        return waited


def lognormal(mean: float, spread: float, seq_len: int, packing: Packing) -> Documents:
    """Documents whose lengths are lognormal with `mean` and standard deviation `spread` x `mean`, cut off at `seq_len`.

    Source: mu = ln(mean) - sigma^2 / 2, sigma^2 = ln(1 + spread^2), at the middles of `QUANTILES` equal shares.
    Assumes: whole tokens, at least one.
    Raises: SpecError: a mean beyond the sequence, a negative spread.
    """
    from statistics import NormalDist  # noqa: PLC0415 - 9 ms

    if not 1 <= mean <= seq_len:
        raise SpecError(f"mean length {mean:g} is out of range; allowed: 1 token up to the sequence of {seq_len:,}")
    if not 0 <= spread < 100:
        raise SpecError(
            f"length spread {spread:g} is out of range; it is standard deviation over mean; allowed: 0 to below 100"
        )
    sigma = math.sqrt(math.log1p(spread * spread))
    normal = NormalDist()
    middles = [normal.inv_cdf((k + 0.5) / QUANTILES) for k in range(QUANTILES)]
    values = np.exp(math.log(mean) - 0.5 * sigma * sigma + sigma * np.array(middles))
    return histogram(values, np.ones(QUANTILES), seq_len, packing)


def histogram(values: NDArray[np.float64], counts: NDArray[np.float64], seq_len: int, packing: Packing) -> Documents:
    """Documents of `values` tokens, `counts` of each; whole tokens, cut off at `seq_len`.

    Source: counting. Assumes: values above 0.
    """
    whole = np.clip(np.rint(values), 1, seq_len).astype(np.int64)
    sums = np.bincount(whole, weights=counts)
    present = np.flatnonzero(sums)
    shares = sums[present] / sums.sum()
    return Documents(
        lengths=tuple(present.astype(float).tolist()), shares=tuple(shares.tolist()), packing=packing, seq_len=seq_len
    )


def from_file(path: Path | str, seq_len: int, packing: Packing) -> Documents:
    """Documents of a text file: one length a line, or `length,count`; a first line of names is passed over.

    Raises:
        SpecError: it cannot be read, or a line is not a length; says which.
    """
    try:
        data = read_at_most(path, MOST_BYTES)
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read ({error}); give a text file with one length a line") from None
    if len(lines) > MOST_LINES or len(data) > MOST_BYTES:
        raise SpecError(f"{path}: over {MOST_LINES:,} lines; give `length,count` for each distinct length")
    rows: list[tuple[float, float]] = []
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split(",")]
        if fields == [""] or (number == 1 and not fields[0][:1].isdigit()):
            continue
        rows.append(_row(fields, f"{path}:{number}"))
    if not rows:
        raise SpecError(f"{path}: contains no length; give one length per line, or `length,count`")
    values, counts = np.array(rows).T
    return histogram(values, counts, seq_len, packing)


def _row(fields: list[str], where: str) -> tuple[float, float]:
    try:
        length, count, *more = [float(field) for field in (*fields, *([] if len(fields) > 1 else ["1"]))]
    except ValueError:
        raise SpecError(f"{where}: {','.join(fields)[:60]!r} is not a length; give tokens, or `length,count`") from None
    if more or not (1 <= length < 1e12 and 0 < count < 1e18):
        raise SpecError(f"{where}: {','.join(fields)[:60]!r}; a length is 1 or more, its count above 0")
    return length, count


def _largest_normal(many: Ints) -> Array:
    """Expected largest of `many` standard normal variables; shape of `many`."""
    from statistics import NormalDist  # noqa: PLC0415 - 9 ms

    (values,), back = distinct(many)
    inverse = NormalDist().inv_cdf
    return np.array([inverse((n - 0.375) / (n + 0.25)) if n > 1 else 0.0 for n in values.tolist()])[back]


@lru_cache(maxsize=32)
def filled_frac(documents: Documents) -> float:
    """Share of packed sequences that documents fill: the longest first, each into the fullest sequence that has room.

    Source: best-fit decreasing, as Krell et al. 2021 (arXiv:2107.02027) section 3.1 on a histogram.
    Assumes: documents are not cut; `PACKED_SEQUENCES` sequences are packed together.
    """
    lengths, shares = np.array(documents.lengths), np.array(documents.shares)
    wanted = max(PACKED_SEQUENCES * documents.seq_len / documents.mean, 1.0)
    counts = np.diff(np.rint(np.cumsum(shares) * wanted), prepend=0.0).astype(np.int64)
    room = np.zeros(documents.seq_len + 1, dtype=np.int64)  # sequences by the tokens that are free in them
    opened = 0
    for length, count in zip(lengths[::-1].astype(int).tolist(), counts[::-1].tolist(), strict=True):
        left = count
        while left:
            free = np.flatnonzero(room[length:])
            if not free.size:
                whole = documents.seq_len // length  # of a length that fits nowhere else, new sequences hold this many
                full, rest = divmod(left, whole)
                opened += full + (rest > 0)
                room[documents.seq_len - whole * length] += full
                room[documents.seq_len - rest * length] += rest > 0
                break
            place = int(free[0]) + length
            filled = min(left, int(room[place]))
            room[place] -= filled
            room[place - length] += filled
            left -= filled
    return float((lengths * counts).sum() / (opened * documents.seq_len)) if opened else 1.0
