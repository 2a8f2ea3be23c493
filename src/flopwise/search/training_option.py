"""Training runs on a kind of node bought one way: cost, time, energy and odds of every layout, and the job of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.cost.intervals import ErrorBand
from flopwise.facts.reliability import spot_record
from flopwise.options import said
from flopwise.search.defaults import recipes
from flopwise.search.nodes import offer_cluster
from flopwise.search.rank import Floats, Index, Odds, Option
from flopwise.search.training import Searched, Timed
from flopwise.training.estimate import TrainJob
from flopwise.training.goodput import DEFAULT_RELIABILITY, Reliability, goodput_frac
from flopwise.training.layout import COLUMNS, RECOMPUTE, Layout
from flopwise.training.memory import memory_band
from flopwise.training.run import DEFAULT_CONDITIONS, Conditions
from flopwise.training.schedules import NAMES, schedule_code

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.answer import Candidate
    from flopwise.search.workload import Resolved


@dataclass(frozen=True, kw_only=True)
class TrainingOption(Option):
    """The fastest layouts of a recipe for each number of GPUs."""

    search: Searched
    layouts: Timed
    band: ErrorBand
    conditions: Conditions

    @cached_property
    def instances(self) -> Floats:
        """Instances of each row."""
        return np.asarray(self.layouts.num_gpus // self.node.count)

    @cached_property
    def seconds(self) -> Floats:
        """Run time of each row; interruptions of spot instances make it longer.

        What is taken back depends on the number of instances alone, so that the order of layouts on as many stays.
        """
        if self.priced.purchase != "spot":
            return self.layouts.run_s
        gpus, nbytes = self.layouts.num_gpus, self.search.checkpoint_bytes
        undisturbed = goodput_frac(gpus, nbytes, self.search.reliability)
        longer: Floats = self.layouts.run_s * (undisturbed / goodput_frac(gpus, nbytes, self.conditions.reliability))
        return longer

    @cached_property
    def cost_usd(self) -> Floats:
        """Cost of each row's run."""
        cost: Floats = self.seconds / 3600 * self.usd_per_hour
        return cost

    @cached_property
    def energy_joules(self) -> Floats:
        """Energy of each row's run at the meter; infinite where the device's power limit is not known."""
        energy: Floats = self.seconds * self.layouts.watts
        return energy

    @property
    def memory_bytes(self) -> Floats:
        """Memory of each row's fullest device."""
        return self.layouts.memory_bytes

    @property
    def tokens_per_s(self) -> Floats:
        """Useful tokens of each row a second."""
        rate: Floats = self.search.recipe.useful_tokens / self.layouts.step_s
        return rate

    @property
    def objectives(self) -> tuple[Floats, Floats, Floats, Floats]:
        """What the front weighs: cost, time, devices and energy (the largest number where it is not known)."""
        known = np.minimum(self.energy_joules, np.finfo(float).max)
        return self.cost_usd, self.seconds, self.num_gpus.astype(float), known

    def odds(self, workload: Resolved | None = None) -> Odds:
        """Probability that each target is met.

        The band is of throughput, measured / predicted: time at most t means throughput at least predicted time / t.
        """
        workload = workload or self.workload
        band, capacity = memory_band(self.search.recipe), float(self.node.cluster.accelerator.hbm_bytes)
        odds: Odds = {"memory": np.asarray(band.probability_at_most(self.memory_bytes, capacity))}
        for name, value, limit in (
            ("deadline", self.seconds, workload.deadline_s),
            ("budget", self.cost_usd, workload.budget_usd),
        ):
            if limit is not None:
                odds[name] = np.asarray(1.0 - self.band.probability_at_most(1.0, value / limit))
        if workload.tokens_per_s is not None:
            missed = self.band.probability_at_most(self.tokens_per_s, workload.tokens_per_s)
            odds["throughput"] = np.asarray(1.0 - missed)
        return odds

    def best_row(self, rows: Index) -> int:
        """Of `rows` the best under the objective; ties go to the faster, then to fewer GPUs."""
        keys = (self.num_gpus[rows], self.seconds[rows], self.score[rows])
        return int(rows[np.lexsort(keys)[0]])

    def job(self, row: int) -> TrainJob:
        """The job of one row."""
        return TrainJob(
            model=self.search.model,
            recipe=self.search.recipe,
            layout=self.search.space.layout(int(self.layouts.rows[row])),
            cluster=self.node.cluster,
            tokens=self.workload.tokens,
            conditions=self.conditions,
        )

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
            "stack": recipe.stack,
            "optimizer": recipe.optimizer,
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


def reliability(workload: Resolved) -> Reliability:
    """How often a run is saved and how fast, as the workload says; the default where it says nothing."""
    if not said(workload.conditions):
        return DEFAULT_RELIABILITY
    return workload.conditions.reliability(DEFAULT_RELIABILITY.gpus_per_node)[0]


def conditions(
    purchase: str,
    provider: str,
    accelerator: str,
    count: int,
    folder: Path | None = None,
    saved: Reliability = DEFAULT_RELIABILITY,
) -> Conditions:
    """The conditions of a run on instances of `count` accelerators, bought and `saved` so; default but for spot."""
    if purchase != "spot":
        return DEFAULT_CONDITIONS if saved is DEFAULT_RELIABILITY else Conditions(reliability=saved)
    record = spot_record(provider, accelerator, folder)
    interrupted = replace(saved, interruptions_per_s=record.interruptions_per_s, gpus_per_node=count)
    return Conditions(reliability=interrupted, origins=(("interruptions_per_s", record.text),))


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> TrainJob:
    """The job that a candidate of a plan stands for, from its `layout_document`."""
    document = chosen.layout
    allowed, _ = recipes(workload, model, document["stack"])
    recipe = next(r for r in allowed if r.precision == document["precision"])
    degrees = {name: document[name] for name in COLUMNS if name in document} | {
        "recompute": RECOMPUTE.index(document["recompute"]),
        "schedule": schedule_code(document["schedule"]),
        **{f"offload_{part}": True for part in document.get("offload", ())},
    }
    return TrainJob(
        model=model,
        recipe=replace(recipe, global_batch=document["global_batch"], seq_len=document["seq_len"]),
        layout=Layout(**degrees),
        cluster=offer_cluster(workload, facts, offer, chosen.purchase),
        tokens=workload.tokens,
        conditions=conditions(
            chosen.purchase,
            chosen.provider,
            chosen.gpu,
            chosen.num_gpus // chosen.num_instances,
            facts.folder,
            reliability(workload),
        ),
    )
