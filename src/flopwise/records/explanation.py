"""Comparison of a run with its estimate: figures, and the terms of a step or a request that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flopwise.records.measured import Measured
from flopwise.records.model import Expectation, ExpectedFigure
from flopwise.records.steady import RULE, Statistic
from flopwise.training.estimate import COMMUNICATION
from flopwise.training.storage import LINE as STORAGE
from flopwise.units import format_number, format_percent, format_seconds
from flopwise.values import dataclass

HIGHER_IS_BETTER = frozenset(
    {"tokens_per_s", "samples_per_s", "mfu_frac", "requests_per_s", "model_flops_per_s", "tensor_active_frac"}
)
FEW_STEPS = 8
"""Number of log lines below which the steady state is uncertain."""
WORTH_FRAC = 0.02
"""Share of a step below which a term is not named as a cause."""
BUSY_FRAC = 0.95
"""Utilisation above which idle time is neglected."""
CLOCK_FRAC = 0.9
"""Ratio of the median to the highest clock below which clocks count as lowered."""
DATA, HOST, COMPUTE, MESSAGES = "data wait", "host", "compute", "communication"
TOGETHER = "compute and communication"
FIRST, FURTHER = "first token", "further tokens"
_TERMS = {STORAGE: DATA, "launch": HOST, "host": HOST, MESSAGES: MESSAGES} | dict.fromkeys(COMMUNICATION, MESSAGES)
_HEADLINE = ("step_s", "e2e_s", "itl_s", "ttft_s", "tokens_per_s", "requests_per_s")
_LEVERS = {
    DATA: "use more loader workers and prefetching, fewer and larger files, or faster storage (`flopwise io`)",
    HOST: "compile or capture graphs, use larger micro-batches, log and synchronize less often",
    COMPUTE: "check attention, kernels, clocks and power limits; `flopwise calibrate` fits this machine",
    MESSAGES: "check that NCCL uses the planned links; try larger batches, other layouts (`flopwise train --compare`)",
    TOGETHER: "record tensor activity or communication time to separate the two, then see `flopwise train --compare`",
    "evaluation": "evaluate less often, or on a separate replica",
    "checkpoint": "save less often or asynchronously; `flopwise io` estimates the bandwidth that storage needs",
    "warm-up": "compilation and caches; keep them between runs",
    "other": "see the events of the run: garbage collection, a shared file system, other jobs on the machine",
    FIRST: "queueing or prefill: see requests waiting; `flopwise observe` separates host, queue and prefill",
    FURTHER: "batch, cache or messages: see requests running; `flopwise calibrate` fits this deployment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOutcome:
    """One metric: measured and expected figure, if known."""

    metric: str
    measured: Statistic | None
    expected: ExpectedFigure | None
    derived: bool = False

    @property
    def difference(self) -> float | None:
        """Measured / expected - 1."""
        if self.measured is None or self.expected is None or not self.expected.value:
            return None
        return self.measured.value / self.expected.value - 1

    @property
    def place(self) -> str:
        """The position of the measured figure: inside the interval, better or worse; empty if either is missing."""
        if self.measured is None or self.expected is None:
            return ""
        value, more_is_better = self.measured.value, self.metric in HIGHER_IS_BETTER
        if self.expected.low <= value <= self.expected.high:
            return "inside"
        return "better" if (value > self.expected.high) == more_is_better else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term of a step or a request: expected and measured seconds. The differences add up to the total difference."""

    name: str
    expected_s: float
    measured_s: float
    basis: str  # measured; the remainder; not separated

    @property
    def difference_s(self) -> float:
        """Measured less expected time, in seconds."""
        return self.measured_s - self.expected_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause of a difference from the plan: its evidence and a remedy."""

    name: str
    evidence: str
    lever: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExplanation:
    """A verdict on a run, with the reasons."""

    verdict: str
    outcomes: tuple[MetricOutcome, ...]
    terms: tuple[Term, ...]
    causes: tuple[Cause, ...]
    notes: tuple[str, ...]


def explanation(measured: Measured) -> RunExplanation:
    """The figures of a run compared with the estimate, and the difference by term."""
    expected = measured.run.expected
    figures: Mapping[str, ExpectedFigure] = {} if expected is None else expected.figures
    names = dict.fromkeys((*_HEADLINE, *figures, *measured.levels, *measured.totals))
    outcomes = tuple(
        MetricOutcome(
            metric=name, measured=measured.statistic(name), expected=figures.get(name), derived=name in measured.derived
        )
        for name in names
        if measured.statistic(name) is not None or name in figures
    )
    terms = tuple(_terms(measured, expected)) if expected is not None else ()
    causes = tuple(_causes(measured, terms))
    return RunExplanation(
        verdict=_verdict(measured, outcomes, terms), outcomes=outcomes, terms=terms, causes=causes,
        notes=tuple(_notes(measured, terms)),
    )  # fmt: skip


def _terms(measured: Measured, expected: Expectation) -> Iterator[Term]:
    """The total time as a sum of terms; the part that no measurement separates is a term of its own."""
    planned: dict[str, float] = {}
    for name, seconds in expected.terms.items():
        group = _TERMS.get(name, COMPUTE) if measured.trains else name
        planned[group] = planned.get(group, 0.0) + seconds
    if not planned:
        return
    if measured.trains:
        yield from _step_terms(measured, planned)
    else:
        first, whole = measured.value("ttft_s"), measured.value("e2e_s")
        if first is not None and whole is not None and {FIRST, FURTHER} <= planned.keys():
            yield Term(name=FIRST, expected_s=planned[FIRST], measured_s=first, basis="measured")
            yield Term(name=FURTHER, expected_s=planned[FURTHER], measured_s=whole - first, basis="measured")


def _step_terms(measured: Measured, planned: Mapping[str, float]) -> Iterator[Term]:
    """The terms of a training step: measured data wait and messages, idle devices as host, the remainder as compute.

    Source: arithmetic on measured times. Assumes: a device that idles, and does not wait for data, waits for the host.
    """
    step = measured.value("step_s")
    if step is None:
        return
    left, expected_left = step, sum(planned.values())
    wait, busy, sent = (measured.value(name) for name in ("data_wait_s", "utilization_frac", "communication_s"))
    if wait is not None:
        wait = min(wait, step)
        yield Term(name=DATA, expected_s=planned.get(DATA, 0.0), measured_s=wait, basis="measured")
        left, expected_left = left - wait, expected_left - planned.get(DATA, 0.0)
    idle = 0.0 if busy is None else max((1.0 - busy) * step - (wait or 0.0), 0.0)
    if busy is not None and wait is not None:
        host = min(idle if busy < BUSY_FRAC else 0.0, left)
        yield Term(name=HOST, expected_s=planned.get(HOST, 0.0), measured_s=host, basis="idle devices")
        left, expected_left = left - host, expected_left - planned.get(HOST, 0.0)
    if sent is not None:
        sent = min(sent, left)
        yield Term(name=MESSAGES, expected_s=planned.get(MESSAGES, 0.0), measured_s=sent, basis="measured")
        left, expected_left = left - sent, expected_left - planned.get(MESSAGES, 0.0)
    one = (measured.run.gpus or 0) == 1
    apart = sent is not None or (one and not planned.get(MESSAGES))
    name, basis = (COMPUTE, "the remainder") if apart else (TOGETHER, "the remainder, not separated")
    unseen = [part for part, seen in ((DATA, wait), (HOST, busy if wait is not None else None)) if seen is None]
    if unseen:
        basis = f"{basis}; {' and '.join(unseen)} not measured, so included"
    yield Term(name=name, expected_s=expected_left, measured_s=left, basis=basis)


def _causes(measured: Measured, terms: tuple[Term, ...]) -> Iterator[Cause]:
    """Terms that take longer than estimated, worst first, with evidence; then time outside of steps."""
    whole = sum(term.expected_s for term in terms)
    for term in sorted(terms, key=lambda term: -term.difference_s):
        if term.difference_s > max(WORTH_FRAC * whole, 2 * _noise_s(measured)):
            took, planned = format_seconds(term.measured_s), format_seconds(term.expected_s)
            evidence = f"{took} against {planned} expected ({term.basis})"
            yield Cause(name=term.name, evidence=evidence, lever=_LEVERS.get(term.name, ""))
    yield from _device_causes(measured)
    if measured.steady is None or not measured.steady.whole_s:
        return
    apart = [("warm-up", measured.steady.warm_up_lines, measured.steady.warm_up_s)]
    for name, count, seconds in [*apart, *((p.kind, p.count, p.seconds) for p in measured.steady.pauses)]:
        share = seconds / measured.steady.whole_s
        if share > WORTH_FRAC:
            lines = ("log line" if name == "warm-up" else "pause") + "s" * (count != 1)
            text = f"{format_seconds(seconds)} outside of steps, {format_percent(share)} of the run ({count:,} {lines})"
            title = {"warm-up": name, "other": "other pauses"}.get(name, f"{name}s")
            yield Cause(name=title, evidence=text, lever=_LEVERS[name])


def _noise_s(measured: Measured) -> float:
    """The standard error of the time of a step or a request."""
    one = measured.levels.get("step_s" if measured.trains else "e2e_s")
    return (one.error or 0.0) if one is not None else 0.0


def _device_causes(measured: Measured) -> Iterator[Cause]:
    """Lowered clocks, and more work than planned, where they were measured."""
    clock = measured.levels.get("sm_clock_hz")
    highest = measured.highest.get("sm_clock_hz")
    if clock is not None and highest and clock.value < CLOCK_FRAC * highest:
        text = f"the median clock is {clock.value / 1e6:,.0f} MHz, the highest {highest / 1e6:,.0f} MHz"
        yield Cause(name="clocks", evidence=text, lever="cooling and power limits; `flopwise watch` names the reason")
    active, expected = measured.value("tensor_active_frac"), measured.run.expected
    planned = None if expected is None else expected.figures.get("mfu_frac")
    step, step_planned = measured.value("step_s"), None if expected is None else expected.figures.get("step_s")
    if active is None or planned is None or step is None or step_planned is None:
        return
    needed = planned.value * step_planned.value / step  # of the peak, at the speed that was reached
    if active > 1.5 * needed:
        share, plan = format_percent(active), format_percent(needed)
        text = f"tensor units are active {share} of the time; the planned work needs {plan}"
        yield Cause(
            name="more work", evidence=text, lever="look for recomputation, padding, or clocks below the datasheet's"
        )


def _verdict(measured: Measured, outcomes: tuple[MetricOutcome, ...], terms: tuple[Term, ...]) -> str:
    """One sentence: on plan, slower or faster, by how much, and the term that contributes most.

    Of a run that would be faster than its accelerators can be: which settings are to be checked.
    """
    mfu_frac = measured.value("mfu_frac")
    if mfu_frac is not None and mfu_frac > 1.0:
        return (
            f"Cannot be as stated: MFU {format_percent(mfu_frac)}, more than the datasheet's peak; check the "
            "accelerators and their number, the model, and the tokens of a step (sequence length, global batch)"
        )
    by_name = {one.metric: one for one in outcomes}
    main = next((by_name[n] for n in _HEADLINE if n in by_name and by_name[n].difference is not None), None)
    if main is None:
        return _without_plan(measured)
    assert main.measured is not None and main.expected is not None and main.difference is not None  # noqa: PT018
    took, planned = (_text(main.metric, v) for v in (main.measured.value, main.expected.value))
    low, high = (_text(main.metric, v) for v in (main.expected.low, main.expected.high))
    what = {"step_s": "a step takes", "e2e_s": "a request takes", "itl_s": "a token takes"}.get(main.metric)
    what = what or {"ttft_s": "the first token takes"}.get(main.metric, main.metric)
    state = {"inside": "On plan", "better": "Faster than the plan", "worse": "Slower than the plan"}[main.place]
    change = f"{100 * main.difference:+.0f} %"
    text = f"{state}: {what} {took}, expected {planned} (80 % interval: {low} to {high}), {change}"
    if main.place != "inside" and terms:
        worst = max(terms, key=lambda term: term.difference_s if main.place == "worse" else -term.difference_s)
        text += f"; most of it: {worst.name} ({worst.difference_s / sum(t.expected_s for t in terms):+.0%})".replace(
            "%", " %"
        )
    few, count = measured.trains and main.measured.count < FEW_STEPS, main.measured.count
    lines = f"{count} log line{'s' if count != 1 else ''}"
    return f"{text}. Only {lines}: too few to be sure" if few else text


def _without_plan(measured: Measured) -> str:
    """The verdict on a run without an estimate, or without measured figures."""
    step = measured.levels.get("step_s") or measured.levels.get("e2e_s")
    took = "" if step is None else f": {format_seconds(step.value)} a {'step' if measured.trains else 'request'}"
    if measured.run.expected is not None:
        return f"Cannot be judged{took or ': none of the expected figures was measured'}"
    return (
        f"No estimate to compare it with{took}; give its model, accelerators and settings when you record or import it"
    )


def _text(metric: str, value: float) -> str:
    return format_seconds(value) if metric.endswith("_s") and not metric.endswith("_per_s") else format_number(value, 4)


def _notes(measured: Measured, terms: tuple[Term, ...]) -> Iterator[str]:
    """Notes on the steady state, derived figures and uncertainties."""
    if measured.steady is not None:
        yield RULE
    if measured.batch_ratio != 1.0:
        yield (
            f"a step has {format_number(measured.batch_ratio)} times the planned tokens, so the expected step time is "
            "scaled by this factor"
        )
    if measured.derived:
        yield f"derived from the step time, full sequences and the FLOPs of the plan: {', '.join(measured.derived)}"
    before = measured.value("untrained_memory_bytes")
    if before is not None:
        yield (
            f"memory: the peak of the process less {before / 2**20:,.0f} MiB that it held before training, beside its "
            "model"
        )
    if any("not separated" in term.basis for term in terms):
        yield ("compute and communication are one term, because communication_s was not measured")
    if measured.value("utilization_frac") is not None and any(term.name == HOST for term in terms):
        yield "utilisation counts whole sampling windows, so short gaps between kernels do not count as idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRun:
    """A run's figures, and why they are off its plan."""

    measured: Measured
    explanation: RunExplanation
