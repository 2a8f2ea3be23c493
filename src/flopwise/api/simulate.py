"""What users of a service see: requests through replicas, through an autoscaler's replicas, or from a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.keywords import takes
from flopwise.options import BATCH, DEGREE, FRACTION, take, whole
from flopwise.search.spec import LATENCY, Latency
from flopwise.serving.sim.answer import SimulateAnswer
from flopwise.serving.sim.autoscale import Autoscaling
from flopwise.serving.sim.batch import BatchAnswer
from flopwise.serving.sim.elasticity import AutoscaleAnswer
from flopwise.serving.sim.request import ResponseCache, simulation_request
from flopwise.serving.sim.result import Slo
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import BatchRequest, Scheduling, ServingSpec, TechniqueRequest

QUEUE = whole(high=10**12)
SIMULATED = (Traffic, Scheduling, ServingSpec, TechniqueRequest, MachineSpec, DatedSourceSpec)


@takes(*SIMULATED, replicas=DEGREE, attain=FRACTION, ttft=LATENCY, tpot=LATENCY, latency=LATENCY)
def simulate(
    model: ModelName, *, replicas: int = 1, slo: Slo | None = None, ttft: Latency | None = None,
    tpot: Latency | None = None, latency: Latency | None = None, cache: ResponseCache | None = None,
    attain: float = 0.99, on_compile: Callable[[], None] | None = None, **keywords: Any,
) -> SimulateAnswer:  # fmt: skip
    """Simulate requests through a deployment, step by step: latencies, throughput and cost.

    Times are in seconds.

    Args:
        attain: share of requests in time that decides how many replicas a cache saves.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        InfeasibleError: weights and one request do not fit the memory.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.simulate("Llama-3.1-8B", gpu="h100", rate=2, requests=20, seed=1)
        >>> answer.summary.completed
        20
    """
    request = simulation_request(model, one_pass=True, **keywords).with_cache(cache)
    return SimulateAnswer.of(request, replicas, _objective(slo, ttft, tpot, latency), attain, on_compile)


@takes(*SIMULATED, attain=FRACTION, ttft=LATENCY, tpot=LATENCY, latency=LATENCY)
def autoscale(
    model: ModelName, *, rule: Autoscaling | None = None, slo: Slo | None = None, ttft: Latency | None = None,
    tpot: Latency | None = None, latency: Latency | None = None, attain: float | None = None, compare: bool = True,
    cache: ResponseCache | None = None, on_compile: Callable[[], None] | None = None,
    report: Callable[[float, float], None] | None = None, **keywords: Any,
) -> AutoscaleAnswer:  # fmt: skip
    """Run requests through replicas that an autoscaler starts and drains.

    Args:
        rule: the autoscaler (default: by concurrency).
        attain: share of requests that fixed replicas must answer in time (default: as the autoscaler).
        compare: find the fewest fixed replicas that do as well.
        report: called with (steps done, steps in all).

    Raises:
        SpecError: a value or a name that cannot be, or traffic that follows its answers.
        InfeasibleError, MissingFactError: as `simulate`.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.autoscale("Llama-3.1-8B", gpu="h100", rate=2, requests=20, compare=False, seed=1)
        >>> answer.answer.summary.completed
        20
    """
    return AutoscaleAnswer.of(
        simulation_request(model, **keywords), rule or Autoscaling(), _objective(slo, ttft, tpot, latency),
        attain=attain, compare=compare, cache=cache, on_compile=on_compile, report=report,
    )  # fmt: skip


def _objective(slo: Slo | None, *limits: Latency | None) -> Slo:
    """Limits of a good request: `slo`, or those of TTFT, TPOT and the whole request, whatever the percentile."""
    if slo is None:
        return Slo(*(None if limit is None else limit.seconds for limit in limits))
    if any(limit is not None for limit in limits):
        raise SpecError("slo: `ttft`, `tpot` and `latency` already give it; leave one of them out")
    return slo


@takes(BatchRequest, MachineSpec, ServingSpec, TechniqueRequest, DatedSourceSpec, requests=QUEUE, concurrency=BATCH)
def batch(
    model: ModelName, requests: int | None = None, *, concurrency: int | None = None,
    report: Callable[[int, int], None] | None = None, **options: Any,
) -> BatchAnswer:  # fmt: skip
    """Work off a queue of requests on spot workers: time, cost, and the odds of a deadline.

    Args:
        requests: in the queue.
        concurrency: requests in flight at each worker (default: as many as memory holds).
        report: called with (trials done, trials in all).

    Raises:
        SpecError: a value or a name that cannot be.
        InfeasibleError: the model does not fit, or interruptions undo the work faster than it is done.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.batch("Llama-3.1-8B", "10k", gpu="h100", workers=2, trials=20, provider="aws")
        >>> answer.queue.workers
        2
    """
    specs = take(
        {"queue": requests, **options}, BatchRequest, MachineSpec, ServingSpec, TechniqueRequest, DatedSourceSpec
    )
    return BatchAnswer.of(model, *specs, concurrency=concurrency, report=report)
