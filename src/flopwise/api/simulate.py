"""What users of a service see: requests through replicas, through an autoscaler's replicas, or from a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import BATCH, DEGREE, FRACTION, take, whole
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import BatchRequest, Scheduling, ServingSpec, TechniqueRequest

if TYPE_CHECKING:
    from flopwise.serving.sim.answer import SimulateAnswer
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.batch import BatchAnswer
    from flopwise.serving.sim.elasticity import AutoscaleAnswer, Size
    from flopwise.serving.sim.request import ResponseCache, SimulationRequest
    from flopwise.serving.sim.result import Slo

QUEUE = whole(high=10**12)
SIMULATED = (Traffic, Scheduling, ServingSpec, TechniqueRequest, MachineSpec, SourceSpec)


@takes(*SIMULATED, replicas=DEGREE, attain=FRACTION)
def simulate(
    model: Any,
    *,
    replicas: int = 1,
    slo: Slo | None = None,
    cache: ResponseCache | None = None,
    attain: float = 0.99,
    on_compile: Callable[[], None] | None = None,
    **keywords: Any,
) -> SimulateAnswer:
    """Run requests through `replicas` of a deployment, step by step, and say what their users see.

    Further keywords are those of `Traffic` (`rate=5, trace=... `), `Scheduling`, `ServingSpec` (`tp=8 ...`),
    `TechniqueRequest` (`draft="eagle", acceptance=0.7 ...`), `MachineSpec` and `SourceSpec`, or whole specs. `slo`:
    what a request must hold to count into the goodput. `cache`: answers that are given again; the replicas that it
    saves are those that `attain` of the requests need to hold the objective.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        InfeasibleError: weights and one request do not fit the memory.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.serving.sim.answer import fixed_answer
    from flopwise.serving.sim.request import simulation_request
    from flopwise.serving.sim.result import Slo

    request = simulation_request(model, **keywords).with_cache(cache)
    return fixed_answer(request, replicas, slo or Slo(), attain, on_compile)


@takes(*SIMULATED, attain=FRACTION)
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
    **keywords: Any,
) -> AutoscaleAnswer:
    """Run requests through replicas that an autoscaler starts and drains; further keywords as `simulate`.

    With an objective, `compare` finds the fewest fixed replicas that hold it for as many requests as the autoscaler's
    do, or for a share `attain`; without one, a fixed peak is the most replicas that the autoscaler had.

    Raises:
        SpecError: a value or a name that cannot be, or traffic that follows its answers; InfeasibleError and
            MissingFactError as `simulate`.
    """
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.elasticity import autoscaling_report
    from flopwise.serving.sim.request import simulation_request
    from flopwise.serving.sim.result import Slo

    return autoscaling_report(
        simulation_request(model, **keywords), rule or Autoscaling(), slo or Slo(), attain=attain, compare=compare,
        cache=cache, on_compile=on_compile, report=report,
    )  # fmt: skip


@takes(*SIMULATED, replicas=DEGREE)
def vertical(
    model: Any,
    *,
    replicas: int = 1,
    rule: Autoscaling | None = None,
    slo: Slo | None = None,
    on_compile: Callable[[], None] | None = None,
    **keywords: Any,
) -> tuple[Size, ...]:
    """Many small replicas against few large ones: the accelerators of `replicas` (or of a rule's most) at every tp.

    Every degree that divides them, in powers of two; an autoscaler's bounds and targets for each replica are scaled
    with its size. Further keywords as `simulate`.

    Raises:
        SpecError: as `simulate`.
    """
    from flopwise.serving.sim.elasticity import replica_sizes
    from flopwise.serving.sim.request import simulation_request
    from flopwise.serving.sim.result import Slo

    whole = next((value for value in keywords.values() if isinstance(value, ServingSpec)), ServingSpec())

    def request_at(tp: int) -> SimulationRequest:
        return simulation_request(model, **keywords | {"tp": tp})

    return replica_sizes(request_at, keywords.get("tp") or whole.tp, replicas, rule, slo or Slo(), on_compile)


@takes(BatchRequest, MachineSpec, ServingSpec, TechniqueRequest, SourceSpec, requests=QUEUE, concurrency=BATCH)
def batch(
    model: Any,
    requests: int | None = None,
    *,
    concurrency: int | None = None,
    report: Callable[[int, int], None] | None = None,
    **options: Any,
) -> BatchAnswer:
    """Work off `requests` on spot workers.

    `options` are those of `BatchRequest`, `ServingSpec`, `MachineSpec`, `TechniqueRequest` and `SourceSpec`, or whole
    specs.

    Raises:
        SpecError: a value or a name that cannot be; InfeasibleError: the model does not fit, or interruptions undo
            the work faster than it is done; MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.serving.deployment import replica_of, spread
    from flopwise.serving.sim.batch import queue_answer

    queue, machines, deployment, techniques, source = take(
        {"queue": requests, **options}, BatchRequest, MachineSpec, ServingSpec, TechniqueRequest, SourceSpec
    )
    queue.check()
    found = source.model_with_layers(model)
    job, notes = replica_of(found, spread(deployment, found, machines, source.catalog), machines, techniques, source)
    return queue_answer(queue, replace(job, concurrency=concurrency), machines, source.catalog, notes, report)
