"""What one change to the best deployment would do: the layout and the batch stay, the number of replicas follows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.changes.serving import serving_changes
from flopwise.errors import FlopwiseError
from flopwise.search.answer import Candidate, Lever, device_levers
from flopwise.search.deployments import answers_in_one_pass, deployments
from flopwise.serving.memory import ServingLayout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flopwise.facts.formats import CacheFormat, WeightFormat
    from flopwise.search.plan_draft import PlanDraft
    from flopwise.search.serving_option import ServingOption
    from flopwise.search.workload import Resolved

WITHOUT = {
    "without drafts": ("draft", "draft_tokens", "acceptance", "draft_weights"),
    "without cached prefixes": ("shared_prefix", "prefix_hit"),
    "without eviction": ("kv_keep",),
    "without offloading": ("offload_weights", "gpu_layers", "host"),
}


def levers(best: ServingOption, chosen: Candidate, draft: PlanDraft) -> list[Lever]:
    """What single changes would do to the best plan as it was estimated (`chosen`), and the best on other devices."""
    own = (*_other_fields(best, chosen), *_other_loads(best, chosen, best.workload))
    return [*own, *device_levers(draft.plans)]


def _other_fields(best: ServingOption, chosen: Candidate) -> Iterator[Lever]:
    """Weights, caches and degrees that engine, device and model accept, and other batches."""
    workload, one_pass = best.workload, answers_in_one_pass(best.model, best.workload)
    degrees = {axis: chosen.layout[axis] for axis in ("tp", "pp", "ep", "dp")}
    service = {
        "weights": best.found.weights, "kv_dtype": best.kv_dtype, "layout": ServingLayout(**degrees),
        "engine": workload.engine,
    }  # fmt: skip
    for change, fields in serving_changes(best.model, service, workload.facts, best.node.cluster.accelerator):
        if "layout" in fields:
            wider = {axis: int(getattr(fields["layout"], axis)) for axis in degrees}
            yield _lever(change, best, chosen, layout={**chosen.layout, **wider})
        elif "engine" not in fields and not one_pass:
            yield _lever(change, best, chosen, **fields)
    batch = chosen.layout["max_batch"]
    for change, size in (("twice the batch", 2 * batch), ("half the batch", max(1, batch // 2))):
        yield _lever(change, best, chosen, layout={**chosen.layout, "max_batch": size})


def _other_loads(best: ServingOption, chosen: Candidate, workload: Resolved) -> Iterator[Lever]:
    """The workload without each of its techniques, and with other traffic."""
    for change, names in WITHOUT.items():
        if any(getattr(workload.techniques, name) is not None for name in names):
            plain = replace(workload.techniques, **dict.fromkeys(names))
            yield _lever(change, best, chosen, workload=replace(workload, techniques=plain))
    if workload.requests_per_s is not None:
        for factor, change in ((2.0, "twice the traffic"), (0.5, "half the traffic")):
            asked = replace(workload, requests_per_s=workload.requests_per_s * factor)
            yield _lever(change, best, chosen, workload=asked)


def _lever(
    change: str,
    best: ServingOption,
    chosen: Candidate,
    *,
    weights: WeightFormat | None = None,
    kv_dtype: CacheFormat | None = None,
    workload: Resolved | None = None,
    layout: dict[str, Any] | None = None,
) -> Lever:
    """One change; the layout stays unless another is given."""
    asked, cache = workload or best.workload, kv_dtype or best.kv_dtype
    try:
        found = deployments(best.model, asked, best.node, weights or best.found.weights, cache)
    except FlopwiseError as error:
        return Lever(change, None, None, None, fits=False, note=str(error))
    if found is None or not found.batch.size:
        return Lever(change, None, None, None, fits=False, note="does not fit in memory")
    option = best.estimated_as(found, asked, cache)
    met = option.odds()
    rows = option.allowed(met)
    held = layout or chosen.layout
    same = np.flatnonzero(np.all([getattr(found, name) == held[name] for name in ("tp", "pp", "ep", "dp")], axis=0))
    if not same.size:
        return Lever(change, None, None, None, fits=False, note="does not fit this instance or its memory")
    row = int(same[np.abs(found.batch[same] - held["max_batch"]).argmin()])
    if found.batch[row] < 0.9 * held["max_batch"]:
        return Lever(change, None, None, None, fits=False, note="that batch does not fit in memory")
    note = "" if row in rows else "misses the targets"
    return Lever(
        change,
        float(found.memory_bytes[row]) / chosen.memory_bytes,
        float(option.seconds[row]) / chosen.seconds,
        float(option.cost_usd[row]) / chosen.cost_usd,
        fits=True,
        note=note,
    )
