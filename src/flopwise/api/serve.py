"""How fast does it serve: latencies, throughput, what memory allows and what tokens cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.architecture import Model
from flopwise.facts.spec import DatedSourceSpec
from flopwise.keywords import takes
from flopwise.options import DEGREE, changed_options, defaults_of, take
from flopwise.provenance import implied_kinds
from flopwise.serving.answer import LONG_PROMPT, ServeAnswer, ServeQuestion
from flopwise.serving.deployment import replica_of, spread
from flopwise.serving.estimate import SHORT_ANSWER
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


@takes(*SERVED, gpus=DEGREE)
def serve(
    model: Model | str, *, gpus: int | None = None, static: bool = False, encode: bool = False, simulate: bool = False,
    closed_form: bool = False, on_compile: Callable[[], None] | None = None, **options: Any,
) -> ServeAnswer:  # fmt: skip
    """Latency, throughput, memory, energy and price of serving a model.

    Times are in seconds, rates per second, money in US dollars. `gpus` accelerators hold gpus / (tp x pp x dp)
    replicas. With `rate` there are percentiles under that load; with `requests` a run with an end, simulated.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        gpus: number of accelerators (default: one replica).
        static: a fixed batch: all prompts first, then all answers.
        encode: one pass over each input, without an answer.
        simulate: latencies of `concurrency` users or under `rate` by simulated requests, not in closed form.
        closed_form: latencies in closed form, also where it is known to be off and requests would be simulated.
        on_compile: called before the simulator is compiled for the first time.
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.serve("Llama-3.1-8B", gpu="l40s", input="1k", output=200, rate="2/s")
        >>> answer.estimate.tpot_s.low < answer.estimate.tpot_s.value < answer.estimate.tpot_s.high
        True
    """
    from flopwise.changes.memory import with_remedies

    request, sessions, queue, cache, machines, deployment, techniques, start, source = take(options, *SERVED)
    start.check()
    sessions.check()
    cache.check()
    architecture = source.model_with_layers(model)
    deployment = spread(deployment, architecture, machines, source.catalog)
    if machines.counted is not None:
        gpus = machines.num_gpus(gpus)
    job, notes = replica_of(architecture, deployment, machines, techniques, source)
    question = ServeQuestion(
        request=request, deployment=deployment, machines=machines, start=start, sessions=sessions, gpus=gpus,
        static=static, encode=encode, simulate=simulate, closed_form=closed_form, queue=queue, cache=cache,
    )  # fmt: skip
    answer = ServeAnswer.of(job, question, source.catalog, notes=notes, on_compile=on_compile)
    option_names = [name for part in (request, deployment, techniques) for name in changed_options(part)]
    kinds = implied_kinds(SETTINGS, option_names if gpus is None else [*option_names, "gpus"], "default")
    return replace(answer, memory=with_remedies(answer.memory), kinds=kinds)


@takes(*SERVED, gpus=DEGREE)
def serve_sweep(model: Model | str, axis: str, *, values: tuple[int, ...] | None = None, **options: Any) -> ServeSweep:
    """Estimates of serving along an axis, with the point from which more load only waits.

    With prompts of up to 4,000 tokens they are the closed form's, unless simulation is asked for.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        axis: "concurrency" (requests in flight), "batch" (fixed batches) or "tp".
        values: along the axis (default: powers of two as far as memory holds; for tp those that divide the heads).
        **options: options of the command line by name, or whole specs.

    Raises:
        UnknownNameError: no such axis.
        SpecError: a value that cannot be, or an axis whose value is fixed as well.

    Examples:
        >>> import flopwise
        >>> [point.value for point in flopwise.serve_sweep("Llama-3.1-8B", "batch", values=(1, 8), gpu="h100").points]
        [1, 8]
    """
    if axis not in AXES:
        raise UnknownNameError("sweep", axis, AXES, f"allowed: {', '.join(AXES)}")
    if options.get("rate") is not None:
        raise SpecError("a sweep fixes the requests in flight; leave the rate out")
    if axis != "tp" and options.get("concurrency") is not None:
        raise SpecError(f"--sweep {axis} sets the requests in flight itself; leave the concurrency out")
    options["static"] = axis == "batch" or bool(options.get("static"))
    (source,) = take({name: options[name] for name in defaults_of(DatedSourceSpec) if name in options}, DatedSourceSpec)
    architecture = source.model_with_layers(model)
    first = serve(architecture, **options | {"simulate": False})
    job, simulated = first.estimate.job, options.get("simulate") or 0 < first.estimate.job.growing < SHORT_ANSWER
    if job.input_tokens < LONG_PROMPT and not simulated:
        options["closed_form"] = True  # points of a curve differ by less than what single runs differ by chance

    def estimate_at(value: int) -> tuple[ServeEstimate, int]:
        single = {name: option for name, option in options.items() if axis != "tp" or name != "gpus"}
        answer = serve(architecture, **single | {"tp" if axis == "tp" else "concurrency": value})
        return answer.estimate, answer.replicas

    return ServeSweep.along(axis, values, first, estimate_at)
