"""Comparison of a simulated trace with its observation: figures, and the terms of first and further tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.facts.architecture import Attend
from flopwise.observations.observation import LATENCIES, Observation
from flopwise.serving.iteration import StepLoad, layer_kinds
from flopwise.serving.sim.trace import PS
from flopwise.serving.techniques import runner
from flopwise.units import format_number
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.serving.job import ServeJob
    from flopwise.serving.sim.answer import SimulateAnswer
    from flopwise.serving.sim.result import SimulatedRun

WORTH_FRAC = 0.05
"""Relative difference below which a term is not reported as a cause."""
HOST, QUEUE, PREFILL = "host", "queue", "prefill"
WEIGHTS, CACHE, MESSAGES = "weights", "cache", "messages"
PROMPTS, REST = "prefill of other requests", "unexplained time"
_LEVERS = {
    HOST: "the time of the HTTP server, tokenizer and scheduler differs from the plan: `flopwise calibrate` fits it",
    QUEUE: "the queue length differs: check the arrivals and the rate that the replica sustains",
    PREFILL: "the prefill time differs: check prefix hits, prefill chunks and the rate of matrix products",
    WEIGHTS: "the running batch differs from the simulated one",
    CACHE: "the number of cached tokens per sequence differs from the simulation",
    MESSAGES: "check the links between the devices",
    PROMPTS: "prefill of other requests delays more, or fewer, steps than in the simulation",
    REST: "rates or host times of this deployment differ from the assumed ones: `flopwise calibrate` fits them",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A measured and a predicted figure, in seconds, requests or shares; `low` and `high`: 80 % interval, if known."""

    name: str
    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float | None:
        """Measured / predicted - 1; None where the prediction is 0."""
        return self.measured / self.predicted - 1 if self.predicted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTerm:
    """A term of the mean TTFT (`of` "first token") or TPOT (`of` "token"), in seconds; None: not measured.

    The measured terms add up to the measured total.
    """

    of: str
    name: str
    predicted_s: float
    measured_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayComparison:
    """An observation compared with a simulation of the same traffic."""

    figures: tuple[ComparedFigure, ...]
    terms: tuple[ComparedTerm, ...]
    findings: tuple[str, ...]


def compare(
    seen: Observation, run: SimulatedRun, job: ServeJob, intervals: dict[str, tuple[float, float]] | None = None
) -> ReplayComparison:
    """The comparison; `intervals`: 80 % intervals of the simulated medians, by `ttft_s`, `tpot_s`, `e2e_s`."""
    ends = intervals or {}
    predicted = {"ttft": run.ttft_s, "itl": run.tpot_s, "e2e": run.e2e_s}
    keys = {"ttft": "ttft_s", "itl": "tpot_s", "e2e": "e2e_s"}
    figures = []
    for name in LATENCIES:
        latency, values = getattr(seen, name), predicted[name][np.isfinite(predicted[name])]
        if latency is None or not len(values):
            continue
        low, high = ends.get(keys[name], (None, None))
        for label, measured, value in (
            ("mean", latency.mean, values.mean()), ("p50", latency.p50, np.quantile(values, 0.5)),
            ("p95", latency.p95, np.quantile(values, 0.95)), ("p99", latency.p99, np.quantile(values, 0.99)),
        ):  # fmt: skip
            if measured is not None:
                band = {"low": low, "high": high} if label == "p50" else {}
                figures.append(
                    ComparedFigure(name=f"{name} {label}", measured=measured, predicted=float(value), **band)
                )
    summary = run.summary()
    for name, measured, value in (
        ("running", seen.running, summary.mean_running), ("waiting", seen.waiting, summary.mean_queue),
        ("cache", seen.cache_frac, summary.kv_mean_frac), ("requests/s", seen.requests_per_s, summary.requests_per_s),
    ):  # fmt: skip
        if measured is not None:
            figures.append(ComparedFigure(name=name, measured=measured, predicted=value))
    terms = (*_first_token(seen, run), *_token(seen, run, job))
    return ReplayComparison(figures=tuple(figures), terms=terms, findings=tuple(_findings(terms)))


def _first_token(seen: Observation, run: SimulatedRun) -> list[ComparedTerm]:
    """Terms of TTFT. Host is all time outside of queue and prefill, including the network if clients measured."""
    first, wait = float(np.nanmean(run.ttft_s)), float(np.nanmean(run.wait_s))
    host = float(run.host_ps.mean()) / PS
    parts = {HOST: host, QUEUE: wait, PREFILL: max(first - host - wait, 0.0)}
    whole = None if seen.ttft is None else seen.ttft.mean
    if whole is None:
        return []
    measured: dict[str, float | None] = dict.fromkeys(parts)
    if seen.queue_s is not None and seen.prefill_s is not None:
        measured = {HOST: max(whole - seen.queue_s - seen.prefill_s, 0.0), QUEUE: seen.queue_s, PREFILL: seen.prefill_s}
    return [
        ComparedTerm(of="first token", name=n, predicted_s=s, measured_s=measured[n]) for n, s in parts.items()
    ] + ([] if measured[HOST] is not None else [
        ComparedTerm(of="first token", name=REST, predicted_s=0.0, measured_s=whole - first)
    ])  # fmt: skip


def token_terms(job: ServeJob, batch: float, context: float) -> dict[str, float]:
    """Time of a step that decodes `batch` sequences of `context` tokens, by term, in seconds."""
    machine = runner(job)
    load = StepLoad(decode_batch=max(batch, 1.0), decode_context=max(context, 1.0))
    step = machine.step(load, job.layout)
    cache = sum(
        count
        * float(np.ravel(sum((k.seconds for k in machine.kernels_of((item,), load, job.layout, inside=True)), 0.0))[0])
        for kind, count in layer_kinds(job.model.stacks[0])
        for item in kind.items
        if isinstance(item, Attend)
    )
    whole, host, messages = (float(np.ravel(v)[0]) for v in (step.seconds, step.overhead_s, step.communication_s))
    return {WEIGHTS: max(whole - host - messages - cache, 0.0), CACHE: cache, MESSAGES: messages, HOST: host}


def _token(seen: Observation, run: SimulatedRun, job: ServeJob) -> list[ComparedTerm]:
    """Terms of TPOT, computed at the simulated and at the measured batch; the remainder is REST."""
    whole = None if seen.itl is None else seen.itl.mean
    simulated = float(np.nanmean(run.tpot_s)) if np.any(np.isfinite(run.tpot_s)) else None
    if whole is None or simulated is None:
        return []
    summary = run.summary()
    context = float(run.trace.prompt.mean() + run.trace.output.mean() / 2)
    expected = token_terms(job, summary.mean_running / max(summary.utilisation_frac, 1e-9), context)
    terms = [ComparedTerm(of="token", name=n, predicted_s=s, measured_s=None) for n, s in expected.items()]
    prompts = simulated - sum(expected.values())
    if seen.running is None:
        return [
            *terms, ComparedTerm(of="token", name=PROMPTS, predicted_s=prompts, measured_s=None),
            ComparedTerm(of="token", name=REST, predicted_s=0.0, measured_s=whole - simulated),
        ]  # fmt: skip
    there = token_terms(job, seen.running / max(summary.utilisation_frac, 1e-9), context)
    terms = [ComparedTerm(of="token", name=n, predicted_s=s, measured_s=there[n]) for n, s in expected.items()]
    return [
        *terms, ComparedTerm(of="token", name=PROMPTS, predicted_s=prompts, measured_s=prompts),
        ComparedTerm(of="token", name=REST, predicted_s=0.0, measured_s=whole - prompts - sum(there.values())),
    ]  # fmt: skip


def _findings(terms: tuple[ComparedTerm, ...]) -> list[str]:
    """The largest difference of TTFT and of TPOT as a sentence each."""
    findings = []
    for of in dict.fromkeys(term.of for term in terms):
        own = [term for term in terms if term.of == of and term.measured_s is not None]
        whole = sum(term.predicted_s for term in terms if term.of == of)
        worst = max(own, key=lambda term: abs((term.measured_s or 0.0) - term.predicted_s), default=None)
        if worst is None:
            continue
        gap = (worst.measured_s or 0.0) - worst.predicted_s
        if abs(gap) > WORTH_FRAC * whole:
            findings.append(
                f"{of}: {worst.name} is {format_number(abs(gap) * 1e3)} ms {'longer' if gap > 0 else 'shorter'} than "
                f"simulated; {_LEVERS[worst.name]}"
            )
        else:
            findings.append(f"{of}: no term differs by more than {WORTH_FRAC:.0%} of the total".replace("%", " %"))
    return findings


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The simulated traffic of an observation, compared with the measurements."""

    answer: SimulateAnswer
    observation: Observation
    comparison: ReplayComparison

    @classmethod
    def of(cls, seen: Observation, answer: SimulateAnswer) -> Replay:
        """The answer of the simulated traffic beside what was measured of it."""
        medians = {name: ends["p50"] for name, ends in answer.intervals.items() if "p50" in ends}
        return cls(answer=answer, observation=seen, comparison=compare(seen, answer.simulated, answer.job, medians))
