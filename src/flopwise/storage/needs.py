"""Storage bandwidth of a planned run or service: data, checkpoints, and the weights that machines load at a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.money import num_instances
from flopwise.cost.storage import checkpoint_bytes_per_s
from flopwise.storage.spec import STALL_FRAC
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.storage import Storage
    from flopwise.serving.job import ServeJob
    from flopwise.training.job import TrainJob


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageNeed:
    """The traffic of one purpose between storage and all machines, in bytes and bytes/s.

    `every_s`: time between two such transfers, in s; None: all the time, or once at a start. `assumed_bytes_per_s`: the
    rate that the plan's times stand on; None: they assume that no step waits for it.
    """

    purpose: str
    nbytes: float  # of one transfer: an epoch of data, a checkpoint, the weights of one machine
    every_s: float | None
    needed_bytes_per_s: float  # of all machines together
    node_needed_bytes_per_s: float
    assumed_bytes_per_s: float | None


def run_storage_needs(job: TrainJob, tokens_per_s: float, *, epochs: float = 1.0) -> tuple[StorageNeed, ...]:
    """The data that a training run reads at `tokens_per_s` (of all devices), and the checkpoints that it writes.

    Checkpoints are written whenever the run loses least; needed is what keeps writing to `STALL_FRAC` of the time.

    Source: `stored_token_bytes`, `goodput`, `checkpoint_bytes_per_s`.
    Assumes: every machine reads its share of the data and writes its share of the checkpoint; no cache.
    """
    from flopwise.training.goodput import checkpoint_bytes, goodput, write_rate_bytes_per_s  # noqa: PLC0415 - runs only
    from flopwise.training.layer_sums import memory_table  # noqa: PLC0415 - runs only
    from flopwise.training.storage import stored_token_bytes  # noqa: PLC0415 - runs only

    gpus, reliability = int(job.layout.num_gpus), job.conditions.reliability
    nodes = int(num_instances(gpus, max(1, job.cluster.gpus_per_node)))
    each = stored_token_bytes(job.model, float(job.recipe.seq_len))
    read, saved = tokens_per_s * each, float(checkpoint_bytes(memory_table(job.model, job.recipe)))
    good = goodput(gpus, saved, reliability)
    write = float(checkpoint_bytes_per_s(saved, good.interval_s, STALL_FRAC))
    data = StorageNeed(
        purpose="training data", nbytes=(job.tokens or 0.0) / epochs * each, every_s=None, needed_bytes_per_s=read,
        node_needed_bytes_per_s=read / nodes, assumed_bytes_per_s=None,
    )  # fmt: skip
    checkpoints = StorageNeed(
        purpose="checkpoints", nbytes=saved, every_s=float(good.interval_s), needed_bytes_per_s=write,
        node_needed_bytes_per_s=write / nodes,
        assumed_bytes_per_s=float(write_rate_bytes_per_s(gpus, reliability)),
    )  # fmt: skip
    return data, checkpoints


def service_storage_needs(job: ServeJob, storage: Storage, nodes: int) -> tuple[StorageNeed, ...]:
    """The weights that `nodes` machines load when they start together, as fast as `storage` and the engine allow.

    Source: `cold_start`. Assumes: as there; more machines than one do not slow each other down.
    """
    from flopwise.serving.startup import cold_start  # noqa: PLC0415 - services only

    start = cold_start(job, storage)
    seconds = dict(start.parts).get("weights", 0.0)
    if not seconds:
        return ()
    rate = start.read_bytes / seconds
    return (
        StorageNeed(
            purpose="weights at a start", nbytes=start.read_bytes, every_s=None, needed_bytes_per_s=rate * nodes,
            node_needed_bytes_per_s=rate, assumed_bytes_per_s=rate * nodes,
        ),
    )  # fmt: skip
