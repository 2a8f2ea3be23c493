"""All layouts of a training job on given numbers of GPUs, as columns; what cannot be is counted by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.architecture import Attend, Experts, Model
from flopwise.training.step import Inner

Column = NDArray[np.int64]

MODES = 3
"""Recompute modes: none, selective, full."""
ZERO_STAGES = (0, 1, 2, 3)
INTERLEAVES = (1, 2, 4)
MAX_CONTEXT_TOKENS = 8192
"""Sequences shorter than this per rank gain nothing from context parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the model and the job allow."""

    heads: int
    kv_heads: int
    layers: int
    experts: int
    seq_len: int
    global_batch: int

    @staticmethod
    def of(model: Model, seq_len: int, global_batch: int) -> Limits:
        """Limits of the stack that generates."""
        stack = model.stacks[0]
        items = [item for kind in stack.kinds for item in kind.items]
        attends = [i for i in items if isinstance(i, Attend)]
        return Limits(
            heads=min((i.heads for i in attends), default=1),
            kv_heads=min((i.kv_heads for i in attends), default=1),
            layers=stack.num_layers,
            experts=max((i.experts for i in items if isinstance(i, Experts)), default=1),
            seq_len=seq_len,
            global_batch=global_batch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Candidate layouts: the distinct inner combinations and pipeline degrees, and one row per candidate over them."""

    inner: Inner
    degrees: Column
    inner_index: NDArray[np.intp]
    degree_index: NDArray[np.intp]
    num_gpus: Column
    dp: Column
    zero: Column
    interleave: Column
    recompute: Column
    ruled_out: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        """Number of candidates."""
        return int(self.dp.size)

    def take(self, rows: NDArray[np.intp] | slice) -> Space:
        """The same space with only these rows."""
        return Space(
            inner=self.inner,
            degrees=self.degrees,
            inner_index=self.inner_index[rows],
            degree_index=self.degree_index[rows],
            num_gpus=self.num_gpus[rows],
            dp=self.dp[rows],
            zero=self.zero[rows],
            interleave=self.interleave[rows],
            recompute=self.recompute[rows],
            ruled_out=self.ruled_out,
        )


def divisors(n: int, most: int) -> Column:
    """Divisors of `n` up to `most`, ascending."""
    candidates = np.arange(1, min(n, most) + 1)
    found: Column = candidates[n % candidates == 0]
    return found


def powers_of_two(most: int) -> Column:
    """1, 2, 4 ... up to `most`."""
    powers: Column = 2 ** np.arange(max(1, int(most)).bit_length())
    return powers


def inner_combinations(limits: Limits, domain: int, max_micro_batch: int) -> Inner:
    """(tp, cp, ep, micro-batch) that the model divides into; tp stays inside the fast-link `domain`."""
    tp = divisors(limits.heads, min(domain, 64))
    tp = tp[(tp & (tp - 1)) == 0]
    cp = powers_of_two(max(1, limits.seq_len // MAX_CONTEXT_TOKENS))
    cp = cp[limits.seq_len % (2 * cp) == 0] if limits.seq_len > 1 else cp[:1]
    cp = cp if cp.size else np.array([1])
    ep = divisors(limits.experts, 256)
    ep = ep[(ep & (ep - 1)) == 0]
    micro = powers_of_two(min(max_micro_batch, limits.global_batch))
    micro = micro[limits.global_batch % micro == 0]
    grid = np.meshgrid(tp, cp, ep, micro, indexing="ij")
    return Inner(*(g.ravel().astype(np.int64) for g in grid))


def layouts(limits: Limits, inner: Inner, num_gpus: Column, *, max_pp: int = 64) -> Space:
    """Every layout of `inner` x pipeline degree x ZeRO x recompute x interleave on each of `num_gpus`.

    Rules: dp = gpus / (tp cp pp) is whole; the global batch divides into dp x micro-batch; ep divides dp x cp; ZeRO
    only where there are replicas; interleaving only where a stage has layers to interleave and micro-batches fill the
    pipeline.
    """
    degrees = powers_of_two(min(max_pp, limits.layers, int(num_gpus.max())))
    degrees = np.union1d(degrees, divisors(limits.layers, min(max_pp, int(num_gpus.max()))))
    i, d, g = (
        a.ravel()
        for a in np.meshgrid(np.arange(len(inner.tp)), np.arange(len(degrees)), np.arange(len(num_gpus)), indexing="ij")
    )
    ruled_out: Counter[str] = Counter()
    ranks = inner.tp[i] * inner.cp[i] * degrees[d]
    whole = num_gpus[g] % ranks == 0
    ruled_out["GPUs do not divide into tp x cp x pp"] = int((~whole).sum())
    i, d, g, dp = i[whole], d[whole], g[whole], num_gpus[g[whole]] // ranks[whole]
    batch = limits.global_batch % (dp * inner.micro_batch[i]) == 0
    ruled_out["the global batch does not divide into dp x micro-batch"] = int((~batch).sum())
    i, d, g, dp = i[batch], d[batch], g[batch], dp[batch]
    experts = (dp * inner.cp[i]) % inner.ep[i] == 0
    ruled_out["ep does not divide dp x cp"] = int((~experts).sum())
    i, d, g, dp = i[experts], d[experts], g[experts], dp[experts]
    rows, zero, interleave = _choices(limits, degrees[d], dp, inner.cp[i], inner.micro_batch[i])
    rows, zero, interleave = (np.repeat(a, MODES) for a in (rows, zero, interleave))
    return Space(
        inner=inner,
        degrees=degrees,
        inner_index=i[rows],
        degree_index=d[rows],
        num_gpus=num_gpus[g[rows]],
        dp=dp[rows],
        zero=zero,
        interleave=interleave,
        recompute=np.tile(np.arange(MODES), rows.size // MODES),
        ruled_out=ruled_out,
    )


def _choices(
    limits: Limits, pp: Column, dp: Column, cp: Column, micro_batch: Column
) -> tuple[NDArray[np.intp], Column, Column]:
    """(mesh, ZeRO stage, interleave) of every choice that makes sense on each mesh."""
    replicas = dp * cp > 1
    staged = (pp > 1) & ((limits.global_batch // (dp * micro_batch)) % pp == 0)
    found: list[tuple[NDArray[np.intp], int, int]] = []
    for zero, interleave in product(ZERO_STAGES, INTERLEAVES):
        keep = replicas.copy() if zero else np.ones(pp.size, dtype=bool)
        if zero >= 2:
            keep &= pp == 1  # sharded gradients are reduced every micro-batch: pipelines keep ZeRO 1
        if interleave > 1:
            keep &= staged & (limits.layers % (pp * interleave) == 0)
        found.append((np.flatnonzero(keep), zero, interleave))
    rows = np.concatenate([r for r, _, _ in found])
    zeros = np.repeat([z for _, z, _ in found], [r.size for r, _, _ in found])
    interleaves = np.repeat([v for _, _, v in found], [r.size for r, _, _ in found])
    return rows, zeros, interleaves
