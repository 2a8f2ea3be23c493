"""The question and the answer of `compare` as plain data: the request, each alternative with its sums, the verdict.

An alternative is an up-front sum and what each month costs; own machines come whole, an API is paid by the token.
Volumes are tokens a month, prompts and answers together in the mix of the traffic. `_low` and `_high` are the ends of
what the measured errors of training and serving allow, a tenth of all cases beyond each; an API's price has no such
error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from flopwise.errors import SpecError
from flopwise.pictures import Picture, PointPicture
from flopwise.results import Result
from flopwise.units import format_chance, format_usd
from flopwise.values import dataclass

Kind = Literal["api", "open", "finetune", "pretrain"]
KINDS: tuple[Kind, ...] = ("api", "open", "finetune", "pretrain")
MONTHLY_GROWTH = (-0.99, 1.0)
"""Least and most growth a month: from nearly all traffic lost to twice as much."""


def require_ranges(**ranges: tuple[float | None, float, float]) -> None:
    """Refuse a value outside its range (value, low, high); None is allowed.

    Raises: SpecError: names the value and its range.
    """
    for name, (value, low, high) in ranges.items():
        if value is not None and not low <= value <= high:
            raise SpecError(f"{name}: {value:g} is out of range; allowed: {low:g} to {high:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyTraffic:
    """Tokens of the first month, prompts and answers together, and of a request; each next month has more."""

    tokens_per_month: float
    input_tokens: int = 1024
    output_tokens: int = 256
    growth_frac: float = 0.0
    peak: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        require_ranges(
            tokens_per_month=(self.tokens_per_month, 1.0, 1e18), input_tokens=(self.input_tokens, 1.0, 1e8),
            output_tokens=(self.output_tokens, 0.0, 1e8), growth_frac=(self.growth_frac, *MONTHLY_GROWTH),
            peak=(self.peak, 1.0, 1e4),
        )  # fmt: skip

    @property
    def tokens_per_request(self) -> int:
        """Prompt and answer."""
        return self.input_tokens + self.output_tokens

    @property
    def requests_per_month(self) -> float:
        """Requests of the first month."""
        return self.tokens_per_month / self.tokens_per_request


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest plan of the training that is paid first; `cost_usd` of one run, of `runs` that are paid.

    `usd_per_hour` is the list price of all instances, what is paid of it is in `cost_usd` and `price_notes`.
    """

    tokens: float
    method: str
    provider: str
    region: str
    instance: str
    num_instances: int
    gpu: str
    num_gpus: int
    purchase: str
    seconds: float
    cost_usd: float
    runs: int
    price_date: str
    seconds_low: float
    seconds_high: float
    cost_usd_low: float
    cost_usd_high: float
    usd_per_hour: float
    price_notes: list[str] = []


class ServingOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of the first month, and of the last where the traffic grows; an API's price where it is one.

    `filled_frac`: of what the machines of the first month carry; `usd_per_hour` the list price of one instance.
    """

    provider: str
    what: str
    num_instances: int | None
    gpu: str | None
    purchase: str | None
    usd_per_million_tokens: float
    price_date: str
    last_num_instances: int | None = None
    last_what: str | None = None
    usd_per_million_tokens_low: float | None = None
    usd_per_million_tokens_high: float | None = None
    num_instances_low: int | None = None
    num_instances_high: int | None = None
    filled_frac: float | None = None
    filled_frac_low: float | None = None
    filled_frac_high: float | None = None
    usd_per_hour: float | None = None
    price_notes: list[str] = []


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative and its cost; sums are None where it is not feasible, and `reasons` say why.

    `cumulative_usd[m]` is what is paid by the end of month m, the up-front sum at 0. `loss`: what the scaling law
    expects of the training, None where there is none.
    """

    name: str
    kind: Kind
    model: str
    feasible: bool
    reasons: list[str] = []
    upfront_usd: float | None = None
    usd_per_month: float | None = None
    last_usd_per_month: float | None = None
    total_usd: float | None = None
    usd_per_million_tokens: float | None = None
    cumulative_usd: list[float] = []
    upfront_usd_low: float | None = None
    upfront_usd_high: float | None = None
    usd_per_month_low: float | None = None
    usd_per_month_high: float | None = None
    last_usd_per_month_low: float | None = None
    last_usd_per_month_high: float | None = None
    total_usd_low: float | None = None
    total_usd_high: float | None = None
    usd_per_million_tokens_low: float | None = None
    usd_per_million_tokens_high: float | None = None
    cumulative_usd_low: list[float] = []
    cumulative_usd_high: list[float] = []
    training: TrainingRun | None = None
    serving: ServingOffer | None = None
    loss: float | None = None


def with_ends(**figures: Iterable[Any]) -> dict[str, Any]:
    """Fields `name`, `name_low` and `name_high` of each figure (value, low, high)."""
    ends = ("", "_low", "_high")
    return {name + end: part for name, parts in figures.items() for end, part in zip(ends, parts, strict=True)}


class ApiBreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The break-even of a self-hosted alternative (`way`) with an API.

    `month`: from its end on own machines have cost no more, None where that is not within ten years;
    `tokens_per_month`: the least steady volume at which they cost no more over the horizon, None where the API is
    cheaper than a full machine; `why` gives the reason. `_low` is where own machines do as well as measured errors
    allow, `_high` where they do as badly.
    """

    way: str
    against: str
    month: int | None
    tokens_per_month: float | None
    why: str = ""
    month_low: int | None = None
    month_high: int | None = None
    tokens_per_month_low: float | None = None
    tokens_per_month_high: float | None = None


class TippingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The value of one input at which the other alternative becomes the cheaper one; `at` None: none, and `why`.

    `low` and `high` are the ends of `at` by measured errors, None where that end is nowhere; `then` is cheaper beyond.
    """

    input: str
    unit: str
    now: float
    at: float | None
    then: str
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def times(self) -> float | None:
        """`at` over `now`."""
        return None if self.at is None or self.at <= 0 or self.now <= 0 else self.at / self.now


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest alternative `against` the best of the other kind (None: there is none); USD over the horizon.

    `chance`: that the cheapest costs no more, by measured errors; None where none apply. `because` explains both sums,
    `turns` are the tipping points, the nearest first.
    """

    cheapest: str
    against: str | None
    saves_usd: float | None
    saves_usd_low: float | None
    saves_usd_high: float | None
    chance: float | None
    settled: bool | None
    because: list[str]
    turns: list[TippingPoint]


class CostComparison(Result, msgspec.Struct, frozen=True, kw_only=True):
    """The alternatives (`ways`) by total cost, those that are not feasible last, and the decision between them."""

    table = "ways"

    model: str
    months: int
    tokens_per_month: dict[str, float]
    requests_per_month: float
    input_tokens: int
    output_tokens: int
    growth_frac: float
    ways: list[Alternative]
    break_even: list[ApiBreakEven]
    cheapest: str
    decision: Decision
    assumptions: list[str]

    @property
    def verdict(self) -> str:
        """The cheapest alternative, its saving and the probability of it, in a sentence."""
        made, first = self.decision, self.ways[0]
        paid = f" at {format_usd(first.total_usd)} over {self.months} months" if first.total_usd is not None else ""
        text = f"Cheapest: {made.cheapest}{paid}"
        if made.against is not None and made.saves_usd is not None:
            low, high = made.saves_usd_low, made.saves_usd_high
            saves = format_usd(made.saves_usd)
            ends = "" if low is None or high is None else f" (80 % interval: {format_usd(low)} to {format_usd(high)})"
            sure = format_usd(low or 0.0) == format_usd(high or 0.0)
            text += f", {saves}{'' if sure else ends} less than {made.against}"
        if made.chance is not None:
            text += f"; {format_chance(made.chance)} chance that it is the cheaper one"
            text += "" if made.settled else ", too little to decide on cost alone"
        return f"{text}."

    def picture(self) -> Picture:
        """The cumulative cost of each alternative by month, as a picture."""
        feasible = [way for way in self.ways if way.feasible]
        paid = {way.name: [(float(m), usd) for m, usd in enumerate(way.cumulative_usd)] for way in feasible}
        return PointPicture(
            title=self.verdict, x="months", y="USD paid so far", series=paid, lines=[*paid], dots=False
        )  # fmt: skip

    def price_dates(self) -> list[tuple[str, str]]:
        """(subject, date) of each dated price in the alternatives."""
        parts = [part for way in self.ways for part in (way.training, way.serving) if part is not None]
        return [
            (f"{part.provider} {part.what if isinstance(part, ServingOffer) else part.instance}", part.price_date)
            for part in parts
            if part.price_date
        ]
