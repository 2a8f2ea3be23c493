"""The assessment of a fleet as plain data, from which every report is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from flopwise.errors import SpecError
from flopwise.facts.price_coverage import PriceCoverage
from flopwise.files import read_limited
from flopwise.pictures import BarPicture, Picture
from flopwise.results import Result
from flopwise.search.answer import Port
from flopwise.units import format_interval, format_percent, format_usd

ASSESSMENT_FILE, FORMAT = "assessment.json", 1
"""The file of an assessment in the folder of a report, and its version."""
MOST_BYTES = 200_000_000
NAMED = 5
"""Workloads and providers that the sentence of an assessment names."""


class PlainRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data; SI units, US dollars, None where unknown."""


class WorkloadResult(PlainRecord, frozen=True):
    """One workload: its requirements, and the best machines to run it on."""

    name: str
    environment: str
    kind: str
    model: str | None
    parameters: int | None
    size: str  # "small" ... by its parameters
    memory_bytes: float | None  # of all accelerators of one copy; None of an API's, or of machines asked without
    intensity: float | None  # FLOP for each byte of device memory moved
    pattern: str  # what bounds it, in words
    hours_per_month: float  # machines are on
    runs_per_month: float | None
    feasible: bool
    reasons: list[str]  # why nothing runs it
    best: dict[str, Any]  # provider, instance, gpu, num_gpus, layout, figures with low and high
    why_not_cheaper: str
    energy_kwh_per_month: float | None
    carbon_kg_per_month: float | None
    plan_file: str | None = None  # beside the report
    starts: str | None = None
    schedule: dict[str, Any] | None = None  # start, stop, days, hours_per_day, days_per_month; None: on all the time
    targets: dict[str, dict[str, Any]] = {}
    """What is asked of the figures of the same name: `value`, and the `percentile` of a latency."""
    unit_usd: dict[str, float] = {}
    """Of its month's bill: what a run, an hour, a request, a million tokens or an epoch costs."""


class ProviderChoice(PlainRecord, frozen=True):
    """The best machines of one provider for a workload; None and empty where it has none."""

    workload: str
    provider: str
    why: str  # the plan takes it, or does not, or nothing of it will do
    taken: bool = False
    region: str = ""
    instance: str = ""
    gpu: str = ""
    purchase: str = ""
    count: int = 0
    usd_per_month: float | None = None  # of machines alone, nothing shared with other workloads
    change_usd: float | None = None  # against what the plan pays for the workload's machines
    price_date: str = ""
    price_source: str = ""


class Allotment(PlainRecord, frozen=True):
    """Machines of one kind, bought one way, for one workload; without a workload idle own machines that are paid."""

    workload: str
    environment: str
    provider: str
    region: str
    instance: str
    gpu: str
    purchase: str
    count: int
    hours_per_month: float  # paid
    usd_per_hour: float | None  # of one instance, as listed; None of an API, which is paid by the token
    usd_per_hour_effective: float | None  # with rework, checkpoints and idle commitments
    usd_per_month: float
    usd_low: float
    usd_high: float
    price_date: str  # or "undated"; empty where the fleet file says what machines cost
    price_note: str = ""  # that the price has no date, is derived from others, or is assumed
    usd_per_hour_interval: tuple[float, float] | None = None  # of a price that is assumed
    retires_on: str = ""  # the day from which the provider has no such machine
    role: str = "primary"  # or "backup"; "idle" of own machines that carry nothing
    pool: str = ""  # machines shared with others, or with those of the same pool alone
    dedicated: bool = False  # no workload outside the pool may use them
    num_gpus: int = 0  # of all its machines; 0 of an API


class ScaledService(PlainRecord, frozen=True):
    """A service whose machines follow the profile of its traffic."""

    workload: str
    policy: str  # of the autoscaler on top of the machines of the hour
    peak_requests_per_s: float
    mean_requests_per_s: float
    machines_peak: int
    machines_mean: float  # paid, over the hours of the service
    machines_always: int  # of those, paid all month
    machines_by_hour: list[int]  # of the week, from Monday 0:00
    cold_start_s: float
    usd_per_month: float
    usd_fixed: float  # of the cheapest fixed number of machines
    fixed: str  # which those are
    saved_usd: float
    simulated: dict[str, Any] | None  # a day of it through the simulator: latencies, machine-hours
    note: str = ""


class MonthlyCost(PlainRecord, frozen=True):
    """A month's bill, in USD: `total` as planned, at listed prices; `expected` is what to budget for.

    `expected`, `low` and `high`: the mean and the 10-90 % interval of the drawn months (`Scenarios`); without them
    None, and the sums of the rows' intervals.
    """

    total: float
    low: float
    high: float
    by_provider: dict[str, float]
    by_environment: dict[str, float]
    by_workload: dict[str, float]
    by_purchase: dict[str, float]
    compute: float
    storage: float
    traffic: float
    expected: float | None = None


class CostSaving(PlainRecord, frozen=True):
    """A monthly saving of the allocation against the assessment's baseline, in USD; below zero it costs more."""

    what: str  # spot, reserved, schedule; quantisation, right-sizing ... against a baseline that the fleet names
    workload: str
    usd_per_month: float
    how: str
    counted: bool = True  # in the sum: what an invoice for the same machines would show
    purchase: str = ""  # how what it is of is bought; empty where it is of none
    why: str = ""  # below zero: why the plan pays more


class Risk(PlainRecord, frozen=True, kw_only=True):
    """A risk computed from the `evidence`: probability, and impact as a share of what it affects, both 0 to 1."""

    kind: str  # availability, memory, interruption, capacity, degradation, loading, idle, price, budget, latency ...
    workload: str
    probability: float = 1.0
    impact: float = 1.0  # share of the workload, of the quota or of the bill; a target or a limit that is missed is 1
    score: float = -1.0  # their product, by which risks are ranked
    evidence: str
    mitigation: str

    def __post_init__(self) -> None:
        """Make the score, where a file does not say it."""
        if self.score < 0:
            msgspec.structs.force_setattr(self, "score", self.probability * self.impact)


class ShareStep(PlainRecord, frozen=True):
    """The bill where a provider has at `bound` (least, most) so much of it; None: only by waste."""

    provider: str
    bound: str
    share: float
    usd_per_month: float | None
    change_usd: float | None
    text: str


class PolicyMove(PlainRecord, frozen=True):
    """A workload that would run on cheaper machines without a policy: its monthly cost on both."""

    workload: str
    usd_per_month: float
    usd_per_month_without: float
    text: str


def shares_text(shares: dict[str, float]) -> str:
    """Shares of a bill by provider in words, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_percent(share, 0)}" for name, share in ordered)


class Binding(PlainRecord, frozen=True):
    """The monthly cost of one constraint: the bill with it minus the bill without it; `steps` of a share of the bill.

    `moves`: workloads that would cost clearly less without it, the one that saves most first. `shares_without`: of
    shares of the bill, each provider's share of the bill without them.
    """

    constraint: str
    usd_per_month: float
    text: str
    steps: list[ShareStep] = []
    moves: list[PolicyMove] = []
    shares_without: dict[str, float] = {}

    @property
    def cost_text(self) -> str:
        """The constraint and its monthly cost in words: the start of `text`."""
        return self.text.partition(":")[0]


class RulingPolicy(PlainRecord, frozen=True):
    """A constraint that rules cheaper machines of a workload out, and the monthly cost of the workload without it."""

    text: str
    usd_per_month: float


RulingPolicies = Mapping[str, Sequence[RulingPolicy]]
"""By workload, the constraints without which it would run for less: one alone before several, the dearest first."""


def ruling_text(rules: Sequence[RulingPolicy], usd: float) -> str:
    """The constraint that rules machines out that cost as much, in words; the kinds there are where none is known."""
    named = (rule.text for rule in rules if usd >= rule.usd_per_month * (1.0 - 1e-6))
    return f"a policy rules it out ({next(named, 'share, quota, limit on spot or backup')})"


class WhatIf(PlainRecord, frozen=True):
    """The bill under another assumption."""

    name: str
    feasible: bool
    usd_per_month: float | None
    change_usd: float | None
    text: str


class Scenarios(PlainRecord, frozen=True):
    """The distribution of the monthly bill over drawn demand, prices and interruptions."""

    runs: int
    seed: int
    mean: float
    p10: float
    p50: float
    p90: float
    p95: float
    over_budget: float | None  # probability
    drivers: dict[str, float]  # share of the variance that each draw explains


class PhaseTask(PlainRecord, frozen=True):
    """A task of a phase: first week, number of weeks, and the tasks before it."""

    name: str
    week: int
    weeks: int
    after: list[str]


class QuotaRequest(PlainRecord, frozen=True):
    """Machines to ask a provider for, by which day at the latest."""

    provider: str
    region: str
    instance: str
    purchase: str
    count: int
    gpu: str
    num_gpus: int
    count_in_a_year: int  # with the growth that the fleet states
    weeks: int  # from asking to having it; assumed
    ask_by: str | None
    workloads: list[str]


class Phase(PlainRecord, frozen=True):
    """A step of the roadmap."""

    name: str
    start: str | None  # month
    workloads: list[str]
    usd_per_month: float  # that it adds
    text: str
    weeks: int = 0  # of its tasks, before its workloads run
    begins: str | None = None  # Monday of the first of them
    weeks_late: int = 0  # by which that is over already
    tasks: list[PhaseTask] = []
    quotas: list[QuotaRequest] = []
    usd: float | None = None  # the bill from its start until the next phase starts; None where that is not known


class Month(PlainRecord, frozen=True):
    """The bill of one month to come, in USD: as planned, its mean over drawn months, and their 10-90 % interval."""

    month: str
    usd: float
    expected: float
    low: float
    high: float
    workloads: int  # that have begun


class Alert(PlainRecord, frozen=True):
    """A threshold to watch, derived from the plan."""

    metric: str
    workload: str
    threshold: float
    unit: str
    why: str
    key: str = ""  # of the metric, for rules: device_memory_bytes, latency_seconds_p95 ...
    above: bool = True  # due above the threshold, else below it
    for_s: float = 0.0  # that it has to last; 0 of what is summed
    severity: str = "warning"  # or "critical"
    action: str = ""  # what to do


class SetupNote(PlainRecord, frozen=True):
    """Advice for setting up a workload, computed from its plan."""

    kind: str  # quantisation, fp16, arm, placement, corpus
    workload: str
    text: str
    source: str  # of what it says beside the plan; empty where there is none


class Assessment(Result, PlainRecord, frozen=True):
    """The whole answer."""

    table: ClassVar[str] = "allocation"
    name: str
    date: str
    workloads: list[WorkloadResult]
    allocation: list[Allotment]
    usd_per_month: MonthlyCost
    savings: list[CostSaving]
    risks: list[Risk]
    binding: list[Binding]
    whatif: list[WhatIf]
    scenarios: Scenarios | None
    roadmap: list[Phase]
    monitoring: list[Alert]
    gpus: list[dict[str, Any]]  # compared: facts, USD for a PFLOP-hour, USD for a GB/s
    sizes: list[dict[str, Any]]  # categories of model sizes with their memory
    instances: list[dict[str, Any]]  # by provider: what was considered
    optimality_gap: float  # proven: by how much of it the bill may be above the least
    budget_per_month: float | None
    assumptions: list[str]
    price_notes: list[str]
    elapsed_s: float
    fleet: dict[str, Any]  # as written
    spot_coverage: list[PriceCoverage] = []  # of how many allowed offers the spot price is known, by provider
    reserved_coverage: dict[str, list[PriceCoverage]] = {}  # the same of each term of a reservation that may be bought
    own_machines: list[dict[str, Any]] = []  # what they cost, how far they are used, and the clouds they stand against
    hosted: list[dict[str, Any]] = []  # APIs that could answer a workload, against machines
    forecast: list[Month] = []  # the bill of the months to come
    if_you_port: list[Port] = []  # of each workload the cheapest machines with other software
    advice: list[SetupNote] = []
    size_classes: list[dict[str, Any]] = []  # memory of one copy of a model of each size, trained and served, by format
    largest_models: list[dict[str, Any]] = []  # parameters that one of each accelerator trains and serves, by format
    baseline: str = "on_demand"  # of the savings: on_demand, existing, or an accelerator
    by_provider: list[ProviderChoice] = []  # of each workload the best machines of each provider
    scaled: list[ScaledService] = []  # services that follow their traffic
    optimality: str = ""  # the same in words, and of which ways to run the workloads
    warnings: list[str] = []  # policies that are not held: shares where part of the fleet cannot run, a budget too low
    version: int = FORMAT

    @property
    def verdict(self) -> str:
        """The bill in a sentence: whether all workloads run, the expected monthly cost, and the providers."""
        cost, failed = self.usd_per_month, [w.name for w in self.workloads if not w.feasible]
        count = len(self.workloads)
        runs = "the workload runs" if count == 1 else f"all {count:,} workloads run"
        if failed:
            named = ", ".join(failed[:NAMED]) + (f" and {len(failed) - NAMED:,} more" if len(failed) > NAMED else "")
            runs = f"no machine runs {named}; the other {count - len(failed):,} of {count:,} workloads run"
        bill = f"{format_usd(cost.total if cost.expected is None else cost.expected)} a month"
        if cost.high > cost.low:
            bill += f" {format_interval(cost.low, cost.high, format_usd)}"
        if self.budget_per_month is not None and cost.total > self.budget_per_month:
            bill += f", above the budget of {format_usd(self.budget_per_month)}"
        paid = {name: usd for name, usd in cost.by_provider.items() if usd > 0}
        most = sorted(paid, key=lambda name: -paid[name])[:NAMED]
        split = shares_text({name: paid[name] / cost.total for name in most})
        return f"{self.name}: {runs} for {bill}{f': {split}' if len(cost.by_provider) > 1 and paid else ''}."

    def picture(self) -> Picture:
        """The bill of a month by workload, the dearest first."""
        rows = sorted(self.usd_per_month.by_workload.items(), key=lambda item: -item[1])
        return BarPicture(title=self.verdict, unit="USD a month", rows=rows)


class _Version(msgspec.Struct):
    version: int = 0


def read_assessment(path: Path | str) -> Assessment:
    """The assessment of a report; `path` is its file, or the folder of the report.

    Raises: SpecError: the file cannot be read or is no assessment.
    """
    file = Path(path)
    file = file / ASSESSMENT_FILE if file.is_dir() else file
    remedy = f"; give an {ASSESSMENT_FILE} of a report"
    data = read_limited(file, MOST_BYTES, remedy=remedy, too_large="not an assessment")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > FORMAT:
            raise SpecError(
                f"{file}: assessment format {version}, of a newer flopwise; this one reads format {FORMAT}: "
                "upgrade it, or assess the old fleet again"
            )
        return msgspec.json.decode(data, type=Assessment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: not an assessment ({str(error)[:160]}){remedy}") from None
