"""Ways to one goal, answering so many tokens a month: an API, open weights, fine-tuned, trained from scratch.

A way is an up-front sum and what each month costs; own machines come whole, an API is paid by the token. Volumes are
tokens a month, prompts and answers together in the mix of the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from flopwise.ops.types import Array
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.search.answer import Candidate

Kind = Literal["api", "open", "finetune", "pretrain"]
LONGEST = 120
"""Months beyond which nobody waits for a break-even."""


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest plan of the training that a way starts with; `cost_usd` of one run, of `runs` that are paid."""

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


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of the first month, and of the last where the traffic grows; an API's price where it is one."""

    provider: str
    what: str
    num_instances: int | None
    gpu: str | None
    purchase: str | None
    usd_per_million_tokens: float
    price_date: str
    last_num_instances: int | None = None
    last_what: str | None = None


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
    training: TrainingRun | None = None
    serving: Serving | None = None
    loss: float | None = None


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a way of one's own meets an API.

    `month`: from its end on the way has cost no more, None within ten years; `tokens_per_month`: the least steady
    volume at which it costs no more over the horizon, None where the API is cheaper than a full machine; `why` says so.
    """

    way: str
    against: str
    month: int | None
    tokens_per_month: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Machines:
    """The units that can be rented: USD a month, tokens a month that each carries, and what each is; shape (units,)."""

    usd_per_month: Array
    tokens_per_month: Array
    units: tuple[Candidate, ...]
    instances: tuple[int, ...]  # of a unit


def unit_of(chosen: Candidate, tokens_per_request: float, peak: float, volume: float) -> tuple[float, float, int]:
    """USD a month, tokens a month and instances of the least unit of a plan that can be rented again and again.

    A unit is an instance with as many replicas as it holds, or the instances of one replica.

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
    return chosen.cost_usd / chosen.num_instances * instances, capacity, instances


def own_usd(volumes: Array, machines: Machines) -> Array:
    """What the cheapest machines for each of `volumes` (months,) cost a month, in USD, at least one unit.

    Source: arithmetic. Assumes: one kind of machine carries a month's traffic; they stay on all month.
    """
    usd: Array = _each(volumes, machines).min(axis=1)
    return usd


def chosen(volume: float, machines: Machines) -> tuple[int, int]:
    """(index of the cheapest unit for a volume, how many of it)."""
    index = int(_each(np.array([volume]), machines)[0].argmin())
    return index, int(_count(volume, machines.tokens_per_month[index]))


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
