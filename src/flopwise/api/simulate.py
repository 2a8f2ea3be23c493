"""What users of a service see: the requests of a trace, or drawn at a rate, through replicas step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flopwise.api.features import Features
from flopwise.api.machines import Machines, described, loaded
from flopwise.api.memory import Deployment, in_its_format, overridden
from flopwise.api.traffic import Traffic
from flopwise.api.train import price_text
from flopwise.errors import SpecError
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.api.response_cache import CacheReport
    from flopwise.facts.architecture import Model
    from flopwise.serving.estimate import ServeJob
    from flopwise.serving.sim.caching import ResponseCache
    from flopwise.serving.sim.engine import Limits, Replica
    from flopwise.serving.sim.result import Simulated, Slo, Summary
    from flopwise.serving.sim.setup import Transfer
    from flopwise.serving.sim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How replicas work and where requests go. None: as the engine's row has it."""

    policy: str = "fcfs"
    balancer: str = "least-loaded"
    step_tokens: int | None = None
    max_batch: int | None = None
    mix: bool = True
    preempt: Literal["recompute", "swap"] = "recompute"
    prefix_cache: bool | None = None  # None: where the traffic has prefixes
    prefill_replicas: int = 0  # replicas that do prompts only
    prefill_gpus: int = 0  # the same as accelerators beside those of each other replica

    def pool(self, replicas: int, gpus: int) -> int:
        """Prompt-only replicas of `gpus` devices beside so many others.

        Raises:
            SpecError: both ways to say it are used, or they make no whole replicas.
        """
        from flopwise.serving.sim.pools import prefill_instances

        if self.prefill_replicas and self.prefill_gpus:
            raise SpecError("--prefill-replicas and --prefill-gpus say the same; give one")
        return self.prefill_replicas + prefill_instances(replicas, self.prefill_gpus, gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateAnswer:
    """A run and its figures; `low` and `high` of a percentile come from the measured errors of step times."""

    job: ServeJob
    simulated: Simulated
    summary: Summary
    slo: Slo
    replicas: int
    gpus_per_replica: int
    usd_per_hour: float | None  # of all replicas
    cost_usd: float | None
    intervals: dict[str, tuple[float, float]]  # of the medians of ttft_s and tpot_s
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    cache: CacheReport | None = None

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """What a million output tokens of this run cost; None without a price."""
        _, made = self.simulated.tokens
        return None if self.cost_usd is None or not made else self.cost_usd / made * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All that a run needs: the requests, one replica, and what it was made from."""

    job: ServeJob
    trace: Trace
    replica: Replica
    limits: Limits
    transfer: Transfer | None
    assumptions: tuple[str, ...]


def prepared(
    model: Any,
    traffic: Traffic,
    *,
    scheduling: Scheduling,
    place: Machines,
    deployment: Deployment,
    features: Features,
    assume_family: str | None = None,
    offline: bool = False,
) -> Simulation:
    """The requests and one replica of a deployment.

    Raises:
        SpecError: a value or a name that cannot be; InfeasibleError: weights and one request do not fit.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.serving.estimate import ServeJob
    from flopwise.serving.sim.engine import replica
    from flopwise.serving.sim.pools import transfer

    found, asked, native = _served(model, scheduling, place, deployment, assume_family=assume_family, offline=offline)
    trace = traffic.drawn()
    inputs, outputs = max(1, round(float(trace.prompt.mean()))), max(1, round(float(trace.output.mean())))
    longest = int((trace.prompt + trace.output).max())
    window = found.max_position
    cluster = place.cluster(asked.tp * asked.pp * asked.dp)
    job = ServeJob(
        model=found,
        cluster=cluster,
        layout=asked.layout(),
        weights=asked.weights or "bf16",
        kv_dtype=asked.kv_dtype or "bf16",
        engine=asked.engine,
        input_tokens=inputs if window is None else max(1, min(inputs, window - 1)),
        output_tokens=outputs if window is None else max(1, min(outputs, window - inputs)),
        memory_frac=asked.memory_frac,
        max_batch=scheduling.max_batch,
        techniques=replace(features, prefill_gpus=None).techniques(
            found, asked, cluster.accelerator, place.facts, assume_family=assume_family, offline=offline
        ),
    )
    built = replica(
        job,
        context=inputs + outputs,
        step_tokens=scheduling.step_tokens,
        max_tokens=longest if window is None else window,
    )
    prefix = bool((trace.prefix >= 0).any()) if scheduling.prefix_cache is None else scheduling.prefix_cache
    limits = replace(built.limits, mix=scheduling.mix, preempt=scheduling.preempt, prefix_cache=prefix)
    split = scheduling.prefill_replicas or scheduling.prefill_gpus
    return Simulation(
        job=job,
        trace=trace,
        replica=built,
        limits=limits,
        transfer=transfer(job) if split else None,
        assumptions=tuple(dict.fromkeys((*native, *found.notes, *job.cluster.assumptions, *_of_techniques(job)))),
    )


def _served(
    model: Any,
    scheduling: Scheduling,
    place: Machines,
    deployment: Deployment,
    *,
    assume_family: str | None,
    offline: bool,
) -> tuple[Model, Deployment, tuple[str, ...]]:
    """The model, the deployment in its format, and what was assumed of it; refuses what cannot be simulated."""
    from flopwise.serving.estimate import check_layout
    from flopwise.serving.memory import generates

    for name, value in (("step tokens", scheduling.step_tokens), ("largest batch", scheduling.max_batch)):
        if value is not None and value < 1:
            raise SpecError(f"{name} {value} is out of range; allowed: from 1")
    found = described(loaded(model, assume_family=assume_family, offline=offline, facts=place.facts))
    if not generates(found) or found.kind == "encoder-decoder":
        raise SpecError(
            f"{found.name} answers in one pass; simulated are models that generate from a cache: use `flopwise serve`"
        )
    asked, native = in_its_format(found, deployment)
    check_layout(found, asked.layout())
    return found, asked, native


class Asked(NamedTuple):
    """A question as it was understood."""

    made: Simulation
    flow: Traffic
    how: Scheduling


def understood(
    model: Any,
    *,
    traffic: Traffic | None = None,
    scheduling: Scheduling | None = None,
    gpu: str | None = None,
    machines: Machines | None = None,
    deployment: Deployment | None = None,
    features: Features | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **said: Any,
) -> Asked:
    """The requests, one replica and the habits of the scheduler; arguments and errors as `simulate`."""
    held = {kind: {k: said.pop(k) for k in list(said) if k in kind.__dataclass_fields__} for kind in _KINDS}
    more = overridden(features or Features(), held[Features])
    place = overridden(machines or Machines(gpu=gpu, facts=facts), held[Machines])
    asked = overridden(deployment or Deployment(), held[Deployment] | said)
    how = overridden(scheduling or Scheduling(), held[Scheduling])
    how = replace(how, prefill_gpus=more.prefill_gpus or how.prefill_gpus)
    flow = overridden(traffic or Traffic(), held[Traffic])
    if how.prefill_replicas < 0:
        raise SpecError(f"{how.prefill_replicas} replicas for prompts; allowed: from 0")
    made = prepared(
        model, flow, scheduling=how, place=place, deployment=asked, features=more, assume_family=assume_family,
        offline=offline,
    )  # fmt: skip
    return Asked(made, flow, how)


def played(
    asked: Asked, replicas: int, *, requests: Trace | None = None, on_compile: Callable[[], None] | None = None
) -> Simulated:
    """Those requests (None: all of the question) through a fixed number of replicas.

    Raises:
        SpecError: less than one replica.
    """
    from flopwise.serving.sim.simulate import simulate as run

    made, flow, how = asked
    if replicas < 1:
        raise SpecError(f"{replicas} replicas; allowed: from 1")
    each = made.replica.schedulers
    return run(
        made.trace if requests is None else requests,
        made.replica.cost,
        made.limits,
        replicas=replicas * each,
        balancer=how.balancer,
        policy=how.policy,
        users=flow.users,
        think_s=flow.think_s,
        together=flow.together,
        prefill_replicas=how.pool(replicas, int(made.job.layout.num_gpus)) * each,
        transfer=made.transfer,
        on_compile=on_compile,
    )


def simulate(
    model: Any,
    *,
    traffic: Traffic | None = None,
    scheduling: Scheduling | None = None,
    gpu: str | None = None,
    replicas: int = 1,
    slo: Slo | None = None,
    cache: ResponseCache | None = None,
    attain: float = 0.99,
    machines: Machines | None = None,
    deployment: Deployment | None = None,
    features: Features | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    on_compile: Callable[[], None] | None = None,
    **said: Any,
) -> SimulateAnswer:
    """Run requests through `replicas` of a deployment, step by step, and say what their users see.

    Further keywords are fields of `Traffic` (`rate=5, trace=... `), `Scheduling`, `Deployment` (`tp=8 ...`),
    `Features` (`draft="eagle", acceptance=0.7 ...`) or `Machines`. `slo`: what a request must hold to count into the
    goodput. `cache`: answers that are given again; the replicas that it saves are those that `attain` of the requests
    need to hold the objective.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        InfeasibleError: weights and one request do not fit the memory.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.api.response_cache import Front, report
    from flopwise.serving.sim.result import Slo

    asked = understood(
        model, traffic=traffic, scheduling=scheduling, gpu=gpu, machines=machines, deployment=deployment,
        features=features, facts=facts, assume_family=assume_family, offline=offline, **said,
    )  # fmt: skip
    goal, total = slo or Slo(), replicas + asked.how.pool(replicas, int(asked.made.job.layout.num_gpus))
    front = Front.of(asked, cache)
    found = front.seen(played(asked, replicas, requests=front.computed, on_compile=on_compile))
    answer = answered(*asked, found, replicas=total, slo=goal)
    return answer if cache is None else replace(answer, cache=report(asked, front, answer, replicas, attain))


_KINDS = (Traffic, Features, Scheduling, Machines, Deployment)


def answered(
    made: Simulation,
    flow: Traffic,
    how: Scheduling,
    found: Simulated,
    *,
    replicas: int,
    slo: Slo,
    hours: float | None = None,
) -> SimulateAnswer:
    """The figures of a run; `hours` of replicas are paid, None: all from start to end."""
    from flopwise.serving.bands import serving_band
    from flopwise.serving.under_load import least_tpot_s

    job = made.job
    summary = found.summary(slo)
    hours = replicas * found.paid_s / HOUR_S if hours is None else hours
    summary = summary._replace(replica_hours=hours)
    gpus = int(job.layout.num_gpus)
    each = None if job.cluster.usd_per_gpu_hour is None else job.cluster.usd_per_gpu_hour * gpus
    paced = job if flow.users else replace(job, arrivals_per_s=made.trace.requests_per_s)
    intervals = {}
    for name, median, least in (
        ("ttft", summary.ttft_s.p50, 0.0),
        ("tpot", summary.tpot_s.p50, least_tpot_s(job)),
    ):
        if isfinite(median):
            low, high = serving_band(paced, name).interval(median, floor=min(least, median))
            intervals[f"{name}_s"] = (float(low), float(high))
    return SimulateAnswer(
        job=job,
        simulated=found,
        summary=summary,
        slo=slo,
        replicas=replicas,
        gpus_per_replica=gpus,
        usd_per_hour=None if each is None else each * replicas,
        cost_usd=None if each is None else each * hours,
        intervals=intervals,
        settings=_settings(made, flow, how, replicas),
        assumptions=(*made.assumptions, *_told(made, flow, how)),
    )


def _of_techniques(job: ServeJob) -> tuple[str, ...]:
    """What is assumed of techniques, and what their simulation adds to it."""
    from flopwise.serving.technique_rules import told_of_simulated_techniques, told_of_techniques

    return (*told_of_techniques(job), *told_of_simulated_techniques(job))


def _told(made: Simulation, flow: Traffic, how: Scheduling) -> tuple[str, ...]:
    from flopwise.serving.sim.joining import told

    limits, began = made.limits, told(made.trace, flow.users, together=flow.together)
    wave = "requests come from midnight on; their rate is the mean of whole days" if flow.arrivals == "diurnal" else ""
    steps = f"an engine step holds up to {limits.step_tokens:,} tokens and {limits.max_batch:,} sequences"
    return (
        f"{steps}; the cache has {limits.num_blocks:,} blocks of {limits.block_tokens} tokens",
        "a run repeats exactly with its seed; its intervals are those of the step times that it is made of",
        *filter(None, (wave, _idle_policy(how.policy, made.trace), began)),
    )


def _idle_policy(policy: str, trace: Trace) -> str:
    """That a policy orders by what the requests do not have."""
    if policy == "priority" and trace.priority.min() == trace.priority.max():
        return "all requests have one priority (a trace file's column priority): first come, first served"
    if policy == "deadline" and trace.deadline_ps.max() < 0:
        return "no request has a deadline (a trace file's column deadline_s): first come, first served"
    return ""


def _settings(made: Simulation, flow: Traffic, how: Scheduling, replicas: int) -> tuple[tuple[str, str], ...]:
    from flopwise.serving.technique_rules import technique_settings

    job, trace = made.job, made.trace
    gpus = int(job.layout.num_gpus)
    pool = how.prefill_replicas or how.prefill_gpus * replicas // (gpus + how.prefill_gpus)
    split = f" ({pool} for prompts)" if pool else ""
    rate = f"{trace.requests_per_s:,.3g}/s" if isfinite(trace.requests_per_s) else "all at once"
    rate = "as they are answered" if flow.users else rate
    degrees = job.layout
    layout = Deployment(tp=int(degrees.tp), pp=int(degrees.pp), ep=int(degrees.ep), dp=int(degrees.dp)).layout_text
    source = f"from {flow.trace.name}" if flow.trace else f"{flow.users:,} users" if flow.users else flow.arrivals
    return (
        ("replicas", f"{replicas:,} x {gpus} {job.cluster.accelerator.name}{split}"),
        ("layout", layout),
        ("weights", f"{job.weights}; KV cache {job.kv_dtype}"),
        ("engine", f"{job.engine}; {how.policy}, {how.balancer}"),
        *technique_settings(job),
        ("requests", f"{len(trace):,} {source}, {rate}"),
        ("lengths", f"{trace.prompt.mean():,.0f} tokens in, {trace.output.mean():,.0f} out on average"),
        ("price", price_text(job.cluster)),
    )
