"""Training runs on a kind of node bought one way: cost, time, energy and odds of every layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from flopwise.cost.energy import start_joules
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.money import run_cost_usd
from flopwise.facts.catalog import Facts
from flopwise.search.answer import Candidate
from flopwise.search.layout_search import LayoutSearch, TimedLayouts
from flopwise.search.nodes import NodeKind
from flopwise.search.rank import ByTarget, ErrorEnds, Floats, PlanOption
from flopwise.search.run_job import conditions
from flopwise.search.workload import Resolved
from flopwise.training.estimate import training_band
from flopwise.training.goodput import goodput_frac
from flopwise.training.job import Conditions, TrainJob
from flopwise.training.layout import COLUMNS, RECOMPUTE
from flopwise.training.memory import memory_band
from flopwise.training.schedules import NAMES
from flopwise.training.start import training_start_s


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
        """The layout and recipe of a row in plain values; `run_job.candidate_job` reads it back."""
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
