"""Seconds of collectives over hierarchical links; `nbytes`, `n` and `stride` may be arrays.

`n` ranks take part, `stride` apart: with tp = 4 inside, the data-parallel group has stride 4. On each level of links as
many of them as fit form a group; a collective runs level by level, the outer ones on what the inner ones leave.

`nbytes`: the tensor that every rank ends up with (all-reduce, all-gather), starts from (reduce-scatter), or what a rank
sends in all (all-to-all, p2p).
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.fabric import Fabric, Level
from flopwise.cost.rates import is_zero
from flopwise.ops.types import Floats, Ints

TINY = 1e-30  # keeps 0 / 0 out
PAIR = 2.0
"""Ranks of the smallest group: it cannot use all channels of a switch."""


Groups = list[tuple[Level, Floats]]
"""Of each level, innermost first, how many peers (or groups of the level below) of a collective it joins."""


def level_groups(fabric: Fabric, n: Ints, stride: Ints = 1) -> Groups:
    """For each level, how many peers (or groups of the level below) of one collective it joins; innermost first.

    Source: NCCL: a hierarchical collective joins each level's groups in turn.
    Assumes: ranks lie `stride` apart and each inner group is filled before the next begins.
    """
    groups: Groups = []
    left: Floats = np.multiply(n, 1.0)  # peers that no level has joined yet
    apart: Floats = np.multiply(stride, 1.0)
    done: Floats = 1.0
    *inner, last = fabric.levels
    for level in inner:
        room = np.maximum(1.0, np.floor(level.size / np.maximum(apart, 1.0)))
        joined = np.maximum(np.minimum(left, room), 1.0)
        done = done * joined
        left, apart = n / done, stride * done
        groups.append((level, joined))
    joined = np.maximum(left, 1.0)
    groups.append((last, joined))
    return groups


def ramped_s(level: Level, fixed_s: Floats, transfer_s: Floats) -> Floats:
    """Fixed time, transfer at the full rate, and filling the pipeline of pieces in which the message travels.

    Small messages travel in one piece and have nothing to fill; from some size on the pieces stop growing, and filling
    costs `ramp` times the fixed time, however long the message.

    Source: NCCL's pipelined rings and trees (chunks of bounded size); the weight is calibrated.
    Assumes: half of that is reached when the transfer takes `fill_at` times the fixed time.
    """
    fill = level.ramp * fixed_s * transfer_s / (transfer_s + level.fill_at * fixed_s + TINY)
    return fixed_s + transfer_s + fill


def _steps(joined: Floats) -> Floats:
    """Steps whose latency shows in two passes: n - 1 around a ring, or down and up a tree where that is less."""
    return np.minimum(joined - 1.0, 2.0 * np.log2(np.maximum(joined, 1.0)))


def _rate(level: Level, gain: Floats = 1.0) -> Floats:
    """Bytes/s that a rank sends over a level: its share of the link, times `gain`, at most the link."""
    rate: Floats = level.bytes_per_s * np.minimum(level.frac * gain, 1.0)
    return rate


def _share_s(
    level: Level, nbytes: Floats, joined: Floats, passes: float, gain: Floats = 1.0, *, ring: bool = False
) -> Floats:
    """A collective in which every rank sends `passes` times (g - 1) / g of `nbytes`; 0 for a group of one."""
    several = joined > 1.0
    if not several.any():  # type: ignore[union-attr]  # an array, or one of NumPy's scalars
        return np.zeros(np.broadcast(nbytes, joined).shape)
    gain, others = gain * np.where(joined > PAIR, 1.0, level.pair), joined - 1.0
    transfer = passes * others / joined * nbytes / _rate(level, gain)
    fixed = level.launch_s + 0.5 * passes * level.hop_s * (others if ring else _steps(joined))
    return np.where(several, ramped_s(level, fixed, transfer), 0.0)


def _direct_s(level: Level, nbytes: Floats, joined: Floats) -> Floats:
    """All-reduce by a kernel that reads its peers' memory: everything at once, or in two shares when that is less."""
    gain = level.direct_frac * np.where(joined > PAIR, 1.0, level.pair)
    rate = _rate(level, gain)
    once = level.direct_s + (joined - 1.0) * nbytes / rate
    twice = 2.0 * level.direct_s + 2.0 * (joined - 1.0) / joined * nbytes / rate
    return np.where(joined > 1.0, np.minimum(once, twice), 0.0)


def _reduce_here_s(level: Level, nbytes: Floats, joined: Floats, direct: bool | NDArray[np.bool_]) -> Floats:
    gain: Floats = 1.0
    if not is_zero(level.multicast):  # the switch adds up: (n + 1) / n sent
        gain = np.maximum(1.0, level.multicast * 2.0 * (joined - 1.0) / (joined + 1.0))
    library = _share_s(level, nbytes, joined, 2.0, gain)
    if direct is not False and np.any(direct) and np.all(np.isfinite(level.direct_s)):
        return np.where(direct, np.minimum(library, _direct_s(level, nbytes, joined)), library)
    return library


def all_reduce_s(
    fabric: Fabric, nbytes: Floats, n: Ints, stride: Ints = 1, *, direct: bool = False, groups: Groups | None = None
) -> Floats:
    """Sum over `n` ranks, result on all. `direct`: custom kernels for small messages, as serving engines have them.

    Inside: reduce-scatter, all-reduce of the share outside, all-gather inside. `groups`: `level_groups` of the ranks,
    where they are known.

    Source: NCCL documentation (ring, tree, NVLS); rates calibrated. Assumes: levels run one after the other.
    """
    total: Floats = 0.0
    left: Floats = nbytes
    groups = groups or level_groups(fabric, n, stride)
    custom: bool | NDArray[np.bool_] = direct
    for level, joined in groups:
        if direct and np.all(np.isfinite(level.direct_devices)):
            custom = custom & ((joined == 1.0) | (np.asarray(n) <= level.direct_devices))
    for level, joined in groups:
        total = total + _reduce_here_s(level, left, joined, custom)
        left = left / joined
    return total


def all_gather_s(fabric: Fabric, nbytes: Floats, n: Ints, stride: Ints = 1, *, groups: Groups | None = None) -> Floats:
    """Every rank ends with all `nbytes`, of which it held 1 / n; `groups` as in `all_reduce_s`.

    Level by level; between nodes round a ring, for which libraries have no tree.

    Source: as `all_reduce_s`, one pass. Assumes: as there.
    """
    total: Floats = 0.0
    left: Floats = nbytes
    last = fabric.levels[-1]
    for level, joined in groups or level_groups(fabric, n, stride):
        total = total + _share_s(level, left, joined, 1.0, ring=level is last and len(fabric.levels) > 1)
        left = left / joined
    return total


def grouped_gather_s(
    fabric: Fabric, nbytes: Floats, n: Ints, stride: Ints = 1, *, groups: Groups | None = None
) -> Floats:
    """As `all_gather_s`, of unequal shares: a broadcast from each rank, all in a group; reductions are the way back.

    Source: NCCL, graph/tuning.cc: a broadcast or a reduction takes n steps round a ring where an all-gather or a
    reduce-scatter takes n - 1, and has no other algorithm; `all_gather_s`.
    Checks: on 8 MI355X RCCL gathers 131,072 tokens of 7,168 x 2 bytes in 5.25 ms by broadcasts and in 4.51 ms by one
    all-gather (SGLang, notes on attention replicas, 2026-06).
    Assumes: those of a group start at once and share the link.
    """
    ranks = np.asarray(n)
    return all_gather_s(fabric, nbytes * ranks / np.maximum(ranks - 1, 1), n, stride, groups=groups)


def reduce_scatter_s(fabric: Fabric, nbytes: Floats, n: Ints, stride: Ints = 1) -> Floats:
    """Every rank ends with its 1 / n of the sum of `nbytes`: the way of `all_gather_s` back.

    Source: as `all_reduce_s`, one pass. Assumes: as there.
    """
    return all_gather_s(fabric, nbytes, n, stride)


def groups_reached(parts: Floats, copies: Ints, pools: int = 1, top_pools: int = 1) -> Floats:
    """The expected number of `parts` equal groups of ranks that get at least one of the `copies` of a row.

    Ranks lie in `pools` equal groups, too, and the copies of a row go to ranks of `top_pools` of them, drawn at random.

    Source: counting; DeepSeek-V3 report (arXiv:2412.19437) section 2.1.2, node-limited routing: pools of experts.
    Assumes: copies fall independently on the ranks of the pools that are drawn.
    """
    open_ = top_pools * np.maximum(parts / pools, 1.0)  # parts of the pools that are drawn, where pools have several
    missed = (1.0 - 1.0 / open_) ** copies
    reached = open_ * (1.0 - missed)
    if pools == top_pools:  # no limit
        return parts * (1.0 - (1.0 - 1.0 / parts) ** copies)
    sizes, back = np.unique(np.maximum(np.round(pools / np.ravel(parts)), 1.0).astype(int), return_inverse=True)
    missed = np.array([_miss_probability(int(size), int(np.max(copies)), pools, top_pools) for size in sizes])[back]
    return np.where(parts >= pools, reached, parts * (1.0 - missed.reshape(np.shape(parts))))


def _miss_probability(size: int, copies: int, pools: int, top_pools: int) -> float:
    """Chance that a group of `size` pools gets none of the copies: by how many of its pools are drawn."""
    ways = comb(pools, top_pools)
    return sum(
        comb(size, drawn) * comb(pools - size, top_pools - drawn) / ways * (1.0 - drawn / top_pools) ** copies
        for drawn in range(min(size, top_pools) + 1)
    )


def all_to_all_s(
    fabric: Fabric, nbytes: Floats, n: Ints, stride: Ints = 1, *, copies: Ints = 1, pools: int = 1, top_pools: int = 1,
    direct: bool = False, groups: Groups | None = None,
) -> Floats:  # fmt: skip
    """Every rank sends 1 / n of its `nbytes` to each rank; levels work at the same time, the slowest decides.

    `copies`: how often each row stands in `nbytes`, for as many random ranks; a row goes once to each rank, and crosses
    an outer level once for each group, that has at least one of them. `pools`, `top_pools`: as `groups_reached` has
    them. `direct`: by kernels that write each row straight into the memory of its rank, over NVLink and RDMA, without a
    library's steps. `groups` as in `all_reduce_s`.

    Source: counting; rates calibrated; for direct ones DeepEP, docs/legacy.md, performance, whose figures between nodes
    one start and the bytes at the rate of large messages meet within 10 %.
    Assumes: even shares; a rank's traffic outwards uses its own share of the link.
    """
    slowest: Floats = 0.0
    inside: Floats = 1.0
    for level, joined in groups or level_groups(fabric, n, stride):
        outwards = nbytes * (joined - 1.0) * inside / n
        if np.any(np.asarray(copies) > 1):
            outwards = outwards * groups_reached(n / inside, copies, pools, top_pools) / copies
        if direct:
            seconds = level.launch_s + outwards / _rate(level)
        else:
            gain = level.exchange * np.where(joined > PAIR, 1.0, level.pair)
            rate = _rate(level, gain)
            fixed = level.launch_s + 0.5 * level.hop_s * _steps(joined)
            seconds = ramped_s(level, fixed, outwards / rate)
        slowest = np.maximum(slowest, np.where(joined > 1.0, seconds, 0.0))
        inside = inside * joined
    return slowest


def p2p_s(fabric: Fabric, nbytes: Floats, stride: Ints = 1, n: Ints = 1) -> Floats:
    """One rank sends `nbytes` to the rank `stride` away; of a chain or ring of `n` ranks, the slowest of their hops.

    Source: rates calibrated. Assumes: both ends are otherwise idle; the innermost level that holds the pair carries it,
    or the whole chain, whose ranks lie `stride` apart from the first of a group on; nothing is passed on, so that there
    is no pipeline to fill.
    """
    seconds: Floats = np.inf
    ranks = np.multiply(stride, n)
    for level in reversed(fabric.levels):
        holds = (np.asarray(stride) < level.size) & (ranks <= level.size)
        seconds = np.where(holds, _hop_s(level, nbytes), seconds)
    return seconds


def chain_s(fabric: Fabric, nbytes: Floats, n: Ints, stride: Ints = 1) -> Floats:
    """`nbytes` handed on along a chain of `n` ranks, `stride` apart: the sum of its n - 1 hops.

    Source: rates calibrated; a chain over ceil(n stride / size) groups of a level leaves one for the next that often
    less one.
    Assumes: as `p2p_s`.
    """
    seconds: Floats = 0.0
    left: Floats = np.maximum(np.asarray(n) - 1.0, 0.0)
    for level in fabric.levels:
        crossing = np.minimum(left, np.maximum(np.ceil(np.multiply(stride, n) / level.size) - 1.0, 0.0))
        seconds = seconds + (left - crossing) * _hop_s(level, nbytes)
        left = crossing
    return seconds


def _hop_s(level: Level, nbytes: Floats) -> Floats:
    seconds: Floats = level.launch_s + nbytes / (level.bytes_per_s * np.minimum(level.frac, 1.0))
    return seconds


COLLECTIVES: dict[str, Callable[..., Floats]] = {
    "allreduce": all_reduce_s,
    "allgather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "alltoall": all_to_all_s,
}
"""The collectives by the names that measurement files use."""
