"""What is expected of a run of serving, from an answer of `serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise import __version__
from flopwise.records.explanation import FIRST, FURTHER
from flopwise.records.model import Expectation, ExpectedFigure

if TYPE_CHECKING:
    from flopwise.serving.answer import ServeAnswer


def serving_expectation(answer: ServeAnswer, question: str) -> Expectation:
    """Latencies of a request and rates of all replicas, with 80 % intervals; `question`: the command of the answer.

    Under a rate the latencies are those of the mean request under that load, where replicas keep up; their intervals
    are as wide as those without. A request's terms are its first token and the further ones.
    """
    estimate, load = answer.estimate, answer.under_load
    figures: dict[str, tuple[float, float, float]] = {}
    first = estimate.ttft_s
    figures["ttft_s"] = first.value, first.low, first.high
    if estimate.tpot_s is not None:
        figures["itl_s"] = estimate.tpot_s.value, estimate.tpot_s.low, estimate.tpot_s.high
    figures["e2e_s"] = estimate.e2e_s, estimate.e2e_low, estimate.e2e_high
    if load is None:
        rates = {"requests_per_s": estimate.throughput, "tokens_per_s": estimate.output_tokens_per_s}
        for name, rate in rates.items():
            if rate is not None:
                figures[name] = rate.value * answer.replicas, rate.low * answer.replicas, rate.high * answer.replicas
    terms = {FIRST: first.value}
    if estimate.e2e_s > first.value:
        terms[FURTHER] = estimate.e2e_s - first.value
    return Expectation(
        figures={
            name: ExpectedFigure(metric=name, value=float(value), low=float(low), high=float(high))
            for name, (value, low, high) in figures.items()
        },
        terms=terms, question=question, version=__version__,
    )  # fmt: skip
