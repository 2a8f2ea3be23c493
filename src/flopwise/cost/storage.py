"""Storage bandwidth of training: bytes a FLOP, what caches keep away from storage, checkpoints and loading.

All functions work on numbers and arrays alike; bytes, seconds, bytes/s.
"""

from __future__ import annotations

import numpy as np

from flopwise.ops.types import Floats


def bytes_per_flop(sample_bytes: Floats, flops_per_sample: Floats) -> Floats:
    """Bytes read for each FLOP done; broadcasts.

    Source: Ibrahim et al., PMBS 2021 (IEEE 9652793), the MiB/FLOP method.
    Assumes: every sample is read once for each time that it is trained on.
    """
    return sample_bytes / flops_per_sample


def read_bytes_per_s(per_flop: Floats, achieved_flops_per_s: Floats) -> Floats:
    """Read bandwidth that keeps a device busy that achieves so many FLOP/s; broadcasts.

    Source: as `bytes_per_flop`. Assumes: the FLOP are counted alike in both factors.
    """
    return per_flop * achieved_flops_per_s


MANY_NODES = 256
"""Beyond so many nodes a node's requests are as good as independent draws."""


def lru_hit_frac(cached_frac: Floats, nodes: Floats = 1.0) -> Floats:
    """Share of reads that least-recently-used caches serve when `nodes` share all records in a new order each epoch.

    A node gets a record again in k epochs with probability (1 - a) a^(k - 1), a = 1 - 1 / nodes. Having read it at u of
    one epoch and at v of the other, it has left (a + u / nodes) (a + (1 - v) / nodes) a^(k - 1) of the records unread
    since; the record is still held when that exceeds 1 - `cached_frac`. For one node the sum is c + (1 - c) ln(1 - c),
    far below c; for many it tends to c. Broadcasts.

    Source: derived, by the reuse distance of Mattson et al. 1970 (doi:10.1147/sj.92.0078); a simulation in the tests.
    Assumes: records of one size; the steady state; the page cache evicts in order of last use.
    """
    shares, count = np.broadcast_arrays(np.clip(cached_frac, 0.0, 1.0), np.asarray(nodes, dtype=float))
    again = 1.0 - 1.0 / count
    frac, reach = np.where(count > MANY_NODES, shares, 0.0), np.ones(shares.shape)
    running = (count <= MANY_NODES) & (shares < 1.0)
    while running.any():
        threshold = np.where(running, (1.0 - shares) / np.where(reach > 0, reach, 1.0), 2.0)
        frac = frac + np.where(running, (1.0 - again) * reach * _product_above(again, threshold), 0.0)
        reach = reach * again
        running = running & (reach > 1.0 - shares)
    return np.where(shares >= 1.0, 1.0, frac)


def _product_above(least: Floats, threshold: Floats) -> Floats:
    """P(x y > threshold) of two independent x, y, uniform between `least` and 1."""
    t = np.clip(threshold, 1e-300, 1.0)
    low = np.maximum(least, t)
    high = np.minimum(1.0, t / np.maximum(least, 1e-300))
    high = np.maximum(low, high)
    area = (high - low) - t * np.log(high / low) + (1.0 - high) * (1.0 - least)
    return np.where(t >= 1.0, 0.0, np.where(t <= least**2, 1.0, area / (1.0 - least) ** 2))


def hit_frac(cache_bytes: Floats, dataset_bytes: Floats, nodes: Floats, *, shuffle: str, policy: str) -> Floats:
    """Share of reads after the first epochs that caches of `cache_bytes` on each of `nodes` serve; broadcasts.

    `shuffle`: `global` (any node may get any record each epoch), `shard` (a node keeps its part of the records and
    shuffles those) or `none` (the same order each epoch). `policy`: `lru`, as the page cache, or `pinned`, as data
    staged to local drives.

    Source: `lru_hit_frac`; CoorDL (Mohan et al. 2021, arXiv:2007.06775) section 4 for pinned caches.
    Assumes: as `lru_hit_frac`.
    """
    if shuffle == "global":
        cached_frac = np.minimum(1.0, cache_bytes / dataset_bytes)
        return cached_frac if policy == "pinned" else lru_hit_frac(cached_frac, nodes)
    cached_frac = np.minimum(1.0, cache_bytes * nodes / dataset_bytes)
    if policy == "pinned":
        return cached_frac
    return np.where(cached_frac >= 1, 1.0, 0.0) if shuffle == "none" else lru_hit_frac(cached_frac)


def kept_up_frac(delivered_bytes_per_s: Floats, needed_bytes_per_s: Floats) -> Floats:
    """Speed of training with this storage over its speed without waiting; 0 to 1; broadcasts.

    Source: the slower of a pipeline's two stages sets its pace.
    Assumes: reading overlaps computing, with enough prefetched.
    """
    return np.minimum(1.0, delivered_bytes_per_s / needed_bytes_per_s)


def checkpoint_bytes_per_s(nbytes: Floats, interval_s: Floats, stall_frac: Floats) -> Floats:
    """Write bandwidth with which checkpoints each `interval_s` take `stall_frac` of the time; broadcasts.

    Source: division. Assumes: training waits for the write; asynchronous writing has the whole interval (stall_frac 1).
    """
    return nbytes / (interval_s * stall_frac)
