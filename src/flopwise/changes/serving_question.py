"""A question about a service: one replica of its deployment under its load, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flopwise.changes.memory import with_remedies
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.spec import DatedSourceSpec, ModelName, SourceSpec
from flopwise.options import changed_options, take
from flopwise.provenance import implied_kinds
from flopwise.serving.answer import ServeAnswer, ServeQuestion
from flopwise.serving.deployment import replica_of, spread
from flopwise.serving.explain import SETTINGS
from flopwise.serving.job import ServeEstimate
from flopwise.serving.load_curve import AXES, ServeSweep
from flopwise.serving.spec import (
    QueueSpec,
    RequestSpec,
    ResponseCacheSpec,
    ServingSpec,
    SessionsSpec,
    StartSpec,
    TechniqueRequest,
)
from flopwise.values import replace

SERVED = (
    RequestSpec, SessionsSpec, QueueSpec, ResponseCacheSpec, MachineSpec, ServingSpec, TechniqueRequest, StartSpec,
    DatedSourceSpec,
)  # fmt: skip


def question_of(options: Mapping[str, Any], **how: Any) -> tuple[ServeQuestion, DatedSourceSpec]:
    """The question of the options of `SERVED`, or of whole specs, and where model and facts come from."""
    request, sessions, queue, cache, machines, deployment, techniques, start, source = take(options, *SERVED)
    question = ServeQuestion(
        request=request, sessions=sessions, queue=queue, cache=cache, machines=machines, deployment=deployment,
        techniques=techniques, start=start, **how,
    )  # fmt: skip
    return question, source


def serve(
    model: ModelName, question: ServeQuestion, source: SourceSpec, on_compile: Callable[[], None] | None = None
) -> ServeAnswer:
    """The answer for a model with token layers; `on_compile` is called where the simulator must be compiled first.

    Raises:
        SpecError: options that do not go together, or a layout that the model does not allow.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    question.check()
    architecture = source.model_with_layers(model)
    machines, gpus = question.machines, question.gpus
    deployment = spread(question.deployment, architecture, machines, source.catalog)
    if machines.counted is not None:
        gpus = machines.num_gpus(gpus)
    job, notes = replica_of(architecture, deployment, machines, question.techniques, source)
    question = replace(question, deployment=deployment, gpus=gpus)
    answer = ServeAnswer.of(job, question, source.catalog, notes=notes, on_compile=on_compile)
    options = [n for part in (question.request, deployment, question.techniques) for n in changed_options(part)]
    kinds = implied_kinds(SETTINGS, options if gpus is None else [*options, "gpus"], "default")
    return replace(answer, memory=with_remedies(answer.memory), kinds=kinds)


def serve_sweep(
    model: ModelName, axis: str, values: Sequence[int] | None, question: ServeQuestion, source: SourceSpec,
    on_compile: Callable[[], None] | None = None,
) -> ServeSweep:  # fmt: skip
    """The answers along `axis`: requests in flight, fixed batches or tensor-parallel degrees. Raises as `serve`.

    Raises: UnknownNameError: no such axis. SpecError: an axis whose value is fixed as well.
    """
    if axis not in AXES:
        raise UnknownNameError("sweep", axis, AXES, f"allowed: {', '.join(AXES)}")
    if question.request.rate is not None:
        raise SpecError("a sweep fixes the requests in flight; leave the rate out")
    if axis != "tp" and question.request.concurrency is not None:
        raise SpecError(f"--sweep {axis} sets the requests in flight itself; leave the concurrency out")
    architecture = source.model_with_layers(model)
    question = replace(question, static=question.static or axis == "batch")
    first = serve(architecture, replace(question, simulate=False), source, on_compile)

    def estimate_at(value: int) -> tuple[ServeEstimate, int]:
        if axis == "tp":
            point = replace(question, gpus=None, deployment=replace(question.deployment, tp=value))
        else:
            point = replace(question, request=replace(question.request, concurrency=value))
        answer = serve(architecture, point, source, on_compile)
        return answer.estimate, answer.replicas

    return ServeSweep.along(axis, values, first, estimate_at)
