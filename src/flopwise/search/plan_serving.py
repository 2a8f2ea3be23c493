"""Plan a service, a batch job or an encoder over every offer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flopwise.cost.cluster import cluster
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import defaults
from flopwise.facts.formats import BF16, CacheFormat, WeightFormat
from flopwise.search.nodes import NodeKind, network_of, node_kinds, running
from flopwise.search.outcome import Answer
from flopwise.search.serving import Deployments, answers_in_one_pass, deployments
from flopwise.search.serving_floors import floors, weights_read_s
from flopwise.search.serving_fronts import front, front_nodes, fronts
from flopwise.search.serving_levers import levers
from flopwise.search.serving_option import Column, Option
from flopwise.search.serving_targets import stepped, target_costs
from flopwise.search.serving_techniques import format_on, job_of, tokens_a_step, told, with_facts
from flopwise.search.serving_verify import MOST_RUNS, Pick, ranked
from flopwise.serving.estimate import check_request
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.precision import layer_weight_bits
from flopwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.answer import Candidate
    from flopwise.search.workload import Resolved

Floats = NDArray[np.floating[Any]]
Advance = Callable[[int, int], None]
NEAREST = 3
"""Ways to serve that are evaluated even where physics forbids the target: a miss is told by how much."""
NEAREST_MISSES = 5
CHEAPER_MISSES = 3
LAYOUTS = 2
"""Layouts of one option that may go to the simulator."""
SIXTEEN = 12.0
"""Bits of a weight above which it counts as one of 16 bits."""


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> ServeJob:
    """The job of one replica that a candidate of a plan stands for."""
    held = chosen.layout
    built = cluster(
        facts.offered_accelerator(offer),
        offer=offer,
        purchase=chosen.purchase,
        network_bytes_per_s_per_gpu=network_of(workload, offer),
    )
    arrivals = None if workload.requests_per_s is None else workload.requests_per_s / held["replicas"]
    layout = ServingLayout(tp=held["tp"], pp=held["pp"], ep=held.get("ep", 1), dp=held.get("dp", 1))
    return replace(
        job_of(with_facts(workload, facts), model, built, facts.weight_format(held["weights"]), layout),
        kv_dtype=facts.cache_format(held["kv_dtype"]),
        engine=facts.engine(held["engine"]),
        concurrency=held["max_batch"] * held.get("dp", 1),
        arrivals_per_s=None if answers_in_one_pass(model, workload) else arrivals,
    )


def formats(workload: Resolved, model: Model) -> list[WeightFormat]:
    """The weight formats to search: those asked for, else as published; for models published in 16 bits fp8, too."""
    asked = workload.source.constraints.weight_formats or (
        [workload.source.precision] if workload.source.precision else []
    )
    if asked:
        return [workload.facts.weight_format(name) for name in asked]
    if model.checkpoint_format is not None:
        return [workload.facts.weight_format(model.checkpoint_format)]
    return [BF16] if answers_in_one_pass(model, workload) else [BF16, workload.facts.weight_format("fp8")]


def variants(workload: Resolved, model: Model) -> list[tuple[WeightFormat, CacheFormat]]:
    """(weights, cache) formats to search: as asked, else the cache in 16 bits, and in fp8 under 8-bit weights.

    Source: the cache types that engines take with fp8 checkpoints (vLLM and SGLang, quantised KV cache).
    Assumes: who keeps weights in 16 bits wants the cache in 16 bits, too.
    """
    wanted, asked = formats(workload, model), workload.source.constraints.kv_dtype
    plain, eight = (workload.facts.cache_format(name) for name in (asked or "bf16", "fp8"))
    found = [(weights, plain) for weights in wanted]
    if asked is not None or answers_in_one_pass(model, workload):
        return found
    return found + [(weights, eight) for weights in wanted if layer_weight_bits(model, weights) < SIXTEEN]


def check_serving(workload: Resolved, model: Model, facts: Facts) -> tuple[str, ...]:
    """What is assumed of requests longer than the model is made for, once formats, engine and lengths can be.

    Raises:
        SpecError, UnknownNameError: they cannot be, on whatever machine.
    """
    workload = with_facts(workload, facts)
    variants(workload, model)
    _ = workload.engine
    answer = 1 if answers_in_one_pass(model, workload) else workload.output_tokens
    try:
        return check_request(model, workload.input_tokens, answer)
    except SpecError as error:
        raise SpecError(f"traffic.input_tokens: {error}") from None


def plan_serving(
    workload: Resolved,
    model: Model,
    facts: Facts,
    advance: Advance | None = None,
    *,
    alone: bool = True,
    on_compile: Callable[[], None] | None = None,
) -> Answer:
    """Search every offer for the deployments that meet the workload's targets; the best are run before they are ranked.

    Not `alone`: as in `plan`, nothing is run. `on_compile` is called before the simulator is compiled first.

    Raises:
        InfeasibleError: the constraints leave no offer.
        SpecError, UnknownNameError: something in the workload is wrong.
    """
    lengths = check_serving(workload, model, facts)
    answer, workload = Answer(), with_facts(workload, facts)
    wanted = variants(workload, model)
    answer.assumptions += _assumed(workload, model, wanted)
    software = workload.engine
    nodes = running(node_kinds(workload, facts, answer.ruled_out, alone=alone), software, answer.ruled_out)
    answer.assumptions += lengths
    answer.assumptions += told(workload, model, nodes, wanted[0][0])
    runs = alone and workload.source.simulate and not answers_in_one_pass(model, workload)
    steps = len(nodes) + (MOST_RUNS if runs else 0)
    report = advance or (lambda *_: None)
    plain = [pair for pair in wanted if pair[1] == wanted[0][1]]
    options = _options(workload, model, nodes, plain, answer, lambda done: report(done, steps))
    smaller = [pair for pair in wanted if pair not in plain]
    if smaller:
        close = _close(options, workload, answer)
        options += _options(workload, model, close, smaller, answer, lambda _: None)
    picks, missed = _picked(options, answer)
    found = ranked(picks, workload if runs else None, answer, lambda done: report(len(nodes) + done, steps), on_compile)
    answer.plans = [done.candidate(place) for place, (_, done) in enumerate(found, start=1)]
    if answer.plans and not alone:
        answer.misses = _cheaper_misses(options, answer.plans[0].cost_usd)
        return answer
    answer.front = front(options)
    if not answers_in_one_pass(model, workload):
        answer.target_costs = target_costs(options, workload)
        if workload.source.task == "serve":
            answer.fronts = fronts(options, workload)
    if answer.plans:
        asked = found[0][0]
        answer.levers = levers(asked.option, asked.option.candidate(asked.row, asked.met, 1), answer)
        answer.assumptions += _told(answer, workload) if runs else []
        return answer
    answer.misses = _nearest(missed, answer.demoted)
    if not answers_in_one_pass(model, workload):
        answer.floors = floors(workload, model, nodes, list(dict.fromkeys(weights for weights, _ in wanted)))
    return answer


def _picked(options: list[Option], answer: Answer) -> tuple[list[Pick], list[tuple[float, Pick]]]:
    """The best rows of options that meet the targets, and by how much the others' nearest rows miss."""
    picks: list[Pick] = []
    missed: list[tuple[float, Pick]] = []
    for option in options:
        met = option.odds()
        rows = np.flatnonzero(option.allowed(met))
        if rows.size:
            picks += _best(option, rows, met)
        else:
            missed.append(_miss(option, met, answer))
    return picks, missed


def _nearest(missed: list[tuple[float, Pick]], demoted: list[Candidate]) -> list[Candidate]:
    """What comes nearest where nothing meets the targets: what failed in the simulator first."""
    ordered = sorted(missed, key=lambda entry: entry[0])[:NEAREST_MISSES]
    nearest = [pick.option.candidate(pick.row, pick.met, 1) for _, pick in ordered]
    rows = enumerate([*demoted, *nearest][:NEAREST_MISSES], start=1)
    return [msgspec.structs.replace(one, rank=place) for place, one in rows]


def _cheaper_misses(options: list[Option], cost_usd: float) -> list[Candidate]:
    """Of what is cheaper than `cost_usd` and a target forbids, the nearest on each kind of device; nearest first."""
    found: dict[str, tuple[float, Pick]] = {}
    for option in options:
        met = option.odds()
        rows = np.flatnonzero((option.cost_usd < cost_usd) & ~option.allowed(met))
        if not rows.size or not met:
            continue
        likely = np.min(np.stack([p[rows] for p in met.values()]), axis=0)
        best, name = int(likely.argmax()), option.node.cluster.accelerator.name
        if name not in found or likely[best] > found[name][0]:
            found[name] = (float(likely[best]), Pick(option, int(rows[best]), met))
    ordered = sorted(found.values(), key=lambda entry: -entry[0])[:CHEAPER_MISSES]
    return [pick.option.candidate(pick.row, pick.met, place) for place, (_, pick) in enumerate(ordered, start=1)]


def _assumed(workload: Resolved, model: Model, wanted: list[tuple[WeightFormat, CacheFormat]]) -> list[str]:
    """What stands in where the workload is silent."""
    limits, flow, told = workload.source.constraints, workload.arriving, list[str]()
    if limits.engine is None:
        told.append(f"the engine {defaults.ENGINE}, as none was given (constraints.engine)")
    if answers_in_one_pass(model, workload):
        told.append("the model answers in one pass: TTFT and latency are the whole request; it is not simulated")
        return told
    names = list(dict.fromkeys(weights.name for weights, _ in wanted))
    if not limits.weight_formats:
        care = "; check quality in fp8" if names == ["bf16", "fp8"] else ", as published"
        told.append(f"weights in {' and '.join(names)} were searched (constraints.weight_formats){care}")
    if limits.kv_dtype is None and any(cache.name != "bf16" for _, cache in wanted):
        told.append("the KV cache in bf16, and in fp8 under 8-bit weights (constraints.kv_dtype); check quality in fp8")
    if flow.trace is not None:
        told.append(
            f"replicas are sized for the busiest stretch of {flow.trace}: {flow.requests_per_s or 0:.3g} requests/s, "
            f"{flow.peak:.3g} times its mean"
        )
    elif flow.peak > 1:
        told.append(f"replicas are sized for the peak of {flow.requests_per_s:.3g} requests/s")
    if flow.inputs or flow.outputs or flow.trace is not None:
        told.append("estimates take every request as long as the mean; the simulator takes the lengths themselves")
    return told


def _told(answer: Answer, workload: Resolved) -> list[str]:
    """What the simulation stands on."""
    kind = "a batch all there at the start" if workload.source.task == "batch" else "requests as they arrive"
    ran = f"{answer.simulated} plans were run through the simulator ({kind}, least-loaded balancer, in their order)"
    return [f"{ran}; `meets` is from its percentiles and the measured errors, for the others from the estimate"]


def _best(option: Option, rows: Column, met: dict[str, Floats]) -> list[Pick]:
    """The best row, and the best of each other layout: the simulator may see them in another order.

    Of batch limits that come out alike the largest: requests that are longer than others then wait for no place.
    """
    found = option.found
    score, instances, e2e_s = option.score()[rows], option.instances[rows], found.e2e_s[rows]
    layouts = np.stack([found.tp, found.pp, found.ep, found.dp])[:, rows]
    of_layout = np.unique(layouts, axis=1, return_inverse=True)[1].ravel()
    ordered = np.lexsort((-found.batch[rows], instances, score.round(9), of_layout))
    first = ordered[np.unique(of_layout[ordered], return_index=True)[1]]
    best = first[np.lexsort((e2e_s[first], instances[first], score[first]))][:LAYOUTS]
    return [Pick(option, int(row), met) for row in rows[best]]


def _close(options: list[Option], workload: Resolved, answer: Answer) -> list[NodeKind]:
    """Nodes on which a cache of half the bytes could still win, or is worth a point on a front.

    Assumes: half the bytes a cached token take at best half the replicas: half the memory, and half the reading.
    """
    least: dict[int, float] = {}
    for option in options:
        rows = np.flatnonzero(option.allowed(option.odds()))
        cost = float(option.cost_usd[rows].min(initial=np.inf))
        least[id(option.node)] = min(cost, least.get(id(option.node), np.inf))
    nodes = {id(option.node): option.node for option in options}
    if workload.source.objective != "cost":
        return list(nodes.values())
    on_front = front_nodes(options, workload)
    limit = 2 * min(least.values(), default=np.inf)
    close = [node for key, node in nodes.items() if least[key] <= limit or key in on_front]
    far = len(nodes) - len(close)
    answer.ruled_out.add("could not win with a KV cache of half the bytes either", far, unit="machines")
    return close


def _options(
    workload: Resolved,
    model: Model,
    nodes: list[NodeKind],
    wanted: list[tuple[WeightFormat, CacheFormat]],
    answer: Answer,
    advance: Callable[[int], None],
) -> list[Option]:
    options: list[Option] = []
    target = None if answers_in_one_pass(model, workload) else workload.tpot
    each = tokens_a_step(workload)
    limit_s = np.inf if target is None else stepped(target.seconds, 1)
    kinds = list(dict.fromkeys(weights for weights, _ in wanted))
    read_s = {
        (id(n), form.name): 0.0 if target is None else weights_read_s(model, n, form) / each
        for n in nodes
        for form in kinds
    }
    spared = sorted(read_s, key=read_s.__getitem__)[:NEAREST]  # even if hopeless: a miss is told by how much
    for done, node in enumerate(nodes):
        advance(done)
        for weights, kv_dtype in wanted:
            floor_s = read_s[id(node), weights.name]
            if floor_s > limit_s and (id(node), weights.name) not in spared:
                example = f"{node.cluster.accelerator.name} ({node.name}): {format_seconds(floor_s)} in {weights.name}"
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
                    f"{device.name} ({node.name}): {weights.name} weights take at least "
                    f"{format_bytes(found.smallest_bytes)} of {format_bytes(device.hbm_bytes)}",
                )
            memo: dict[Any, Any] = {}
            if found.batch.size:
                options += [Option(workload, model, node, found, priced, kv_dtype, memo) for priced in node.priced]
    return options


def _found(
    workload: Resolved, model: Model, node: NodeKind, weights: WeightFormat, kv_dtype: CacheFormat, answer: Answer
) -> Deployments | None:
    """Deployments on one node; a 16-bit format runs as what the device has; None (and a count) without any rate."""
    if kv_dtype.name == "fp8" and workload.source.constraints.kv_dtype is None and "fp8" not in node.cluster.rates.peak:
        return None  # nobody asked for it, and it has no kernels there
    try:
        return deployments(model, workload, node, format_on(weights, node.cluster, workload.facts), kv_dtype)
    except MissingFactError as error:
        answer.ruled_out.add("the device lacks a rate for this format", 1, str(error), unit="machines")
        return None
    except SpecError as error:
        if not workload.techniques.any:
            raise
        answer.ruled_out.add("a technique cannot be used there", 1, f"{node.name}: {error}", unit="machines")
        return None


def _miss(option: Option, met: dict[str, Floats], answer: Answer) -> tuple[float, Pick]:
    """(by how much, row) of the row that comes nearest."""
    short = option.shortfall()
    too_many = option.instances * option.node.count > option.workload.max_gpus
    row = int(np.where(too_many, np.inf, short).argmin()) if not too_many.all() else int(short.argmin())
    failed = min(met, key=lambda name: float(met[name].max())) if met else "the limits"
    if too_many.all():
        failed = "max_gpus"
    example = (
        f"{option.priced.offer.instance} {option.found.weights.name}: "
        f"TTFT {format_seconds(float(option.found.ttft_s[row]))}, "
        f"TPOT {format_seconds(float(option.found.tpot_s[row]))} on {int(option.instances[row])} instances"
    )
    answer.ruled_out.add(f"misses {failed}", 1, example, unit="offers")
    return float(short[row]) + 1e6 * bool(too_many[row]), Pick(option, row, met)
