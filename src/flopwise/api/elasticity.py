"""Replicas that come and go: an autoscaler against a fixed number, many small replicas against few large ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.api.machines import Machines
from flopwise.api.memory import Deployment, overridden
from flopwise.api.response_cache import Front, fewest_replicas, has_objective
from flopwise.api.simulate import Asked, Scheduling, SimulateAnswer, answered, played, understood
from flopwise.errors import InfeasibleError, SpecError
from flopwise.units import HOUR_S, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.serving.estimate import ServeJob
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.caching import ResponseCache
    from flopwise.serving.sim.elastic import Elastic
    from flopwise.serving.sim.result import Simulated, Slo, Summary

MACHINE_S = 60.0
"""From the wish for a machine to its operating system, where nothing is known: clouds take 40 s to 2 min."""
BY_REPLICA = frozenset({"queue", "concurrency"})
"""Measures whose target is a number of requests for each replica: a replica of twice the accelerators has twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """One way of having replicas for the same traffic."""

    name: str
    replicas: float  # on average
    most: int
    summary: Summary
    replica_hours: float  # paid
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleAnswer:
    """A run with an autoscaler, beside fixed numbers of replicas."""

    answer: SimulateAnswer
    elastic: Elastic
    provisions: tuple[Provision, ...]  # the autoscaler first
    attain: float | None  # share of good requests that the fixed peak had to hold; None without an objective
    unreached: str | None  # why there is no fixed peak
    notes: tuple[str, ...]


def _hours(run: Simulated, replicas: int) -> float:
    """Replica-hours of a fixed number until the last answer, or the last arrival if that is later."""
    return replicas * run.paid_s / HOUR_S


def _usd_per_hour(asked: Asked) -> float | None:
    """Of one replica."""
    job = asked.made.job
    each = job.cluster.usd_per_gpu_hour
    return None if each is None else each * int(job.layout.num_gpus)


def replica_start_s(job: ServeJob, facts: Facts) -> float:
    """From the wish for a replica to its first request: a machine is found and booted, then the engine starts.

    Source: `flopwise.serving.startup.cold_start`, weights read from the default storage.
    Assumes: a machine is there after `MACHINE_S`.
    """
    from flopwise.api.features import Features
    from flopwise.serving.startup import cold_start

    return MACHINE_S + cold_start(job, Features().kind_of_storage(facts)).seconds


def _checked(asked: Asked) -> None:
    if asked.flow.users is not None:
        raise SpecError("an autoscaler follows traffic that comes by itself: --trace or --rate, not --users")
    if asked.how.prefill_replicas or asked.how.prefill_gpus:
        raise SpecError("an autoscaler has one pool of replicas; leave --prefill-replicas and --prefill-gpus out")


def scaled(
    asked: Asked,
    rule: Autoscaling,
    front: Front,
    *,
    on_compile: Callable[[], None] | None = None,
    report: Callable[[float, float], None] | None = None,
) -> Elastic:
    """The requests of a question through replicas that follow `rule`."""
    from flopwise.serving.sim.elastic import elastic

    made, _, how = asked
    return elastic(
        front.computed, made.replica.cost, made.limits, rule, schedulers=made.replica.schedulers,
        balancer=how.balancer, policy=how.policy, on_compile=on_compile, report=report,
    )  # fmt: skip


def autoscale(
    model: Any,
    *,
    rule: Autoscaling | None = None,
    slo: Slo | None = None,
    attain: float | None = None,
    compare: bool = True,
    cache: ResponseCache | None = None,
    on_compile: Callable[[], None] | None = None,
    report: Callable[[float, float], None] | None = None,
    **question: Any,
) -> AutoscaleAnswer:
    """Run requests through replicas that an autoscaler starts and drains; further keywords as `flopwise.simulate`.

    With an objective, `compare` finds the fewest fixed replicas that hold it for as many requests as the autoscaler's
    do, or for a share `attain`; without one, a fixed peak is the most replicas that the autoscaler had.

    Raises:
        SpecError: a value or a name that cannot be, or traffic that follows its answers; InfeasibleError and
            MissingFactError as `flopwise.simulate`.
    """
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.result import Slo

    _share(attain)
    goal, rule = slo or Slo(), rule or Autoscaling()
    if attain is not None and not has_objective(goal):
        raise SpecError("--attain is the share of requests that hold --ttft, --tpot or --latency: give one of these")
    asked = understood(model, **question)
    _checked(asked)
    if rule.cold_start_s is None:
        place = question.get("machines") or Machines(facts=question.get("facts"))
        rule = replace(rule, cold_start_s=replica_start_s(asked.made.job, place.known_facts))
    front = Front.of(asked, cache)
    found = scaled(asked, rule, front, on_compile=on_compile, report=report)
    mine = _elastic_row("autoscaler", found, front, goal, _usd_per_hour(asked))
    answer = answered(*asked, front.seen(found.simulated), replicas=found.most, slo=goal, hours=found.paid_s / HOUR_S)
    rows, target, unreached = [mine], None, None
    if compare:
        target = (mine.summary.goodput_frac if attain is None else attain) if has_objective(goal) else None
        peak, unreached = _peak(asked, front, goal, target, found.most)
        if peak is not None:
            rows.append(_fixed_row("fixed, for the peak", asked, front, goal, peak))
        rows.append(_fixed_row("fixed, as many on average", asked, front, goal, max(round(found.mean), 1)))
    if cache is not None:
        bare = front.bare
        without = scaled(asked, rule, bare)
        rows.append(_elastic_row("autoscaler without cache", without, bare, goal, _usd_per_hour(asked)))
    settings = (*answer.settings[:1], ("autoscaler", told(rule)), *answer.settings[1:])
    answer = replace(answer, settings=(("replicas", _counted(found, answer.settings[0][1])), *settings[1:]))
    return AutoscaleAnswer(
        answer=answer, elastic=found, provisions=tuple(rows), attain=target, unreached=unreached, notes=_notes(found)
    )


def _peak(asked: Asked, front: Front, slo: Slo, target: float | None, most: int) -> tuple[int | None, str | None]:
    """Fixed replicas for the peak, or why there are none."""
    if target is None:
        return most, None
    if target == 0:
        return None, "the autoscaler answers no request in time, so that there is nothing to hold"
    peak = fewest_replicas(asked, front, slo, target, most)
    return peak, None if peak else f"no number of replicas answers {100 * target:.4g} % of the requests in time"


def _share(attain: float | None) -> None:
    if attain is not None and not 0 < attain <= 1:
        raise SpecError(f"attainment {attain:g} is out of range; allowed: above 0, up to 1")


def told(rule: Autoscaling) -> str:
    """A rule in words."""
    return (
        f"{rule.measure} at {rule.wanted_at:g}; {rule.least} to {rule.most} replicas; every "
        f"{format_seconds(rule.tick_s)}; cold start {format_seconds(rule.starts_in_s)}, cool-down "
        f"{format_seconds(rule.cool_down_s)}"
    )


def _counted(found: Elastic, one: str) -> str:
    _, _, what = one.partition(" x ")
    return f"{found.mean:,.3g} on average, {found.most:,} at most, of {what}"


def _notes(found: Elastic) -> tuple[str, ...]:
    rule = found.rule
    cold = format_seconds(rule.starts_in_s)
    return (
        f"machines are paid from the wish, {cold} before they serve, until the last answer of those that drain",
        "machines can always be had; a draining replica counts into the most that there may be",
    )


def _elastic_row(name: str, found: Elastic, front: Front, slo: Slo, usd_per_hour: float | None) -> Provision:
    hours = found.paid_s / HOUR_S
    return Provision(
        name=name,
        replicas=found.mean,
        most=found.most,
        summary=front.seen(found.simulated).summary(slo),
        replica_hours=hours,
        cost_usd=None if usd_per_hour is None else hours * usd_per_hour,
    )


def _fixed_row(
    name: str, asked: Asked, front: Front, slo: Slo, count: int, on_compile: Callable[[], None] | None = None
) -> Provision:
    run = front.seen(played(asked, count, requests=front.computed, on_compile=on_compile))
    hours, each = _hours(run, count), _usd_per_hour(asked)
    return Provision(
        name=name,
        replicas=float(count),
        most=count,
        summary=run.summary(slo),
        replica_hours=hours,
        cost_usd=None if each is None else hours * each,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The same accelerators as replicas of one size; `provision` None: `why` not."""

    tp: int
    most: int  # replicas, at most
    provision: Provision | None
    why: str = ""


def vertical(
    model: Any,
    *,
    replicas: int = 1,
    rule: Autoscaling | None = None,
    slo: Slo | None = None,
    deployment: Deployment | None = None,
    scheduling: Scheduling | None = None,
    on_compile: Callable[[], None] | None = None,
    **question: Any,
) -> tuple[Size, ...]:
    """Many small replicas against few large ones: the accelerators of `replicas` (or of a rule's most) at every tp.

    Every degree that divides them, in powers of two; an autoscaler's bounds and targets for each replica are scaled
    with its size. Further keywords as `flopwise.simulate`.

    Raises:
        SpecError: as `flopwise.simulate`.
    """
    from flopwise.serving.sim.result import Slo

    fields = {k: question.pop(k) for k in list(question) if k in Deployment.__dataclass_fields__}
    asked_for = overridden(deployment or Deployment(), fields)
    total = (replicas if rule is None else rule.most) * asked_for.tp
    if replicas < 1:
        raise SpecError(f"{replicas} replicas; allowed: from 1")
    found = []
    for tp in (2**power for power in range(total.bit_length())):
        if total % tp:
            continue
        try:
            asked = understood(model, deployment=replace(asked_for, tp=tp), scheduling=scheduling, **question)
        except (InfeasibleError, SpecError) as error:
            if tp == asked_for.tp:
                raise
            found.append(Size(tp=tp, most=total // tp, provision=None, why=str(error)))
            continue
        front, goal = Front.of(asked, None), slo or Slo()
        if rule is None:
            row = _fixed_row(f"tp {tp}", asked, front, goal, total // tp, on_compile)
        else:
            _checked(asked)
            run = scaled(asked, sized(rule, tp / asked_for.tp), front, on_compile=on_compile)
            row = _elastic_row(f"tp {tp}", run, front, goal, _usd_per_hour(asked))
        found.append(Size(tp=tp, most=total // tp, provision=row))
    return tuple(found)


def sized(rule: Autoscaling, factor: float) -> Autoscaling:
    """The rule for replicas of `factor` times the accelerators."""
    from math import ceil

    target = rule.wanted_at * factor if rule.measure in BY_REPLICA else rule.target
    return replace(rule, least=ceil(rule.least / factor), most=max(int(rule.most / factor), 1), target=target)
