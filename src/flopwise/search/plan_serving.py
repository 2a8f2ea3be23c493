"""Plan a service, a batch job or an encoder over every offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.cluster import cluster
from flopwise.errors import MissingFactError
from flopwise.facts.formats import weight_format
from flopwise.facts.software import engine
from flopwise.search.answer import Candidate
from flopwise.search.nodes import NodeKind, node_kinds
from flopwise.search.outcome import Answer
from flopwise.search.pareto import pareto_front
from flopwise.search.serving import Deployments, answers_in_one_pass, deployments
from flopwise.search.serving_floors import weights_read_s
from flopwise.search.serving_levers import levers
from flopwise.search.serving_option import Option
from flopwise.serving.estimate import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.precision import substitute
from flopwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.workload import Resolved

Floats = NDArray[np.floating[Any]]
Advance = Callable[[int, int], None]
FRONT = 24
NEAREST = 3
"""Ways to serve that are evaluated even where physics forbids the target: a miss is told by how much."""


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> ServeJob:
    """The job of one replica that a candidate of a plan stands for."""
    held = chosen.layout
    built = cluster(
        facts.offered_accelerator(offer),
        offer=offer,
        purchase=chosen.purchase,
        node_bytes_per_s=workload.inter_node_bytes_per_s,
    )
    arrivals = None if workload.requests_per_s is None else workload.requests_per_s / held["replicas"]
    return ServeJob(
        model=model,
        cluster=built,
        layout=ServingLayout(tp=held["tp"], pp=held["pp"], ep=held.get("ep", 1), dp=held.get("dp", 1)),
        weights=held["weights"],
        kv_dtype=held["kv_dtype"],
        engine=held["engine"],
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        concurrency=held["max_batch"] * held.get("dp", 1),
        arrivals_per_s=None if answers_in_one_pass(model, workload) else arrivals,
    )


def formats(workload: Resolved, model: Model) -> list[str]:
    """The weight formats to search: those asked for, else as published; for models published in 16 bits fp8, too."""
    asked = workload.source.constraints.weight_formats or (
        [workload.source.precision] if workload.source.precision else []
    )
    if asked:
        return [weight_format(name).name for name in asked]
    if model.checkpoint_format is not None:
        return [weight_format(model.checkpoint_format).name]
    return ["bf16"] if answers_in_one_pass(model, workload) else ["bf16", "fp8"]


def plan_serving(workload: Resolved, model: Model, facts: Facts, advance: Advance | None = None) -> Answer:
    """Search every offer for the deployments that meet the workload's targets.

    Raises:
        InfeasibleError: the constraints leave no offer.
        SpecError, UnknownNameError: something in the workload is wrong.
    """
    answer = Answer()
    name = engine(workload.source.constraints.engine or "vllm").name
    if workload.source.constraints.engine is None:
        answer.assumptions.append(f"the engine {name}, as none was given (constraints.engine)")
    if answers_in_one_pass(model, workload):
        answer.assumptions.append("the model answers in one pass: TTFT and latency are the whole request")
    wanted = formats(workload, model)
    if not workload.source.constraints.weight_formats and not answers_in_one_pass(model, workload):
        care = "; check quality in fp8" if wanted == ["bf16", "fp8"] else ", as published"
        answer.assumptions.append(f"weights in {' and '.join(wanted)} were searched (constraints.weight_formats){care}")
    nodes = node_kinds(workload, facts, answer.ruled_out)
    options = _options(workload, model, nodes, wanted, answer, advance)
    picked: dict[tuple[str, str, str], tuple[float, Option, int, dict[str, Floats]]] = {}
    missed: list[tuple[float, Option, int, dict[str, Floats]]] = []
    for option in options:
        met = option.odds()
        rows = np.flatnonzero(option.allowed(met))
        if not rows.size:
            _miss(option, met, missed, answer)
            continue
        keys = (option.instances[rows], option.found.e2e_s[rows], option.score()[rows])
        best = int(rows[np.lexsort(keys)[0]])
        key = (option.priced.offer.provider, option.priced.offer.instance, option.priced.purchase)
        value = float(option.score()[best])
        if key not in picked or value < picked[key][0]:
            picked[key] = (value, option, best, met)
    ordered = sorted(picked.values(), key=lambda entry: entry[0])
    answer.plans = [o.candidate(row, met, i) for i, (_, o, row, met) in enumerate(ordered, start=1)]
    answer.front = _front(options)
    if not answer.plans:
        missed.sort(key=lambda entry: entry[0])
        answer.misses = [o.candidate(row, met, i) for i, (_, o, row, met) in enumerate(missed[:5], start=1)]
    else:
        answer.levers = levers(ordered[0][1], answer)
    return answer


def _options(
    workload: Resolved, model: Model, nodes: list[NodeKind], wanted: list[str], answer: Answer, advance: Advance | None
) -> list[Option]:
    kv_dtype = workload.source.constraints.kv_dtype or "bf16"
    options: list[Option] = []
    target = None if answers_in_one_pass(model, workload) else workload.tpot
    every = [] if target is None else [(node, weights) for node in nodes for weights in wanted]
    nearest = sorted(every, key=lambda pair: weights_read_s(model, *pair))[:NEAREST]
    spared = {(id(node), weights) for node, weights in nearest}  # even if hopeless: a miss is told by how much
    for done, node in enumerate(nodes):
        if advance is not None:
            advance(done, len(nodes))
        for weights in wanted:
            floor_s = 0.0 if target is None else weights_read_s(model, node, weights)
            if target is not None and floor_s > target.seconds and (id(node), weights) not in spared:
                example = f"{node.cluster.accelerator.name} ({node.name}): {format_seconds(floor_s)} in {weights}"
                answer.ruled_out.add(
                    "reading the weights once takes longer than the TPOT target", 1, example, unit="machines"
                )
                continue
            found = _found(workload, model, node, weights, kv_dtype, answer)
            if found is None:
                continue
            answer.evaluated += found.considered
            if found.too_big:
                device = node.cluster.accelerator
                answer.ruled_out.add(
                    "does not fit in memory",
                    found.too_big,
                    f"{device.name} ({node.name}): {weights} weights take at least "
                    f"{format_bytes(found.smallest_bytes)} of {format_bytes(device.hbm_bytes)}",
                )
            if found.batch.size:
                options += [Option(workload, model, node, found, priced, kv_dtype) for priced in node.priced]
    return options


def _found(
    workload: Resolved, model: Model, node: NodeKind, weights: str, kv_dtype: str, answer: Answer
) -> Deployments | None:
    """Deployments on one node; a 16-bit format runs as what the device has; None (and a count) without any rate."""
    try:
        return deployments(model, workload, node, substitute(weights, node.cluster.rates) or weights, kv_dtype)
    except MissingFactError as error:
        answer.ruled_out.add("the device lacks a rate for this format", 1, str(error), unit="machines")
        return None


def _miss(
    option: Option, met: dict[str, Floats], missed: list[tuple[float, Option, int, dict[str, Floats]]], answer: Answer
) -> None:
    short = option.shortfall()
    too_many = option.instances * option.node.count > option.workload.max_gpus
    row = int(np.where(too_many, np.inf, short).argmin()) if not too_many.all() else int(short.argmin())
    missed.append((float(short[row]) + 1e6 * bool(too_many[row]), option, row, met))
    failed = min(met, key=lambda name: float(met[name].max())) if met else "the limits"
    if too_many.all():
        failed = "max_gpus"
    example = (
        f"{option.priced.offer.instance} {option.found.weights}: "
        f"TTFT {format_seconds(float(option.found.ttft_s[row]))}, "
        f"TPOT {format_seconds(float(option.found.tpot_s[row]))} on {int(option.instances[row])} instances"
    )
    answer.ruled_out.add(f"misses {failed}", 1, example, unit="offers")


def _front(options: list[Option]) -> list[Candidate]:
    """Cost against the latency that the targets speak of."""
    if not options:
        return []
    costs, times, owners, rows = [], [], [], []
    for index, option in enumerate(options):
        fits = np.flatnonzero(option.instances * option.node.count <= option.workload.max_gpus)
        cost, seconds = option.cost_usd[fits], option.seconds[fits]
        own = pareto_front(cost, seconds)
        costs.append(cost[own])
        times.append(seconds[own])
        rows.append(fits[own])
        owners.append(np.full(own.size, index))
    picked = pareto_front(np.concatenate(costs), np.concatenate(times))
    if picked.size > FRONT:
        picked = picked[np.linspace(0, picked.size - 1, FRONT).astype(int)]
    all_rows, all_owners = np.concatenate(rows), np.concatenate(owners)
    return [
        options[int(all_owners[i])].candidate(int(all_rows[i]), options[int(all_owners[i])].odds(), number)
        for number, i in enumerate(picked, start=1)
    ]
