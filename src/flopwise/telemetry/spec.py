"""The options of `watch`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flopwise import options
from flopwise.errors import SpecError
from flopwise.facts.device_limits import BUSY, BUSY_FOR_S, MEMORY, MEMORY_FOR_S
from flopwise.options import Spec, ValueKind, option, same
from flopwise.records.spec import StoreSpec
from flopwise.units import parse_seconds
from flopwise.values import dataclass

LATENCY_NAMES = ("latency", "ttft", "tpot")
_source = partial(option, section="Source")
_expected = partial(option, section="Expected figures")
_limit = partial(option, section="Limits")
_action = partial(option, section="Actions")


def _latency_target(value: object, what: str) -> tuple[str, float]:
    name, equals, time = str(value).partition("=")
    if not equals:
        name, time = "latency", str(value)
    if name.strip() not in LATENCY_NAMES:
        raise SpecError(f"{what}: {name[:40]!r} is not one of {', '.join(LATENCY_NAMES)}")
    return name.strip(), parse_seconds(time.strip(), what)


LATENCY_TARGET = ValueKind("time", _latency_target, "time, or ttft=, tpot= or latency= and a time")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec(Spec):
    """The source, the expected figures, the limits and the actions of `watch`."""

    prometheus: str | None = _source(
        "--prometheus", options.name("url", 2000),
        "Read a Prometheus server that scrapes dcgm-exporter, an engine, a run or node_exporter.")
    match: tuple[str, ...] = _source(
        "--match", options.name("label=value"), "Only series with this label: workload=chat.", repeated=True)
    run: str | None = _source(
        "--run", options.name("run"), "Read a recorded run, by id or name: live while it is running, else replayed.")
    store: str | None = same(StoreSpec, "store", section="Source")
    interval: float = _source("--interval", options.quantity("time", parse_seconds, low=0.05, high=3600.0),
        "Time between two readings.", default=5.0)
    window: float = _source("--window", options.quantity("time", parse_seconds, low=1.0, high=86_400.0),
        "Time over which the bound is diagnosed.", default=300.0)
    plan: Path | None = _expected(
        "--plan", options.FILE, "A plan of `flopwise plan -o`: use its intervals, limits, price and budget.")
    rank: int = _expected("--rank", options.whole(high=10**6), "The candidate of the plan.", default=1)
    price: float | None = _expected("--price", options.USD_OR_ZERO, "Price of all machines per hour.")
    started: float | None = _expected(
        "--started", options.quantity("time", parse_seconds, high=1e9, closed=True),
        "Time since the job began, from which cost counts (default: since the first reading).")
    budget: float | None = _limit("--budget", options.USD, "Budget of the job, in US dollars.")
    budget_per_day: float | None = _limit("--budget-per-day", options.USD, "Budget of 24 hours, in US dollars.")
    target_p95: tuple[tuple[str, float], ...] = _limit(
        "--target-p95", LATENCY_TARGET,
        "Limit of the 95th percentile of request latency, or ttft=TIME, tpot=TIME.", repeated=True)
    min_tokens_per_s: float | None = _limit("--min-tokens-per-s", options.RATE, "Minimum throughput.")
    utilisation: float = _limit(
        "--utilisation", options.FRACTION, "Maximum utilisation of a service's devices.", default=BUSY)
    utilisation_for: float = _limit(
        "--utilisation-for", options.SECONDS_OR_ZERO, "How long it may stay above that.", default=BUSY_FOR_S)
    memory: float = _limit("--memory", options.FRACTION, "Maximum share of a device's memory in use.", default=MEMORY)
    memory_for: float = _limit(
        "--memory-for", options.SECONDS_OR_ZERO, "How long it may stay above that.", default=MEMORY_FOR_S)
    webhook: str | None = _action(
        "--webhook", options.name("url", 4000), "Post every alert that fires or clears there, as JSON.")
    exec_on_budget: str | None = _action(
        "--exec-on-budget", options.name("command", 4000),
        "Run this command once when a budget is spent: it should stop the job.")
    state: Path | None = _action(
        "--state", options.FILE,
        "State file of this job: its start time, and whether the stop command has run.")
    anew: bool = _action("--anew", options.FLAG, "Discard the state file: the job begins now.", default=False)
    # fmt: on

    def check(self) -> None:
        """Check the combination of options. Raises SpecError."""
        if self.prometheus is not None and self.run is not None:
            raise SpecError("--prometheus and --run are both given; give one of them")
        if self.match and self.prometheus is None:
            raise SpecError("--match selects series of a Prometheus server: give --prometheus as well")
        if self.exec_on_budget is not None and (self.budget, self.budget_per_day, self.plan) == (None, None, None):
            raise SpecError("--exec-on-budget needs --budget or --budget-per-day, or a plan with a budget")
