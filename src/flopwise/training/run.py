"""The whole run: steps, stragglers, the data loader, validation and interruptions, to time, money and energy."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any, Self

from flopwise.cost.energy import facility_joules, start_joules
from flopwise.cost.money import commitment_note, idle_note, num_instances, run_cost_usd, run_usd, unit_usd
from flopwise.errors import InfeasibleError
from flopwise.results import attributes, entries
from flopwise.training.goodput import Goodput, checkpoint_bytes, goodput
from flopwise.training.layer_sums import memory_table
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.stragglers import STRAGGLERS
from flopwise.units import HOUR_S, format_seconds, format_usd
from flopwise.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flopwise.cost.cluster import Cluster
    from flopwise.cost.intervals import ErrorBand
    from flopwise.training.job import Conditions, TrainJob

PASSES = ("forward", "backward", "recompute")
NOT_IN_VALIDATION = ("optimizer", "data_parallel", NEWTON_SCHULZ)
LEAST_GOODPUT = 1e-9
"""Share of the time that makes progress, below which a run never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """A run of steps; its time and energy are of the steps and what interrupts them, its cost holds the start as well.

    Money and energy are None where a price or a power limit is not known.
    """

    steps: float
    seconds: float
    gpu_hours: float
    goodput_frac: float  # time of the steps alone over all time
    start_s: float  # paid before the first step
    start_usd: float | None  # in the cost
    cost_usd: float | None
    energy_joules: float | None
    start_joules: float  # in the energy: idle devices with their hosts
    breakdown: tuple[tuple[str, float], ...]  # seconds; the lines add up to `seconds`
    checkpoint_bytes: float
    checkpoint_write_s: float
    checkpoint_interval_s: float
    mtbf_s: float  # between interruptions of the job
    interruptions: float  # expected

    @classmethod
    def of_steps(
        cls, steps: float, one: StepInRun, nbytes: float, cluster: Cluster, gpus: int, conditions: Conditions,
        watts: float | None,
    ) -> Self:  # fmt: skip
        """Time, GPU-hours, money and energy of so many steps like `one` on `gpus` devices.

        `nbytes`: of a checkpoint; `watts`: draw of one device, None: not known.

        Raises:
            InfeasibleError: interruptions leave no time for progress.
        """
        good = Goodput(*(float(value) for value in goodput(gpus, nbytes, conditions.reliability)))
        if good.frac < LEAST_GOODPUT:
            raise InfeasibleError(_no_progress(good))
        seconds = steps * one.seconds / float(good.frac)
        machines = num_instances(gpus, cluster.gpus_per_node) + conditions.reliability.spares
        start_s, cost, start_usd = conditions.start_s, None, None
        if cluster.usd_per_gpu_hour is not None:
            hourly = cluster.usd_per_gpu_hour * machines * cluster.gpus_per_node
            cost = float(run_cost_usd(seconds, start_s, hourly, conditions.terms))
            start_usd = float(run_usd(start_s, hourly))
        energy = None if watts is None else float(facility_joules(cluster.accelerator, gpus, watts, seconds))
        idle = 0.0 if energy is None else float(start_joules(cluster.accelerator, gpus, start_s))
        return cls(
            steps=steps, seconds=seconds, gpu_hours=seconds / HOUR_S * gpus,
            goodput_frac=steps * one.step_s / seconds, start_s=start_s, start_usd=start_usd,
            cost_usd=cost, energy_joules=None if energy is None else energy + idle, start_joules=idle,
            breakdown=run_lines(one, steps, good, seconds), checkpoint_bytes=nbytes,
            checkpoint_write_s=float(good.write_s), checkpoint_interval_s=float(good.interval_s),
            mtbf_s=float(good.mtbf_s), interruptions=seconds * float(good.up_frac) / float(good.mtbf_s),
        )  # fmt: skip

    @classmethod
    def of_job(cls, job: TrainJob, parts: Mapping[str, float], watts: float | None) -> Self | None:
        """The run of `job.tokens` tokens in steps whose lines are `parts`; None where no length is given.

        `watts`: draw of one device, None: not known.

        Raises:
            InfeasibleError: interruptions leave no time for progress.
        """
        if job.tokens is None:
            return None
        nbytes = checkpoint_bytes(memory_table(job.model, job.recipe))
        return cls.of_steps(
            job.tokens / job.recipe.useful_tokens, step_in_run(job, parts), nbytes, job.cluster,
            int(job.layout.num_gpus), job.conditions, watts,
        )  # fmt: skip

    def ends(self, band: ErrorBand) -> dict[str, float | None]:
        """Time, cost and energy at the ends (`_low`, `_high`) of the interval of the throughput.

        Source: arithmetic. Assumes: the start takes as long as it is estimated; what rounding adds grows alike.
        """
        ends: dict[str, float | None] = {}
        for name in ("seconds", "cost_usd", "energy_joules"):
            value = getattr(self, name)
            fixed = {"cost_usd": self.start_s / (self.start_s + self.seconds)}.get(name, 0.0)
            if name == "energy_joules" and value:
                fixed = self.start_joules / value
            for end, rate in (("low", band.high), ("high", band.low)):
                ends[f"{name}_{end}"] = None if value is None else value * (fixed + (1.0 - fixed) / rate)
        return ends

    def sentence(self, what: str, band: ErrorBand) -> str:
        """Time and cost of `what`, each with its interval, as a sentence."""
        ends, taken = self.ends(band), list[str]()
        for name, show in (("seconds", format_seconds), ("cost_usd", format_usd)):
            value, least, most = getattr(self, name), ends[f"{name}_low"], ends[f"{name}_high"]
            if value is not None and least is not None and most is not None:
                taken.append(f"{show(value)} ({show(least)} to {show(most)})")
        return f"{what} take {' and '.join(taken)}."

    def unit_usd(self, epochs: float, **amounts: float) -> dict[str, float]:
        """The cost of an hour, of each of `amounts`, of an epoch and of a step, in USD; empty without a price."""
        hours = (self.start_s + self.seconds) / HOUR_S
        return unit_usd(self.cost_usd, {"hour": hours, **amounts, "epoch": epochs, "step": self.steps})

    def bill_notes(self, cluster: Cluster, gpus: int) -> tuple[str, ...]:
        """Assumptions on what is paid for and not used: devices of whole machines, hours of a reservation."""
        if self.cost_usd is None:
            return ()
        seconds, node = self.start_s + self.seconds, cluster.gpus_per_node
        whole = commitment_note(cluster.purchase, self.cost_usd * HOUR_S / seconds, seconds)
        reserved = (f"{whole}; the cost is that of the hours of the run",) if whole else ()
        return (*idle_note(float(num_instances(gpus, node)) * node, gpus), *reserved)

    def document(self, unit_costs: Mapping[str, float], band: ErrorBand) -> dict[str, Any]:
        """The run as the JSON that scripts rely on."""
        return {
            **attributes(self, "steps seconds gpu_hours goodput_frac cost_usd energy_joules"),
            **attributes(self, "start_s start_usd start_joules"),
            "unit_usd": unit_costs,
            **self.ends(band),
            "breakdown": entries(self.breakdown, "seconds"),
            **attributes(
                self, "checkpoint_bytes checkpoint_write_s checkpoint_bytes_per_s checkpoint_interval_s mtbf_s"
            ),
            "interruptions": self.interruptions,
        }

    @property
    def checkpoint_bytes_per_s(self) -> float:
        """With which all GPUs together write a checkpoint."""
        return self.checkpoint_bytes / self.checkpoint_write_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInRun:
    """One step among the others, in s: `step_s` as estimated and what the run adds to it."""

    step_s: float
    straggler_s: float  # of it, waiting for the slowest rank
    loader_s: float  # that the loader takes for a global batch; 0: not asked
    validation_batch_s: float
    validation_s: float  # of one step, spread over the steps between validations

    @property
    def waiting_s(self) -> float:
        """Time in which all wait for the loader."""
        return max(0.0, self.loader_s - self.step_s)

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.step_s + self.waiting_s + self.validation_s


def validation_batch_s(parts: Mapping[str, float]) -> float:
    """Forward pass of one global batch: the step without optimizer and gradient messages, its forward share.

    Source: `training.step.step_parts`, whose lines `parts` are.
    Assumes: messages and bubble divide as compute does; validation batches are as large as those of training.
    """
    whole = sum(parts.values()) - sum(parts.get(name, 0.0) for name in NOT_IN_VALIDATION)
    return whole * parts["forward"] / sum(parts[name] for name in PASSES)


def step_in_run(job: TrainJob, parts: Mapping[str, float]) -> StepInRun:
    """The overhead of the run for the step whose lines are `parts`."""
    return step_in_run_of(parts, float(job.recipe.global_batch) / int(job.layout.num_gpus), job.conditions)


def step_in_run_of(parts: Mapping[str, float], samples_per_gpu: float, conditions: Conditions) -> StepInRun:
    """The overhead of a run under `conditions` for a step of so many samples on each device."""
    rate, every = conditions.loader_samples_per_s, conditions.validate_every
    forward_s = validation_batch_s(parts)
    return StepInRun(
        step_s=sum(parts.values()),
        straggler_s=parts.get(STRAGGLERS, 0.0),
        loader_s=0.0 if rate is None else samples_per_gpu / rate,
        validation_batch_s=forward_s,
        validation_s=0.0 if every is None else conditions.validate_batches * forward_s / every,
    )  # fmt: skip


def job_goodput(job: TrainJob) -> tuple[float, Goodput]:
    """(bytes of a checkpoint, goodput) of a job under its conditions."""
    nbytes = checkpoint_bytes(memory_table(job.model, job.recipe))
    columns = goodput(int(job.layout.num_gpus), nbytes, job.conditions.reliability)
    return nbytes, Goodput(*(float(value) for value in columns))


def run_lines(one: StepInRun, steps: float, good: Goodput, seconds: float) -> tuple[tuple[str, float], ...]:
    """The parts of the time of a run, in s; the lines add up to `seconds`.

    Checkpoints: those of the work that lasts. Restarts: an interruption costs one, cut short by the next with
    probability 1 - e^(-R/M). Lost work: what remains, done again after interruptions.

    Source: as `goodput`.
    """
    work, up = steps * one.seconds, seconds * float(good.up_frac)
    mtbf_s, restart_s = float(good.mtbf_s), float(good.restart_s)
    saved = work * float(good.stall_s) / float(good.interval_s)
    restarts = up * (1.0 - exp(-min(restart_s / mtbf_s, 600.0)))
    return (
        ("steps", steps * (one.step_s - one.straggler_s)),
        ("stragglers", steps * one.straggler_s),
        ("data_loader", steps * one.waiting_s),
        ("validation", steps * one.validation_s),
        ("checkpoints", saved),
        ("restarts", restarts),
        ("lost_work", max(0.0, up - work - saved - restarts)),
        ("waiting_for_nodes", seconds - up),
    )


def _no_progress(good: Goodput) -> str:
    every, restart, work, stall = (
        format_seconds(float(s)) for s in (good.mtbf_s, good.restart_s, good.interval_s, good.stall_s)
    )
    return (
        f"the run makes no progress: the job is interrupted every {every}, while a restart takes {restart} and a "
        f"checkpoint stalls it {stall} after each {work} of work"
    )
