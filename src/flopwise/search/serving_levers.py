"""What one change to the best deployment would do: the layout and the batch stay, the number of replicas follows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.errors import FlopwiseError
from flopwise.search.answer import Candidate, Lever
from flopwise.search.deployments import answers_in_one_pass, deployments
from flopwise.serving.memory import ServingLayout
from flopwise.serving.remedies import allows, runnable_formats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flopwise.facts.formats import CacheFormat, WeightFormat
    from flopwise.search.plan_draft import PlanDraft
    from flopwise.search.serving_option import ServingOption
    from flopwise.search.workload import Resolved

FORMATS = {"fp8": "weights fp8", "awq": "weights int4 (AWQ)", "bf16": "weights bf16"}
WITHOUT = {
    "without drafts": ("draft", "draft_tokens", "acceptance", "draft_weights"),
    "without cached prefixes": ("shared_prefix", "prefix_hit"),
    "without eviction": ("kv_keep",),
    "without offloading": ("offload_weights", "gpu_layers", "host"),
}
OTHER_GPUS = 3


def levers(best: ServingOption, chosen: Candidate, draft: PlanDraft) -> list[Lever]:
    """What single changes would do to the best plan as it was estimated (`chosen`), and the best on other devices."""
    own = (*_other_formats(best, chosen), *_other_loads(best, chosen, best.workload))
    return [*own, *_other_devices(draft, draft.plans[0])]


def _other_formats(best: ServingOption, chosen: Candidate) -> Iterator[Lever]:
    """Weights and caches in formats that the engine and the device run; batches and degrees that the model allows."""
    workload, rates = best.workload, best.node.cluster.rates
    if not answers_in_one_pass(best.model, workload):
        forms = map(workload.facts.weight_format, FORMATS)
        for form in runnable_formats(best.model, workload.engine, rates, tuple(forms)):
            if form is not best.found.weights:
                yield _lever(FORMATS[form.name], best, chosen, weights=form)
        if best.kv_dtype.name != "fp8":
            yield _lever("KV cache fp8", best, chosen, kv_dtype=workload.facts.cache_format("fp8"))
    held = chosen.layout
    for change, other in (
        ("twice the batch", {"max_batch": 2 * held["max_batch"]}),
        ("half the batch", {"max_batch": max(1, held["max_batch"] // 2)}),
        ("twice the tp", {"tp": 2 * held["tp"]}),
    ):
        layout = {**held, **other}
        if allows(best.model, ServingLayout(**{axis: layout[axis] for axis in ("tp", "pp", "ep", "dp")})):
            yield _lever(change, best, chosen, layout=layout)


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


def _other_devices(draft: PlanDraft, chosen: Candidate) -> list[Lever]:
    """The best plans on other devices, against the chosen one."""
    found: list[Lever] = []
    seen = {chosen.gpu}
    for plan in draft.plans[1:]:
        if plan.gpu in seen or len(seen) > OTHER_GPUS:
            continue
        seen.add(plan.gpu)
        change = f"on {plan.num_gpus} x {plan.gpu} ({plan.provider} {plan.instance})"
        ratios = (
            plan.memory_bytes / chosen.memory_bytes,
            plan.seconds / chosen.seconds,
            plan.cost_usd / chosen.cost_usd,
        )
        found.append(Lever(change, *ratios, fits=True))
    return found


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
