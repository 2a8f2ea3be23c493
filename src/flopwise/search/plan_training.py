"""Plan a training workload over every offer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from flopwise.changes.training import TrainingSetup, training_changes
from flopwise.cost.cluster import cluster
from flopwise.errors import FlopwiseError, MissingFactError, SpecError
from flopwise.facts.models.positions import check_length
from flopwise.search import rank
from flopwise.search.answer import Candidate, Lever, device_levers
from flopwise.search.defaults import STACKS, recipes, stack_on
from flopwise.search.nodes import NodeKind, network_of, node_kinds, nothing_left
from flopwise.search.offloading import Offloads
from flopwise.search.outcome import Answer
from flopwise.search.rank import Option
from flopwise.search.spot import conditions, interrupted, reliability, sentences
from flopwise.search.training import Known, Searched, Timed, floor_flops, floor_gpu_s, searched, timed
from flopwise.training.adapters import trainable_parameters
from flopwise.training.estimate import TrainJob, estimate, training_band
from flopwise.training.frozen import split_model
from flopwise.training.layout import COLUMNS, RECOMPUTE, Layout
from flopwise.training.memory import memory_band
from flopwise.training.schedules import schedule_code
from flopwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.workload import Resolved

Advance = Callable[[int, int], None]
HOPELESS = 20
"""Machines whose least conceivable cost is this many times that of the best run found are not searched."""
CHANGED = ("precision", "recompute", "micro-batch", "batch", "devices", "optimizer")
"""Kinds of changes whose effect on the best plan is told."""
NEAREST = 3
"""Machines that are searched even where none is fast enough."""


def check_training(workload: Resolved, model: Model, facts: Facts) -> tuple[str, ...]:
    """What is assumed of sequences longer than the model is made for, once recipe and length can be.

    Raises:
        SpecError, UnknownNameError: they cannot be, on whatever machine.
    """
    limits = workload.source.constraints
    found, _ = recipes(workload, model, facts.stack(limits.stack or STACKS[workload.source.task][0]), facts)
    if limits.schedule is not None:
        schedule_code(limits.schedule)
    first = found[0]
    split_model(model, first.frozen)
    if first.lora is not None:
        trainable_parameters(model, first.lora)
    if model.stacks[0].tokens_per_sample is not None:
        return ()
    try:
        return check_length(model, int(first.seq_len))
    except SpecError as error:
        raise SpecError(f"data.seq_len: {error}") from None


def plan_training(
    workload: Resolved, model: Model, facts: Facts, advance: Advance | None = None, *, alone: bool = True
) -> Answer:
    """Search every offer for the layouts that meet the workload's targets; `alone` as in `plan`.

    Raises:
        InfeasibleError: the constraints leave no offer.
        SpecError, UnknownNameError: something in the workload is wrong.
    """
    answer = Answer()
    answer.assumptions += check_training(workload, model, facts)
    options = _options(workload, model, _by_stack(workload, facts, answer, alone=alone), answer, advance, facts)
    picked: dict[tuple[str, str, str], tuple[float, Option, int, dict[str, rank.Floats]]] = {}
    missed: list[tuple[float, Option, int, dict[str, rank.Floats]]] = []
    for option in options:
        met = rank.odds(option, workload)
        keep = rank.allowed(option, workload, met)
        best = rank.best_row(option, workload, keep)
        if best is None:
            near = rank.nearest_miss(option, workload)
            if near is not None:
                missed.append((near[0], option, near[1], met))
            continue
        key = (option.priced.offer.provider, option.priced.offer.instance, option.priced.purchase)
        value = float(rank.score(option, workload.source.objective)[best])
        if key not in picked or value < picked[key][0]:
            picked[key] = (value, option, best, met)
    _count_missed(missed, answer)
    ordered = sorted(picked.values(), key=lambda entry: entry[0])
    answer.plans = [rank.candidate(o, workload, row, met, i) for i, (_, o, row, met) in enumerate(ordered, start=1)]
    answer.assumptions += sentences(answer.plans, facts)
    if answer.plans and not alone:
        found = rank.cheaper_misses(options, workload, answer.plans[0].cost_usd)
        answer.misses = [rank.candidate(o, workload, row, met, i) for i, (o, row, met) in enumerate(found, start=1)]
        return answer
    front = rank.front_rows(options, workload)
    chances = {id(option): rank.odds(option, workload) for option, _ in front}
    answer.front = [rank.candidate(o, workload, row, chances[id(o)], i) for i, (o, row) in enumerate(front, start=1)]
    if not answer.plans:
        missed.sort(key=lambda entry: entry[0])
        answer.misses = [
            rank.candidate(o, workload, row, met, i) for i, (_, o, row, met) in enumerate(missed[:5], start=1)
        ]
    elif ordered:
        answer.levers = levers(workload, ordered[0][1], answer, facts)
    return answer


def _by_stack(workload: Resolved, facts: Facts, answer: Answer, *, alone: bool) -> dict[str, list[NodeKind]]:
    """The kinds of nodes by the training software that they run; what runs none that is wanted is counted.

    Raises:
        InfeasibleError: nothing is left.
    """
    asked, groups = workload.source.constraints.stack, dict[str, list[NodeKind]]()
    for node in node_kinds(workload, facts, answer.ruled_out, alone=alone):
        device = node.cluster.accelerator
        software = stack_on(workload, device, facts)
        if software is None:
            why = (
                "no usual training stack is known to run there"
                if asked is None
                else f"{asked} is not known to run there"
            )
            answer.ruled_out.add(why, len(node.priced), device.name, unit="offers")
        else:
            groups.setdefault(software.name, []).append(node)
    if not groups:
        raise nothing_left(answer.ruled_out)
    if asked is None:
        groups = {name: groups[name] for name in STACKS[workload.source.task] if name in groups}  # the usual one first
        first, *others = groups
        else_ = f" (where it does not run, {' or '.join(others)})" if others else ""
        answer.assumptions.append(f"the training stack {first}{else_}, as none was given (constraints.stack)")
    return groups


def _options(
    workload: Resolved,
    model: Model,
    groups: dict[str, list[NodeKind]],
    answer: Answer,
    advance: Advance | None,
    facts: Facts,
) -> list[Option]:
    """Every recipe on every kind of node and way to buy it."""
    options: list[Option] = []
    tokens = (workload.tokens or 0.0) / workload.useful_frac
    limits = workload.source.constraints
    work = [(software, *recipes(workload, model, facts.stack(software), facts)) for software in groups]
    answer.assumptions += dict.fromkeys(text for _, _, told in work for text in told)
    pairs = [(recipe, groups[software]) for software, found, _ in work for recipe in found]
    steps, before = sum(len(nodes) for _, nodes in pairs), 0
    best = dict.fromkeys((recipe.precision for recipe, _ in pairs), float("inf"))
    for recipe, nodes in pairs:
        job = searched(
            model,
            recipe,
            most=workload.max_gpus,
            least=workload.min_gpus,
            schedule=limits.schedule,
            shard=workload.shard,
        )
        job = replace(job, reliability=reliability(workload.saving))
        for reason, count in job.space.ruled_out.items():
            answer.ruled_out.add(reason, count)
        known: Known = {}
        away = Offloads(job)
        margin = memory_band(recipe, facts.calibration).quantile(workload.confidence)
        for done, (floor_usd, node) in enumerate(_by_floor(job, nodes, tokens, workload, answer)):
            if advance is not None:
                advance(before + done, steps)
            if floor_usd > HOPELESS * best[recipe.precision]:
                name = f"{node.cluster.accelerator.name} ({node.name})"
                answer.ruled_out.add(
                    f"costs over {HOPELESS} times the best even at its peak rate", 1, name, unit="machines"
                )
                continue
            result = timed(job, node, tokens, known, margin=margin)
            answer.evaluated += result.considered
            _count_unfit(job, node, result, answer)
            clock = partial(timed, node=node, tokens=tokens, known=known, margin=margin)
            for chosen, times in ((job, result), *away.worth_trying(node, result, clock)):
                answer.evaluated += times.considered if chosen is not job else 0
                if times.rows.size:
                    band = training_band(TrainJob(model=model, recipe=recipe, layout=Layout(), cluster=node.cluster))
                    found = [
                        Option(chosen, node, interrupted(chosen, node, times, p, facts), p, band) for p in node.priced
                    ]
                    best[recipe.precision] = min(best[recipe.precision], float(found[0].cost_usd.min()))
                    options += found
        before += len(nodes)
    return options


def _by_floor(
    job: Searched, nodes: list[NodeKind], tokens: float, workload: Resolved, answer: Answer
) -> list[tuple[float, NodeKind]]:
    """(least conceivable cost, node), cheapest first, without those that no number of devices makes fast enough."""
    kept: list[tuple[float, NodeKind]] = []
    slow: list[tuple[float, NodeKind]] = []
    flops = floor_flops(job) * tokens
    for node in nodes:
        try:
            floor_s = floor_gpu_s(job, node, flops)
        except MissingFactError as error:
            answer.ruled_out.add("the device lacks a rate for this precision", 1, str(error), unit="machines")
            continue
        most = workload.max_gpus if node.networked else node.count
        if workload.deadline_s is not None and floor_s / most > workload.deadline_s:
            example = (
                f"{node.cluster.accelerator.name} ({node.name}): {format_seconds(floor_s / most)} on {most} devices"
            )
            answer.ruled_out.add("too slow for the deadline even at its peak rate", 1, example, unit="machines")
            slow.append((floor_s / most, node))
            continue
        kept.append((floor_s / 3600 * node.priced[0].usd_per_hour / node.count, node))
    if not kept:  # the nearest misses are worth telling by how much
        kept = [(0.0, node) for _, node in sorted(slow, key=lambda entry: entry[0])[:NEAREST]]
    return sorted(kept, key=lambda entry: entry[0])


def _count_unfit(job: Searched, node: NodeKind, result: Timed, answer: Answer) -> None:
    device = node.cluster.accelerator
    if result.fitting < result.considered:
        needs, has = format_bytes(result.smallest_bytes), format_bytes(device.hbm_bytes)
        answer.ruled_out.add(
            "does not fit in memory",
            result.considered - result.fitting,
            f"{device.name} ({node.name}): the smallest of them needs {needs} of {has}",
        )
    if not node.networked:
        skipped = sum(int((f.num_gpus > node.count).sum()) * f.choices for f in job.space.families)
        answer.ruled_out.add(
            "the network between instances is not known (constraints.inter_node_bandwidth sets one)", skipped, node.name
        )


def _count_missed(missed: list[tuple[float, Option, int, dict[str, rank.Floats]]], answer: Answer) -> None:
    for _, option, row, met in missed:
        failed = min(met, key=lambda name: float(met[name][row])) if met else "the hourly limit"
        run = format_seconds(float(option.result.run_s[row]))
        example = f"{option.priced.offer.instance}: {run} at ${option.cost_usd[row]:,.0f}"
        answer.ruled_out.add(f"misses {failed}", 1, example, unit="offers")


def levers(workload: Resolved, best: Option, answer: Answer, facts: Facts) -> list[Lever]:
    """What single changes would do to the best plan; each is a whole estimate of its own."""
    chosen = answer.plans[0]
    layout = _layout(chosen)
    base = TrainJob(
        model=best.job.model,
        recipe=best.job.recipe,
        layout=layout,
        cluster=best.node.cluster,
        tokens=(workload.tokens or 0.0) / workload.useful_frac,
        conditions=conditions(
            chosen.purchase, chosen.provider, chosen.gpu, best.node.count, facts, best.job.reliability
        ),
    )
    before = _outcome(base, chosen)
    found: list[Lever] = []
    adapters = ("adapters",) if workload.source.task == "finetune" or base.recipe.lora is not None else ()
    setup = TrainingSetup(base.model, base.recipe, layout, facts)
    for change, recipe, changed in training_changes(setup, (*CHANGED, *adapters)):
        try:
            after = _outcome(replace(base, recipe=recipe, layout=changed), chosen)
        except FlopwiseError:  # what `train` would refuse
            continue
        memory, seconds, cost = (new / old for new, old in zip(after, before, strict=True))
        found.append(Lever(change, memory, seconds, cost, fits=after[0] <= base.cluster.accelerator.hbm_bytes))
    return [*found, *device_levers(answer.plans)]


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> TrainJob:
    """The job that a candidate of a plan stands for."""
    wanted, _ = recipes(workload, model, facts.stack(chosen.layout["stack"]), facts)
    recipe = next(r for r in wanted if r.precision == chosen.layout["precision"])
    return TrainJob(
        model=model,
        recipe=replace(recipe, global_batch=chosen.layout["global_batch"], seq_len=chosen.layout["seq_len"]),
        layout=_layout(chosen),
        cluster=cluster(
            facts.offered_accelerator(offer),
            offer=offer,
            purchase=chosen.purchase,
            network_bytes_per_s_per_gpu=network_of(workload, offer),
        ),
        tokens=(workload.tokens or 0.0) / workload.useful_frac,
        conditions=conditions(
            chosen.purchase,
            chosen.provider,
            chosen.gpu,
            chosen.num_gpus // chosen.num_instances,
            facts,
            reliability(workload.saving),
        ),
    )


def _layout(chosen: Candidate) -> Layout:
    kept = {name: chosen.layout[name] for name in COLUMNS if name in chosen.layout}
    away = {f"offload_{part}": True for part in chosen.layout.get("offload", ())}
    said = {
        "recompute": RECOMPUTE.index(chosen.layout["recompute"]),
        "schedule": schedule_code(chosen.layout["schedule"]),
    }
    return Layout(**{**kept, **away, **said})


def _outcome(job: TrainJob, chosen: Candidate) -> tuple[float, float, float]:
    """(memory per GPU, run seconds, USD) of a job at the chosen plan's price per GPU."""
    result = estimate(job)
    assert result.run is not None
    per_gpu_hour = chosen.usd_per_hour / chosen.num_gpus
    return float(result.memory.total_bytes), result.run.seconds, result.run.gpu_hours * per_gpu_hour
