"""The best plans through the simulator before they are ranked; replicas are added where it says that they miss."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.search.answer import Candidate, Simulated
from flopwise.search.serving import deployments
from flopwise.search.serving_option import Floats, Option
from flopwise.search.serving_run import Simulator
from flopwise.serving.job import serving_band
from flopwise.serving.sim.autoscale import fewest
from flopwise.units import format_seconds

if TYPE_CHECKING:
    from flopwise.search.outcome import Answer
    from flopwise.search.workload import Resolved

FINALISTS = 10
"""Plans that are to hold in the simulator."""
MOST_RUNS = 150
"""Runs of the simulator that finding them may take; offers of the same machines share theirs."""
NOT_RUN = "estimated, not simulated"
MOST_TIMES = 4
"""Replicas are raised to so many times what was estimated at most."""


Kind = tuple[str, str, str]


class Pick(NamedTuple):
    """A row of an option that is worth recommending, with the odds of its targets."""

    option: Option
    row: int
    met: dict[str, Floats]

    @property
    def score(self) -> float:
        """What plans are ranked by."""
        return float(self.option.score()[self.row])

    @property
    def kind(self) -> Kind:
        """What the ranking has one plan of."""
        offer = self.option.priced.offer
        return offer.provider, offer.instance, self.option.priced.purchase


@dataclass(frozen=True, slots=True)
class Verified:
    """A pick after it was run: perhaps with more replicas; `failed` says which target it misses for good."""

    pick: Pick
    simulated: Simulated | None
    met: dict[str, float]
    note: str = ""
    failed: str = ""

    def candidate(self, rank: int) -> Candidate:
        """The candidate, with what the simulator says."""
        made = self.pick.option.candidate(self.pick.row, self.pick.met, rank)
        meets = {**made.meets, **{name: round(p, 4) for name, p in self.met.items()}}
        return msgspec.structs.replace(made, meets=meets, simulated=self.simulated, note=self.note)


def ranked(
    picks: list[Pick],
    workload: Resolved | None,
    answer: Answer,
    advance: Callable[[int], None],
    on_compile: Callable[[], None] | None = None,
) -> list[tuple[Pick, Verified]]:
    """Plans in the order of what they cost once they hold in the simulator; `workload` None: as estimated.

    One of each instance type, beside the pick that it was. The cheapest that has not been run is run, and goes back
    into the queue at its new cost: the order is exact as far as running only ever makes a plan dearer. What misses
    however many replicas there are is counted as ruled out; those that are not run come last, as estimated.
    """
    simulator = None if workload is None else Simulator(workload, on_compile=on_compile)
    queue: list[tuple[float, int, Verified | None]] = [(pick.score, n, None) for n, pick in enumerate(picks)]
    heapq.heapify(queue)
    held: dict[Kind, tuple[Pick, Verified]] = {}
    rest: dict[Kind, tuple[Pick, Verified]] = {}
    failed: list[Verified] = []
    while queue:
        _, number, done = heapq.heappop(queue)
        pick = picks[number]
        if pick.kind in held or pick.kind in rest:
            continue
        if done is not None and done.simulated is not None:
            held[pick.kind] = pick, done
        elif done is not None or simulator is None or len(held) >= FINALISTS or simulator.runs >= MOST_RUNS:
            rest[pick.kind] = pick, done or Verified(pick, None, {}, note="" if simulator is None else NOT_RUN)
        else:
            advance(simulator.runs)
            done = verified(pick, simulator)
            if done.failed:
                failed.append(done)
                answer.ruled_out.add(f"misses {done.failed} in the simulator", 1, done.note, unit="plans")
            else:
                heapq.heappush(queue, (done.pick.score, number, done))
    answer.demoted = [one.candidate(place) for place, one in enumerate(failed, start=1)]
    answer.simulated = len(held) + len(failed)
    return [*held.values(), *rest.values()]


def verified(pick: Pick, simulator: Simulator) -> Verified:
    """A pick as the simulator sees it, with as many replicas as it takes to hold its targets."""
    try:
        return _job(pick, simulator) if simulator.workload.source.task == "batch" else _service(pick, simulator)
    except (SpecError, MissingFactError) as error:
        return Verified(pick, None, {}, note=f"not simulated: {error}")
    except InfeasibleError as error:
        return Verified(pick, None, {}, note=str(error), failed="memory")


def odds(option: Option, row: int, run: Simulated) -> dict[str, float]:
    """Probability that each latency target is met, from simulated percentiles and the measured errors of the model.

    Source: the bands of `flopwise.cost.intervals` around the simulated value.
    Assumes: the simulator errs as the step times that it is made of.
    """
    workload, job, found = option.workload, option.job(), option.found
    least_s = float(found.least_ttft_s[row] + (workload.output_tokens - 1) * found.least_tpot_s[row])
    met: dict[str, float] = {}
    for name, target, values, least, band in (
        ("ttft", workload.ttft, run.ttft_s, float(found.least_ttft_s[row]), "ttft"),
        ("tpot", workload.tpot, run.tpot_s, float(found.least_tpot_s[row]), "tpot"),
        ("latency", workload.latency, run.e2e_s, least_s, "tpot"),
    ):
        if target is not None:
            value = values[target.percentile]
            if (
                value is None
            ):  # answers of one token hold any time per token; requests that all are dropped hold nothing
                met[name] = 1.0 if name == "tpot" and run.ttft_s["p50"] is not None else 0.0
                continue
            likely = serving_band(job, band).probability_at_most(value, target.seconds, floor=least)
            met[name] = float(likely)
    return met


def _service(pick: Pick, simulator: Simulator) -> Verified:
    """As it was estimated; with the largest batch; with replicas on all of its instances; with more instances."""
    option, row, confidence = pick.option, pick.row, pick.option.workload.confidence
    first, instances = float(option.found.replicas[row]), int(option.instances[row])
    seen: dict[float, Tried] = {}

    def least(replicas: float) -> float:
        if replicas not in seen:
            seen[replicas] = _tried(_with(pick, replicas, simulator), simulator)
        return seen[replicas].least

    best = _tried(pick, simulator)
    for replicas in dict.fromkeys((first, option.replicas_on(instances, row))):
        if best.least < confidence and least(replicas) > best.least:
            best = seen[replicas]
    if best.least < confidence:
        room = int(option.workload.max_gpus // option.node.count) - instances
        most = min(room, (MOST_TIMES - 1) * instances)
        most_replicas = option.replicas_on(instances + most, row)
        if most > 0 and least(most_replicas) >= confidence:
            near = max(1, instances // 8)
            more = fewest(lambda k: least(option.replicas_on(instances + k, row)), confidence, near=near, most=most)
            best = seen[option.replicas_on(instances + (more or most), row)]
        elif most > 0:
            best = seen[most_replicas]
    chosen, run, met = best
    if best.least < confidence:
        worst = min(met, key=lambda name: met[name])
        return Verified(chosen, run, met, note=_said(chosen, run, worst, met[worst]), failed=worst)
    last = float(chosen.option.found.replicas[chosen.row])
    note = "" if last == first else f"replicas raised from {first:,.0f} to {last:,.0f} by the simulator"
    return Verified(chosen, run, met, note=note, failed=_broken(chosen))


class Tried(NamedTuple):
    """A pick, its run, and the odds that follow."""

    pick: Pick
    run: Simulated
    met: dict[str, float]

    @property
    def least(self) -> float:
        """The odds of the target least likely to be met."""
        return min(self.met.values(), default=1.0)


def _tried(pick: Pick, simulator: Simulator) -> Tried:
    run = simulator.run(pick.option, pick.row)
    return Tried(pick, run, odds(pick.option, pick.row, run))


def _with(pick: Pick, replicas: float, simulator: Simulator, *, largest: bool = True) -> Pick:
    """The same layout so often, estimated anew at the load that each then has; with the largest batch it holds."""
    option, row = pick.option, pick.row
    key = (id(option.node), option.found.weights, option.kv_dtype, replicas)
    if key not in simulator.estimates:
        made = deployments(
            option.model, option.workload, option.node, option.found.weights, option.kv_dtype, least=replicas
        )
        assert made is not None
        simulator.estimates[key] = made
    found = simulator.estimates[key]
    other = replace(option, memo={}, found=found)
    if not largest:
        return Pick(other, row, other.odds())
    alike = [getattr(found, name) == getattr(option.found, name)[row] for name in ("tp", "pp", "ep", "dp")]
    rows = np.flatnonzero(np.all([*alike, found.replicas == replicas], axis=0))
    return Pick(other, int(rows[found.batch[rows].argmax()]), other.odds())


def _broken(pick: Pick) -> str:
    """A limit beside the latencies that more replicas break; empty where none is."""
    option, row = pick.option, pick.row
    budget = pick.met.get("budget")
    if budget is not None and budget[row] < option.workload.confidence:
        return "budget"
    hourly, most = float(option.instances[row]) * option.priced.usd_per_hour, option.workload.max_usd_per_hour
    return "max_usd_per_hour" if most is not None and hourly > most else ""


def _said(pick: Pick, run: Simulated, target: str, likely: float) -> str:
    workload = pick.option.workload
    limit = {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}[target]
    values = {"ttft": run.ttft_s, "tpot": run.tpot_s, "latency": run.e2e_s}[target]
    assert limit is not None
    value = values[limit.percentile]
    offer, count = pick.option.priced.offer, int(pick.option.instances[pick.row])
    shown = "-" if value is None else format_seconds(value)
    return (
        f"{count} x {offer.instance} {pick.option.found.weights.name}: {target} {limit.percentile} {shown} of "
        f"{format_seconds(limit.seconds)}, {100 * likely:.0f} % likely"
    )


def _job(pick: Pick, simulator: Simulator) -> Verified:
    """A batch job at its simulated pace, with the replicas that its deadline then takes."""
    option, row, workload = pick.option, pick.row, pick.option.workload
    assert workload.requests is not None
    first = float(option.found.replicas[row])
    band = serving_band(option.job(), "throughput")
    chosen, replicas = pick, first
    for _ in range(4):
        run = simulator.run(chosen.option, row)
        assert run.seconds is not None
        pace = workload.requests / (replicas * run.seconds)  # of one replica
        chosen = _paced(chosen, pace)
        met = odds(chosen.option, row, run)
        if workload.deadline_s is not None:
            met["deadline"] = 1.0 - float(band.probability_at_most(1.0, run.seconds / workload.deadline_s))
        if met.get("deadline", 1.0) >= workload.confidence:
            break
        assert workload.deadline_s is not None
        needed = band.quantile(1.0 - workload.confidence)  # of the pace, that is surely reached
        replicas = max(replicas + 1, float(np.ceil(workload.requests / (workload.deadline_s * pace * needed))))
        chosen = _with(pick, option.replicas_on(option.instances_of(replicas, row), row), simulator, largest=False)
        replicas = float(chosen.option.found.replicas[row])
        if float(chosen.option.instances[row]) * option.node.count > workload.max_gpus:
            return Verified(pick, run, met, note="the deadline takes more than max_gpus", failed="deadline")
    note = "" if replicas == first else f"replicas raised from {first:,.0f} to {replicas:,.0f} by the simulator"
    late = met.get("deadline", 1.0) < workload.confidence
    return Verified(chosen, run, met, note=note, failed="deadline" if late else _broken(chosen))


def _paced(pick: Pick, requests_per_s: float) -> Pick:
    """The pick with the pace of one replica as simulated; its costs and odds follow."""
    found, row = pick.option.found, pick.row
    pace = np.array(found.requests_per_s)
    pace[row] = requests_per_s
    tokens = np.array(found.tokens_per_s)
    tokens[row] *= requests_per_s / float(found.requests_per_s[row])
    other = replace(pick.option, memo={}, found=replace(found, requests_per_s=pace, tokens_per_s=tokens))
    return Pick(other, row, other.odds())
