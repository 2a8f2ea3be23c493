"""What stands beside the plans of a service: what physics allows, what its targets cost, what single changes do."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flopwise.changes.serving import serving_changes
from flopwise.cost.cluster import Cluster
from flopwise.cost.collectives import all_reduce_s
from flopwise.errors import FlopwiseError, MissingFactError
from flopwise.facts.architecture import Experts, Linear, Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import CacheFormat, WeightFormat
from flopwise.ops.columns import ascending
from flopwise.ops.tensors import active_parameters
from flopwise.search.answer import Candidate, ComparedFigures, Floor, Lever, TargetCost, device_levers
from flopwise.search.deployments import (
    MAX_TP,
    Answer,
    Deployments,
    ReplicaQuestion,
    computed_prompt_tokens,
    deployments,
    deployments_together,
    least_prompt_s,
    replica_grid,
    size_together,
    sized_replicas,
)
from flopwise.search.nodes import NodeKind
from flopwise.search.option_table import OptionTable
from flopwise.search.replica import DEGREES
from flopwise.search.serving_option import ServingOption, latency_targets
from flopwise.search.spec import Latency
from flopwise.search.workload import Resolved
from flopwise.serving.memory import ServingLayout
from flopwise.serving.precision import layer_weight_bits, product_path, substitute
from flopwise.serving.spec import DRAFT_TOKENS
from flopwise.serving.techniques import tokens_per_step
from flopwise.units import format_items
from flopwise.values import replace

Floats = NDArray[np.floating[Any]]
READING, COMPUTING, LINKS = "reading the weights", "operations of the prompt", "link latency"


def format_on(weights: WeightFormat, cluster: Cluster, facts: Facts) -> WeightFormat:
    """The format that stands in for a 16-bit one which the device has no units for; else `weights` itself."""
    other = substitute(weights.name, cluster.rates)
    return weights if other is None else facts.weight_format(other)


def tokens_per_decode_step(workload: Resolved) -> float:
    """Tokens that a decoding sequence gets from one step: several where drafts are accepted.

    Source: `flopwise.serving.techniques.tokens_per_step`.
    """
    how = workload.techniques
    return 1.0 if how.draft is None else float(tokens_per_step(how.acceptance or 0.0, how.draft_tokens or DRAFT_TOKENS))


@lru_cache(maxsize=64)
def _token_bytes(model: Model, weights: WeightFormat) -> float:
    """Bytes of the weights that one token goes through."""
    return layer_weight_bits(model, weights) / 8 * active_parameters(model)


def weights_read_s(model: Model, node: NodeKind, weights: WeightFormat) -> float:
    """Seconds to read the weights once, however the layers are cut inside a node: no token takes less.

    Source: bytes over the datasheet bandwidth of all devices. Assumes: of the experts only those of one token.
    """
    return _token_bytes(model, weights) / (min(node.count, MAX_TP) * node.cluster.accelerator.hbm_bytes_per_s)


def message_s(model: Model, node: NodeKind, tp: Floats) -> Floats:
    """Fixed time of the all-reduces of one token through the layers, shape of `tp`; nothing for their bytes.

    Source: launch and hops of a collective (data/calibration), two a layer as Shoeybi et al. 2019 (arXiv:1909.08053).
    Assumes: none overlaps with computing.
    """
    stack = model.stacks[0]
    rows = [sum(isinstance(i, Linear | Experts) and i.shard == "row" for i in kind.items) for kind in stack.kinds]
    count = sum(rows[place] for place in stack.order)
    seconds: Floats = count * np.asarray(all_reduce_s(node.cluster.fabric, 1.0, tp, direct=True), dtype=float)
    return seconds


def floors(workload: Resolved, model: Model, nodes: Sequence[NodeKind], wanted: Sequence[WeightFormat]) -> list[Floor]:
    """For each latency target, the best that the allowed devices could do by physics alone, and whether that misses.

    Source and assumptions: `weights_read_s`, `message_s` and `least_prompt_s`, at the tp that makes the sum least.
    """
    each, best = tokens_per_decode_step(workload), dict[str, Floor]()
    for node, weights in product(nodes, wanted):
        form, device = format_on(weights, node.cluster, workload.facts), node.cluster.accelerator
        tp = ascending(np.asarray(replica_grid(node, model, workload.max_gpus, spread=False).tp, dtype=float))
        if not tp.size:
            continue
        links = message_s(model, node, tp)
        read = weights_read_s(model, node, form) * min(node.count, MAX_TP) / tp / each
        lines = {"tpot": {READING: read, LINKS: links / each}}
        with suppress(MissingFactError):
            dtype = product_path(model, form, node.cluster.rates).dtype
            compute = least_prompt_s(model, node, dtype, computed_prompt_tokens(workload), tp)
            lines["ttft"] = {COMPUTING: compute, LINKS: links}
        for target, columns in lines.items():
            at = int(np.sum(list(columns.values()), axis=0).argmin())
            parts = {name: float(column[at]) for name, column in columns.items()}
            if target not in best or sum(parts.values()) < best[target].seconds:
                limit = latency_targets(workload)[target]
                best[target] = Floor(
                    target=target, limit_s=0.0 if limit is None else limit.seconds, seconds=sum(parts.values()),
                    parts=parts, gpu=device.name, instance=node.name,
                    layout={"tp": int(tp[at]), "weights": weights.name},
                )  # fmt: skip
    rows = [floor for floor in best.values() if latency_targets(workload)[floor.target] is not None]
    if len(best) > 1 and workload.latency is not None:
        rows.append(_whole_floor(workload, best["ttft"], best["tpot"]))
    return rows


def _whole_floor(workload: Resolved, ttft: Floor, tpot: Floor) -> Floor:
    """The floor of a whole request: its prompt, and one step for each further token."""
    assert workload.latency is not None
    steps = workload.output_tokens - 1
    host_s = workload.engine.request_s
    parts = {COMPUTING: ttft.seconds, f"{steps:,} tokens": steps * tpot.seconds, "the server": host_s}
    return Floor(
        target="latency", limit_s=workload.latency.seconds, seconds=sum(parts.values()), parts=parts,
        gpu=tpot.gpu, instance=tpot.instance, layout=tpot.layout,
    )  # fmt: skip


LADDER = (1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0)
"""Steps of a decade: 30 ms is relaxed to 50 ms, 1 s to 1.5 s."""
WEAKER = {"p99": "p95"}
"""Percentiles that a target is relaxed to: nobody holds a service to less than p95 who asked for it."""
NODES = 3
"""Kinds of machines, the cheapest ones, that another percentile is planned anew on."""
NEAR = 1.5
"""Of machines that miss a target by no more than this factor."""
Best = tuple[float, ServingOption, int]
"""Cost, option and row of a plan."""


def ladder_step(value: float, up: int) -> float:
    """The next step of the ladder above (`up` 1) or below (-1) a value."""
    decade = 10.0 ** math.floor(math.log10(value) + 1e-9)
    steps = [LADDER[-2] / 10 * decade, *(step * decade for step in LADDER), LADDER[1] * 10 * decade]
    beyond = [s for s in steps if (s > value * 1.001 if up > 0 else s < value * 0.999)]
    return min(beyond) if up > 0 else max(beyond)


def _moved_targets(workload: Resolved) -> Iterator[tuple[str, Latency, Latency | None]]:
    """(target, as it is, as it would be) of each step; None: without it."""
    for name, now in latency_targets(workload).items():
        if now is not None:
            yield from ((name, now, Latency(now.percentile, ladder_step(now.seconds, up))) for up in (-1, 1))
            if now.percentile in WEAKER:
                yield name, now, Latency(WEAKER[now.percentile], now.seconds)
            yield name, now, None


def target_costs(table: OptionTable, workload: Resolved, chosen: Best | None) -> list[TargetCost]:
    """The cheapest plan for each step of each target, as estimated, against the one that was `chosen` for all of them.

    A percentile is part of what is estimated, so that another one is estimated anew; a limit is only held against it.
    What holds a percentile holds a weaker one. A tighter target costs no less than the chosen plan, which running may
    have made dearer than cheaper estimates; a looser one costs no more.
    """
    costs = []
    for name, target, moved in _moved_targets(workload):
        changed: dict[str, Any] = {name: moved}
        wanted = replace(workload, **changed)
        percentile = target.percentile if moved is None else moved.percentile
        anew = percentile != target.percentile
        best = _cheapest(OptionTable(_estimated_anew(table.options, wanted), wanted) if anew else table, wanted)
        if moved is not None and moved.seconds < target.seconds:
            holds = chosen is not None and chosen[2] in chosen[1].allowed_rows(chosen[1].odds(wanted))
            best = max(filter(None, (best, chosen)), key=_plan_usd) if best is not None and not holds else best
            best = chosen if holds else best
        elif chosen is not None:
            best = min(filter(None, (chosen, best)), key=_plan_usd)
        saves = None if best is None or chosen is None else chosen[0] - best[0]
        one = TargetCost(
            target=name, percentile=target.percentile, from_s=target.seconds, to_percentile=percentile,
            to_s=None if moved is None else moved.seconds, cost_usd=None if best is None else best[0], saves_usd=saves,
            saves_frac=None if saves is None or chosen is None else saves / chosen[0],
            instead="" if best is None else _plan_text(*best[1:]),
        )  # fmt: skip
        costs.append(one)
    return costs


def _plan_usd(plan: Best) -> float:
    return plan[0]


def _cheapest(table: OptionTable, workload: Resolved) -> Best | None:
    """The cheapest plan that meets the targets of `workload`."""
    row = table.cheapest(table.allowed_rows(workload))
    return None if row is None else (float(row[0].cost_usd[row[1]]), *row)


def _estimated_anew(options: Sequence[ServingOption], workload: Resolved) -> list[ServingOption]:
    """The options of the cheapest machines, estimated at the percentiles of `workload`."""
    least: dict[int, float] = {}
    for option in options:
        near = option.cost_usd[option.shortfall <= NEAR]
        least[id(option.node)] = min(float(near.min(initial=np.inf)), least.get(id(option.node), np.inf))
    nodes = set(sorted(least, key=least.__getitem__)[:NODES])
    near_options = [option for option in options if id(option.node) in nodes]
    size_together(
        ReplicaQuestion.of(option.model, workload, option.node, option.deployments.weights, option.kv_dtype)
        for option in near_options
    )
    estimates: dict[int, Deployments | None] = {}
    anew: list[ServingOption] = []
    for option in near_options:
        key, current = id(option.deployments), option.deployments
        if key not in estimates:
            estimates[key] = None
            with suppress(MissingFactError):
                estimates[key] = deployments(option.model, workload, option.node, current.weights, option.kv_dtype)
        other = estimates[key]
        if other is not None and other.batch.size:
            anew.append(option.estimated_as(other, workload))
    return anew


def _plan_text(option: ServingOption, row: int) -> str:
    offer, service = option.priced.offer, option.deployments
    count = int(service.replicas[row])
    wide = [f"{axis} {int(degree)}" for axis in DEGREES if (degree := getattr(service, axis)[row]) > 1 or axis == "tp"]
    return (
        f"{int(option.instances[row])} x {offer.provider} {offer.instance}, {', '.join(wide)}, "
        f"batch {int(service.batch[row])}, {format_items(count, 'replica')}, {service.weights.name}"
    )


WITHOUT = {
    "without drafts": ("draft", "draft_tokens", "acceptance", "draft_weights"),
    "without cached prefixes": ("shared_prefix", "prefix_hit"),
    "without eviction": ("kv_keep",),
    "without offloading": ("offload_weights", "gpu_layers", "host"),
}


def levers(best: ServingOption, chosen: Candidate, plans: Sequence[Candidate]) -> list[Lever]:
    """The effects of single changes on the best plan as estimated (`chosen`), and the best plan on other devices."""
    every = (*_other_fields(best, chosen), *_other_loads(best.workload))
    changes = [_Change(best, chosen, *change) for change in every]
    questions = {one.key: one.question for one in changes}
    alike = {key: (question.workload.techniques, *key[1:]) for key, question in questions.items()}
    sized, faults = _sized_once({alike[key]: question for key, question in questions.items()})
    answers = {key: (question, sized[alike[key]]) for key, question in questions.items() if alike[key] in sized}
    by_change = dict(zip(answers, deployments_together([*answers.values()]), strict=True))
    notes = {key: faults.get(one, "does not fit in memory") for key, one in alike.items()}
    return [*(one.lever(by_change.get(one.key), notes[one.key]) for one in changes), *device_levers(plans)]


def _sized_once(questions: Mapping[Hashable, ReplicaQuestion]) -> tuple[dict[Hashable, Answer], dict[Hashable, str]]:
    """The answers to questions, as far as they can be timed together; and why others have none.

    Assumes: those with the same techniques and batches differ in their rate alone, on which no answer depends.
    """
    first = {question: question for question in reversed([*questions.values()])}
    together = size_together(first.values())
    answers, faults = dict[Hashable, Answer](), dict[Hashable, str]()
    for key, question in questions.items():
        try:
            joined = together.get(question) if first[question] is question else None
            answers[key] = joined or sized_replicas(question)
        except FlopwiseError as error:
            faults[key] = str(error)
    return answers, faults


def _other_fields(best: ServingOption, chosen: Candidate) -> Iterator[tuple[str, dict[str, Any]]]:
    """Weights, caches and degrees that engine, device and model accept, and other batches."""
    workload, layout, batch = best.workload, chosen.layout, chosen.layout["max_batch"]
    service = {
        "weights": best.deployments.weights, "kv_dtype": best.kv_dtype, "engine": workload.engine,
        "layout": ServingLayout(**{axis: layout[axis] for axis in DEGREES}),
    }  # fmt: skip
    for change, fields in serving_changes(best.model, service, workload.facts, best.node.cluster.accelerator):
        if "layout" in fields:
            wider = {axis: int(getattr(fields["layout"], axis)) for axis in DEGREES}
            yield change, {"layout": {**layout, **wider}}
        elif "engine" not in fields and best.decodes:
            yield change, fields
    for change, size in (("twice the batch", 2 * batch), ("half the batch", max(1, batch // 2))):
        yield change, {"layout": {**layout, "max_batch": size}}


def _other_loads(workload: Resolved) -> Iterator[tuple[str, dict[str, Any]]]:
    """The workload without each of its techniques, and with other traffic."""
    for change, names in WITHOUT.items():
        if any(getattr(workload.techniques, name) is not None for name in names):
            plain = replace(workload.techniques, **dict.fromkeys(names))
            yield change, {"workload": replace(workload, techniques=plain)}
    if workload.requests_per_s is not None:
        for factor, change in ((2.0, "twice the traffic"), (0.5, "half the traffic")):
            yield change, {"workload": replace(workload, requests_per_s=workload.requests_per_s * factor)}


NEAR_BATCH = 0.9
"""Share of a batch above which the largest that fits stands for it."""


class _Change:
    """One change to the best plan; the layout stays unless another is given."""

    def __init__(self, best: ServingOption, chosen: Candidate, name: str, fields: dict[str, Any]) -> None:
        """`fields`: weights, kv_dtype, workload or layout, as they then are."""
        self.best, self.chosen, self.name = best, chosen, name
        self.workload: Resolved = fields.get("workload") or best.workload
        self.weights: WeightFormat = fields.get("weights") or best.deployments.weights
        self.kv_dtype: CacheFormat = fields.get("kv_dtype") or best.kv_dtype
        self.layout: dict[str, Any] = fields.get("layout") or chosen.layout

    @property
    def key(self) -> tuple[Hashable, ...]:
        """The same of changes that have the same deployments."""
        return id(self.workload), self.weights, self.kv_dtype, self.layout["max_batch"]

    @property
    def question(self) -> ReplicaQuestion:
        """The question of its deployments."""
        question = ReplicaQuestion.of(self.best.model, self.workload, self.best.node, self.weights, self.kv_dtype)
        return replace(question, between=np.array([[float(self.layout["max_batch"])]]))

    def lever(self, service: Deployments | None, note: str) -> Lever:
        """The effect of the change, from its deployments; `note`: why there are none."""
        best, chosen, layout = self.best, self.chosen, self.layout
        missing = partial(Lever, self.name, None, None, None, fits=False)
        if service is None or not service.batch.size:
            return missing(note=note)
        same = np.flatnonzero(np.all([getattr(service, name) == layout[name] for name in DEGREES], axis=0))
        if not same.size:
            return missing(note="does not fit this instance or its memory")
        row = int(same[np.abs(service.batch[same] - layout["max_batch"]).argmin()])
        if service.batch[row] < NEAR_BATCH * layout["max_batch"]:
            most = f"{service.batch[same].max():,.0f}"
            return missing(note=f"batches end at {most} there: by memory, the engine's limit or the number of users")
        option = best.estimated_as(service, self.workload, self.kv_dtype)
        figures = (service.memory_bytes[row], option.seconds[row], option.cost_usd[row])
        note = "" if row in option.allowed_rows(option.odds()) else "misses the targets"
        return ComparedFigures(*map(float, figures)).lever(self.name, ComparedFigures.of(chosen), note=note)
