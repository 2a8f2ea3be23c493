"""Expected figures and limits of a job, from a plan, from the estimate of a recorded run, and from options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from flopwise.telemetry.limits import DEVICE_LIMITS, QUANTITIES, Limit
from flopwise.units import format_percent, format_seconds, format_usd
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.exports.monitoring.alert_rules import WatchRule
    from flopwise.exports.monitoring.watched import WatchedWorkload
    from flopwise.records.model import Run
    from flopwise.search.answer import Plan
    from flopwise.telemetry.spec import WatchSpec

BUDGETS = ("BudgetSpent", "DayBudgetSpent")
"""Limits at which the stop command runs."""
ELSEWHERE = ("InterruptionsFrequent", "SpotInterruption", "MetricsMissing", "TargetDown")
"""Exported rules about interruptions and about Prometheus itself, which only a server can evaluate."""
RATE_FOR_S = 900.0
LATENCY_FOR_S = 300.0
LAYOUT = ("tp", "pp", "cp", "ep", "dp", "zero", "micro_batch", "recompute", "precision", "weights", "kv_dtype",
          "max_batch", "replicas")  # fmt: skip
Interval = tuple[float, float, float]
"""Value, lower and upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected figures and limits of a job."""

    title: str = ""
    origin: str = ""
    serves: bool | None = None  # None: not known
    figures: Mapping[str, Interval] = field(default_factory=dict)  # by measure of the job
    limits: tuple[Limit, ...] = ()
    usd_per_hour: float | None = None
    budget_usd: float | None = None
    planned_usd: float | None = None
    planned_s: float | None = None
    tokens: float | None = None
    requests_per_s: float | None = None  # what the replicas can do
    mfu_per_token_rate: float | None = None
    layout: str = ""
    bound: str = ""
    boost_clock_hz: float | None = None

    @classmethod
    def of(cls, spec: WatchSpec, run: Run | None, plan: Plan | None) -> Expected:
        """Expected figures from the options, else the plan, else the run's estimate; else the usual limits.

        Raises: SpecError: the plan has no such candidate.
        """
        expected = cls()
        if run is not None:
            expected = _of_run(run)
        if plan is not None:
            expected = _of_plan(plan, spec.rank)
        price = spec.price if spec.price is not None else expected.usd_per_hour
        budget = spec.budget if spec.budget is not None else expected.budget_usd
        expected = replace(expected, usd_per_hour=price, budget_usd=budget)
        limits = {
            limit.name: limit for limit in (*_usual(spec, expected), *expected.limits, *_of_options(spec, expected))
        }
        return replace(expected, limits=tuple(limits.values()))

    @property
    def rate(self) -> tuple[str, Interval] | None:
        """The throughput that is compared with the plan, and its interval."""
        for name in ("output_tokens_per_s", "tokens_per_s"):
            if name in self.figures:
                return name, self.figures[name]
        return None

    def at_plan(self, rates: Mapping[str, float | None], latencies: Mapping[str, float | None]) -> bool | None:
        """True if a run's throughput, or a service's latencies, are within the plan's interval; None: unknown.

        The throughput of a service depends on its requests, so only its latencies are compared.
        """
        if self.serves:
            known = [(value, self.figures[name][2]) for name, value in latencies.items()
                     if value is not None and name in self.figures]  # fmt: skip
            return all(value <= high for value, high in known) if known else None
        if self.rate is None or rates.get(self.rate[0]) is None:
            return None
        return (rates[self.rate[0]] or 0.0) >= self.rate[1][1]


def _usual(spec: WatchSpec, expected: Expected) -> Iterator[Limit]:
    """Limits of any job that the plan does not override."""
    from flopwise.telemetry.spec import WatchSpec as Declared  # noqa: PLC0415 - its defaults alone

    usual = Declared()
    yield from DEVICE_LIMITS
    for_text = f"for {format_seconds(spec.utilisation_for)}"
    why = f"{format_percent(spec.utilisation, 0)} {for_text}"
    why += " is the usual limit" if (spec.utilisation, spec.utilisation_for) == (
        usual.utilisation, usual.utilisation_for) else " is the limit given"  # fmt: skip
    if not expected.serves:
        yield Limit(
            name="BusyWithoutProgress", quantity="busy_without_tokens", severity="critical",
            threshold=spec.utilisation, for_s=spec.utilisation_for,
            summary="devices are busy, but no tokens are processed",
            why=f"{why}; a training run should be busy all the time",
            action="stop the run and start it again from its last checkpoint; look for the rank that others wait for",
        )  # fmt: skip
    if expected.serves is not False:
        yield Limit(
            name="UtilisationHigh", quantity="device_busy_ratio", why=why, threshold=spec.utilisation,
            for_s=spec.utilisation_for, summary="devices are busy nearly all the time",
            action="scale up: use a larger machine, or add one",
        )  # fmt: skip
    yield Limit(
        name="MemoryHigh", quantity="memory_ratio", threshold=spec.memory, for_s=spec.memory_for,
        summary="a device's memory is nearly full",
        why=f"{format_percent(spec.memory, 0)} for {format_seconds(spec.memory_for)}", action="use a smaller batch",
    )  # fmt: skip


def _of_options(spec: WatchSpec, expected: Expected) -> Iterator[Limit]:
    """Limits from options, which override those of the plan."""
    if expected.budget_usd is not None:
        yield Limit(
            name="BudgetSpent", quantity="cost_usd_per_run", threshold=expected.budget_usd, severity="critical",
            summary=f"more than the budget of {format_usd(expected.budget_usd)}", why="the budget",
            action="stop the job, or raise the budget",
        )  # fmt: skip
    if spec.budget_per_day is not None:
        yield Limit(
            name="DayBudgetSpent", quantity="cost_usd_per_day", threshold=spec.budget_per_day, severity="critical",
            summary=f"24 hours cost more than {format_usd(spec.budget_per_day)}", why="the budget per day",
            action="stop what can wait, or raise the budget",
        )  # fmt: skip
    names = {"latency": ("LatencyHigh", "latency_seconds"), "tpot": ("TimePerTokenHigh", "time_per_token_seconds"),
             "ttft": ("TimeToFirstTokenHigh", "time_to_first_token_seconds")}  # fmt: skip
    for target, seconds in spec.target_p95:
        name, quantity = names[target]
        yield Limit(
            name=name, quantity=quantity, threshold=seconds, key="95", for_s=LATENCY_FOR_S, severity="critical",
            summary=f"p95 {target} above {format_seconds(seconds)}", why="the target",
            action="use a smaller batch or model, or shorter prompts; else add a replica, or shed load",
        )  # fmt: skip
    if spec.min_tokens_per_s is not None:
        rate = "output_tokens_per_second" if expected.serves else "tokens_per_second"
        yield Limit(
            name="ThroughputLow", quantity=rate, threshold=spec.min_tokens_per_s, above=False, for_s=RATE_FOR_S,
            summary="throughput is below the minimum", why="--min-tokens-per-s",
            action="look for a slow machine, network or storage, or stop the run",
        )  # fmt: skip


def _of_run(run: Run) -> Expected:
    """The estimate of a run when it began."""
    from flopwise.telemetry.recorded import JOB_MEASURES  # noqa: PLC0415 - of runs alone

    figures: dict[str, Interval] = {}
    limits: list[Limit] = []
    expected = run.expected
    if expected is not None:
        for metric, figure in expected.figures.items():
            if metric in JOB_MEASURES:
                figures[JOB_MEASURES[metric]] = (figure.value, figure.low, figure.high)
    if "tokens_per_s" in figures and run.task != "serve":
        value, low, _ = figures["tokens_per_s"]
        limits.append(
            Limit(name="ThroughputLow", quantity="tokens_per_second", threshold=low, above=False, for_s=RATE_FOR_S,
                  summary="throughput is below the plan's interval", why=f"the lower end of the planned {value:,.0f}",
                  action="look for a slow machine, network or storage, or stop the run"))  # fmt: skip
    tokens = run.settings.get("tokens")
    return Expected(
        title=run.name, origin=f"run {run.name}", serves=run.task == "serve", figures=figures, limits=tuple(limits),
        usd_per_hour=run.price_usd_per_hour, budget_usd=run.budget_usd,
        tokens=float(tokens) if isinstance(tokens, int | float) else None,
    )  # fmt: skip


def _of_plan(plan: Plan, rank: int) -> Expected:
    """The figures of a plan's candidate, with the limits of its exported alert rules."""
    from flopwise.exports.deployment import Deployment  # noqa: PLC0415 - only with a plan
    from flopwise.exports.monitoring.alert_rules import watch_rules  # noqa: PLC0415 - same
    from flopwise.exports.monitoring.watched import watched_plan  # noqa: PLC0415 - same
    from flopwise.exports.spec import ExportSettings  # noqa: PLC0415 - same
    from flopwise.facts.catalog import load_facts  # noqa: PLC0415 - same

    deployment = Deployment.of_rank(plan, rank, load_facts(None), ExportSettings())
    watched = watched_plan(deployment)
    candidate = deployment.candidate
    figures = dict(_plan_figures(watched))
    estimate = watched.estimate
    layout = ", ".join(f"{name.replace('_', ' ')} {candidate.layout[name]}" for name in LAYOUT
                       if candidate.layout.get(name) not in (None, 1, 0, "", "none"))  # fmt: skip
    return Expected(
        title=watched.title, origin=f"candidate {rank} of the plan", serves=not watched.ends, figures=figures,
        limits=tuple(limit for rule in watch_rules(watched) for limit in rule_limits(rule)),
        usd_per_hour=watched.usd_per_hour + watched.steady_usd_per_hour, budget_usd=deployment.workload.budget_usd,
        planned_usd=candidate.cost_usd if watched.ends else None, planned_s=candidate.paid_s if watched.ends else None,
        tokens=deployment.workload.tokens if watched.trains else None, requests_per_s=watched.value("requests_per_s"),
        mfu_per_token_rate=None if estimate is None else estimate.mfu_frac / estimate.tokens_per_s,
        layout=layout, bound="" if estimate is None else str(estimate.bound),
        boost_clock_hz=watched.accelerator.boost_clock_hz,
    )  # fmt: skip


def _plan_figures(watched: WatchedWorkload) -> Iterator[tuple[str, Interval]]:
    names = {"tokens_per_s": "tokens_per_s", "step_s": "step_s", "mfu_frac": "mfu_frac"}
    if not watched.trains:
        latencies = ("ttft_s", "tpot_s", "latency_s")
        names = {name: f"{name.removesuffix('_s')}_{watched.percentile(name)}_s" for name in latencies}
        names["output_tokens_per_s"] = "output_tokens_per_s"
    for figure, measure in names.items():
        value = watched.value(figure)
        if value is not None:
            low, high = watched.value(figure, "low"), watched.value(figure, "high")
            yield measure, (value, value if low is None else low, value if high is None else high)


def rule_limits(rule: WatchRule) -> Iterator[Limit]:
    """An exported alert rule as a limit; none if only a server can evaluate it."""
    quantity = {"XidHardwareError": "xid_hardware", "BusyWithoutProgress": "busy_without_tokens"}.get(
        rule.alert, rule.quantity
    )
    if rule.alert in ELSEWHERE or quantity not in QUANTITIES:
        return
    quantile = rule.signal.labels.get("quantile")
    yield Limit(
        name=rule.alert, quantity=quantity, threshold=rule.threshold, above=rule.above, for_s=float(rule.for_s),
        severity=rule.severity, summary=rule.summary, why=rule.why, action=rule.action,
        key="" if quantile is None else f"{100 * float(quantile):g}",
    )  # fmt: skip
