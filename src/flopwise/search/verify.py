"""The best plans through the simulator before they are ranked; replicas are added where it says that they miss."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.models.positions import longest as longest_sequence
from flopwise.facts.models.positions import usual_length
from flopwise.ops.types import Array
from flopwise.search.answer import TARGET_NAMES, Candidate, PlanDraft, SimulatedFigures, SimulatedSessions
from flopwise.search.deployments import Deployments, deployments, latency_percentiles
from flopwise.search.rank import Pick
from flopwise.search.replica import DEGREES
from flopwise.search.serving_option import LATENCIES, ServingOption, latency_targets
from flopwise.search.workload import Resolved, WorkloadTraffic, busiest
from flopwise.serving.estimate import RunMeans
from flopwise.serving.job import ServeJob
from flopwise.serving.sim.autoscale import fewest
from flopwise.serving.sim.engine import ENDLESS, Replica, loaded_cost, replica
from flopwise.serving.sim.finite import ArrivalRun, SessionRun, arrivals_of, closed_loop_run, finite_run
from flopwise.serving.sim.request import length_spread, transfer
from flopwise.serving.sim.result import ClassFigures, SimulatedRun
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.trace import CHAINED_SUFFIX, PS, RequestTrace, read_chained_trace, read_trace_columns, trace
from flopwise.serving.sim.traffic import draw_requests
from flopwise.serving.spec import mean_tokens
from flopwise.units import format_chance, format_seconds
from flopwise.values import dataclass, replace

MOST_REPLICAS = 8
"""Replicas that are run side by side; of more, so many stand for all, with their share of the traffic."""
PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
SEED = 0
FEWEST, MOST = 2000, 12000
"""Requests that percentiles are taken of, the more the busier replicas are."""
LIFETIMES = 15
"""Requests that are measured, in those that are in flight at once."""
LONGEST_LIFETIME_S = 600.0
"""Of a request, for the number of requests that come before those that are measured."""


class Requests(NamedTuple):
    """A trace, and of which of its requests percentiles are taken: not of those that find replicas still empty."""

    trace: RequestTrace
    first: int
    last: int


def drawn_requests(
    flow: WorkloadTraffic, model: Model, *, rate: float, lifetime_s: float, busy: float = 0.0, seed: int = SEED
) -> Requests:
    """Requests to `model` at `rate` a second, each of which is answered within about `lifetime_s`.

    `busy`: share of what the replicas sustain.

    Raises: SpecError: a trace file that cannot be read any more.
    """
    if flow.trace is not None:
        stretch = _busiest_stretch(flow.trace, flow, rate, seed)
        warm = int(np.searchsorted(stretch.arrival_ps, lifetime_s * PS))
        return Requests(stretch, warm if warm < len(stretch) // 2 else 0, len(stretch))
    warm = max(int(rate * lifetime_s * 1.5), 1)
    count = int(np.clip(LIFETIMES * rate * lifetime_s, arrivals_of(busy, FEWEST, MOST), MOST))
    source = Traffic(
        rate=rate, requests=warm + count + warm // 2, arrivals=flow.arrivals, burstiness=flow.burstiness,
        **_lengths(flow), priorities=flow.priorities or None, seed=seed,
    )  # fmt: skip
    requests = draw_requests(source, length_spread(model, source))
    return Requests(requests, warm, min(warm + count, len(requests)))


def batch_traffic(flow: WorkloadTraffic, count: int, seed: int = SEED) -> Traffic:
    """So many requests of a batch job, all there at the start; their lengths from a trace where one is given."""
    lengths = _lengths(flow) if flow.trace is None else {"lengths_from": Path(flow.trace)}
    classes = flow.priorities or None
    return Traffic(users=count, requests=count, **lengths, priorities=classes, seed=seed)


def _lengths(flow: WorkloadTraffic) -> dict[str, Any]:
    return {"input_tokens": flow.inputs or flow.input_tokens, "output_tokens": flow.outputs or flow.output_tokens}


def _busiest_stretch(path: str, flow: WorkloadTraffic, rate: float, seed: int) -> RequestTrace:
    """The busiest stretch of a trace at its own times, so many of its requests (at random) that they come at `rate`."""
    columns = read_trace_columns(Path(path))
    first, last = busiest(columns["arrival_s"])
    columns = {name: column[first:last] for name, column in columns.items() if name != "deadline_s"}
    assert flow.requests_per_s is not None
    measured_s = columns["arrival_s"] - columns["arrival_s"][0]
    columns["arrival_s"] = measured_s * ((last - first - 1) / float(measured_s[-1]) / flow.requests_per_s)
    whole = trace(**columns)
    if Path(path).suffix == CHAINED_SUFFIX:
        whole = read_chained_trace(Path(path)).take(np.arange(first, last)).arriving(whole.arrival_ps)
    share = min(rate / flow.requests_per_s, 1.0)
    if share < 1.0:
        kept = np.flatnonzero(np.random.default_rng(seed).random(len(whole)) < share)
        whole = whole.take(kept) if kept.size > 1 else whole
    return whole


def machine_key(option: ServingOption, row: int) -> Hashable:
    """The key of a replica's speed; offers with the same key are simulated once."""
    job, fabric, chip = option.job(row), option.node.cluster.fabric, option.node.cluster.accelerator
    inside = option.gpus_each(row) <= option.node.count
    degrees = (int(getattr(job.layout, name)) for name in DEGREES)
    return (
        chip.name, chip.hbm_bytes, chip.hbm_bytes_per_s, fabric.levels[:-1] if inside else fabric.levels,
        job.weights.name, job.kv_dtype.name, job.max_batch, *degrees,
    )  # fmt: skip


def _run_key(option: ServingOption, row: int) -> Hashable:
    return machine_key(option, row), float(option.deployments.replicas[row])


@dataclass(slots=True)
class Simulator:
    """Runs deployments of one workload, each once."""

    workload: Resolved
    seed: int = SEED
    on_compile: Callable[[], None] | None = None  # called where the simulator must be compiled first
    runs: int = 0
    estimates: dict[Hashable, Deployments] = field(default_factory=dict)  # of more replicas than the traffic takes
    means: dict[Hashable, RunMeans] = field(default_factory=dict)  # over all requests of batch jobs
    _figures: dict[Hashable, SimulatedFigures] = field(default_factory=dict)
    _replicas: dict[Hashable, Replica] = field(default_factory=dict)
    _requests: dict[Hashable, Requests] = field(default_factory=dict)

    def run(self, option: ServingOption, row: int) -> SimulatedFigures:
        """Percentiles of latencies, as the workload's users see them, of one row of an option.

        Raises:
            InfeasibleError: no room for a sequence; SpecError, MissingFactError: the simulator cannot run this model.
        """
        key = _run_key(option, row)
        if key not in self._figures:
            run = self._run_batch if self.workload.task == "batch" else self._run_service
            if self.workload.sessions:
                run = self._run_sessions
            elif self.workload.requests_per_s is None and self.workload.task != "batch":
                run = self._run_users
            elif not option.decodes and self.workload.is_poisson:
                run = self._run_one_pass
            self._figures[key] = run(option, row)
            self.runs += 1
        return self._figures[key]

    def _replica(self, option: ServingOption, row: int, requests: RequestTrace) -> Replica:
        mean = self.workload.input_tokens + self.workload.output_tokens
        made = usual_length(option.model)
        window = made if made is None or mean <= made else longest_sequence(option.model)
        longest = int((requests.prompt + requests.output).max())
        longest = longest if window is None else min(longest, window)
        key = (machine_key(option, row), longest)
        if key not in self._replicas:
            built = replica(option.job(row), context=mean, max_tokens=max(longest, mean))
            prefixes = bool((requests.prefix >= 0).any())
            limits = replace(
                built.limits, max_tokens=window or ENDLESS, prefix_cache=prefixes, preempt=self.workload.queue.preempt
            )
            self._replicas[key] = replace(built, limits=limits)
        return self._replicas[key]

    def _run(
        self, option: ServingOption, row: int, requests: RequestTrace, *, replicas: int, rate: float
    ) -> SimulatedRun:
        one, job = self._replica(option, row, requests), option.job(row)
        loaded = replace(job, concurrency=None, arrivals_per_s=rate / replicas)
        pool = _pool_of(job, replicas, one)
        cost = one.cost if pool else loaded_cost(one.cost, loaded)
        return simulate(
            requests, cost, one.limits, replicas=replicas * one.schedulers, samples=1,
            policy=self.workload.queue.policy, **pool, on_compile=self.on_compile, balancer="least-loaded",
        )  # fmt: skip

    def _run_one_pass(self, option: ServingOption, row: int) -> SimulatedFigures:
        """Inputs of a model that answers in one pass, as `flopwise serve --rate` simulates them."""
        workload = self.workload
        assert workload.requests_per_s is not None
        replicas = int(option.deployments.replicas[row])
        job = replace(option.job(row), arrivals_per_s=workload.requests_per_s / replicas)
        lengths = None if workload.inputs is None else (workload.inputs, 1)
        busy = float(option.deployments.busy_frac[row])
        names = tuple(PERCENTILES)
        run = ArrivalRun.of(job, names, workload.facts, lengths, self.on_compile, busy=busy, replicas=replicas)
        return _figures(run.simulated, workload, run.counted, run.replicas)

    def _run_users(self, option: ServingOption, row: int) -> SimulatedFigures:
        """Users in a closed loop, as `flopwise serve --concurrency` simulates them."""
        workload, service = self.workload, option.deployments
        replicas = int(service.replicas[row])
        users = float(service.batch[row] * service.dp[row])
        if workload.concurrency is not None:
            users = workload.concurrency / replicas
        job, lengths = replace(option.job(row), concurrency=math.ceil(users), users=users), _lengths(workload)
        drawn = (lengths["input_tokens"], lengths["output_tokens"])
        loop = closed_loop_run(job, workload.facts, drawn, self.on_compile, replicas=replicas)
        return _mean_figures([_figures(run, workload, slice(None), loop.replicas) for run in loop.runs])

    def _run_service(self, option: ServingOption, row: int) -> SimulatedFigures:
        workload, service = self.workload, option.deployments
        assert workload.requests_per_s is not None
        count = int(service.replicas[row])
        replicas = min(count, MOST_REPLICAS)
        rate = workload.requests_per_s * replicas / count
        lifetime_s = min(float(service.e2e_s[row]), LONGEST_LIFETIME_S)
        busy = round(float(service.busy_frac[row]), 1)
        key = (rate, round(lifetime_s, 1), busy)
        if key not in self._requests:
            self._requests[key] = drawn_requests(
                workload, option.model, rate=rate, lifetime_s=lifetime_s, busy=busy, seed=self.seed
            )
        requests = self._requests[key]
        if not option.decodes:
            alone = replace(requests.trace, output=np.ones(len(requests.trace), dtype=np.int64))
            requests = requests._replace(trace=alone)
        run = self._run(option, row, requests.trace, replicas=replicas, rate=rate)
        return _figures(run, workload, slice(requests.first, requests.last), replicas)

    def _run_sessions(self, option: ServingOption, row: int) -> SimulatedFigures:
        """Sessions as `flopwise serve --turns` simulates them."""
        workload, replicas = self.workload, int(option.deployments.replicas[row])
        sessions, per_s = workload.sessions, workload.sessions_per_s
        assert sessions is not None
        assert per_s is not None
        job = option.job(row)
        own = replace(
            job, input_tokens=mean_tokens(sessions.input_tokens), arrivals_per_s=per_s / replicas,
            techniques=replace(job.techniques, shared_tokens=sessions.shared_tokens),
        )  # fmt: skip
        run = SessionRun.of(
            own, sessions.traffic(per_s, self.seed), sessions.kv_stores, replicas, workload.facts, self.on_compile
        )
        figures = _figures(run.simulated, workload, run.counted, replicas)
        return msgspec.structs.replace(figures, sessions=_sessions(run))

    def _run_batch(self, option: ServingOption, row: int) -> SimulatedFigures:
        """A batch job, as `flopwise serve --requests` simulates it; its means are kept in `means`."""
        workload, replicas = self.workload, int(option.deployments.replicas[row])
        assert workload.requests is not None
        traffic = batch_traffic(workload, int(workload.requests), self.seed)
        means, run = finite_run(option.job(row), traffic, replicas, workload.facts, self.on_compile)
        self.means[_run_key(option, row)] = means
        simulated = min(replicas, len(run.totals.busy_ps))
        whole_s = workload.requests / (means.requests_per_s * replicas)
        figures = _figures(run, workload, slice(None), simulated, seconds=whole_s)
        if len(run.trace) >= workload.requests // replicas or not figures.ttft_s["mean"]:
            return figures
        return _of_whole_job(figures, means.ttft_s / figures.ttft_s["mean"])


def _of_whole_job(figures: SimulatedFigures, times: float) -> SimulatedFigures:
    """Figures of a batch job from those of its first requests, of which all wait `times` as long for a first token.

    Source: who is served at a constant pace waits in proportion to his place. Assumes: answers take as long later on.
    """
    ttft_s = {name: None if wait is None else times * wait for name, wait in figures.ttft_s.items()}
    e2e_s = {
        name: None if wait is None else wait + (times - 1.0) * (figures.ttft_s[name] or 0.0)
        for name, wait in figures.e2e_s.items()
    }
    return msgspec.structs.replace(figures, ttft_s=ttft_s, e2e_s=e2e_s)


def _pool_of(job: ServeJob, replicas: int, one: Replica) -> dict[str, Any]:
    """Instances for prompts alone beside so many replicas, and how caches come from them; nothing without a pool."""
    if not job.techniques.prefill_gpus:
        return {}
    instances = replicas * job.techniques.prefill_gpus // int(job.layout.num_gpus)
    return {"prefill_replicas": instances * one.schedulers, "transfer": transfer(job)}


def _sessions(run: SessionRun) -> SimulatedSessions:
    report = run.report
    later = {name: None if np.isnan(seconds) else seconds for name, seconds in report.turn_ttft_s.items()}
    return SimulatedSessions(
        sessions=report.sessions, turns_per_session=report.turns_per_session, turn_ttft_s=later,
        device_frac=report.device_frac, store_fracs=report.store_fracs, computed_frac=report.computed_frac,
    )  # fmt: skip


def _figures(
    run: SimulatedRun,
    workload: Resolved,
    rows: slice | NDArray[np.bool_],
    replicas: int,
    *,
    seconds: float | None = None,
) -> SimulatedFigures:
    """Percentiles over some of the requests."""
    from flopwise.serving.sim.result import Slo  # noqa: PLC0415 - beside its only use

    limits = {LATENCIES[name]: None if t is None else t.seconds for name, t in latency_targets(workload).items()}
    good = run.good(Slo(**limits))[rows]
    shares: dict[str, Any] = {name: _percentiles(getattr(run, name)[rows]) for name in LATENCIES.values()}
    busy_ps = int(run.totals.busy_ps.sum())
    return SimulatedFigures(
        **shares, goodput_frac=float(good.mean()) if any(limits.values()) and good.size else None, requests=len(good),
        by_priority={str(name): _class_percentiles(one) for name, one in run.by_priority(rows).items()},
        replicas=replicas, dropped=run.dropped_count, preemptions=run.preemption_count,
        utilisation_frac=busy_ps / max(run.end_ps * len(run.totals.busy_ps), 1), kv_peak_frac=run.kv_peak_frac,
        seconds=seconds,
    )  # fmt: skip


def _mean_figures(draws: Sequence[SimulatedFigures]) -> SimulatedFigures:
    """The mean of the figures of several draws of the same traffic; what is counted, of all of them."""

    def mean(numbers: Iterable[float | None]) -> float | None:
        there = [number for number in numbers if number is not None]
        return sum(there) / len(there) if there else None

    last = draws[-1]
    return msgspec.structs.replace(
        last,
        **{name: {p: mean(getattr(one, name)[p] for one in draws) for p in getattr(last, name)}
           for name in LATENCIES.values()},
        **{name: mean(getattr(one, name) for one in draws) for name in ("goodput_frac", "utilisation_frac",
                                                                         "kv_peak_frac")},
        **{name: sum(getattr(one, name) for one in draws) for name in ("requests", "dropped", "preemptions")},
    )  # fmt: skip


def _class_percentiles(one: ClassFigures) -> dict[str, Any]:
    """The share and the latencies of a class of requests, by key; latencies that nobody has are left out."""
    seconds = {name: getattr(one, name)._asdict() for name in LATENCIES.values()}
    there = {name: {p: s for p, s in figures.items() if not np.isnan(s)} for name, figures in seconds.items()}
    return {"frac": one.frac, **there}


def _percentiles(values: Array) -> dict[str, float | None]:
    """The mean and the percentiles, by name, of the values that are not NaN; None without any."""
    there = values[~np.isnan(values)]
    if not there.size:
        return dict.fromkeys(("mean", *PERCENTILES))
    seconds = np.percentile(there, list(PERCENTILES.values())).tolist()
    return {"mean": float(there.mean()), **dict(zip(PERCENTILES, seconds, strict=True))}


FINALISTS = 10
"""Plans that are to hold in the simulator."""
MOST_RUNS = 150
"""Runs of the simulator that finding them may take; offers of the same machines share theirs."""
NOT_RUN = "estimated, not simulated"
MOST_TIMES = 4
"""Replicas are raised to so many times what was estimated at most."""
MOST_PACES = 4
"""Times that the replicas of a batch job are counted anew at the pace that was simulated."""

ServingPick = Pick[ServingOption]


@dataclass(frozen=True, slots=True)
class Trial:
    """A pick, perhaps with more replicas, after its run; `failed`: the target or limit that it misses for good."""

    pick: ServingPick
    run: SimulatedFigures | None
    odds: dict[str, float]  # of its targets, by the run
    note: str = ""
    failed: str = ""

    @property
    def least(self) -> float:
        """The odds of the target least likely to be met."""
        return min(self.odds.values(), default=1.0)

    def candidate(self, rank: int) -> Candidate:
        """The candidate, with what the simulator says."""
        estimated = self.pick.candidate(rank)
        meets = {**estimated.meets, **{name: round(p, 4) for name, p in self.odds.items()}}
        return msgspec.structs.replace(estimated, meets=meets, simulated=self.run, note=self.note)


def verified_plans(
    picks: list[ServingPick],
    workload: Resolved | None,
    draft: PlanDraft,
    advance: Callable[[int], None],
    on_compile: Callable[[], None] | None = None,
    *,
    by_region: bool = False,
) -> list[tuple[ServingPick, Trial]]:
    """Plans in the order of what they cost once they hold in the simulator; `workload` None: as estimated.

    One of each instance type (`by_region`: in each region), beside the pick that it was. The cheapest that has not been
    run is run, and goes back into the queue at its new cost: the order is exact as far as running only ever makes a
    plan dearer. Of those that cost the same the one with the least latency comes first (simulated, where it is), then
    fewer machines, then the simpler layout. What misses however many replicas there are is counted as ruled out; those
    that are not run come last, as estimated.
    """
    simulator = None if workload is None else Simulator(workload, on_compile=on_compile)
    runs = simulator is not None  # of equal costs all are run before one is taken
    queue: list[tuple[Any, ...]] = [
        (*_rank(Trial(pick, None, {}), ran=not runs), n, None) for n, pick in enumerate(picks)
    ]
    heapq.heapify(queue)
    holding: dict[tuple[str, ...], tuple[ServingPick, Trial]] = {}
    rest: dict[tuple[str, ...], tuple[ServingPick, Trial]] = {}
    failed: list[Trial] = []
    while queue:
        *_, number, trial = heapq.heappop(queue)
        pick = picks[number]
        kind = pick.kind(by_region=by_region)
        if kind in holding or kind in rest:
            continue
        if trial is not None and trial.run is not None:
            holding[kind] = pick, trial
        elif trial is not None or simulator is None or len(holding) >= FINALISTS or simulator.runs >= MOST_RUNS:
            rest[kind] = pick, trial or Trial(pick, None, {}, note="" if simulator is None else NOT_RUN)
        else:
            advance(simulator.runs)
            trial = simulated_trial(pick, simulator)
            if trial.failed:
                failed.append(trial)
                missed = TARGET_NAMES.get(trial.failed, trial.failed)
                draft.ruled_out.add(f"misses {missed} in the simulator", 1, trial.note, unit="plans", stage="targets")
            else:
                heapq.heappush(queue, (*_rank(trial, ran=True), number, trial))
    draft.demoted = [one.candidate(place) for place, one in enumerate(failed, start=1)]
    draft.simulated = len(holding) + len(failed)
    return [*holding.values(), *rest.values()]


def _rank(trial: Trial, *, ran: bool) -> tuple[Any, ...]:
    """The sort key of plans: the objective, to a cent of it, then latency, machines and degrees of the layout."""
    option, row, run = trial.pick.option, trial.pick.row, trial.run
    latency = None if run is None else run.e2e_s["p95"]
    estimated, service = float(option.deployments.e2e_s[row]), option.deployments
    degrees = (int(service.pp[row]), int(service.tp[row] * service.dp[row]))
    return round(trial.pick.score, 2), ran, estimated if latency is None else latency, option.instances[row], degrees


def simulated_trial(pick: ServingPick, simulator: Simulator) -> Trial:
    """A pick as the simulator sees it, with as many replicas as it takes to hold its targets."""
    run = _batch_trial if simulator.workload.task == "batch" else _service_trial
    try:
        trial = run(pick, simulator)
    except (SpecError, MissingFactError) as error:
        return Trial(pick, None, {}, note=f"not simulated: {error}")
    except InfeasibleError as error:
        return Trial(pick, None, {}, note=str(error), failed="memory")
    option, row, odds = trial.pick
    first, last, workload = (
        pick.option.deployments.replicas[pick.row],
        option.deployments.replicas[row],
        option.workload,
    )
    note = "" if last == first else f"replicas raised from {first:,.0f} to {last:,.0f} by the simulator"
    broken = ""
    if "budget" in odds and odds["budget"][row] < workload.confidence:
        broken = "budget"
    elif workload.max_usd_per_hour is not None and option.usd_per_hour[row] > workload.max_usd_per_hour:
        broken = "max_usd_per_hour"
    return replace(trial, note=trial.note or note, failed=trial.failed or broken)


def simulated_odds(option: ServingOption, row: int, run: SimulatedFigures) -> dict[str, float]:
    """Probability that each latency target is met, from simulated percentiles and the measured errors of the model.

    Answers of one token hold any time per token; where all requests are dropped, nothing holds.

    Source: the bands of `flopwise.cost.intervals` around the simulated value.
    Assumes: the simulator errs as the step times that it is made of.
    """
    odds: dict[str, float] = {}
    for name, target in latency_targets(option.workload).items():
        if target is None:
            continue
        value = getattr(run, LATENCIES[name])[target.percentile]
        if value is None:
            odds[name] = 1.0 if name == "tpot" and run.ttft_s["p50"] is not None else 0.0
        else:
            first_s = min(run.ttft_s[target.percentile] or 0.0, value)
            odds[name] = float(option.latency_odds(name, value, first_s, target.seconds, option.least_s[name][row]))
    return odds


def _service_trial(pick: ServingPick, simulator: Simulator) -> Trial:
    """Run a service as estimated, then with its largest batch, on all of its instances, and on more of them."""
    option, row, confidence = pick.option, pick.row, pick.option.workload.confidence
    trials: dict[float, Trial] = {}

    def trial(tried: ServingPick) -> Trial:
        run = simulator.run(tried.option, tried.row)
        tried = _as_simulated(tried, run)
        return Trial(tried, run, simulated_odds(tried.option, tried.row, run))

    def least(replicas: float) -> float:
        if replicas not in trials:
            service = _with_replicas(option, replicas, simulator)
            alike = [getattr(service, name) == getattr(option.deployments, name)[row] for name in DEGREES]
            rows = np.flatnonzero(np.all([*alike, service.replicas == replicas], axis=0))
            trials[replicas] = trial(_pick(option, service, int(rows[service.batch[rows].argmax()])))
        return trials[replicas].least

    best, instances = trial(pick), int(option.instances[row])
    for replicas in dict.fromkeys((float(option.deployments.replicas[row]), option.replicas_on(instances, row))):
        if best.least < confidence and least(replicas) > best.least:
            best = trials[replicas]
    if best.least < confidence:
        room = int(option.workload.max_gpus // option.node.count) - instances
        most = min(room, (MOST_TIMES - 1) * instances)
        most_replicas = option.replicas_on(instances + most, row)
        if most > 0 and least(most_replicas) >= confidence:
            near = max(1, instances // 8)
            more = fewest(lambda k: least(option.replicas_on(instances + k, row)), confidence, near=near, most=most)
            best = trials[option.replicas_on(instances + (more or most), row)]
        elif most > 0:
            best = trials[most_replicas]
    if best.least >= confidence:
        return best
    worst = min(best.odds, key=lambda name: best.odds[name])
    return replace(best, note=_miss_text(best, worst), failed=worst)


def _batch_trial(pick: ServingPick, simulator: Simulator) -> Trial:
    """Run a batch job; count the replicas that its deadline takes at the simulated pace, and run it again with them."""
    option, row, workload = pick.option, pick.row, pick.option.workload
    assert workload.requests is not None
    band, confidence = option.bands["throughput"], workload.confidence
    chosen, replicas = pick, float(option.deployments.replicas[row])
    each, node = option.gpus_each(row), option.node.count
    left_s = max((workload.deadline_s or 0.0) - float(option.start_s[row]), 1e-9)
    for _ in range(MOST_PACES):
        run = simulator.run(chosen.option, row)
        assert run.seconds is not None
        means = simulator.means[_run_key(chosen.option, row)]
        chosen = _pick(option, _with_means(chosen.option.deployments, row, means, workload.output_tokens), row)
        odds = simulated_odds(chosen.option, row, run)
        if workload.deadline_s is not None:
            odds["deadline"] = 1.0 - float(band.probability_at_most(1.0, run.seconds / left_s))
        if odds.get("deadline", 1.0) >= confidence:
            trial = Trial(chosen, run, odds)
            worst = min(odds, key=lambda name: odds[name], default="")
            return trial if trial.least >= confidence else replace(trial, note=_miss_text(trial, worst), failed=worst)
        assert workload.deadline_s is not None
        sure = band.quantile(1.0 - confidence)  # share of the pace that is reached with the confidence
        replicas = max(replicas + 1, float(np.ceil(workload.requests / (left_s * means.requests_per_s * sure))))
        instances = np.ceil(replicas / (node // each)) if each <= node else replicas * each // node
        service = _with_replicas(option, option.replicas_on(int(instances), row), simulator)
        chosen, replicas = _pick(option, service, row), float(service.replicas[row])
        if float(chosen.option.num_gpus[row]) > workload.max_gpus:
            return Trial(pick, run, odds, note="the deadline needs more GPUs than --max-gpus allows", failed="deadline")
    return Trial(chosen, run, odds, failed="deadline")


def _as_simulated(pick: ServingPick, run: SimulatedFigures) -> ServingPick:
    """A pick whose row has the latencies that were simulated, where `flopwise serve` shows them, too: in one pass."""
    service, workload = pick.option.deployments, pick.option.workload
    if pick.option.decodes or not workload.is_poisson:
        return pick
    wanted, columns = latency_percentiles(workload), dict[str, Any]()
    for name in ("ttft", "latency"):
        column = LATENCIES[name]
        columns[column] = np.array(getattr(service, column))
        columns[column][pick.row] = getattr(run, column)[wanted[name]]
    return _pick(pick.option, replace(service, **columns), pick.row)


def _with_means(service: Deployments, row: int, means: RunMeans, output_tokens: float) -> Deployments:
    """Deployments whose `row` has the pace and the mean latencies that a simulated batch job gave."""
    names = ("ttft_s", "tpot_s", "e2e_s", "requests_per_s", "tokens_per_s")
    columns: dict[str, Any] = {name: np.array(getattr(service, name)) for name in names}
    columns["tokens_per_s"][row] *= means.requests_per_s / float(columns["requests_per_s"][row])
    columns["requests_per_s"][row] = means.requests_per_s
    columns["ttft_s"][row], columns["tpot_s"][row] = means.ttft_s, means.tpot_s
    columns["e2e_s"][row] = means.ttft_s + (output_tokens - 1) * means.tpot_s
    return replace(service, **columns)


def _with_replicas(option: ServingOption, replicas: float, simulator: Simulator) -> Deployments:
    """The deployments of an option with so many replicas at least, estimated at the load that each then has."""
    key = (id(option.node), option.deployments.weights.name, option.kv_dtype.name, replicas)
    if key not in simulator.estimates:
        estimate = deployments(
            option.model, option.workload, option.node, option.deployments.weights, option.kv_dtype, least=replicas
        )
        assert estimate is not None
        simulator.estimates[key] = estimate
    return simulator.estimates[key]


def _pick(option: ServingOption, service: Deployments, row: int) -> ServingPick:
    """A row of other deployments on the same machines."""
    other = option.estimated_as(service)
    return Pick(other, row, other.odds())


def _miss_text(trial: Trial, target: str) -> str:
    option, row, _ = trial.pick
    limit = latency_targets(option.workload)[target]
    assert limit is not None
    value = getattr(trial.run, LATENCIES[target])[limit.percentile]
    shown = "-" if value is None else format_seconds(value)
    return (
        f"{int(option.instances[row])} x {option.priced.offer.instance} {option.deployments.weights.name}: {target} "
        f"{limit.percentile} {shown} of {format_seconds(limit.seconds)}, {format_chance(trial.odds[target])} chance"
    )
