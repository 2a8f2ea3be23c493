"""Layouts a second of the training search: the whole of it, and its column-wise core alone, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from flopwise.cost.cluster import cluster
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.search.layout_search import LayoutSearch, StepTables, layout_search, steps_s, timed_layouts
from flopwise.search.nodes import NodeKind, Priced
from flopwise.search.plan import keep_freed_memory
from flopwise.search.space import CHUNK, Family
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Recipe
from flopwise.training.memory import allocated_and_host
from flopwise.training.step_table import StepTable

MAX_GPUS = 16_384
T = TypeVar("T")


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


CASES = (("Llama-3.1-405B", 8192, 15360), ("DeepSeek-V3", 4096, 15360), ("Llama-3.1-8B", 131_072, 1024))


def speeds() -> list[Speed]:
    """Dense, mixture and long-context searches on one kind of node; then memory and step of every candidate, no skips.

    The best of several runs each, in processor time: what the code costs on one core.
    """
    keep_freed_memory()
    found, eight = [], node()
    for name, seq, batch in CASES:
        model, facts = load_model(name), load_facts()
        row, adamw = facts.stack("megatron-te"), facts.optimizer("adamw")
        recipe = Recipe(seq_len=seq, global_batch=batch, stack=row, optimizer=adamw)

        def search(most: int = MAX_GPUS, model: Model = model, recipe: Recipe = recipe) -> LayoutSearch:
            job = layout_search(model, recipe, most=most, least=8)
            timed_layouts(job, eight, 1e12, StepTables())
            return job

        job = search(64)  # warm
        job, seconds = _best(search)
        found.append(Speed(f"{name} up to {MAX_GPUS:,} GPUs, whole search", job.space.size, seconds))
        job, seconds = _best(partial(search, 100_000))
        found.append(Speed(f"{name} up to 100,000 GPUs, whole search", job.space.size, seconds))
        table = MemoryTable(model, recipe)
        table.prepare(job.space.inner.tp, job.space.inner.ep, job.space.inner.cp)
        steps = StepTables().table(job, eight.cluster)
        pieces = [family.take(part) for family in job.space.families for part in family.chunks(CHUNK)]

        def every(
            job: LayoutSearch = job, table: MemoryTable = table, steps: StepTable = steps, pieces: list[Family] = pieces
        ) -> None:
            for piece in pieces:
                allocated_and_host(table, job.space.columns(piece))
                steps_s(steps, job.space, piece)

        every()  # the sums of every degree, once
        _, seconds = _best(every)
        found.append(Speed(f"{name}, memory and time of every candidate", job.space.size, seconds))
    return found


def _best(run: Callable[[], T], times: int = 9) -> tuple[T, float]:
    """What `run` gives, and the least seconds of the processor it took."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        answer = run()
        seconds.append(time.process_time() - start)
    return answer, min(seconds)


if __name__ == "__main__":
    for speed in speeds():
        print(f"{speed.what}: {speed.layouts:,} layouts, {speed.layouts / speed.seconds / 1e6:.2f} M/s")
