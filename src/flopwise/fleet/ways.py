"""Ways to one goal, answering so many tokens a month: an API, open weights, fine-tuned, trained from scratch.

A way is an up-front sum and what each month costs; own machines come whole, an API is paid by the token. Volumes are
tokens a month, prompts and answers together in the mix of the traffic. `_low` and `_high` are the ends of what the
measured errors of training and serving allow, a tenth of all cases beyond each; an API's price has no such error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from flopwise.ops.types import Array
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.cost.intervals import ErrorBand
    from flopwise.search.answer import Candidate

Kind = Literal["api", "open", "finetune", "pretrain"]
LONGEST = 120
"""Months beyond which nobody waits for a break-even."""


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest plan of the training that a way starts with; `cost_usd` of one run, of `runs` that are paid.

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


class Serving(msgspec.Struct, frozen=True, kw_only=True):
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


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way and what it costs; sums are None where it is not feasible, and `reasons` say why.

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
    serving: Serving | None = None
    loss: float | None = None


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a way of one's own meets an API.

    `month`: from its end on the way has cost no more, None within ten years; `tokens_per_month`: the least steady
    volume at which it costs no more over the horizon, None where the API is cheaper than a full machine; `why` says so.
    `_low` is where own machines do as well as measured errors allow, `_high` where they do as badly.
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


@dataclass(frozen=True, slots=True)
class Machines:
    """The units that can be rented: USD a month, tokens a month that each carries, and what each is; shape (units,).

    `bands` are the measured errors of what each carries; without them it carries what is said.
    """

    usd_per_month: Array
    tokens_per_month: Array
    units: tuple[Candidate, ...]
    instances: tuple[int, ...]  # of a unit
    bands: tuple[ErrorBand, ...] = ()

    def factor(self, probability: float) -> Array:
        """What a unit carries over what is estimated, of which it carries less with this probability; (units,).

        Source: the measured errors of the throughput. Assumes: all units err alike.
        """
        if not self.bands:
            return np.ones(len(self.usd_per_month))
        return np.array([band.quantile(probability) for band in self.bands])

    def carrying(self, factor: Array) -> Machines:
        """The same units where each carries so many times its estimate; `factor` of shape (units,)."""
        return replace(self, tokens_per_month=self.tokens_per_month * factor)


def unit_of(
    chosen: Candidate, tokens_per_request: float, peak: float, volume: float, usd_each: float | None = None
) -> tuple[float, float, int]:
    """USD a month, tokens a month and instances of the least unit of a plan that can be rented again and again.

    A unit is an instance with as many replicas as it holds, or the instances of one replica; `usd_each` is what an
    instance costs a month (None: as planned, at its list price).

    Source: arithmetic on the plan. Assumes: replicas beside each other do not slow each other; where the plan of
    `volume` takes more machines than their rate alone needs (latency targets), every unit carries as little.
    """
    held = chosen.layout
    each = int(held["tp"]) * int(held["pp"]) * int(held["dp"])
    inside = max(1, chosen.num_gpus // chosen.num_instances)
    instances = -(-each // inside)
    replicas = max(1, inside // each)
    rate = (chosen.figures["requests_per_s_capacity"] or 0.0) / int(held["replicas"])
    capacity = rate * replicas / peak * tokens_per_request * HOURS_PER_MONTH * HOUR_S
    needed = -(-chosen.num_instances // instances)
    if capacity <= 0 or np.ceil(volume / capacity) < needed:
        capacity = volume / needed
    each_usd = chosen.cost_usd / chosen.num_instances if usd_each is None else usd_each
    return each_usd * instances, capacity, instances


def own_usd(volumes: Array, machines: Machines, factor: Array | None = None) -> Array:
    """What the machines that are cheapest for each of `volumes` (months,) cost a month, in USD, at least one unit.

    `factor` (units,): what a unit turns out to carry over what it was chosen for; more of the same are then rented.

    Source: arithmetic. Assumes: one kind of machine carries a month's traffic; they stay on all month.
    """
    index = _each(volumes, machines).argmin(axis=1)
    carried = machines.tokens_per_month if factor is None else machines.tokens_per_month * factor
    usd: Array = _count(volumes, carried[index]) * machines.usd_per_month[index]
    return usd


def chosen(volume: float, machines: Machines) -> tuple[int, int]:
    """(index of the cheapest unit for a volume, how many of it)."""
    index = int(_each(np.array([volume]), machines)[0].argmin())
    return index, int(_count(volume, machines.tokens_per_month[index]))


def summed_ends(
    value: Array | float, *parts: tuple[Array | float, Array | float, Array | float]
) -> tuple[Array, Array]:
    """(low, high) of a sum of `value` from its parts (value, low, high), in their unit; broadcasts.

    Source: variances of independent parts add up: the distances of the ends from the middle add as their squares.
    Assumes: parts err independently of each other (a training run and what it is served on).
    """
    down = np.sqrt(sum(np.square(np.subtract(middle, low)) for middle, low, _ in parts))
    up = np.sqrt(sum(np.square(np.subtract(high, middle)) for middle, _, high in parts))
    return value - down, value + up


def _count(volumes: Array | float, capacity: Array | float) -> Array:
    """Whole units; what rounding of the last digit adds is not one."""
    return np.maximum(np.ceil(np.round(np.divide(volumes, capacity), 9)), 1.0)


def _each(volumes: Array, machines: Machines) -> Array:
    """USD a month of each kind of unit, shape (months, units)."""
    return _count(volumes[:, None], machines.tokens_per_month[None, :]) * machines.usd_per_month


def monthly_volumes(first: float, growth_frac: float, months: int) -> Array:
    """Tokens of each month, shape (months,), the first as given and each next more by `growth_frac`.

    Source: definition.
    """
    return first * (1.0 + growth_frac) ** np.arange(months)


def cumulative_usd(upfront_usd: float, monthly_usd: Array) -> Array:
    """What is paid by the end of each month, shape (months + 1,), the up-front sum first. Source: definition."""
    paid: Array = upfront_usd + np.concatenate([[0.0], np.cumsum(monthly_usd)])
    return paid


def break_even_month(own: Array, other: Array) -> int | None:
    """The month from whose end on `own` (months + 1,) stays no dearer than `other`; None where it is dearer at the end.

    Source: definition.
    """
    dearer = np.flatnonzero(own > other * (1 + 1e-12))
    if not dearer.size:
        return 0
    last = int(dearer[-1])
    return None if last == len(own) - 1 else last + 1


def break_even_volume(
    upfront_usd: float, upkeep_usd: float, months: int, api_usd_per_token: float, machines: Machines
) -> float | None:
    """The least steady tokens a month at which own machines cost no more than an API over the months; None: at none.

    Source: with n units of C USD and K tokens a month, U up front and B of upkeep over H months, an API of p a token
    costs as much at v = (U / H + B + n C) / p; it is n units that v takes if (n - 1) K < v <= n K, so the least n
    is the first at or above (U / H + B) / (p K - C), and nothing is where p K <= C; the least over all units.
    Assumes: a volume that does not change; one kind of unit at a time.
    """
    price, capacity = machines.usd_per_month, machines.tokens_per_month
    fixed = upfront_usd / months + upkeep_usd
    margin = api_usd_per_token * capacity - price
    pays = margin > 1e-12 * price
    if not pays.any():
        return None
    units = np.maximum(np.ceil(np.round(fixed / margin[pays], 9)), 1.0)
    volumes = np.maximum((fixed + units * price[pays]) / api_usd_per_token, (units - 1) * capacity[pays])
    return float(volumes.min())
