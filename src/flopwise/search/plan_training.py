"""Plan a training workload over every offer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache, partial
from math import inf
from typing import Any

import msgspec
import numpy as np

from flopwise.changes.training import TrainingSetup, training_changes
from flopwise.cost.cluster import Cluster
from flopwise.cost.energy import start_joules
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.money import run_cost_usd
from flopwise.cost.precisions import LOW_PRECISIONS
from flopwise.cost.sustained import training_rates
from flopwise.errors import FlopwiseError, MissingFactError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.positions import check_length
from flopwise.ops.flops import causal_forward_flops
from flopwise.search.answer import SILENT, Candidate, ComparedFigures, Lever, Listeners, PlanDraft, device_levers
from flopwise.search.layout_search import (
    GivenSettings,
    LayoutSearch,
    StepTables,
    TimedLayouts,
    device_kernels,
    laid_out_alike,
    layout_search,
    timed_layouts,
)
from flopwise.search.nodes import FIRST_NODES, NodeKind, node_kinds, nothing_left
from flopwise.search.rank import (
    NEAREST_MISSES,
    ByTarget,
    ErrorEnds,
    Floats,
    Index,
    Pick,
    PlanOption,
    best_and_missed,
    candidates,
    cheaper_misses,
    front,
    likeliest,
    spot_assumptions,
)
from flopwise.search.run_job import (
    candidate_job,
    conditions,
    open_settings,
    recipes,
    stated_conditions,
    step_inputs,
)
from flopwise.search.workload import Resolved
from flopwise.training.adapters import trainable_parameters
from flopwise.training.alternatives import UnstatedInput
from flopwise.training.estimate import (
    LARGE_GPUS,
    job_memory,
    keep_kernels,
    kept_kernels,
    kernels_at,
    least_step_s,
    recipe_passes,
    single_inner,
    timed_step,
)
from flopwise.training.frozen import split_model
from flopwise.training.goodput import goodput_frac
from flopwise.training.job import Conditions, TrainJob
from flopwise.training.layout import Attention, Inner, Recipe
from flopwise.training.memory import memory_band
from flopwise.training.on_device import recipe_on
from flopwise.training.run import StepRun
from flopwise.training.stages import mode_index
from flopwise.training.start import training_start_s
from flopwise.training.step import passes_transfer_s
from flopwise.training.unstated import open_band, open_jobs
from flopwise.training.widths import resident_grad_dtype, trained_widths
from flopwise.units import format_bytes, format_chance, format_percent, format_seconds, format_usd
from flopwise.values import dataclass, replace

HOPELESS, HOPELESS_BY_COST = 20.0, 5.0
"""Machines whose least conceivable cost is this many times that of the best run found are not searched for a list; the
second where cost is all that counts, so that nothing else may speak for them."""
CHANGED = ("precision", "recompute", "micro-batch", "batch", "devices", "optimizer")
"""Kinds of changes to the best plan whose effect is shown."""
SHOWN = 10
"""Plans of whose devices there is something to say."""
LEAST_CONFIDENCE = 0.05
"""Probability to fit below which a layout on machines that are there is not worth a look."""
FAIR_CONFIDENCE = 0.35
"""Probability to fit of layouts that are worth a try where nothing is surer: memory estimates err by a few percent."""
MOST_KEPT_BYTES = 2**25
"""Of the memory figures of a search that a plan by itself leaves behind for the next one."""
MOST_KEPT_NODES = 2_000
"""Kinds of node, under so many settings, whose times are kept for one search."""
NEAREST = 3
"""Machines that are searched even where none is fast enough."""


def check_training(workload: Resolved, model: Model, facts: Facts) -> tuple[str, ...]:
    """Refuse what no machine can train; what is assumed of sequences longer than the model is made for.

    Raises:
        SpecError, UnknownNameError: they cannot be, on whatever machine.
    """
    spec = workload.training
    recipe_list, _ = recipes(workload, model, spec.first_stack(facts, model), facts)
    GivenSettings.of(spec, model)
    first = recipe_list[0]
    split_model(model, first.frozen)
    if first.lora is not None:
        trainable_parameters(model, first.lora)
    return check_length(model, int(first.seq_len))


def plan_training(
    workload: Resolved, model: Model, facts: Facts, listeners: Listeners[PlanDraft] = SILENT, *, alone: bool = True,
    dearest: float | None = None, by_region: bool = False,
) -> PlanDraft:  # fmt: skip
    """Search every offer for the layouts that meet the workload's targets; `alone` to `by_region` as in `plan`.

    First plans are not reported where those of the other machines are known.

    Raises:
        InfeasibleError: the constraints leave no offer.
        SpecError, UnknownNameError: something in the workload is wrong.
    """
    draft = PlanDraft()
    commanded = partial(with_open_inputs, workload=workload, model=model, facts=facts, shown=SHOWN if alone else 0)
    draft.assumptions += check_training(workload, model, facts)
    groups = _by_stack(workload, model, facts, draft, alone=alone)
    dearest = dearest or (HOPELESS_BY_COST if workload.by_cost_alone else HOPELESS)

    def report_first(options: Sequence[TrainingOption]) -> bool:
        picks, _ = best_and_missed(options, _best_rows)
        if picks and listeners.on_first is not None:
            plans = candidates(_best_of_kinds(picks, by_region=by_region))
            listeners.on_first(PlanDraft(plans=commanded(plans)))
        return bool(picks)

    options = _options(
        workload, model, groups, draft, listeners.advance, facts, alone=alone, dearest=dearest,
        report_first=None if listeners.on_first is None else report_first,
    )  # fmt: skip
    if workload.instances is not None:
        draft.plans = candidates(
            Pick(option, _simplest_row(option, row, option.allowed_rows(odds)), odds)
            for option, row, odds in likeliest(options)
        )
        if not draft.plans and workload.confidence > LEAST_CONFIDENCE:  # layouts that hardly fit
            return plan_training(replace(workload, confidence=LEAST_CONFIDENCE), model, facts, alone=alone)
        draft.plans = commanded(draft.plans)
        return draft
    picks, missed = best_and_missed(options, _best_rows)
    if not picks and workload.confidence > FAIR_CONFIDENCE:
        draft.plans = _plans_that_may_fit(workload, model, facts, by_region=by_region)
        if draft.plans:
            draft.plans = commanded(draft.plans)
            share = f"{100 * workload.confidence:g} %"
            draft.assumptions.append(f"no plan fits in memory with a chance of {share}: notes give the chance of each")
            return draft
    picks = _best_of_kinds(picks, by_region=by_region)
    _count_missed([pick for _, pick in missed], draft)
    draft.plans = candidates(picks)
    draft.assumptions += spot_assumptions(draft.plans, facts)
    draft.assumptions += dict.fromkeys(_device_notes(picks[:SHOWN], workload, model, facts))
    if draft.plans and not alone:
        draft.misses = cheaper_misses(options, draft.plans[0].cost_usd)
        return draft
    draft.plans = commanded(draft.plans)
    if listeners.on_ranked is not None:
        listeners.on_ranked(draft)
    unbeaten = front(
        options, lambda option: option.objectives, lambda option: np.flatnonzero(option.num_gpus >= workload.min_gpus)
    )
    odds_of = {id(option): option.odds() for option, _ in unbeaten}
    draft.front = candidates(Pick(option, row, odds_of[id(option)]) for option, row in unbeaten)
    if picks:
        draft.levers = levers(picks[0], draft, facts)
    else:
        missed.sort(key=lambda entry: entry[0])
        draft.misses = candidates(pick for _, pick in missed[:NEAREST_MISSES])
        draft.misses = commanded(draft.misses)
    return draft


def keep_kernels_together(jobs: Iterable[TrainJob]) -> None:
    """Keep the kernels of `jobs` for their single estimates: of those with one recipe, all devices and degrees at once.

    Jobs whose kernels are kept, or that no search has (without sequence parallelism), are left out.
    """
    groups: dict[tuple[Model, Recipe], dict[tuple[Cluster, tuple[int, ...]], None]] = {}
    for job in jobs:
        layout, recipe = job.layout, replace(job.recipe, global_batch=1)  # kernels are of one micro-batch
        inner = single_inner(layout)
        if layout.sequence_parallel and kept_kernels(job.model, recipe, job.cluster.rates, inner) is None:
            degrees = int(layout.tp), int(layout.cp), int(layout.ep), int(layout.micro_batch)
            groups.setdefault((job.model, recipe), {})[job.cluster, degrees] = None
    for (model, recipe), wanted in groups.items():
        clusters = {each.rates.key: each for each, _ in wanted}
        columns: list[tuple[int, ...]] = [*dict.fromkeys(place_of for _, place_of in wanted)]
        if len(wanted) == 1:
            continue
        every = Inner(*np.array(columns).T)
        kernels = device_kernels(model, recipe, clusters.values(), every)
        for cluster, own in wanted:
            if cluster.rates.key in kernels:
                place = columns.index(own)
                inner = every.take(np.array([place]))
                found = kernels_at(kernels[cluster.rates.key], place)
                keep_kernels(model, recipe, cluster.rates, inner, found)


def with_open_inputs(
    some: list[Candidate], workload: Resolved, model: Model, facts: Facts, shown: int
) -> list[Candidate]:
    """The candidates, the first `shown` with the intervals that their commands have, by what the workload leaves open.

    Source and assumptions: `open_band`. Assumes: the price of a machine moves no speed.
    """
    known: dict[Hashable, ErrorBand] = {}
    found = []
    jobs = [candidate_job(workload, model, facts, facts.offers_by_key[one.offer_key], one) for one in some[:shown]]
    settings = open_settings(workload, model)
    keep_kernels_together(one for job in jobs for usual in open_jobs(job, settings, facts).values() for one in usual)
    for one, job in zip(some, jobs, strict=False):
        chip, fabric = job.cluster.accelerator, job.cluster.fabric
        key = chip.name, job.cluster.gpus_per_node, fabric, job.recipe, job.layout
        if key not in known:
            step = timed_step(job)
            inputs, most = step_inputs(step, workload, model, facts), step.seconds / least_step_s(job, step.table)
            known[key] = open_band(job, inputs).up_to(most)
        idle = float(start_joules(chip, one.num_gpus, one.start_s))
        found.append(ErrorEnds.of_run(one, known[key], idle).onto(one))
    return [*found, *some[shown:]]


def _best_of_kinds(picks: Iterable[Pick[TrainingOption]], *, by_region: bool) -> list[Pick[TrainingOption]]:
    """The best pick of each kind of machines, the best first."""
    best: dict[tuple[str, ...], Pick[TrainingOption]] = {}
    for pick in picks:
        kind = pick.kind(by_region=by_region)
        if kind not in best or pick.score < best[kind].score:
            best[kind] = pick
    return sorted(best.values(), key=lambda pick: pick.score)


def _plans_that_may_fit(workload: Resolved, model: Model, facts: Facts, *, by_region: bool) -> list[Candidate]:
    """Plans that are fairly likely to fit in memory, where none is as likely as asked; they hold all else as asked."""
    fair = replace(workload, confidence=FAIR_CONFIDENCE)
    draft = PlanDraft()
    groups = _by_stack(fair, model, facts, draft, alone=False)
    options = _options(fair, model, groups, draft, None, facts, alone=True, dearest=HOPELESS)
    picks, _ = best_and_missed(options, _best_rows)
    kept: dict[tuple[str, ...], Candidate] = {}
    for pick in sorted(picks, key=lambda pick: pick.score):
        one = pick.candidate()
        if all(odds >= workload.confidence for name, odds in one.meets.items() if name != "memory"):
            kept.setdefault(pick.kind(by_region=by_region), one)
    return [
        msgspec.structs.replace(
            one, rank=rank, note=f"only {format_chance(one.meets['memory'])} chance of fitting in memory"
        )
        for rank, one in enumerate(kept.values(), start=1)
    ]


def _device_notes(
    picks: Sequence[Pick[TrainingOption]], workload: Resolved, model: Model, facts: Facts
) -> Iterator[str]:
    """Changes of the recipe on the devices of `picks`."""
    for pick in picks:
        here, device = pick.option.search.recipe, pick.option.node.cluster.accelerator
        for original in recipes(workload, model, facts.stack(here.stack.name), facts)[0]:
            recipe, notes = recipe_on(original, device)
            yield from notes if recipe.precision == here.precision else ()


@dataclass(frozen=True, kw_only=True)
class TrainingOption(PlanOption):
    """The fastest layouts of a recipe for each number of GPUs."""

    search: LayoutSearch
    layouts: TimedLayouts
    conditions: Conditions
    bands: tuple[ErrorBand, ErrorBand]  # of the throughput, on up to `LARGE_GPUS` devices and on more, by what is open
    most_tokens_per_s: Floats  # of all devices, at their datasheet's rate
    memory_odds: Floats

    @property
    def objectives(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The axes of the front: cost, time, devices and energy (the largest number where unknown)."""
        known = np.minimum(self.energy_joules, np.finfo(float).max)
        return self.cost_usd, self.seconds, self.num_gpus.astype(float), known

    def odds(self, workload: Resolved | None = None) -> ByTarget:
        """Probability that each target is met.

        The band is of throughput, measured / predicted: time at most t means throughput at least predicted time / t,
        and cost the same; both after the start, which takes its time and is paid whatever the throughput.
        """
        workload = workload or self.workload
        odds: ByTarget = {"memory": self.memory_odds}
        for name, value, fixed, limit in (
            ("deadline", self.start_s + self.seconds, self.start_s, workload.deadline_s),
            ("budget", self.cost_usd, self.start_usd, workload.budget_usd),
        ):
            if limit is not None:
                odds[name] = self._odds_of((value - fixed) / np.maximum(limit - fixed, 1e-9 * limit))
        if workload.tokens_per_s is not None:
            odds["throughput"] = self._odds_of(workload.tokens_per_s / self.tokens_per_s)
        return odds

    def _odds_of(self, faster: Floats) -> Floats:
        """Probability that the throughput is so many times that predicted, or more, by each row's band."""
        few, many = self.bands
        slower, large = few.probability_at_most(1.0, faster), self.num_gpus > LARGE_GPUS
        if np.any(large):
            slower = np.where(large, many.probability_at_most(1.0, faster), slower)
        return np.where(faster * self.tokens_per_s > self.most_tokens_per_s, 0.0, 1.0 - slower)

    def error_ends(self, row: int, candidate: Candidate) -> ErrorEnds:
        """The error ends of the throughput."""
        most = float(self.most_tokens_per_s[row] / self.tokens_per_s[row])
        band = self.bands[int(self.num_gpus[row] > LARGE_GPUS)].up_to(most)
        return ErrorEnds.of_run(candidate, band, float(self.start_joules[row]))

    def job(self, row: int) -> TrainJob:
        """The job of one row."""
        return TrainJob(
            model=self.search.model, recipe=self.search.recipe,
            layout=self.search.space.layout(int(self.layouts.rows[row])), cluster=self.node.cluster,
            tokens=self.workload.tokens, conditions=self.conditions,
        )  # fmt: skip

    def layout_document(self, row: int) -> dict[str, Any]:
        """The layout and recipe of a row in plain values; `run_job.candidate_job` reads it back."""
        recipe, space = self.search.recipe, self.search.space
        layout = space.layout(int(self.layouts.rows[row]))
        return {
            **layout.settings,
            "precision": recipe.precision,
            "global_batch": int(recipe.global_batch),
            "seq_len": int(recipe.seq_len),
            "stack": recipe.stack.name,
            "optimizer": recipe.optimizer.name,
            **({"offload": list(space.offload)} if space.offload else {}),
        }

    def figures(self, row: int) -> dict[str, float | None]:
        """Step time and rates."""
        gpus, rate = int(self.num_gpus[row]), float(self.tokens_per_s[row])
        return {
            "step_s": float(self.layouts.step_s[row]),
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / gpus,
            "gpu_hours": float(self.seconds[row]) / 3600 * gpus,
        }


def training_options(
    workload: Resolved, node: NodeKind, search: LayoutSearch, layouts: TimedLayouts, facts: Facts,
    inputs: Sequence[UnstatedInput] = (),
) -> list[TrainingOption]:  # fmt: skip
    """The layouts on a kind of node, bought in each of its ways; interruptions of spot instances make runs longer.

    What is taken back depends on the number of instances alone, so that the order of layouts on as many stays.
    `inputs`: what nobody stated, and what it makes of the speed.
    """
    gpus, nbytes, chip = layouts.num_gpus, search.checkpoint_bytes, node.cluster.accelerator
    options, recipe = [], search.recipe
    first = TrainJob(
        model=search.model, recipe=recipe, layout=search.space.layout(int(layouts.rows[0])), cluster=node.cluster,
        tokens=workload.tokens,
    )  # fmt: skip
    bands = open_band(first, inputs, num_gpus=1), open_band(first, inputs, num_gpus=LARGE_GPUS + 1)
    most_per_s = node.cluster.rates.peak_flops_per_s(recipe.precision) / floor_flops(search) * gpus
    memory_odds = np.asarray(
        memory_band(recipe, chip.calibration, chip).probability_at_most(layouts.memory_bytes, float(chip.hbm_bytes))
    )
    for priced in node.priced:
        offer = priced.offer
        surroundings = conditions(priced.purchase, offer.provider, chip.name, node.count, facts, search.conditions)
        seconds = layouts.run_s
        if priced.purchase == "spot":
            undisturbed = goodput_frac(gpus, nbytes, search.conditions.reliability)
            seconds = seconds * (undisturbed / goodput_frac(gpus, nbytes, surroundings.reliability))
        instances = gpus // node.count
        different, tuned = (workload.tokens or 0.0) / workload.data.epochs, workload.training.tunes
        start_s = np.asarray(training_start_s(search.model, recipe, different, instances, facts, pretrained=tuned))
        hourly, terms = instances * priced.usd_per_hour, facts.terms_of(offer.provider, offer.instance)
        options.append(
            TrainingOption(
                workload=workload, node=node, priced=priced, instances=np.asarray(instances), seconds=seconds,
                cost_usd=np.asarray(run_cost_usd(seconds, start_s, hourly, terms)), start_s=start_s,
                energy_joules=seconds * layouts.watts + start_joules(chip, gpus, start_s),
                memory_bytes=layouts.memory_bytes, tokens_per_s=recipe.useful_tokens / layouts.step_s,
                search=search, layouts=layouts, conditions=surroundings, bands=bands, memory_odds=memory_odds,
                most_tokens_per_s=most_per_s,
            )
        )  # fmt: skip
    return options


def _best_rows(option: TrainingOption, rows: Index) -> Index:
    """Of `rows` the best under the objective, on as many GPUs the simplest as fast; ties go to fewer GPUs."""
    best = rows[np.lexsort((option.num_gpus[rows], option.seconds[rows], option.score[rows]))[:1]]
    return np.array([_simplest_row(option, int(row), rows) for row in best], dtype=np.intp)


def _simplest_row(option: TrainingOption, row: int, rows: Index) -> int:
    """The simplest of `rows` on as many GPUs as `row` that is as fast; `row` itself where it is none of them."""
    alike = rows[option.num_gpus[rows] == option.num_gpus[row]]
    return option.layouts.simplest(alike) if row in alike else row


def _by_stack(
    workload: Resolved, model: Model, facts: Facts, draft: PlanDraft, *, alone: bool
) -> dict[str, list[NodeKind]]:
    """The kinds of nodes by the training software that they run; nodes without any that is wanted are counted.

    Raises: InfeasibleError: nothing is left.
    """
    stack_name, groups = workload.training.stack, dict[str, list[NodeKind]]()
    for node in node_kinds(workload, facts, draft.ruled_out, alone=alone):
        device = node.cluster.accelerator
        software = workload.training.stack_on(device, facts, model)
        if software is None:
            why = "no usual training stack is known" if stack_name is None else f"{stack_name} is not known"
            draft.ruled_out.add(f"{why} to run there", len(node.priced), device.name, unit="offers")
        else:
            groups.setdefault(software.name, []).append(node)
    if not groups:
        raise nothing_left(draft.ruled_out)
    if stack_name is None:
        usual = (facts.stack(name).name for name in filter(facts.is_released, workload.training.usual_stacks(model)))
        groups = {name: groups[name] for name in usual if name in groups}  # the usual one first
        first, *others = groups
        else_ = f" (where it does not run, {' or '.join(others)})" if others else ""
        draft.assumptions.append(f"the training stack {first}{else_}, as none was given (--stack, constraints.stack)")
    return groups


def _options(
    workload: Resolved, model: Model, groups: dict[str, list[NodeKind]], draft: PlanDraft,
    advance: Callable[[int, int], None] | None, facts: Facts, *, alone: bool, dearest: float,
    report_first: Callable[[list[TrainingOption]], bool] | None = None,
) -> list[TrainingOption]:  # fmt: skip
    """Every recipe on every kind of node and way to buy it; not `alone`: what the next search may share is kept.

    Nodes that cost over `dearest` times as much as the best are left out; not `alone`, in each of their ways to buy, as
    the best bought so, for a policy may leave no other. Where `dearest` is 1 the cheapest alone is wanted, and what the
    workload leaves open is in no interval.

    `report_first` is called with the options so far after each `FIRST_NODES` of the recipe that most nodes run, in the
    order of their lower bounds, until it says that some are plans; not where most of them are known.
    """
    options: list[TrainingOption] = []
    tokens, given = workload.tokens or 0.0, GivenSettings.of(workload.training, model)
    work = [(software, *recipes(workload, model, facts.stack(software), facts)) for software in groups]
    draft.assumptions += dict.fromkeys(text for _, _, notes in work for text in notes)
    pairs = [pair for software, allowed, _ in work for pair in _by_recipe(allowed, groups[software])]
    steps, before = sum(len(nodes) for _, _, nodes in pairs), 0
    bests: dict[str, dict[str, float]] = {}  # USD of the cheapest in each precision, by purchase
    report, most_nodes = advance or (lambda *_: None), max((len(nodes) for _, _, nodes in pairs), default=0)
    for precision, recipe, nodes in pairs:
        best = bests.setdefault(precision, {})
        kept = _kept_layouts(model, recipe, workload.max_gpus, workload.min_gpus, given)
        if alone and kept.nbytes > MOST_KEPT_BYTES:
            _kept_layouts.cache_clear()
            _with_memory.cache_clear()
        job = kept.search.of_recipe(kept.search.recipe, stated_conditions(workload))
        for reason, count in job.space.ruled_out.items():
            draft.ruled_out.add(reason, count, stage="layouts")
        away = Offloads(job)
        known, is_usual = len(kept.known), len(nodes) == most_nodes
        unstated = OpenRecipe(kept, workload, facts, () if dearest <= 1 else None)
        by_floor = _by_floor(job, nodes, tokens, workload, draft)
        for done, (floor_usd, node) in enumerate(by_floor):
            report(before + done, steps)
            if report_first is not None and is_usual and done and done % FIRST_NODES == 0:
                is_fresh = len(kept.known) - known > done / 2
                report_first = None if not is_fresh or report_first(options) else report_first
            most_usd = dearest * _most_floor_usd(node, best, alone=alone)
            kept.tables.clusters = [other.cluster for least_usd, other in by_floor[done:] if least_usd <= most_usd]
            if floor_usd > most_usd:
                reason = f"costs over {dearest:g} times as much as the best, even at the highest rates of its kernels"
                draft.ruled_out.add(reason, 1, node.label, unit="machines", stage="targets")
                continue
            band = memory_band(recipe, facts.calibration, node.cluster.accelerator)
            margin = band.quantile(workload.confidence)
            for place, (chosen, of_step) in enumerate(kept.times(away, node, margin)):
                times = replace(of_step, run_s=tokens / recipe.useful_tokens * of_step.run_s)
                draft.evaluated += times.considered
                draft.timed += times.timed
                if place == 0:
                    _count_unfit(job, node, times, draft, confidence=workload.confidence, margin=margin)
                if times.rows.size:
                    inputs = unstated.inputs(chosen, times, node)
                    node_options = training_options(workload, node, chosen, times, facts, inputs)
                    _keep_cheapest(best, node_options[:1] if alone else node_options)
                    options += node_options
        before += len(nodes)
    return options


def _keep_cheapest(best: dict[str, float], options: Iterable[TrainingOption]) -> None:
    """Lower the `best` costs, USD by purchase, to those of `options`."""
    for option in options:
        purchase = option.priced.purchase
        best[purchase] = min(best.get(purchase, inf), float(option.cost_usd.min()))


def _most_floor_usd(node: NodeKind, best: Mapping[str, float], *, alone: bool) -> float:
    """The most USD of a node in its cheapest way at which one of its ways costs no more than the best bought so.

    `best`: USD by purchase; without an entry anything may. `alone`: its cheapest way, beside the best of all.
    """
    if alone:
        return min(best.values(), default=inf)
    least = node.priced[0].usd_per_hour
    return max(best.get(p.purchase, inf) * (least / p.usd_per_hour if p.usd_per_hour else 1.0) for p in node.priced)


@dataclass(slots=True)
class KeptLayouts:
    """The layouts of a recipe, with what workloads share that differ in tokens, deadline, budget or offers alone."""

    search: LayoutSearch
    tables: StepTables = field(default_factory=StepTables)
    known: dict[Hashable, tuple[tuple[LayoutSearch, TimedLayouts], ...]] = field(default_factory=dict)
    open_inputs: dict[Hashable, tuple[UnstatedInput, ...]] = field(default_factory=dict)  # by open settings and layout

    @property
    def nbytes(self) -> int:
        """Bytes of the memory figures of all candidates: what keeping the search takes, about."""
        return sum(figures.nbytes for figures in self.search.allocated_bytes)

    def times(self, away: Offloads, node: NodeKind, margin: float) -> tuple[tuple[LayoutSearch, TimedLayouts], ...]:
        """(search, times on `node`) without and with parts in host memory; `run_s` is that of the run for each step."""
        job = away.search
        key = node.cluster, node.count, node.networked, node.host_bytes, margin, job.conditions
        if key not in self.known:
            clock = partial(
                timed_layouts, node=node, tokens=job.recipe.useful_tokens, tables=self.tables, margin=margin
            )
            first = clock(job)
            every = ((job, first), *away.worth_trying(node, first, clock))
            if len(self.known) >= MOST_KEPT_NODES:
                self.known.clear()
            self.known[key] = tuple((search, replace(times, table=None)) for search, times in every)
        return self.known[key]


@dataclass(slots=True)
class OpenRecipe:
    """The inputs of a recipe that nobody stated, and what they make of the speed of its runs."""

    kept: KeptLayouts
    workload: Resolved
    facts: Facts
    found: tuple[UnstatedInput, ...] | None = None

    def inputs(self, search: LayoutSearch, times: TimedLayouts, node: NodeKind) -> tuple[UnstatedInput, ...]:
        """The inputs, as they move the run with the fewest GPU-seconds on the first kind of node that is asked for.

        Assumes: they move others alike; of the plans that are shown each is asked by itself.
        """
        if self.found is None:
            layout = search.space.layout(int(times.rows[int(np.argmin(times.step_s * times.num_gpus))]))
            key = open_settings(self.workload, search.model), node.cluster, layout
            if key not in self.kept.open_inputs:
                job = TrainJob(model=search.model, recipe=search.recipe, layout=layout, cluster=node.cluster)
                step = timed_step(job)
                self.kept.open_inputs[key] = step_inputs(step, self.workload, search.model, self.facts)
            self.found = self.kept.open_inputs[key]
        return self.found


@lru_cache(maxsize=8)
def _kept_layouts(model: Model, recipe: Recipe, most: int, least: int, given: GivenSettings) -> KeptLayouts:
    """The layouts of a recipe, whose times are to be filled in."""
    return KeptLayouts(_with_memory(model, alike_in_memory(recipe), most, least, given).of_recipe(recipe))


def alike_in_memory(recipe: Recipe) -> Recipe:
    """The recipe with the precision and the kernels of attention that most have, if it takes the same memory with them.

    Recipes of which it returns the same take the same memory in every layout.

    Source: what `MemoryTable`, `StageMemory` and `trained_widths` read of a recipe.
    Assumes: kernels of attention other than the plain products keep what FlashAttention keeps.
    """
    attention: Attention = "eager" if recipe.attention == "eager" else "flash"
    usual = replace(recipe, attention=attention, stack=replace(recipe.stack, attention_kernel="fa2"))
    other, eight_bits = replace(usual, precision="bf16"), usual.stack.fp8_inputs and usual.precision in LOW_PRECISIONS
    before, after = ((one.elem_bytes, trained_widths(one), resident_grad_dtype(one)) for one in (usual, other))
    return other if before == after and not eight_bits else usual


@lru_cache(maxsize=8)
def _with_memory(model: Model, recipe: Recipe, most: int, least: int, given: GivenSettings) -> LayoutSearch:
    """The layouts of all recipes that take the memory of this one."""
    return layout_search(model, recipe, most=most, least=least, given=given)


def _by_recipe(allowed: Iterable[Recipe], nodes: Iterable[NodeKind]) -> list[tuple[str, Recipe, list[NodeKind]]]:
    """(precision asked for, recipe as devices can run it, their nodes); what two recipes come down to is there once."""
    groups: dict[tuple[object, ...], tuple[str, Recipe, list[NodeKind]]] = {}
    seen = set[tuple[object, ...]]()
    for original in allowed:
        for node in nodes:
            recipe, _ = recipe_on(original, node.cluster.accelerator)
            key = (recipe.precision, recipe.attention, recipe.master_weights, recipe.stack.attention_kernel)
            if (id(node), *key) not in seen:
                seen.add((id(node), *key))
                groups.setdefault((original.precision, *key), (original.precision, recipe, []))[2].append(node)
    return list(groups.values())


def _by_floor(
    job: LayoutSearch, nodes: list[NodeKind], tokens: float, workload: Resolved, draft: PlanDraft
) -> list[tuple[float, NodeKind]]:
    """(lower bound of the cost, node), cheapest first; nodes that are too slow in any number are counted."""
    kept: list[tuple[float, NodeKind]] = []
    slow: list[tuple[float, NodeKind]] = []
    flops = floor_flops(job) * tokens
    for node in nodes:
        try:
            floor_s = floor_gpu_s(job, node, flops)
        except MissingFactError as error:
            reason = "the device does not compute in this precision"
            draft.ruled_out.add(reason, 1, str(error), unit="machines", stage="formats")
            continue
        most = workload.max_gpus if node.networked else node.count
        if workload.deadline_s is not None and floor_s / most > workload.deadline_s:
            example = f"{node.label}: {format_seconds(floor_s / most)} on {most} devices"
            reason = "too slow for the deadline, even at the highest rates of its kernels"
            draft.ruled_out.add(reason, 1, example, unit="machines", stage="targets")
            slow.append((floor_s / most, node))
            continue
        kept.append((floor_s / 3600 * node.priced[0].usd_per_hour / node.count, node))
    if not kept:  # the nearest misses are worth telling by how much
        kept = [(0.0, node) for _, node in sorted(slow, key=lambda entry: entry[0])[:NEAREST]]
    return sorted(kept, key=lambda entry: entry[0])


def floor_flops(search: LayoutSearch) -> float:
    """Operations that every layout spends on a token."""
    recipe = search.recipe
    passes = recipe_passes(search.model, recipe, 1, int(recipe.seq_len))
    tokens, attended = (float(np.ravel(n)[0]) for n in recipe.computed_tokens(1))
    each = recipe.useful_tokens / float(recipe.global_batch)
    return passes * float(causal_forward_flops(search.model, tokens / attended, int(attended))) / each


def floor_gpu_s(search: LayoutSearch, node: NodeKind, flops: float) -> float:
    """Device-seconds that `flops` operations take at least: at the rate of large products, or of attention if higher.

    Raises: MissingFactError: the device lacks a rate that the recipe needs.
    """
    precision = search.recipe.precision
    rates = training_rates(node.cluster.rates, search.recipe.stack, precision)
    attention = rates.peak_flops_per_s(precision) * rates.value["attention_frac"]
    return flops / max(rates.matmul_flops_per_s(precision), attention)


def _count_unfit(
    job: LayoutSearch, node: NodeKind, result: TimedLayouts, draft: PlanDraft, *, confidence: float, margin: float
) -> None:
    """Count the layouts that do not fit with probability `confidence`, at which memory is `margin` times estimated."""
    if result.fitting < result.considered:
        least, has = result.smallest_bytes, format_bytes(node.cluster.accelerator.hbm_bytes)
        sure = f"{format_bytes(least * margin)} with {format_percent(confidence, 0)} confidence"
        example = f"{node.label}: the smallest of them takes {format_bytes(least)}, {sure}, of {has}"
        draft.ruled_out.add("does not fit in memory", result.considered - result.fitting, example, stage="memory")
    if not node.networked:
        skipped = sum(int((f.num_gpus > node.count).sum()) * f.choices for f in job.space.families)
        reason = "the network between instances is not known (constraints.inter_node_bandwidth sets one)"
        draft.ruled_out.add(reason, skipped, node.name, stage="layouts")


def _count_missed(missed: list[Pick[TrainingOption]], draft: PlanDraft) -> None:
    for option, row, odds in missed:
        failed = min(odds, key=lambda name: float(odds[name][row])) if odds else "the hourly limit"
        done = format_seconds(float(option.start_s[row] + option.seconds[row]))
        example = f"{option.priced.offer.instance}: done in {done} at {format_usd(option.cost_usd[row])}"
        draft.ruled_out.add(f"misses {failed}", 1, example, unit="offers", stage="targets")


def levers(best: Pick[TrainingOption], draft: PlanDraft, facts: Facts) -> list[Lever]:
    """The effects of single changes on the best plan; each is a whole estimate of its own."""
    chosen, base = draft.plans[0], best.option.job(best.row)
    before = _outcome(base, chosen)
    rows: list[Lever] = []
    finetuned = best.option.workload.task == "finetune" or base.recipe.lora is not None
    setup = TrainingSetup(base.model, base.recipe, base.layout, facts)
    for change, recipe, layout in training_changes(setup, (*CHANGED, *(("adapters",) if finetuned else ()))):
        if recipe_on(recipe, base.cluster.accelerator)[0] is not recipe:
            continue
        try:
            after = _outcome(replace(base, recipe=recipe, layout=layout), chosen)
        except FlopwiseError:  # what `train` would refuse
            continue
        fits = after.memory_bytes <= base.cluster.accelerator.hbm_bytes
        rows.append(after.lever(change, before, fits=fits))
    return [*rows, *device_levers(draft.plans)]


def _outcome(job: TrainJob, chosen: Candidate) -> ComparedFigures:
    """Time and cost of a job at the chosen plan's price per GPU; the start, which every change pays, is left out."""
    run, per_gpu_hour = StepRun.of_job(job, timed_step(job).parts, None), chosen.usd_per_hour / chosen.num_gpus
    assert run is not None  # a plan has a number of tokens
    return ComparedFigures(float(job_memory(job).total_bytes), run.seconds, run.gpu_hours * per_gpu_hour)


ACTIVATIONS = ("activations",)
OFFLOADS = (
    (ACTIVATIONS, ("optimizer",), ("optimizer", "activations")),
    (("optimizer", "parameters"), ("optimizer", "parameters", "activations")),
)
"""What may live in host memory; the second row only where nothing of the first fits."""


def with_offload(search: LayoutSearch, parts: tuple[str, ...]) -> LayoutSearch:
    """The same search with `parts` in host memory."""
    away = replace(
        search.space.like, offload_optimizer="optimizer" in parts, offload_parameters="parameters" in parts,
        offload_activations="activations" in parts,
    )  # fmt: skip
    return laid_out_alike(search, away)


def without_recompute(search: LayoutSearch) -> LayoutSearch:
    """The same search with its candidates that compute nothing again."""
    families = tuple(replace(f, recomputes=f.recomputes[:1]) for f in search.space.families)
    return replace(
        search,
        space=replace(search.space, families=families),
        allocated_bytes=tuple(each[:, :, :1] for each in search.allocated_bytes),
        host_bytes=tuple(each[:, :, :1] for each in search.host_bytes),
    )


def without_pipelines(search: LayoutSearch) -> LayoutSearch:
    """The same search with its candidates of one pipeline stage: those of which activations are copied to the host.

    Source: Megatron Bridge, CPU offloading: that of activations, layer by layer, needs a pipeline of 1.
    """
    whole = [np.flatnonzero(search.space.degrees[family.degree_index] == 1) for family in search.space.families]
    kept = [(i, meshes) for i, meshes in enumerate(whole) if meshes.size]
    families = tuple(search.space.families[i].take(meshes) for i, meshes in kept)
    memory = tuple(search.allocated_bytes[i][..., meshes] for i, meshes in kept)
    return replace(search, space=replace(search.space, families=families), allocated_bytes=memory)


@dataclass(slots=True)
class Offloads:
    """A search with what may be offloaded: spaces and their memory are evaluated once, for all kinds of node."""

    search: LayoutSearch

    def at(self, parts: tuple[str, ...]) -> LayoutSearch:
        """The search with `parts` in host memory."""
        whole = self.single if "activations" in parts else self.search
        return self.search.variant(parts, lambda: with_offload(whole, parts))

    @property
    def single(self) -> LayoutSearch:
        """The search without pipelines: what copied activations are instead of."""
        return self.search.variant("single", lambda: without_pipelines(self.search))

    def worth_trying(
        self, node: NodeKind, result: TimedLayouts, clock: Callable[..., TimedLayouts]
    ) -> Iterator[tuple[LayoutSearch, TimedLayouts]]:
        """Timed layouts, by `clock`, of searches whose offload to host memory may pay on `node`.

        `result`: without anything there. Where something fits, activations are copied if that takes less time than to
        compute them again, as the best do for room; where nothing fits, whatever lets something fit.
        """
        if not node.host_bytes or not node.cluster.rates.host_link_bytes_per_s:
            return
        if not node.networked and self.search.checkpoint_bytes > node_bytes(node):
            return  # devices and hosts together are too small
        if result.fitting:
            away = self.at(ACTIVATIONS)
            if copying_is_quicker(self.search, away, result):
                instead = self.search.variant("copied", lambda: without_recompute(away))
                kept = self.search.variant("kept", lambda: without_recompute(self.single))
                yield instead, clock(instead, after=result, unless=kept)
            return
        for row in OFFLOADS:
            fitting = 0
            for away in map(self.at, row):
                result = clock(away, after=result)
                fitting += result.fitting
                yield away, result
            if fitting:
                return


def node_bytes(node: NodeKind) -> float:
    """Memory of a node's devices and of its hosts, whatever lies where."""
    return node.count * (node.cluster.accelerator.hbm_bytes + node.host_bytes)


def copying_is_quicker(search: LayoutSearch, away: LayoutSearch, result: TimedLayouts) -> bool:
    """True if any run of `result` with recompute would copy activations to the host in less time.

    Source: `passes_transfer_s` against the recompute line of the step. Assumes: runs that recompute nothing have room.
    """
    table, moved = result.table, away.moved_bytes
    if table is None or moved is None or not result.rows.size:
        return False
    inner, degree, layout = search.space.at_rows(result.rows)
    stage = table.stage_parts[:, :, degree, inner]
    again = np.take_along_axis(stage[2], mode_index(layout, table.partials)[None], 0)[0]
    copied = passes_transfer_s(0.0, moved[0, degree, inner], table.rates, stage[0, 0], stage[1, 0], 1.0)
    return bool(np.any(copied < again))
