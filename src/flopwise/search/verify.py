"""The best plans through the simulator before they are ranked; replicas are added where it says that they miss."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.search.answer import Candidate, SimulatedFigures
from flopwise.search.deployments import DEGREES, Deployments, deployments
from flopwise.search.rank import Pick
from flopwise.search.serving_option import LATENCIES, ServingOption, latency_targets
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
) -> list[tuple[ServingPick, Trial]]:
    """Plans in the order of what they cost once they hold in the simulator; `workload` None: as estimated.

    One of each instance type, beside the pick that it was. The cheapest that has not been run is run, and goes back
    into the queue at its new cost: the order is exact as far as running only ever makes a plan dearer. What misses
    however many replicas there are is counted as ruled out; those that are not run come last, as estimated.
    """
    simulator = None if workload is None else Simulator(workload, on_compile=on_compile)
    queue: list[tuple[float, int, Trial | None]] = [(pick.score, n, None) for n, pick in enumerate(picks)]
    heapq.heapify(queue)
    holding: dict[tuple[str, str, str], tuple[ServingPick, Trial]] = {}
    rest: dict[tuple[str, str, str], tuple[ServingPick, Trial]] = {}
    failed: list[Trial] = []
    while queue:
        _, number, trial = heapq.heappop(queue)
        pick = picks[number]
        if pick.kind in holding or pick.kind in rest:
            continue
        if trial is not None and trial.run is not None:
            holding[pick.kind] = pick, trial
        elif trial is not None or simulator is None or len(holding) >= FINALISTS or simulator.runs >= MOST_RUNS:
            rest[pick.kind] = pick, trial or Trial(pick, None, {}, note="" if simulator is None else NOT_RUN)
        else:
            advance(simulator.runs)
            trial = verified(pick, simulator)
            if trial.failed:
                failed.append(trial)
                draft.ruled_out.add(f"misses {trial.failed} in the simulator", 1, trial.note, unit="plans")
            else:
                heapq.heappush(queue, (trial.pick.score, number, trial))
    draft.demoted = [one.candidate(place) for place, one in enumerate(failed, start=1)]
    draft.simulated = len(holding) + len(failed)
    return [*holding.values(), *rest.values()]


def verified(pick: ServingPick, simulator: Simulator) -> Trial:
    """A pick as the simulator sees it, with as many replicas as it takes to hold its targets."""
    run = _batch_trial if simulator.workload.task == "batch" else _service_trial
    try:
        trial = run(pick, simulator)
    except (SpecError, MissingFactError) as error:
        return Trial(pick, None, {}, note=f"not simulated: {error}")
    except InfeasibleError as error:
        return Trial(pick, None, {}, note=str(error), failed="memory")
    option, row, odds = trial.pick
    first, last, workload = pick.option.found.replicas[pick.row], option.found.replicas[row], option.workload
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
            least_s = float(option.least_s[name][row])
            odds[name] = float(option.bands[name].probability_at_most(value, target.seconds, floor=least_s))
    return odds


def _service_trial(pick: ServingPick, simulator: Simulator) -> Trial:
    """Run a service as estimated, then with its largest batch, on all of its instances, and on more of them."""
    option, row, confidence = pick.option, pick.row, pick.option.workload.confidence
    trials: dict[float, Trial] = {}

    def trial(tried: ServingPick) -> Trial:
        run = simulator.run(tried.option, tried.row)
        return Trial(tried, run, simulated_odds(tried.option, tried.row, run))

    def least(replicas: float) -> float:
        if replicas not in trials:
            found = _with_replicas(option, replicas, simulator)
            alike = [getattr(found, name) == getattr(option.found, name)[row] for name in DEGREES]
            rows = np.flatnonzero(np.all([*alike, found.replicas == replicas], axis=0))
            trials[replicas] = trial(_picked(option, found, int(rows[found.batch[rows].argmax()])))
        return trials[replicas].least

    best, instances = trial(pick), int(option.instances[row])
    for replicas in dict.fromkeys((float(option.found.replicas[row]), option.replicas_on(instances, row))):
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
    chosen, replicas = pick, float(option.found.replicas[row])
    each, node = option.gpus_each(row), option.node.count
    for _ in range(MOST_PACES):
        run = simulator.run(chosen.option, row)
        assert run.seconds is not None
        pace = workload.requests / (replicas * run.seconds)  # of one replica
        found = chosen.option.found
        paces, tokens = np.array(found.requests_per_s), np.array(found.tokens_per_s)
        tokens[row] *= pace / float(paces[row])
        paces[row] = pace
        chosen = _picked(option, replace(found, requests_per_s=paces, tokens_per_s=tokens), row)
        odds = simulated_odds(chosen.option, row, run)
        if workload.deadline_s is not None:
            odds["deadline"] = 1.0 - float(band.probability_at_most(1.0, run.seconds / workload.deadline_s))
        if odds.get("deadline", 1.0) >= confidence:
            return Trial(chosen, run, odds)
        assert workload.deadline_s is not None
        sure = band.quantile(1.0 - confidence)  # share of the pace that is reached with the confidence
        replicas = max(replicas + 1, float(np.ceil(workload.requests / (workload.deadline_s * pace * sure))))
        instances = np.ceil(replicas / (node // each)) if each <= node else replicas * each // node
        found = _with_replicas(option, option.replicas_on(int(instances), row), simulator)
        chosen, replicas = _picked(option, found, row), float(found.replicas[row])
        if float(chosen.option.num_gpus[row]) > workload.max_gpus:
            return Trial(pick, run, odds, note="the deadline takes more than max_gpus", failed="deadline")
    return Trial(chosen, run, odds, failed="deadline")


def _with_replicas(option: ServingOption, replicas: float, simulator: Simulator) -> Deployments:
    """The deployments of an option with so many replicas at least, estimated at the load that each then has."""
    key = (id(option.node), option.found.weights.name, option.kv_dtype.name, replicas)
    if key not in simulator.estimates:
        estimate = deployments(
            option.model, option.workload, option.node, option.found.weights, option.kv_dtype, least=replicas
        )
        assert estimate is not None
        simulator.estimates[key] = estimate
    return simulator.estimates[key]


def _picked(option: ServingOption, found: Deployments, row: int) -> ServingPick:
    """A row of other deployments on the same machines."""
    other = option.estimated_as(found)
    return Pick(other, row, other.odds())


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
