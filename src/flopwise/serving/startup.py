"""Cold start of a replica: image, process, weights from storage to the device, compilation and graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.fabric import host_link_bytes_per_s
from flopwise.facts.accelerators import SHARED_KINDS
from flopwise.facts.software import BARE_KINDS
from flopwise.ops.weights import weight_bytes
from flopwise.serving.memory import weights_per_gpu
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.storage import Storage
    from flopwise.serving.job import ServeJob

DEFAULT_STORAGE = "nvme-gen4"
"""Kind of storage that weights are read from where none is named."""
CONNECTIONS = 16
"""Connections that a loader opens to an object store."""
CACHED = "page-cache"
"""Kind of storage that is memory: the default loader reads it without waiting for pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Seconds of each part, one after the other; what the weights wait for."""

    parts: tuple[tuple[str, float], ...]
    storage: str
    weights_bound: str  # storage, loader or link to the device
    read_bytes: float  # by the fullest node
    sources: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(seconds for _, seconds in self.parts)


def cold_start(
    job: ServeJob, storage: Storage, *, image_bytes: float = 0.0, image_bytes_per_s: float = 0.0
) -> ColdStart:
    """The start-up time of one replica where nothing of it runs or is compiled yet.

    Ranks of a node share what is read: the page cache holds it for the others. Reading and copying to the device
    overlap, so that the slowest of storage, loader and link decides. Compiling and capturing go by the layers of the
    first stack.

    Source: data/storage.csv and data/engines.json; the parts as in "Breaking the Ice" (arXiv:2606.07362).
    Assumes: pipeline stages start at once; layers cost alike whatever their width; an object store is read over
    `CONNECTIONS` connections.
    """
    row, cluster, layers = job.engine, job.cluster, job.model.stacks[0].num_layers
    ranks = job.num_gpus
    on_node = min(ranks, max(cluster.gpus_per_node, 1))
    stored = float(weight_bytes(job.model, job.weights)) * (1 + job.techniques.prefill_gpus // int(job.layout.num_gpus))
    read = stored * on_node / ranks if ranks > on_node else stored
    many = CONNECTIONS if storage.scope == "connection" else 1
    waits = {"storage": read / (storage.read_bytes_per_s * many)}
    if row.loader_bytes_per_s and storage.name != CACHED:
        waits["loader"] = read / (row.loader_bytes_per_s * on_node)
    if cluster.rates.host_link_bytes_per_s and cluster.accelerator.kind not in SHARED_KINDS:
        weights = float(weights_per_gpu(job.model, job.weights, job.layout))
        waits["link to the device"] = weights / host_link_bytes_per_s(cluster.rates)
    bound = max(waits, key=lambda name: waits[name])
    bare = cluster.accelerator.kind in BARE_KINDS
    parts = (
        ("image", image_bytes / image_bytes_per_s if image_bytes else 0.0),
        ("process and imports", row.bootstrap_s),
        ("weights", waits[bound]),
        ("compilation", 0.0 if bare else row.compile_s_per_layer * layers / int(job.layout.pp)),
        ("graphs", 0.0 if bare else row.capture_s_per_layer * layers / int(job.layout.pp)),
        ("profiling and warm-up", row.warmup_s),
    )
    return ColdStart(
        parts=tuple((name, seconds) for name, seconds in parts if seconds),
        storage=storage.name,
        weights_bound=bound,
        read_bytes=read,
        sources=(storage.source, row.support_source),
    )
