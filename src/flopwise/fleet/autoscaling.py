"""Services that follow their traffic: levels of load, what they save, and a day of it through the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import ScaledService
from flopwise.fleet.bill import BOUGHT
from flopwise.fleet.model import ChosenWorkload, MonthlyOption, ResolvedJob
from flopwise.ops.types import Array
from flopwise.search.replica import candidate_job
from flopwise.search.service_machines import replica_machines
from flopwise.search.serving_option import LATENCIES, latency_targets
from flopwise.search.workload import Resolved
from flopwise.serving.sim.autoscale import MOST_REPLICAS, AutoscaledRun, Autoscaling, elastic
from flopwise.serving.sim.engine import replica
from flopwise.serving.sim.lengths import Lengths
from flopwise.serving.sim.profiles import HOURS_PER_DAY, HOURS_PER_WEEK
from flopwise.serving.sim.result import Slo
from flopwise.serving.sim.trace import PS, RequestTrace, trace
from flopwise.units import HOUR_S, format_usd
from flopwise.values import dataclass, replace

MOST_REQUESTS = 2_000_000
"""Requests of a day that is simulated; of more, as many hours around the steepest rise as have no more."""
CHECKED = 20
"""Services, the dearest, of which a day is simulated."""
FEW = 200
"""Requests of an hour below which its percentiles say little."""
MORE = 0.05
"""Machine-hours of the simulated day beyond those planned that are worth a word."""
PERCENT = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def _rule(job: ResolvedJob, **more: Any) -> Autoscaling:
    """The simulator's autoscaler as the workload has it."""
    how = job.spec.autoscale
    given = {"target": how.target, "least": how.min_replicas, "cool_down_s": how.cool_down, "tick_s": how.tick}
    return Autoscaling(measure=how.policy, **{k: v for k, v in given.items() if v is not None} | more)


def scaling(chosen: Sequence[ChosenWorkload], facts: Facts) -> list[ScaledService]:
    """Each service that follows its traffic: machines by the hour, what that saves, and a simulated day."""
    mine = [c for c in chosen if c.job.levels is not None]
    dearest = {id(c) for c in sorted(mine, key=lambda c: -sum(t.usd for t in c.parts))[:CHECKED]}
    return [_scaled_service(c, facts, simulate=id(c) in dearest) for c in mine]


def _scaled_service(chosen: ChosenWorkload, facts: Facts, *, simulate: bool) -> ScaledService:
    job, workload, levels = chosen.job, chosen.planned.workload, chosen.job.levels
    assert levels is not None
    assert workload is not None
    base = sum(t.count for t in chosen.parts if not t.by_level)
    scaled = [t for t in chosen.parts if t.by_level]
    by_level = [base + sum(t.by_level[n] for t in scaled) for n in range(len(levels.shares))]
    by_hour = [0 if level is None else by_level[level] for level in levels.by_hour]
    usd = sum(t.usd for t in chosen.parts)
    fixed = min(chosen.planned.options, key=lambda o: fixed_usd(o, job))
    day = simulated_day(chosen, facts) if simulate else None
    simulated = None if day is None else day.plain()
    return ScaledService(
        workload=job.name, policy=job.spec.autoscale.policy, peak_requests_per_s=workload.requests_per_s or 0.0,
        mean_requests_per_s=(workload.requests_per_s or 0.0) / workload.peak, machines_peak=max(by_hour),
        machines_mean=base + sum(levels.paid_hours(t.by_level) for t in scaled) / job.hours_per_month,
        machines_always=base, machines_by_hour=by_hour, cold_start_s=levels.cold_start_s, usd_per_month=usd,
        usd_fixed=fixed_usd(fixed, job), fixed=f"{fixed} {BOUGHT[fixed.purchase]}",
        saved_usd=fixed_usd(fixed, job) - usd,
        simulated=simulated, note=_day_note(simulated, job.spec.autoscale.policy, sum(t.usd for t in scaled)),
    )  # fmt: skip


def _day_note(day: dict[str, Any] | None, policy: str, usd: float) -> str:
    """Note on the simulated day compared with the bill; `usd`: a month of machines billed by the hour."""
    if day is None:
        return "no day of it was simulated"
    missed = [name for name, target in day["targets"].items() if not target["held"]]
    text = f"in the worst hour it misses {', '.join(missed)}: give autoscale.headroom" if missed else ""
    more = day["machine_hours"] / day["planned_machine_hours"] - 1
    if more > MORE and usd:
        text += f"{'; ' if text else ''}the policy {policy} keeps machines {100 * more:.0f} % longer than planned, "
        text += f"up to {format_usd(usd * more, 0)} a month more: choose another autoscale.policy or target"
    return text


def fixed_usd(option: MonthlyOption, job: ResolvedJob) -> float:
    """USD a month of an option that stays on for all hours of the service."""
    return option.usd * (job.hours_per_month / option.busy_hours if option.is_scaled else 1.0)


# A day through the simulator: the autoscaler's policy on top of the machines of each hour


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDay:
    """The latencies of a stretch of the week from `first_hour` on, and the machines used."""

    run: AutoscaledRun
    workload: Resolved
    first_hour: int
    hours: int
    planned: float  # machine-hours of the stretch by the plan
    unit: int  # machines of one deployment

    def plain(self) -> dict[str, Any]:
        """As plain data; latencies over all requests and in the worst hour of at least `FEW`."""
        simulated, targets = self.run.simulated, dict[str, Any]()
        limits = {LATENCIES[n]: t.seconds for n, t in latency_targets(self.workload).items() if t is not None}
        hour = np.floor(simulated.outcome.arrival_ps / PS / HOUR_S).astype(int)
        for name, target in latency_targets(self.workload).items():
            if target is None:
                continue
            seconds = getattr(simulated, LATENCIES[name])
            each = [seconds[hour == h] for h in range(self.hours)]
            worst = [_percentile(part, target.percentile) if len(part) >= FEW else 0.0 for part in each]
            late = int(np.argmax(worst))
            targets[name] = {
                "percentile": target.percentile, "target_s": target.seconds,
                "value_s": _percentile(seconds, target.percentile), "worst_hour_s": worst[late],
                "worst_hour": (self.first_hour + late) % HOURS_PER_WEEK, "held": max(worst) <= target.seconds,
            }  # fmt: skip
        return {
            "first_hour": self.first_hour, "hours": self.hours, "requests": len(simulated.trace),
            "answered_in_time_frac": float(simulated.good(Slo(**limits)).mean()), "targets": targets,
            "machine_hours": self.run.paid_s / HOUR_S * self.unit, "planned_machine_hours": self.planned,
            "cold_starts": self.run.starts,
        }  # fmt: skip


def _percentile(seconds: Array, name: str) -> float:
    answered = seconds[~np.isnan(seconds)]
    if not answered.size:
        return float("inf")
    return float(answered.mean() if name == "mean" else np.percentile(answered, PERCENT[name]))


def simulated_day(chosen: ChosenWorkload, facts: Facts) -> SimulatedDay | None:
    """The busiest day of a service on the machines that carry most of it; None where the simulator cannot run it.

    Assumes: all machines are of that kind, with as many of it at each level as would carry the service alone.
    """
    workload, option, levels = chosen.planned.workload, chosen.option, chosen.job.levels
    if workload is None or levels is None or workload.requests_per_s is None or not option.gpus_each:
        return None
    first, hours = _stretch(workload)
    if not hours:
        return None
    unit, layout = option.unit, option.candidate.layout
    machines, inside = levels.machines(option.instances, unit), max(1, layout.get("replicas", 1) // option.instances)
    by_hour = [levels.by_hour[(first + h) % HOURS_PER_WEEK] for h in range(HOURS_PER_DAY)]
    day = [0 if level is None else machines[level] for level in by_hour]  # from the stretch's first hour on
    counts, most = day[:hours], option.instances // unit
    if max(counts) == 0 or most > MOST_REPLICAS or replica_machines(option.candidate) != unit:
        return None
    try:
        served = candidate_job(workload, facts.model(workload.model), facts, option.offer, option.candidate)
        requests = _requests(workload, first, hours, decodes=served.decodes)
        one = replica(served, max_tokens=max(int((requests.prompt + requests.output).max()), served.context))
        counted = tuple(count // unit for count in day)
        rule = _rule(chosen.job, most=most, cold_start_s=levels.cold_start_s, by_hour=counted)
        if rule.measure == "concurrency" and rule.target is None:  # machines are added where batches are full
            rule = replace(rule, target=float(served.concurrency or 1) * inside)
        run = elastic(requests, one.cost, one.limits, rule, schedulers=one.schedulers * inside, samples=1)
    except FlopwiseError:
        return None
    return SimulatedDay(
        run=run, workload=workload, first_hour=first, hours=hours, planned=float(sum(counts)), unit=unit
    )


def _stretch(workload: Resolved) -> tuple[int, int]:
    """(first hour of the week, hours): the busiest day, or as much around its steepest rise as can be simulated."""
    rates = np.array(workload.profile)
    scale = (workload.requests_per_s or 0.0) / workload.peak * HOUR_S
    days = rates.reshape(-1, HOURS_PER_DAY)
    day = int(days.sum(axis=1).argmax())
    if days[day].sum() * scale <= MOST_REQUESTS:
        return day * HOURS_PER_DAY, HOURS_PER_DAY
    first = max(0, int(np.diff(days[day]).argmax()) - 1)
    within = np.cumsum(days[day][first:]) * scale <= MOST_REQUESTS
    return day * HOURS_PER_DAY + first, int(within.sum()) if within.sum() > 1 else 0


def _requests(workload: Resolved, first: int, hours: int, *, decodes: bool) -> RequestTrace:
    """Poisson arrivals at the profile's rate, a straight line between the hours; one answer if nothing is decoded.

    Source: the inverse of the integrated rate, as `flopwise.serving.sim.traffic.varying`.
    """
    rng = np.random.default_rng(0)
    rates = np.array([workload.profile[(first + h) % HOURS_PER_WEEK] for h in range(hours + 1)])
    mean = (workload.requests_per_s or 0.0) / workload.peak * HOUR_S
    area = np.concatenate([[0.0], np.cumsum((rates[:-1] + rates[1:]) / 2)]) * mean
    count = max(1, int(rng.poisson(area[-1])))
    at = np.interp(np.sort(rng.random(count)) * area[-1], area, np.arange(hours + 1) * HOUR_S)
    lengths = (workload.inputs or workload.input_tokens, (workload.outputs or workload.output_tokens) if decodes else 1)
    prompts, outputs = (Lengths.parse(str(length)).draw(count, rng) for length in lengths)
    return trace(at, prompts, outputs)
