"""Replicas that come and go: an autoscaler against a fixed number, many small replicas against few large ones."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.spec import ModelName
from flopwise.facts.storage import Storage
from flopwise.pictures import Picture, PointPicture
from flopwise.results import Result, attributes
from flopwise.serving.job import ServeJob
from flopwise.serving.sim.answer import SimulateAnswer, fewest_replicas, has_objective, replica_size, simulation_answer
from flopwise.serving.sim.autoscale import AutoscaledRun, Autoscaling
from flopwise.serving.sim.request import ResponseCache, SimulationRequest, simulation_request
from flopwise.serving.sim.result import RunSummary, Slo
from flopwise.serving.sim.trace import PS
from flopwise.serving.spec import ServingSpec
from flopwise.serving.startup import DEFAULT_STORAGE, cold_start
from flopwise.units import HOUR_S, format_cost, format_items, format_number, format_seconds
from flopwise.values import dataclass, replace

BY_REPLICA = frozenset({"queue", "concurrency"})
"""Measures whose target is a number of requests for each replica: a replica of twice the accelerators has twice."""
FIXED_PEAK = "fixed, for the peak"
RATE_BINS = 100
"""Steps of the curve of requests a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """One way of having replicas for the same traffic."""

    name: str
    replicas: float  # on average
    most: int
    summary: RunSummary
    replica_hours: float  # paid
    cost_usd: float | None

    def document(self) -> dict[str, Any]:
        """A row of the JSON of `flopwise simulate`."""
        return attributes(
            self,
            "name mean_replicas=replicas most_replicas=most summary.goodput_frac summary.ttft_s summary.tpot_s "
            "replica_hours cost_usd",
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AutoscaleAnswer(Result):
    """A run with an autoscaler, beside fixed numbers of replicas."""

    answer: SimulateAnswer
    elastic: AutoscaledRun
    provisions: tuple[Provision, ...]  # the autoscaler first
    attain: float | None  # share of good requests that the fixed peak had to hold; None without an objective
    unreached: str | None  # why there is no fixed peak
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        request: SimulationRequest,
        rule: Autoscaling,
        slo: Slo,
        *,
        attain: float | None = None,
        compare: bool = True,
        cache: ResponseCache | None = None,
        on_compile: Callable[[], None] | None = None,
        report: Callable[[float, float], None] | None = None,
    ) -> AutoscaleAnswer:
        """The run of an autoscaler, beside fixed replicas where `compare`, and beside the same without the cache.

        Raises:
            SpecError: a share out of range or without an objective, traffic that follows its answers, a prompt pool.
        """
        if attain is not None and not 0 < attain <= 1:
            raise SpecError(f"attainment {attain:g} is out of range; allowed: above 0, up to 1")
        if attain is not None and not has_objective(slo):
            raise SpecError(
                "--attain is the share of requests that meet --ttft, --tpot or --latency: give one of these"
            )
        _check(request)
        if rule.cold_start_s is None:
            rule = replace(
                rule, cold_start_s=replica_start_s(request.job, request.facts.storage(DEFAULT_STORAGE), request.facts)
            )
        request = request.with_cache(cache)
        run = request.run_elastic(rule, on_compile, report)
        rows = [_elastic_row("autoscaler", request, run, slo)]
        target = unreached = None
        if compare:
            if has_objective(slo):
                target = rows[0].summary.goodput_frac if attain is None else attain
            peak, unreached = _peak(request, slo, target, run.most)
            if peak is not None:
                rows.append(_fixed_row(FIXED_PEAK, request, slo, peak))
            rows.append(_fixed_row("fixed, as many on average", request, slo, max(round(run.mean), 1)))
        if cache is not None:
            bare = request.without_cache
            rows.append(_elastic_row("autoscaler without cache", bare, bare.run_elastic(rule), slo))
        answer = simulation_answer(request, run.simulated, replicas=run.most, slo=slo, hours=run.paid_s / HOUR_S)
        count = f"{format_number(run.mean)} on average, {run.most:,} at most"
        replicas = ("replicas", f"{count}, {replica_size(request, run.most)}")
        cold = format_seconds(rule.starts_in_s)
        text = (
            f"{rule.measure} at {rule.wanted_at:g}; {rule.least} to {rule.most} replicas"
            f"{', the fewest by the hour' if rule.by_hour else ''}; every "
            f"{format_seconds(rule.tick_s)}; cold start {cold}, cool-down {format_seconds(rule.cool_down_s)}"
        )
        answer = replace(answer, settings=(replicas, ("autoscaler", text), *answer.settings[1:]))
        notes = (
            f"a machine is billed from when it is requested, {cold} before it serves, until it has drained",
            "machines are always available; a draining replica counts towards the maximum",
        )
        return AutoscaleAnswer(
            answer=answer, elastic=run, provisions=tuple(rows), attain=target, unreached=unreached, notes=notes
        )

    @property
    def verdict(self) -> str:
        """The answer in a sentence: the replicas and their price, what users see, and what the fixed peak costs."""
        mine, peak = self.provisions[0], next((p for p in self.provisions if p.name == FIXED_PEAK), None)
        price = format_cost(mine.cost_usd)
        mean = format_number(mine.replicas)
        count = f"{mean} replica{'s' * (mean != '1')} on average"
        replicas = f"{count}, {mine.most:,} at most{f', for {price}' if price else ''}"
        against = ""
        if peak is not None:
            most, least = map(format_number, (peak.replica_hours, mine.replica_hours))
            hours = f"take {most} replica-hours instead of {least}"
            bill = f"cost {format_cost(peak.cost_usd)}" if peak.cost_usd is not None else hours
            against = f" {format_items(peak.most, 'fixed replica')} would {bill}."
        return f"{replicas}: {self.answer.verdict}{against}"

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The settings of the answer."""
        return self.answer.settings

    @property
    def arrivals(self) -> tuple[list[float], list[float]]:
        """(seconds, requests a second around then) of the traffic."""
        come = self.answer.simulated.trace.arrival_ps / PS
        counts, edges = np.histogram(come, bins=min(RATE_BINS, max(len(come) // 5, 1)), range=(0, max(come[-1], 1e-9)))
        width = edges[1] - edges[0]
        return (edges[:-1] + width / 2).tolist(), (counts / width).tolist()

    def document(self) -> dict[str, Any]:
        """The run as the JSON of `flopwise simulate`, and what belongs to the autoscaler."""
        run = self.elastic
        times, rates = self.arrivals
        return self.answer.document() | {
            "autoscale": {
                "rule": attributes(run.rule, " ".join(run.rule.__slots__)) | {"target": run.rule.wanted_at},
                **attributes(run, "mean_replicas=mean most_replicas=most cold_starts=starts"),
                "starting_hours": run.starting_s / HOUR_S,
                **attributes(self, "attain unreached"),
                "provisions": [p.document() for p in self.provisions],
                "timeline": run.line,
                "arrivals": {"time_s": times, "requests_per_s": rates},
            },
            "assumptions": [*self.answer.assumptions, *self.notes],
        }

    def picture(self) -> Picture:
        """Replicas that serve, and those that start as well, over time."""
        line = self.elastic.line
        hours = (line.time_s / HOUR_S).tolist()
        series = {
            "ready": list(zip(hours, line.ready.tolist(), strict=True)),
            "ready or starting": list(zip(hours, (line.ready + line.starting).tolist(), strict=True)),
        }
        return PointPicture(title=self.verdict, x="hours", y="replicas", series=series, lines=tuple(series), dots=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The same accelerators as replicas of one size; `provision` None: `why` not."""

    tp: int
    most: int  # replicas, at most
    provision: Provision | None
    why: str = ""


def replica_start_s(job: ServeJob, drive: Storage, facts: Facts) -> float:
    """From the wish for a replica to its first request: a machine is found and booted, then the engine starts.

    Source: data/run_start.csv, `flopwise.serving.startup.cold_start`, weights read from `drive`.
    Assumes: the image is on the machine.
    """
    return facts.start_s("machine") + cold_start(job, drive).seconds


def replica_sizes(
    model: ModelName, *, replicas: int = 1, rule: Autoscaling | None = None, slo: Slo | None = None,
    on_compile: Callable[[], None] | None = None, **options: Any,
) -> tuple[Size, ...]:  # fmt: skip
    """Many small replicas against few large ones: the accelerators of `replicas` (or of a rule's most) at every tp.

    Every degree that divides them, in powers of two; an autoscaler's bounds and targets for each replica are scaled
    with its size. `options` are those of `simulation_request`. A tp that does not fit is a size with a reason, except
    the one that is asked for.

    Raises: SpecError: less than one replica, or as `simulation_request` and `AutoscaleAnswer.of`.
    """
    whole = next((value for value in options.values() if isinstance(value, ServingSpec)), ServingSpec())
    tp = options.get("tp") or whole.tp
    total = (replicas if rule is None else rule.most) * tp
    if replicas < 1:
        raise SpecError(f"{replicas} replicas; allowed: from 1")
    sizes = []
    for size in (2**power for power in range(total.bit_length())):
        if total % size:
            continue
        try:
            request = simulation_request(model, **options | {"tp": size})
        except (InfeasibleError, SpecError) as error:
            if size == tp:
                raise
            sizes.append(Size(tp=size, most=total // size, provision=None, why=str(error)))
            continue
        name = f"tp {size}"
        if rule is None:
            row = _fixed_row(name, request, slo or Slo(), total // size, on_compile)
        else:
            _check(request)
            run = request.run_elastic(scaled_rule(rule, size / tp), on_compile)
            row = _elastic_row(name, request, run, slo or Slo())
        sizes.append(Size(tp=size, most=total // size, provision=row))
    return tuple(sizes)


def scaled_rule(rule: Autoscaling, factor: float) -> Autoscaling:
    """The rule for replicas of `factor` times the accelerators."""
    target = rule.wanted_at * factor if rule.measure in BY_REPLICA else rule.target
    most, by_hour = max(int(rule.most / factor), 1), tuple(ceil(count / factor) for count in rule.by_hour)
    return replace(rule, least=ceil(rule.least / factor), most=most, target=target, by_hour=by_hour)


def _check(request: SimulationRequest) -> None:
    if request.traffic.users is not None or request.trace.follows:
        raise SpecError(
            "an autoscaler needs arrivals that do not depend on answers: --trace or --rate, not --users or --turns"
        )
    if request.scheduling.prefill_replicas or request.scheduling.prefill_gpus:
        raise SpecError("an autoscaler has one pool of replicas; leave --prefill-replicas and --prefill-gpus out")


def _peak(request: SimulationRequest, slo: Slo, target: float | None, most: int) -> tuple[int | None, str | None]:
    """Fixed replicas for the peak, or why there are none."""
    if target is None:
        return most, None
    if target == 0:
        return None, "no request meets its targets under the autoscaler, so that there is no attainment to compare"
    peak = fewest_replicas(request, slo, target, most)
    return peak, None if peak else f"no number of replicas answers {100 * target:.4g} % of the requests in time"


def _elastic_row(name: str, request: SimulationRequest, run: AutoscaledRun, slo: Slo) -> Provision:
    return _provision(name, request, run.mean, run.most, run.simulated.summary(slo), run.paid_s / HOUR_S)


def _fixed_row(
    name: str, request: SimulationRequest, slo: Slo, count: int, on_compile: Callable[[], None] | None = None
) -> Provision:
    """A fixed number, paid until the last answer, or the last arrival if that is later."""
    run = request.run_fixed(count, on_compile)
    return _provision(name, request, float(count), count, run.summary(slo), count * run.paid_s / HOUR_S)


def _provision(
    name: str, request: SimulationRequest, mean: float, most: int, summary: RunSummary, hours: float
) -> Provision:
    each = request.usd_per_replica_hour(most)
    return Provision(
        name=name, replicas=mean, most=most, summary=summary, replica_hours=hours,
        cost_usd=None if each is None else hours * (each + sum(store.usd(HOUR_S) for store in request.stores)),
    )  # fmt: skip
