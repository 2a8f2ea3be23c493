"""What users of a service see: requests through replicas, through an autoscaler's replicas, or from a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flopwise.api.features import Features
from flopwise.api.machines import Machines, described, loaded
from flopwise.api.memory import Deployment, in_its_format, overridden
from flopwise.api.recipes import check_expert_parallel, check_pipeline, check_tensor_parallel
from flopwise.serving.estimate import ServeJob

if TYPE_CHECKING:
    from flopwise.serving.sim.answer import SimulateAnswer
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.batch_queue import BatchAnswer, BatchRequest
    from flopwise.serving.sim.caching import ResponseCache
    from flopwise.serving.sim.elasticity import AutoscaleAnswer, Size
    from flopwise.serving.sim.request import Scheduling, SimulationRequest
    from flopwise.serving.sim.result import Slo
    from flopwise.serving.sim.source import Traffic

Spec = TypeVar("Spec")


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
    from flopwise.serving.sim.answer import cache_report, simulation_answer
    from flopwise.serving.sim.result import Slo

    request = resolve(
        model, traffic=traffic, scheduling=scheduling, gpu=gpu, machines=machines, deployment=deployment,
        features=features, facts=facts, assume_family=assume_family, offline=offline, **said,
    ).with_cache(cache)  # fmt: skip
    total = replicas + request.prefill_pool(replicas)
    run = request.run_fixed(replicas, on_compile)
    answer = simulation_answer(request, run, replicas=total, slo=slo or Slo())
    return answer if cache is None else replace(answer, cache=cache_report(request, answer, replicas, attain))


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
    """Run requests through replicas that an autoscaler starts and drains; further keywords as `simulate`.

    With an objective, `compare` finds the fewest fixed replicas that hold it for as many requests as the autoscaler's
    do, or for a share `attain`; without one, a fixed peak is the most replicas that the autoscaler had.

    Raises:
        SpecError: a value or a name that cannot be, or traffic that follows its answers; InfeasibleError and
            MissingFactError as `simulate`.
    """
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.elasticity import autoscaled
    from flopwise.serving.sim.result import Slo

    return autoscaled(
        resolve(model, **question), rule or Autoscaling(), slo or Slo(), attain=attain, compare=compare, cache=cache,
        on_compile=on_compile, report=report,
    )  # fmt: skip


def vertical(
    model: Any,
    *,
    replicas: int = 1,
    rule: Autoscaling | None = None,
    slo: Slo | None = None,
    deployment: Deployment | None = None,
    on_compile: Callable[[], None] | None = None,
    **question: Any,
) -> tuple[Size, ...]:
    """Many small replicas against few large ones: the accelerators of `replicas` (or of a rule's most) at every tp.

    Every degree that divides them, in powers of two; an autoscaler's bounds and targets for each replica are scaled
    with its size. Further keywords as `simulate`.

    Raises:
        SpecError: as `simulate`.
    """
    from flopwise.serving.sim.elasticity import replica_sizes
    from flopwise.serving.sim.result import Slo

    base = overridden(deployment or Deployment(), _fields(Deployment, question))

    def request_at(tp: int) -> SimulationRequest:
        return resolve(model, deployment=replace(base, tp=tp), **question)

    return replica_sizes(request_at, base.tp, replicas, rule, slo or Slo(), on_compile)


def batch(
    model: Any,
    requests: int,
    *,
    queue: BatchRequest | None = None,
    gpu: str | None = None,
    machines: Machines | None = None,
    deployment: Deployment | None = None,
    features: Features | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    report: Callable[[int, int], None] | None = None,
    **said: Any,
) -> BatchAnswer:
    """Work off `requests` on spot workers; further keywords: of `BatchRequest`, `Deployment`, `Machines`, `Features`.

    Raises:
        SpecError: a value or a name that cannot be; InfeasibleError: the model does not fit, or interruptions undo
            the work faster than it is done; MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.errors import SpecError
    from flopwise.serving.memory import generates
    from flopwise.serving.sim.batch_queue import BatchRequest, WorkerMachines, queue_answer
    from flopwise.serving.technique_rules import told_of_techniques

    place = overridden(machines or Machines(gpu=gpu, facts=facts), _fields(Machines, said))
    request = overridden(queue or BatchRequest(requests=requests), _fields(BatchRequest, said) | {"requests": requests})
    request.check()
    techniques = overridden(features or Features(), _fields(Features, said))
    base = overridden(deployment or Deployment(), said)
    job, notes = _replica_job(model, base, place, techniques, assume_family, offline=offline)
    if not generates(job.model):
        raise SpecError(f"{job.model.name} answers in one pass; a queue is worked off by models that generate")
    inputs, outputs = (max(1, round(mean)) for mean in request.mean_lengths())
    job = replace(job, input_tokens=inputs, output_tokens=outputs, concurrency=base.concurrency)

    def machines_of(gpus: int) -> WorkerMachines:
        return WorkerMachines(
            spot=replace(place, purchase="spot", usd_per_gpu_hour=request.spot_price).cluster(gpus),
            on_demand=replace(place, purchase="on_demand").cluster(gpus),
            provider=place.provider,
            folder=Path(place.facts) if place.facts is not None else None,
        )

    return queue_answer(request, job, machines_of, (*notes, *told_of_techniques(job)), report)


def resolve(
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
) -> SimulationRequest:
    """The requests, one replica and how replicas work; keywords and errors as `simulate`."""
    from flopwise.serving.sim.request import Scheduling, simulation_request
    from flopwise.serving.sim.source import Traffic

    flow = overridden(traffic or Traffic(), _fields(Traffic, said))
    techniques = overridden(features or Features(), _fields(Features, said))
    work = overridden(scheduling or Scheduling(), _fields(Scheduling, said))
    work = replace(work, prefill_gpus=techniques.prefill_gpus or work.prefill_gpus)
    place = overridden(machines or Machines(gpu=gpu, facts=facts), _fields(Machines, said))
    base = overridden(deployment or Deployment(), said)
    plain = replace(techniques, prefill_gpus=None)
    job, notes = _replica_job(model, base, place, plain, assume_family, offline=offline)
    return simulation_request(job, flow, work, (*notes, *job.cluster.assumptions))


def _fields(kind: type, said: dict[str, Any]) -> dict[str, Any]:
    """Those keywords that are fields of `kind`, taken out of `said`."""
    return {name: said.pop(name) for name in list(said) if name in kind.__dataclass_fields__}  # type: ignore[attr-defined]


def _replica_job(
    model: Any, base: Deployment, place: Machines, features: Features, assume_family: str | None, *, offline: bool
) -> tuple[ServeJob, tuple[str, ...]]:
    """One replica of a deployment, without its load, and what was assumed of the model and its format."""
    found = described(loaded(model, assume_family=assume_family, offline=offline, facts=place.facts))
    base, native = in_its_format(found, base)
    check_tensor_parallel(found, base.tp)
    check_expert_parallel(found, base.ep)
    check_pipeline(found, base.pp)
    cluster = place.cluster(base.tp * base.pp * base.dp + (features.prefill_gpus or 0))
    techniques = features.techniques(
        found, base, cluster.accelerator, place.facts, assume_family=assume_family, offline=offline
    )
    job = ServeJob(
        model=found,
        cluster=cluster,
        layout=base.layout(),
        weights=base.weights or "bf16",
        kv_dtype=base.kv_dtype or "bf16",
        engine=base.engine,
        memory_frac=base.memory_frac,
        techniques=techniques,
    )
    return job, (*native, *found.notes)
