"""Spot capacity in a plan: runs are longer by what taking instances back costs, where that is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from flopwise.facts.reliability import SpotRecord, spot_record
from flopwise.training.goodput import DEFAULT_RELIABILITY, goodput_frac
from flopwise.training.run import DEFAULT_CONDITIONS, Conditions

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.search.answer import Candidate
    from flopwise.search.nodes import NodeKind, Priced
    from flopwise.search.training import Searched, Timed


def conditions(purchase: str, provider: str, accelerator: str, count: int, folder: Path | None = None) -> Conditions:
    """The conditions of a run on instances of `count` accelerators bought so; the default where nothing is known."""
    record = spot_record(provider, accelerator, folder) if purchase == "spot" else None
    if record is None:
        return DEFAULT_CONDITIONS
    held = replace(DEFAULT_RELIABILITY, interruptions_per_s=record.interruptions_per_s, gpus_per_node=count)
    return Conditions(reliability=held, origins=(("interruptions_per_s", _origin(record)),))


def interrupted(job: Searched, node: NodeKind, result: Timed, priced: Priced, folder: Path | None = None) -> Timed:
    """`result` with the run times of instances bought as `priced`; `result` itself where that changes nothing.

    What is taken back depends on the number of instances alone, so that the order of layouts on as many stays.
    """
    offer = priced.offer
    found = conditions(priced.purchase, offer.provider, node.cluster.accelerator.name, node.count, folder)
    if found is DEFAULT_CONDITIONS:
        return result
    gpus, nbytes = result.num_gpus, job.checkpoint_bytes
    longer = goodput_frac(gpus, nbytes) / goodput_frac(gpus, nbytes, found.reliability)
    return replace(result, run_s=result.run_s * longer)


def sentences(plans: Iterable[Candidate], folder: Path | None = None) -> list[str]:
    """What is assumed of the spot capacity in `plans`, once for each provider and accelerator."""
    told = []
    for chosen in plans:
        if chosen.purchase == "spot":
            record = spot_record(chosen.provider, chosen.gpu, folder)
            whose = f"spot {chosen.gpu} of {chosen.provider}"
            if record is None:
                told.append(f"{whose}: how often it is taken back is not known; no interruptions are counted")
            else:
                told.append(f"{whose}: {_origin(record)}")
    return list(dict.fromkeys(told))


def _origin(record: SpotRecord) -> str:
    share = f"{100 * record.least_frac:.0f} to {100 * record.most_frac:.0f} % of instances are taken back a"
    return f"{share} {record.period} ({record.source}, {record.date}, {record.confidence} confidence)"
