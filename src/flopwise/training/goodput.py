"""What failures, checkpoints and waiting for spare machines leave of a long run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.cost.money import num_instances
from flopwise.ops.types import Floats, Ints
from flopwise.training.layout import Layout
from flopwise.training.stage_memory import StageMemory
from flopwise.training.widths import adapter_widths
from flopwise.units import DAY_S
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.training.layer_sums import MemoryTable

_LEAST_S = 1e-3
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """The rate of interruptions of a job and their cost; s, bytes/s.

    Sources: mtbf_gpu_s: Llama 3 (arXiv:2407.21783) section 3.3.4, 419 unexpected interruptions in 54 days on 16,384
    GPUs (data/failures.csv); detection, rescheduling and warm-up: ten minutes together, the order that leaves that run
    its published 90 %; write: 1 GB/s a GPU is what parallel file systems sustain for sharded checkpoints (DeepSpeed
    FastPersist, arXiv:2406.13768, section 5), all together what `lustre` in data/storage.csv takes; snapshot: pinned
    host memory over a shared PCIe 4 link.
    """

    mtbf_gpu_s: float = 16384 * 54 * DAY_S / 419
    mtbf_node_s: float = float("inf")  # of what is counted by the node, beside the GPUs' failures
    interruptions_per_s: float = 0.0  # of one spot instance
    gpus_per_node: int = 8
    detect_s: float = 120.0
    reschedule_s: float = 240.0
    warmup_s: float = 240.0
    write_bytes_per_s_per_gpu: float = 1e9
    write_bytes_per_s_per_node: float = float("inf")
    write_bytes_per_s: float = 200e9  # of the whole cluster
    asynchronous: bool = False  # training waits for the copy to host memory only
    snapshot_bytes_per_s_per_gpu: float = 10e9
    interval_s: float | None = None  # between checkpoints; None: the one that loses least
    spares: int = 0  # nodes that stand by; they count once a repair time is known
    repair_s: float = 0.0  # a failed node is away so long; 0: a replacement is always at hand


DEFAULT_RELIABILITY = Reliability()


def checkpoint_bytes(table: MemoryTable) -> float:
    """Size of a checkpoint to resume from, in bytes: trained weights, master weights and optimizer states, once.

    Source: the widths of the memory model (`flopwise.training.stage_memory`). Gradients and frozen
    weights are not written.
    Assumes: replicas write one copy together.
    """
    run, sums = StageMemory(table, Layout()), table.sums(Layout())[0]
    layers = float(sums.dense[-1, 0] + sums.expert[-1, 0])
    ends = float(sums.before[0] + sums.after[0])
    others = ends - float(sums.tower_matrices[0]) + float(sums.others[-1, 0])
    of_ends = run.width if table.lora is None else adapter_widths(table.recipe, table.elem_bytes)
    stored = sum(n * (w.weights + w.master + w.states) for n, w in ((layers, run.width), (ends, of_ends)))
    return stored + others * of_ends.others


def daly_interval_s(stall_s: Floats, mtbf_s: Floats) -> Floats:
    """Work between checkpoints that loses least, in s; broadcasts.

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d below d = 2 M, else M.

    Source: Daly 2006 (doi:10.1016/j.future.2004.11.016) equation 37.
    Assumes: failures are independent (exponential).
    """
    half = np.minimum(stall_s / (2.0 * mtbf_s), 1.0)
    best = np.sqrt(2.0 * stall_s * mtbf_s) * (1.0 + np.sqrt(half) / 3.0 + half / 9.0) - stall_s
    return np.where(stall_s < 2.0 * mtbf_s, best, mtbf_s)


class Goodput(NamedTuple):
    """The parts of goodput; s and fractions, each of the arguments' shape."""

    frac: Floats
    mtbf_s: Floats  # between interruptions of the job
    write_s: Floats
    stall_s: Floats  # of one checkpoint, in which training waits
    interval_s: Floats  # of work between checkpoints
    restart_s: Floats  # from an interruption to where the last checkpoint was
    up_frac: Floats  # share of the time in which enough nodes are there


def interruptions_per_s(num_gpus: Ints, reliability: Reliability = DEFAULT_RELIABILITY) -> Floats:
    """Rate of interruptions of a job on `num_gpus`; broadcasts.

    Source: rates of independent causes add up. Assumes: failures are independent, and every one stops the job.
    """
    nodes = num_instances(num_gpus, reliability.gpus_per_node)
    per_node = 1.0 / reliability.mtbf_node_s + reliability.interruptions_per_s
    return num_gpus / reliability.mtbf_gpu_s + nodes * per_node


def write_rate_bytes_per_s(num_gpus: Ints, reliability: Reliability = DEFAULT_RELIABILITY) -> Floats:
    """Bytes/s with which all GPUs together write a checkpoint; broadcasts.

    Source: the narrowest of GPUs, nodes and storage. Assumes: shards are alike, and all ranks write.
    """
    nodes = num_instances(num_gpus, reliability.gpus_per_node)
    of_nodes = np.minimum(nodes * reliability.write_bytes_per_s_per_node, reliability.write_bytes_per_s)
    return np.minimum(num_gpus * reliability.write_bytes_per_s_per_gpu, of_nodes)


def waiting_frac(nodes: Floats, failures_per_s_per_node: Floats, repair_s: float, spares: int) -> Floats:
    """Share of the time in which more nodes are in repair than there are spares; broadcasts.

    Nodes in repair are a birth and death process that stops at spares + 1, where the job waits: Erlang's loss formula
    B(spares + 1, nodes x rate x repair), whatever the distribution of repairs.

    Source: Erlang 1917; Palm's machine interference with ample repair crews.
    Assumes: a node that is back becomes a spare; spares do not fail.
    """
    load = nodes * failures_per_s_per_node * repair_s
    blocked: Floats = 1.0
    for servers in range(1, spares + 2):
        blocked = load * blocked / (servers + load * blocked)
    return blocked


def progress_frac(mtbf_s: Floats, interval_s: Floats, stall_s: Floats, restart_s: Floats) -> Floats:
    """Share of the time that is progress, of work that is saved every `interval_s` with a stall; broadcasts.

    t / (M e^(R/M) (e^((t+d)/M) - 1)) of t between saves, a stall of d, interruptions every M, a restart of R.

    Source: Daly 2006 (doi:10.1016/j.future.2004.11.016) section 3, exact for exponential failures.
    Assumes: independent failures, those while restarting included; what was not saved is done again.
    """
    exponent = np.minimum(restart_s / mtbf_s, _LARGEST_EXPONENT)
    segment = np.minimum((interval_s + stall_s) / mtbf_s, _LARGEST_EXPONENT)
    return (interval_s / mtbf_s) * np.exp(-exponent) / np.expm1(segment)


def goodput(num_gpus: Ints, checkpoint_bytes: Floats, reliability: Reliability = DEFAULT_RELIABILITY) -> Goodput:
    """Share of the wall time that makes progress, between 0 and 1, with what it follows from; broadcasts.

    `progress_frac`; the time for which nodes are missing comes on top.

    Source: `progress_frac`, `waiting_frac`.
    Assumes: a checkpoint is read back as fast as it is written; an asynchronous one counts once it is written.
    """
    r = reliability
    rate = interruptions_per_s(num_gpus, r)
    mtbf_s = 1.0 / np.maximum(rate, 1e-30)
    write_s = np.maximum(checkpoint_bytes / write_rate_bytes_per_s(num_gpus, r), _LEAST_S)
    stall_s, lag_s = write_s, 0.0 * write_s
    if r.asynchronous:
        copy_s = np.maximum(checkpoint_bytes / (num_gpus * r.snapshot_bytes_per_s_per_gpu), _LEAST_S)
        stall_s, lag_s = np.minimum(copy_s, write_s), write_s
    if r.interval_s is None:
        interval_s = np.maximum(daly_interval_s(stall_s, mtbf_s), lag_s)
    else:
        interval_s = np.maximum(r.interval_s, lag_s)
    restart_s = r.detect_s + r.reschedule_s + r.warmup_s + write_s + lag_s
    up_frac: Floats = 1.0 - 0.0 * rate
    if r.repair_s:
        nodes = num_instances(num_gpus, r.gpus_per_node)
        up_frac = 1.0 - waiting_frac(nodes, rate / nodes, r.repair_s, r.spares)
    frac = up_frac * progress_frac(mtbf_s, interval_s, stall_s, restart_s)
    return Goodput(frac, mtbf_s, write_s, stall_s, interval_s, restart_s, up_frac)


def goodput_frac(num_gpus: Ints, checkpoint_bytes: Floats, reliability: Reliability = DEFAULT_RELIABILITY) -> Floats:
    """`goodput(...).frac` alone. Source and assumptions: as there."""
    return goodput(num_gpus, checkpoint_bytes, reliability).frac
