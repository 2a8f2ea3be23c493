"""The best plans through the simulator before they are ranked; replicas are added where it says that they miss."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.search.answer import Candidate, SimulatedFigures
from flopwise.search.deployments import deployments
from flopwise.search.rank import Pick
from flopwise.search.serving_option import DEGREES, LATENCIES, ServingOption, latency_targets
from flopwise.search.simulator import Simulator
from flopwise.serving.sim.autoscale import fewest
from flopwise.units import format_seconds

if TYPE_CHECKING:
    from flopwise.search.plan_draft import PlanDraft
    from flopwise.search.workload import Resolved

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
class Verified:
    """A pick after it was run: perhaps with more replicas; `failed` says which target it misses for good."""

    pick: ServingPick
    simulated: SimulatedFigures | None
    odds: dict[str, float]
    note: str = ""
    failed: str = ""

    def candidate(self, rank: int) -> Candidate:
        """The candidate, with what the simulator says."""
        estimated = self.pick.candidate(rank)
        meets = {**estimated.meets, **{name: round(p, 4) for name, p in self.odds.items()}}
        return msgspec.structs.replace(estimated, meets=meets, simulated=self.simulated, note=self.note)


class Trial(NamedTuple):
    """A pick, its run, and the odds that follow."""

    pick: ServingPick
    run: SimulatedFigures
    odds: dict[str, float]

    @property
    def least(self) -> float:
        """The odds of the target least likely to be met."""
        return min(self.odds.values(), default=1.0)


def verified_plans(
    picks: list[ServingPick],
    workload: Resolved | None,
    draft: PlanDraft,
    advance: Callable[[int], None],
    on_compile: Callable[[], None] | None = None,
) -> list[tuple[ServingPick, Verified]]:
    """Plans in the order of what they cost once they hold in the simulator; `workload` None: as estimated.

    One of each instance type, beside the pick that it was. The cheapest that has not been run is run, and goes back
    into the queue at its new cost: the order is exact as far as running only ever makes a plan dearer. What misses
    however many replicas there are is counted as ruled out; those that are not run come last, as estimated.
    """
    simulator = None if workload is None else Simulator(workload, on_compile=on_compile)
    queue: list[tuple[float, int, Verified | None]] = [(pick.score, n, None) for n, pick in enumerate(picks)]
    heapq.heapify(queue)
    holding: dict[tuple[str, str, str], tuple[ServingPick, Verified]] = {}
    rest: dict[tuple[str, str, str], tuple[ServingPick, Verified]] = {}
    failed: list[Verified] = []
    while queue:
        _, number, after = heapq.heappop(queue)
        pick = picks[number]
        if pick.kind in holding or pick.kind in rest:
            continue
        if after is not None and after.simulated is not None:
            holding[pick.kind] = pick, after
        elif after is not None or simulator is None or len(holding) >= FINALISTS or simulator.runs >= MOST_RUNS:
            rest[pick.kind] = pick, after or Verified(pick, None, {}, note="" if simulator is None else NOT_RUN)
        else:
            advance(simulator.runs)
            after = verified(pick, simulator)
            if after.failed:
                failed.append(after)
                draft.ruled_out.add(f"misses {after.failed} in the simulator", 1, after.note, unit="plans")
            else:
                heapq.heappush(queue, (after.pick.score, number, after))
    draft.demoted = [one.candidate(place) for place, one in enumerate(failed, start=1)]
    draft.simulated = len(holding) + len(failed)
    return [*holding.values(), *rest.values()]


def verified(pick: ServingPick, simulator: Simulator) -> Verified:
    """A pick as the simulator sees it, with as many replicas as it takes to hold its targets."""
    try:
        if simulator.workload.task == "batch":
            return _verified_batch(pick, simulator)
        return _verified_service(pick, simulator)
    except (SpecError, MissingFactError) as error:
        return Verified(pick, None, {}, note=f"not simulated: {error}")
    except InfeasibleError as error:
        return Verified(pick, None, {}, note=str(error), failed="memory")


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
            least_s = float(option.least_s[name][row])
            odds[name] = float(option.bands[name].probability_at_most(value, target.seconds, floor=least_s))
    return odds


def _verified_service(pick: ServingPick, simulator: Simulator) -> Verified:
    """Run a service as estimated, then with its largest batch, on all of its instances, and on more of them."""
    option, row, confidence = pick.option, pick.row, pick.option.workload.confidence
    first, instances = float(option.found.replicas[row]), int(option.instances[row])
    trials: dict[float, Trial] = {}

    def least(replicas: float) -> float:
        if replicas not in trials:
            trials[replicas] = _trial(_with_replicas(pick, replicas, simulator), simulator)
        return trials[replicas].least

    best = _trial(pick, simulator)
    for replicas in dict.fromkeys((first, option.replicas_on(instances, row))):
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
    chosen, run, odds = best
    if best.least < confidence:
        worst = min(odds, key=lambda name: odds[name])
        return Verified(chosen, run, odds, note=_miss_text(best, worst), failed=worst)
    last = float(chosen.option.found.replicas[chosen.row])
    return Verified(chosen, run, odds, note=_raised_text(first, last), failed=_broken_limit(chosen))


def _verified_batch(pick: ServingPick, simulator: Simulator) -> Verified:
    """Run a batch job; count the replicas that its deadline takes at the simulated pace, and run it again with them."""
    option, row, workload = pick.option, pick.row, pick.option.workload
    assert workload.requests is not None
    first = float(option.found.replicas[row])
    band = option.bands["throughput"]
    chosen, replicas = pick, first
    for _ in range(MOST_PACES):
        run = simulator.run(chosen.option, row)
        assert run.seconds is not None
        pace = workload.requests / (replicas * run.seconds)  # of one replica
        chosen = _with_pace(chosen, pace)
        odds = simulated_odds(chosen.option, row, run)
        if workload.deadline_s is not None:
            odds["deadline"] = 1.0 - float(band.probability_at_most(1.0, run.seconds / workload.deadline_s))
        if odds.get("deadline", 1.0) >= workload.confidence:
            break
        assert workload.deadline_s is not None
        sure = band.quantile(1.0 - workload.confidence)  # share of the pace that is reached with the confidence
        replicas = max(replicas + 1, float(np.ceil(workload.requests / (workload.deadline_s * pace * sure))))
        replicas = option.replicas_on(_instances(option, row, replicas), row)
        chosen = _with_replicas(pick, replicas, simulator, largest=False)
        replicas = float(chosen.option.found.replicas[row])
        if float(chosen.option.num_gpus[row]) > workload.max_gpus:
            return Verified(pick, run, odds, note="the deadline takes more than max_gpus", failed="deadline")
    late = odds.get("deadline", 1.0) < workload.confidence
    failed = "deadline" if late else _broken_limit(chosen)
    return Verified(chosen, run, odds, note=_raised_text(first, replicas), failed=failed)


def _instances(option: ServingOption, row: int, replicas: float) -> int:
    """Instances that hold so many replicas of one row."""
    each = option.gpus_each(row)
    packed = option.node.count // each
    return int(np.ceil(replicas / packed)) if packed else int(replicas * each // option.node.count)


def _trial(pick: ServingPick, simulator: Simulator) -> Trial:
    run = simulator.run(pick.option, pick.row)
    return Trial(pick, run, simulated_odds(pick.option, pick.row, run))


def _with_replicas(pick: ServingPick, replicas: float, simulator: Simulator, *, largest: bool = True) -> ServingPick:
    """The pick with so many replicas, estimated at the load that each then has; with the `largest` batch it holds."""
    option, row = pick.option, pick.row
    key = (id(option.node), option.found.weights.name, option.kv_dtype.name, replicas)
    if key not in simulator.estimates:
        estimate = deployments(
            option.model, option.workload, option.node, option.found.weights, option.kv_dtype, least=replicas
        )
        assert estimate is not None
        simulator.estimates[key] = estimate
    found = simulator.estimates[key]
    if largest:
        alike = [getattr(found, name) == getattr(option.found, name)[row] for name in DEGREES]
        rows = np.flatnonzero(np.all([*alike, found.replicas == replicas], axis=0))
        row = int(rows[found.batch[rows].argmax()])
    other = option.estimated_as(found)
    return Pick(other, row, other.odds())


def _with_pace(pick: ServingPick, requests_per_s: float) -> ServingPick:
    """The pick with the pace of one replica as simulated; its costs and odds follow."""
    found, row = pick.option.found, pick.row
    pace, tokens = np.array(found.requests_per_s), np.array(found.tokens_per_s)
    pace[row] = requests_per_s
    tokens[row] *= requests_per_s / float(found.requests_per_s[row])
    other = pick.option.estimated_as(replace(found, requests_per_s=pace, tokens_per_s=tokens))
    return Pick(other, row, other.odds())


def _broken_limit(pick: ServingPick) -> str:
    """A limit beside the latencies that more replicas break; empty without any."""
    option, row = pick.option, pick.row
    budget, most = pick.odds.get("budget"), option.workload.max_usd_per_hour
    if budget is not None and budget[row] < option.workload.confidence:
        return "budget"
    return "max_usd_per_hour" if most is not None and option.usd_per_hour[row] > most else ""


def _raised_text(first: float, last: float) -> str:
    return "" if last == first else f"replicas raised from {first:,.0f} to {last:,.0f} by the simulator"


def _miss_text(trial: Trial, target: str) -> str:
    option, row, _ = trial.pick
    limit = latency_targets(option.workload)[target]
    assert limit is not None
    value = getattr(trial.run, LATENCIES[target])[limit.percentile]
    shown = "-" if value is None else format_seconds(value)
    return (
        f"{int(option.instances[row])} x {option.priced.offer.instance} {option.found.weights.name}: {target} "
        f"{limit.percentile} {shown} of {format_seconds(limit.seconds)}, {100 * trial.odds[target]:.0f} % likely"
    )
