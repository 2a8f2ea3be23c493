"""What a search answers: ranked plans, the front of cost, time, devices and energy, what was ruled out, and levers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec

from flopwise.errors import SpecError
from flopwise.facts.price_coverage import PriceCoverage
from flopwise.files import read_limited
from flopwise.pictures import Picture, PointPicture
from flopwise.results import Result
from flopwise.units import (
    HOUR_S,
    format_chance,
    format_change,
    format_interval,
    format_seconds,
    format_times,
    format_usd,
)
from flopwise.values import dataclass

OTHER_GPUS = 3
"""Other devices whose best plan stands beside the chosen one."""
MAX_PLAN_BYTES = 50_000_000
FORMAT = 1
"""Version of the plan file."""


class SimulatedSessions(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of a run: how soon later turns are answered, and where the tokens of prompts came from."""

    sessions: int
    turns_per_session: float
    turn_ttft_s: dict[str, float | None]  # of turns after the first, by percentile
    device_frac: float
    store_fracs: dict[str, float]
    computed_frac: float


class SimulatedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a simulator run: seconds by percentile (and their mean); None where there are none.

    `replicas` were run, with their share of the traffic; of `requests` the percentiles are taken. `goodput_frac` is the
    share of them that held every latency target.
    """

    ttft_s: dict[str, float | None]
    tpot_s: dict[str, float | None]
    e2e_s: dict[str, float | None]
    goodput_frac: float | None
    requests: int
    replicas: int
    dropped: int
    preemptions: int
    utilisation_frac: float
    kv_peak_frac: float
    seconds: float | None = None  # batch: the whole job
    sessions: SimulatedSessions | None = None
    by_priority: dict[str, dict[str, Any]] = {}
    """Of each class of requests its share and its latencies by percentile; none where all are alike."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the workload: machines, how they are bought, how the model is laid out, and what comes of it.

    `seconds` is the whole run (training, batch) or one request (services); `cost_usd` the whole run with its start, or
    a month of service. `meets` gives, for each target, the probability that it is met, from the measured errors of the
    model.
    """

    rank: int
    provider: str
    region: str
    instance: str
    num_instances: int
    gpu: str
    num_gpus: int
    purchase: str
    layout: dict[str, Any]
    seconds: float
    usd_per_hour: float
    cost_usd: float
    energy_joules: float | None
    seconds_low: float | None = None
    """Ends of the 80 % intervals, by the measured errors; of a month of service by the machines that it then needs."""
    seconds_high: float | None = None
    cost_usd_low: float | None = None
    cost_usd_high: float | None = None
    energy_joules_low: float | None = None
    energy_joules_high: float | None = None
    meets: dict[str, float]
    figures: dict[str, float | None]  # tokens_per_s, step_s, mfu_frac, ttft_s, tpot_s ... whatever the task has
    memory_bytes: float
    capacity_bytes: float
    price_date: str  # or "undated"
    price_source: str
    price_note: str = ""
    """What is to be known of the price: that it has no date, is derived from others, or is assumed."""
    retires_on: str = ""
    """The day from which its provider has no such machine; "" where none is known."""
    usd_per_hour_interval: tuple[float, float] | None = None
    """Of a price that is assumed; the cost is as far off."""
    shortfall: dict[str, float] = {}
    """How many times its limit the figure of each target is: above 1 it misses."""
    simulated: SimulatedFigures | None = None
    """What the simulator says; `meets` is then from its percentiles."""
    start_s: float = 0.0
    """Of a run: paid before its first step, in `cost_usd` and not in `seconds`."""
    note: str = ""
    """What simulating changed, or why it was not done."""
    network: list[dict[str, Any]] = []
    """What each kind of link has to carry, of the first plans: `flopwise.training.network.LinkNeed` of a step, or
    `flopwise.search.serving_option.RequestLinkNeed` of a request."""
    storage: list[dict[str, Any]] = []
    """What storage has to deliver and take, of the first plans: `flopwise.storage.needs.StorageNeed`."""
    unit_usd: dict[str, float] = {}
    """What a run, an hour, a request, a million tokens or an epoch costs, as far as the task has them."""
    reproduce: str = ""
    """The command line that estimates it alone, of the first plans."""
    evidence: str = ""
    """The measurements behind its intervals and odds, in words."""

    @property
    def offer_key(self) -> tuple[str, str, str]:
        """The identity of its offer: provider, instance, region."""
        return self.provider, self.instance, self.region

    @property
    def likely(self) -> str | None:
        """The probability of the target least likely to be met, as text."""
        return format_chance(min(self.meets.values())) if self.meets else None

    @property
    def is_hosted(self) -> bool:
        """True of an API: devices, time and price an hour are its host's alone."""
        return self.purchase == "api"

    @property
    def machines(self) -> str:
        """The machines as text, or the API."""
        if self.is_hosted:
            return f"the API of {self.provider}, {self.instance}"
        return f"{self.num_instances:,} x {self.provider} {self.instance}"

    @property
    def memory_frac(self) -> float | None:
        """The share of an accelerator's memory that is used; None of an API."""
        return self.memory_bytes / self.capacity_bytes if self.capacity_bytes else None

    @property
    def paid_s(self) -> float:
        """Of a run: its start and itself, what a deadline holds and `done in` says."""
        return self.start_s + self.seconds

    @property
    def start_usd(self) -> float:
        """The part of `cost_usd` that the start costs."""
        return self.start_s / HOUR_S * self.usd_per_hour

    def cost_frac(self, longer: float) -> float:
        """The cost over `cost_usd` where the run takes `longer` times as long: the start is paid all the same.

        Source: arithmetic. Assumes: what rounding adds grows alike.
        """
        return (self.start_s + self.seconds * longer) / self.paid_s if self.start_s else longer

    def ends(self, name: str) -> tuple[float, float] | None:
        """The interval of `seconds`, `cost_usd` or `energy_joules`; None where it is not known."""
        low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
        return None if low is None or high is None else (low, high)


Stage = Literal["offers", "formats", "layouts", "memory", "targets"]
"""What a search looks at, one after the other: what it rejects at a later stage has passed those before."""
STAGES: tuple[Stage, ...] = get_args(Stage)


class Rejection(msgspec.Struct, frozen=True):
    """Why candidates were rejected, how many of them, and one example; `unit` says what is counted."""

    reason: str
    count: int
    example: str
    unit: str = "layouts"
    stage: Stage = "offers"


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """The least that physics allows one latency to be on the devices asked for, and what it is made of."""

    target: str
    limit_s: float
    seconds: float
    parts: dict[str, float]
    gpu: str
    instance: str
    layout: dict[str, Any]

    @property
    def forbids(self) -> bool:
        """True if nothing within the constraints can meet the target."""
        return self.seconds > self.limit_s


class Lever(msgspec.Struct, frozen=True):
    """One change to the best plan and what it would do, as ratios to the plan as it is; None where unknown."""

    change: str
    memory: float | None
    seconds: float | None
    cost: float | None
    fits: bool
    note: str = ""
    changed: ComparedFigures | None = None
    """What the ratios are of: the figures with the change. Those without it are these over the ratios."""


class ComparedFigures(msgspec.Struct, frozen=True):
    """Memory of a GPU, time and cost of a plan that is compared with another one."""

    memory_bytes: float
    seconds: float
    cost_usd: float

    @classmethod
    def of(cls, plan: Candidate) -> ComparedFigures:
        """The compared figures of a ranked plan."""
        return cls(plan.memory_bytes, plan.seconds, plan.cost_usd)

    def lever(self, change: str, before: ComparedFigures, *, fits: bool = True, note: str = "") -> Lever:
        """The change that makes these figures of those `before`."""
        memory, seconds = self.memory_bytes / before.memory_bytes, self.seconds / before.seconds
        return Lever(change, memory, seconds, self.cost_usd / before.cost_usd, fits, note, self)


def device_change(plan: Candidate) -> str:
    """The name of the change to the machines of another plan."""
    return f"on {plan.num_gpus} x {plan.gpu} ({plan.provider} {plan.instance})"


def device_levers(plans: Sequence[Candidate]) -> list[Lever]:
    """The best plans on other devices, against the first of the plans."""
    chosen, levers = plans[0], dict[str, Lever]()
    for plan in plans[1:]:
        if plan.gpu != chosen.gpu and plan.gpu not in levers and len(levers) < OTHER_GPUS:
            levers[plan.gpu] = ComparedFigures.of(plan).lever(device_change(plan), ComparedFigures.of(chosen))
    return list(levers.values())


class TargetCost(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated cost of the best plan with one target moved a step; `to_s` None: without that target.

    `cost_usd` None: nothing meets them. `saves_usd` is against the best plan with the targets as they are, None where
    there is none.
    """

    target: str
    percentile: str
    from_s: float
    to_percentile: str
    to_s: float | None
    cost_usd: float | None
    saves_usd: float | None
    saves_frac: float | None
    instead: str = ""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest plan with other software: its machines, what it costs and saves, and what has to be ported.

    `cost_usd`: of the run or the batch job, of a month of a service or of a workload of a fleet; `saves_usd` is below
    zero where it costs more. `rows`: measured runs or results of that software that its estimate stands on.
    """

    software: str
    gpu: str
    provider: str
    instance: str
    region: str
    purchase: str
    num_instances: int
    cost_usd: float
    saves_usd: float
    rows: int
    work: list[str]
    workload: str = ""  # of a fleet


RUNS = ("pretrain", "finetune", "batch")
"""Tasks that end; a service is paid by the month."""
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
"""How targets of latency are called in text."""
TARGET_NAMES = {"ttft": "TTFT", "tpot": "TPOT"}
"""Targets whose name is an abbreviation; the others are called as files spell them."""
LIMITED = LATENCIES | {
    "max_gpus": "number of GPUs", "deadline": "time", "budget": "cost", "max_usd_per_hour": "price per hour",
    "host_memory": "host memory", "min_gpus": "number of GPUs",
}  # fmt: skip
"""How the figures that targets and limits hold are called in text."""


class OpenInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input that is assumed: tokens/s and bytes at the ends of what people do, over those of the plan."""

    name: str
    speed_low: float
    speed_high: float
    memory_low: float
    memory_high: float

    @property
    def text(self) -> str:
        """The effect of the input on the intervals, in words."""
        ends = (self.speed_low, self.speed_high, self.memory_low, self.memory_high)
        slower, faster, less, more = map(format_change, ends)
        speed, memory = f"its speed by {slower} to {faster}", f"its memory by {less} to {more}"
        return f"{self.name} not stated: other common values change the first plan, {speed} and {memory}"


class Plan(Result, msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer; `workload` is the input as it was written, in plain data."""

    workload: dict[str, Any]
    task: str
    objective: str
    plans: list[Candidate]
    front: list[Candidate]
    misses: list[Candidate]  # when nothing meets the targets: the nearest, with what they miss in `meets`
    ruled_out: list[Rejection]
    levers: list[Lever]
    assumptions: list[str]
    evaluated: int
    elapsed_s: float
    timed: int = 0
    """Layouts whose step was timed: of the others memory or a lower bound of the step says that they cannot win."""
    spot_coverage: tuple[PriceCoverage, ...] = ()
    """Of how many allowed offers the spot price is known, by provider; empty where spot is not asked for."""
    fronts: dict[str, list[Candidate]] = {}
    """Services: cost against `ttft` and against `tpot`, each among what holds the other targets, as estimated."""
    percentiles: dict[str, str] = {}
    """Services and batches: the percentile of `ttft`, `tpot` and `latency` of requests that arrive."""
    demoted: list[Candidate] = []
    """What was estimated to meet the targets and misses them in the simulator."""
    target_costs: list[TargetCost] = []
    floors: list[Floor] = []
    """When nothing meets the targets: the least that physics allows each latency to be."""
    simulated: int = 0
    """Plans that were run through the simulator."""
    cost_scope: str = ""
    """What `cost_usd` is of: one run, or a month of service around the clock; in a fleet also what that pays."""
    unstated: list[OpenInput] = []
    """Inputs of the first plan that nobody stated and the search does not choose, and what they make of it."""
    if_you_port: list[Port] = []
    """The cheapest plan with each software that the project would have to be ported to."""
    version: int = FORMAT

    @property
    def verdict(self) -> str:
        """The answer in a sentence: the first plan, or the nearest where none meets the targets."""
        if not self.plans and not self.misses:
            return "No offer can run this workload."
        best = (self.plans or self.misses)[0]
        bought = "" if best.purchase == "on_demand" else f" {best.purchase.replace('_', ' ')}"
        machines = best.machines if best.is_hosted else f"{best.machines}{bought} ({best.num_gpus:,} x {best.gpu})"
        if not self.plans:
            target, times = max(best.shortfall.items(), key=lambda item: item[1], default=("", 0.0))
            what = LIMITED.get(target, target)
            if target == "deadline" and best.start_s:
                what += f" of {format_seconds(best.paid_s)}, {format_seconds(best.start_s)} of it to start,"
            far = f", whose {what} is {format_times(times)} its limit" if times > 1 else ""
            if target == "min_gpus" and times > 1:
                far = f"; --min-gpus asks for {format_times(times)} as many GPUs"
            return f"No plan meets every target. The nearest is {machines}{far}."
        runs = self.task in RUNS
        cost = f"{format_usd(best.cost_usd)}{'' if runs else ' a month'}"
        paid, time = best.ends("cost_usd"), best.ends("seconds")
        if paid is not None and format_usd(paid[0]) != format_usd(paid[1]):
            cost += f" {format_interval(*paid, format_usd)}"
        done = format_seconds(best.paid_s)
        if time is not None:
            done += f" ({format_seconds(best.start_s + time[0])} to {format_seconds(best.start_s + time[1])})"
        if best.start_s:
            done += f", {format_seconds(best.start_s)} of it to start"
        sure = "" if best.likely is None else f"; {best.likely} chance to meet every target"
        if not runs and not sure and time is not None:
            loaded = {"requests_per_s", "trace"} & (self.workload.get("traffic") or {}).keys()
            request = f"whole request {self.percentile('latency')}" if loaded else "whole request"
            sure = f"; {request} {format_seconds(best.seconds)} {format_interval(*time, format_seconds)}"
        return f"{machines}: {cost}{f', done in {done}' if runs and not best.is_hosted else ''}{sure}."

    def percentile(self, target: str) -> str:
        """The percentile of a latency by its target; p95 in a plan of a file that has none."""
        return self.percentiles.get(target, "p95")

    @property
    def decisive(self) -> list[Rejection]:
        """Rejections by stage, the latest first: the reason why nothing is left is that of what came furthest."""
        return sorted(self.ruled_out, key=lambda row: -STAGES.index(row.stage))

    @property
    def table(self) -> str:  # type: ignore[override] # the plans, or the nearest misses
        """The key of the rows of `to_frame`."""
        return "plans" if self.plans else "misses"

    def picture(self) -> Picture:
        """Cost against time of the plans, those that nothing beats in both joined. SpecError where there is none."""
        rows = self.plans or self.misses
        if not rows:
            raise SpecError("there is no plan to plot")
        runs, front = self.task in RUNS, list[tuple[float, float]]()
        for cost, seconds in sorted((c.cost_usd, c.seconds) for c in rows):
            if not front or seconds < front[-1][1]:
                front.append((cost, seconds))
        series = {
            "nothing is cheaper and faster": front,
            "plans" if self.plans else "nearest misses": [(c.cost_usd, c.seconds) for c in rows],
        }
        return PointPicture(
            title=self.verdict, x="USD" if runs else "USD a month", y="seconds" if runs else "seconds of a request",
            series=series, lines=[*series][:1], log=True,
        )  # fmt: skip

    def price_dates(self, top: int | None = None) -> list[tuple[str, str]]:
        """(what is priced, day of the price) of the first `top` candidates, or of the nearest misses."""
        shown = (self.plans or self.misses)[:top]
        return [(f"{c.provider} {c.instance} in {c.region}", c.price_date) for c in shown if c.price_date]

    @classmethod
    def from_json(cls, data: bytes, where: str = "plan") -> Plan:
        """The plan of a JSON document. Raises SpecError: not a plan written by `to_json`; says where it departs."""
        try:
            plan = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SpecError(
                f"{where}: not a plan file ({str(error)[:160]}); write one with `flopwise plan ... -o plan.json`"
            ) from None
        if plan.version != FORMAT:
            raise SpecError(f"{where}: plan format {plan.version}; this flopwise reads format {FORMAT}")
        return plan


def to_json(answer: msgspec.Struct) -> bytes:
    """A plan or a sweep as one JSON document, indented."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2)


def read_plan(path: str | Path) -> Plan:
    """A plan of a file with the text of `to_json`. Raises SpecError: the file cannot be read or is not a plan."""
    data = read_limited(
        Path(path), MAX_PLAN_BYTES, remedy="; give the path of a plan file", too_large="not a plan file"
    )
    return Plan.from_json(data, str(Path(path)))


class RejectionLog:
    """Counts what a search rejects by reason, with one example each."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Rejection] = {}

    def add(
        self, reason: str, count: int, example: str = "", *, unit: str = "layouts", stage: Stage = "offers"
    ) -> None:
        """Count `count` more of `unit` (layouts, offers, machines) for `reason`; the first example stays."""
        if count > 0:
            row = self._rows.get((reason, unit), Rejection(reason, 0, "", unit, stage))
            example = row.example or example
            self._rows[reason, unit] = msgspec.structs.replace(row, count=row.count + int(count), example=example)

    def has(self, reason: str, unit: str = "layouts") -> bool:
        """True if anything was counted for `reason`: its example stays."""
        return (reason, unit) in self._rows

    def rows(self) -> list[Rejection]:
        """All reasons, the most frequent first."""
        return sorted(self._rows.values(), key=lambda row: -row.count)


Ranked = TypeVar("Ranked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners(Generic[Ranked]):
    """Functions that a search calls as it goes; None: nobody listens.

    `advance`: with (steps done, steps in all). `on_compile`: before the simulator is compiled first, which takes
    seconds. `on_first`: with the plans of a few kinds of machines that may cost least, before the others are searched,
    where the search takes long. `on_ranked`: with the plans once they are ranked, before the rest of the answer.
    """

    advance: Callable[[int, int], None] | None = None
    on_compile: Callable[[], None] | None = None
    on_first: Callable[[Ranked], None] | None = None
    on_ranked: Callable[[Ranked], None] | None = None


SILENT: Listeners[Any] = Listeners()


@dataclass(slots=True)
class PlanDraft:
    """Filled by `plan_training` and `plan_serving`; its fields are those of `Plan`."""

    plans: list[Candidate] = field(default_factory=list)
    front: list[Candidate] = field(default_factory=list)
    misses: list[Candidate] = field(default_factory=list)
    fronts: dict[str, list[Candidate]] = field(default_factory=dict)
    percentiles: dict[str, str] = field(default_factory=dict)
    demoted: list[Candidate] = field(default_factory=list)
    target_costs: list[TargetCost] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    simulated: int = 0
    levers: list[Lever] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    ruled_out: RejectionLog = field(default_factory=RejectionLog)
    evaluated: int = 0
    timed: int = 0
