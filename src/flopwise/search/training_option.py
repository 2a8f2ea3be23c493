"""Training runs on a kind of node bought one way: cost, time, energy and odds of every layout, and the job of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from flopwise.cost.energy import start_joules
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.money import run_cost_usd
from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.facts.software import TrainingStack
from flopwise.options import OptionError, changed_options
from flopwise.search.answer import Candidate
from flopwise.search.layout_search import LayoutSearch, TimedLayouts
from flopwise.search.nodes import NodeKind, offer_cluster
from flopwise.search.rank import ByTarget, ErrorEnds, Floats, PlanOption
from flopwise.search.spec import ANY
from flopwise.search.workload import Resolved
from flopwise.training.estimate import training_band
from flopwise.training.goodput import DEFAULT_RELIABILITY, Reliability, goodput_frac
from flopwise.training.job import DEFAULT_CONDITIONS, Conditions, TrainJob
from flopwise.training.layout import COLUMNS, RECOMPUTE, Layout, Recipe
from flopwise.training.memory import memory_band
from flopwise.training.on_device import recipe_on
from flopwise.training.routing import check_skew
from flopwise.training.schedules import NAMES, schedule_code
from flopwise.training.start import training_start_s, with_start


def precisions(workload: Resolved, software: TrainingStack) -> tuple[list[str], str]:
    """The precisions that are searched with a training stack, and what is assumed of them.

    `any` stands for all that the stack trains in; devices without a rate for one are ruled out for it alone.

    Raises:
        SpecError: an unknown precision.
    """
    one, several = workload.one_precision, workload.limits.precision
    wanted = list(several) or [one or "bf16"]
    for name in wanted:
        if name not in (*TRAINING_PRECISIONS, ANY):
            raise SpecError(f"precision: {name!r} is unknown; allowed: {', '.join((*TRAINING_PRECISIONS, ANY))}")
    if ANY not in wanted:
        open_ = one is None and not several
        return wanted, f"bf16, as no precision was given (constraints.precision; {ANY} searches all)" if open_ else ""
    found = ["bf16"]
    if not workload.training.adapts and software.activations == "fused":
        found += ["fp8", "nvfp4"] if software.fp8_inputs else ["fp8"]
    found += [name for name in wanted if name not in (*found, ANY)]
    return found, f"{', '.join(found)} were searched; that narrower formats need no more tokens is for you to check"


def recipes(workload: Resolved, model: Model, software: TrainingStack, facts: Facts) -> tuple[list[Recipe], list[str]]:
    """The recipes that the workload allows with the training stack `software`, and what was assumed.

    Raises:
        SpecError: an unknown precision.
        UnknownNameError: an unknown optimizer or format.
    """
    data, spec = workload.data, replace(workload.training, stack=software.name)
    wanted, chosen = precisions(workload, software)
    try:
        seq = data.seq_len(model, tunes=spec.tunes)
        batch, batch_notes = data.batch(model, seq, tunes=spec.tunes)
    except OptionError as error:
        raise SpecError(f"data.{error.name}: {error.reason}") from None
    except SpecError as error:
        raise SpecError(f"data.seq_len: {error}") from None
    notes = [*([chosen] if chosen else []), *data.length_note(seq), *batch_notes]
    documents = data.documents(seq)
    found = [replace(spec, precision=name).recipe(seq, batch, facts, documents) for name in wanted]
    check_skew(model, found[0])
    return found, notes


@dataclass(frozen=True, kw_only=True)
class TrainingOption(PlanOption):
    """The fastest layouts of a recipe for each number of GPUs."""

    search: LayoutSearch
    layouts: TimedLayouts
    conditions: Conditions

    @cached_property
    def band(self) -> ErrorBand:
        """The error band of the throughput."""
        return training_band(self.job(0))

    @property
    def objectives(self) -> tuple[Floats, Floats, Floats, Floats]:
        """What the front weighs: cost, time, devices and energy (the largest number where it is not known)."""
        known = np.minimum(self.energy_joules, np.finfo(float).max)
        return self.cost_usd, self.seconds, self.num_gpus.astype(float), known

    def odds(self, workload: Resolved | None = None) -> ByTarget:
        """Probability that each target is met.

        The band is of throughput, measured / predicted: time at most t means throughput at least predicted time / t,
        and cost the same; both after the start, which takes its time and is paid whatever the throughput.
        """
        workload = workload or self.workload
        device = self.node.cluster.accelerator
        band, capacity = memory_band(self.search.recipe, device.calibration), float(device.hbm_bytes)
        odds: ByTarget = {"memory": np.asarray(band.probability_at_most(self.memory_bytes, capacity))}
        for name, value, fixed, limit in (
            ("deadline", self.start_s + self.seconds, self.start_s, workload.deadline_s),
            ("budget", self.cost_usd, self.start_usd, workload.budget_usd),
        ):
            if limit is not None:
                slowest = (value - fixed) / np.maximum(limit - fixed, 1e-9 * limit)
                odds[name] = np.asarray(1.0 - self.band.probability_at_most(1.0, slowest))
        if workload.tokens_per_s is not None:
            missed = self.band.probability_at_most(self.tokens_per_s, workload.tokens_per_s)
            odds["throughput"] = np.asarray(1.0 - missed)
        return odds

    def error_ends(self, row: int, candidate: Candidate) -> ErrorEnds:
        """Those of the throughput."""
        return ErrorEnds.of_run(candidate, self.band, float(self.start_joules[row]))

    def job(self, row: int) -> TrainJob:
        """The job of one row."""
        return TrainJob(
            model=self.search.model, recipe=self.search.recipe,
            layout=self.search.space.layout(int(self.layouts.rows[row])), cluster=self.node.cluster,
            tokens=self.workload.tokens, conditions=self.conditions,
        )  # fmt: skip

    def layout_document(self, row: int) -> dict[str, Any]:
        """The layout and recipe of a row in plain values; `candidate_job` reads it back."""
        recipe, space = self.search.recipe, self.search.space
        layout = space.layout(int(self.layouts.rows[row]))
        return {
            **{name: int(value) for name, value in zip(COLUMNS, layout.columns, strict=True)},
            "schedule": NAMES[int(layout.schedule)],
            "recompute": RECOMPUTE[int(layout.recompute)],
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
    workload: Resolved, node: NodeKind, search: LayoutSearch, layouts: TimedLayouts, facts: Facts
) -> list[TrainingOption]:
    """The layouts on a kind of node, bought in each of its ways; interruptions of spot instances make runs longer.

    What is taken back depends on the number of instances alone, so that the order of layouts on as many stays.
    """
    gpus, nbytes, device = layouts.num_gpus, search.checkpoint_bytes, node.cluster.accelerator.name
    options = []
    for priced in node.priced:
        surroundings = conditions(priced.purchase, priced.offer.provider, device, node.count, facts, search.reliability)
        seconds = layouts.run_s
        if priced.purchase == "spot":
            undisturbed = goodput_frac(gpus, nbytes, search.reliability)
            seconds = seconds * (undisturbed / goodput_frac(gpus, nbytes, surroundings.reliability))
        instances = gpus // node.count
        different, tuned = (workload.tokens or 0.0) / workload.data.epochs, workload.training.tunes
        stack = search.recipe.stack.name
        start_s = np.asarray(training_start_s(search.model, stack, different, instances, facts, pretrained=tuned))
        hourly, terms = instances * priced.usd_per_hour, facts.terms_of(priced.offer.provider, priced.offer.instance)
        options.append(
            TrainingOption(
                workload=workload, node=node, priced=priced, instances=np.asarray(instances), seconds=seconds,
                cost_usd=np.asarray(run_cost_usd(seconds, start_s, hourly, terms)), start_s=start_s,
                energy_joules=seconds * layouts.watts + start_joules(node.cluster.accelerator, gpus, start_s),
                memory_bytes=layouts.memory_bytes, tokens_per_s=search.recipe.useful_tokens / layouts.step_s,
                search=search, layouts=layouts, conditions=surroundings,
            )
        )  # fmt: skip
    return options


def reliability(workload: Resolved) -> Reliability:
    """How often a run is saved and how fast, as the workload says; the default where it says nothing."""
    if not changed_options(workload.conditions):
        return DEFAULT_RELIABILITY
    return workload.conditions.reliability(DEFAULT_RELIABILITY.gpus_per_node, workload.facts)[0]


def conditions(
    purchase: str, provider: str, accelerator: str, count: int, facts: Facts, saved: Reliability = DEFAULT_RELIABILITY
) -> Conditions:
    """The conditions of a run on instances of `count` accelerators, bought and `saved` so; default but for spot."""
    if purchase != "spot":
        return DEFAULT_CONDITIONS if saved is DEFAULT_RELIABILITY else Conditions(reliability=saved)
    record = facts.spot(provider, accelerator)
    interrupted = replace(saved, interruptions_per_s=record.interruptions_per_s, gpus_per_node=count)
    return Conditions(reliability=interrupted, origins=(("interruptions_per_s", record.text),))


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> TrainJob:
    """The job that a candidate of a plan stands for, from its `layout_document`."""
    document = chosen.layout
    allowed, _ = recipes(workload, model, facts.stack(document["stack"]), facts)
    here = [recipe_on(recipe, facts.accelerators[chosen.gpu])[0] for recipe in allowed]
    recipe = next(r for r in here if r.precision == document["precision"])
    degrees = {name: document[name] for name in COLUMNS if name in document} | {
        "recompute": RECOMPUTE.index(document["recompute"]),
        "schedule": schedule_code(document["schedule"]),
        **{f"offload_{part}": True for part in document.get("offload", ())},
    }
    job = TrainJob(
        model=model,
        recipe=replace(recipe, global_batch=document["global_batch"], seq_len=document["seq_len"]),
        layout=Layout(**degrees),
        cluster=offer_cluster(workload, facts, offer, chosen.purchase),
        tokens=workload.tokens,
        conditions=conditions(
            chosen.purchase, chosen.provider, chosen.gpu, chosen.num_gpus // chosen.num_instances, facts,
            reliability(workload),
        ),
    )  # fmt: skip
    return with_start(job, facts, epochs=workload.data.epochs, pretrained=workload.training.tunes)
