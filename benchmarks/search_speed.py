"""Layouts a second of the training search: the whole of it, and its column-wise core alone, on one core."""

from __future__ import annotations

import time
from typing import NamedTuple

from flopwise.cost.cluster import cluster
from flopwise.facts.catalog import load_facts
from flopwise.facts.models import load_model
from flopwise.ops.columns import keep_freed_memory
from flopwise.search.nodes import NodeKind, Priced
from flopwise.search.training import CHUNK, columns, gpu_counts, searched, timed
from flopwise.training.layout import Recipe
from flopwise.training.memory import peak_and_states
from flopwise.training.step import step_parts
from flopwise.training.table import MemoryTable

MAX_GPUS = 16_384


class Speed(NamedTuple):
    """One measurement: what was searched, layouts, seconds."""

    what: str
    layouts: int
    seconds: float


def node() -> NodeKind:
    """Eight H100 with a known network, at some price."""
    facts = load_facts()
    offer = next(o for o in facts.offers if o.instance == "p5.48xlarge" and o.on_demand_usd_per_hour)
    built = cluster(facts.offered_accelerator(offer), offer=offer)
    return NodeKind(
        cluster=built, count=8, networked=True, priced=(Priced(offer=offer, purchase="on_demand", usd_per_hour=1.0),)
    )


def speeds() -> list[Speed]:
    """Whole searches for a dense and a mixture model on one kind of node, then the core on their candidates."""
    keep_freed_memory()
    found, eight = [], node()
    for name, seq, batch in (("Llama-3.1-405B", 8192, 15360), ("DeepSeek-V3", 4096, 15360)):
        model, recipe = load_model(name), Recipe(seq_len=seq, global_batch=batch, stack="megatron-te")
        timed(searched(model, recipe, gpu_counts(64, 8)), eight, 1e12, {})  # warm
        start = time.perf_counter()
        job = searched(model, recipe, gpu_counts(MAX_GPUS, 8))
        result = timed(job, eight, 1e12, {})
        found.append(
            Speed(f"{name} up to {MAX_GPUS:,} GPUs, whole search", job.space.size, time.perf_counter() - start)
        )
        table = MemoryTable(model, recipe)
        pieces = [job.space.take(slice(i, i + CHUNK)) for i in range(0, job.space.size - CHUNK, CHUNK)] or [job.space]
        for piece in pieces:
            peak_and_states(table, columns(piece))  # the sums of every degree, once
        start = time.perf_counter()
        for piece in pieces:
            peak_and_states(table, columns(piece))
            lines = step_parts(result.table, piece.inner_index, piece.degree_index, columns(piece))
            sum(lines.values())
        seconds = time.perf_counter() - start
        found.append(Speed(f"{name}, memory and time of every candidate", sum(p.size for p in pieces), seconds))
    return found


if __name__ == "__main__":
    for speed in speeds():
        print(f"{speed.what}: {speed.layouts:,} layouts, {speed.layouts / speed.seconds / 1e6:.2f} M/s")
