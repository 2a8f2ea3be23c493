"""Spot capacity in a plan: runs are longer by what taking instances back costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flopwise.training.goodput import DEFAULT_RELIABILITY, Reliability, goodput_frac
from flopwise.training.job import DEFAULT_CONDITIONS, Conditions

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.search.answer import Candidate
    from flopwise.search.nodes import NodeKind, Priced
    from flopwise.search.training import Searched, Timed
    from flopwise.search.workload import Saving


def reliability(saving: Saving) -> Reliability:
    """How often a run is saved and how fast, as a workload says; the default where it says nothing."""
    told = {
        "interval_s": saving.every_s,
        "write_bytes_per_s_per_gpu": saving.write_bytes_per_s_per_gpu,
        "asynchronous": saving.asynchronous or None,
    }
    given: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    return replace(DEFAULT_RELIABILITY, **given) if given else DEFAULT_RELIABILITY


def conditions(
    purchase: str,
    provider: str,
    accelerator: str,
    count: int,
    facts: Facts,
    saved: Reliability = DEFAULT_RELIABILITY,
) -> Conditions:
    """The conditions of a run on instances of `count` accelerators bought so, and `saved` so; default but for spot."""
    if purchase != "spot":
        return DEFAULT_CONDITIONS if saved is DEFAULT_RELIABILITY else Conditions(reliability=saved)
    record = facts.spot(provider, accelerator)
    held = replace(saved, interruptions_per_s=record.interruptions_per_s, gpus_per_node=count)
    return Conditions(reliability=held, origins=(("interruptions_per_s", record.text),))


def interrupted(job: Searched, node: NodeKind, result: Timed, priced: Priced, facts: Facts) -> Timed:
    """`result` with the run times of instances bought as `priced`; `result` itself where that changes nothing.

    What is taken back depends on the number of instances alone, so that the order of layouts on as many stays.
    """
    offer = priced.offer
    found = conditions(
        priced.purchase, offer.provider, node.cluster.accelerator.name, node.count, facts, job.reliability
    )
    if priced.purchase != "spot":
        return result
    gpus, nbytes = result.num_gpus, job.checkpoint_bytes
    longer = goodput_frac(gpus, nbytes, job.reliability) / goodput_frac(gpus, nbytes, found.reliability)
    return replace(result, run_s=result.run_s * longer)


def sentences(plans: Iterable[Candidate], facts: Facts) -> list[str]:
    """What is assumed of the spot capacity in `plans`, once for each provider and accelerator."""
    told = []
    for chosen in plans:
        if chosen.purchase == "spot":
            record = facts.spot(chosen.provider, chosen.gpu)
            told.append(f"spot {chosen.gpu} of {chosen.provider}: {record.text}")
    return list(dict.fromkeys(told))
