"""How fast does it serve: latencies, throughput, what memory allows and what tokens cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flopwise.changes import serving_question
from flopwise.changes.serving_question import SERVED, question_of
from flopwise.facts.spec import ModelName
from flopwise.keywords import takes
from flopwise.options import DEGREE
from flopwise.serving.answer import ServeAnswer
from flopwise.serving.load_curve import ServeSweep


@takes(*SERVED, gpus=DEGREE)
def serve(
    model: ModelName, *, gpus: int | None = None, static: bool = False, encode: bool = False, simulate: bool = False,
    closed_form: bool = False, on_compile: Callable[[], None] | None = None, **options: Any,
) -> ServeAnswer:  # fmt: skip
    """Latency, throughput, memory, energy and price of serving a model.

    Times are in seconds, rates per second, money in US dollars. `gpus` accelerators hold gpus / (tp x pp x dp)
    replicas. With `rate` there are percentiles under that load; with `requests` a run with an end, simulated.

    Args:
        gpus: number of accelerators (default: one replica).

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
    question, source = question_of(
        options, gpus=gpus, static=static, encode=encode, simulate=simulate, closed_form=closed_form
    )
    return serving_question.serve(model, question, source, on_compile)


@takes(*SERVED, gpus=DEGREE)
def serve_sweep(
    model: ModelName, axis: str, *, values: tuple[int, ...] | None = None, gpus: int | None = None,
    static: bool = False, encode: bool = False, simulate: bool = False, closed_form: bool = False,
    on_compile: Callable[[], None] | None = None, **options: Any,
) -> ServeSweep:  # fmt: skip
    """Estimates of serving along an axis, with the point from which more load only waits.

    Each point is what `serve` says of it.

    Args:
        axis: "concurrency" (requests in flight), "batch" (fixed batches) or "tp".
        values: along the axis (default: powers of two as far as memory holds; for tp those that divide the heads).
        gpus: number of accelerators (default: one replica); of tp each point is one replica.

    Raises:
        UnknownNameError: no such axis.
        SpecError: a value that cannot be, or an axis whose value is fixed as well.

    Examples:
        >>> import flopwise
        >>> [point.value for point in flopwise.serve_sweep("Llama-3.1-8B", "batch", values=(1, 8), gpu="h100").points]
        [1, 8]
    """
    question, source = question_of(
        options, gpus=gpus, static=static, encode=encode, simulate=simulate, closed_form=closed_form
    )
    return serving_question.serve_sweep(model, axis, values, question, source, on_compile)
