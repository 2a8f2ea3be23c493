"""Hosted models: what tokens cost at an API, and when own machines cost less."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from flopwise.errors import SpecError
from flopwise.facts.price_book import HostedPrice
from flopwise.ops.types import Floats
from flopwise.units import HOUR_S, HOURS_PER_MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Own machines against an API; output tokens a month (their prompts are counted with them), USD.

    `first`: the least volume at which own machines cost no more, `always`: from which they never cost more, whatever
    the last machine is filled to; both None where the API is cheaper than a full machine (`why`).
    """

    provider: str
    model: str
    api_usd_per_mtok: float  # output, with its share of prompts
    own_usd_per_mtok: float  # of machines that are full all month
    capacity_per_machine: float  # output tokens a month
    first: float | None
    always: float | None
    why: str
    date: str


def api_usd(price: HostedPrice, input_tokens: Floats, output_tokens: Floats, cached_frac: Floats = 0.0) -> Floats:
    """What an API takes for so many tokens, in USD; broadcasts.

    `cached_frac` of the prompt tokens are priced as the provider prices those that it still holds, else as others.

    Source: arithmetic on the provider's price list. Assumes: no batch or volume discount.
    """
    cached = price.input_usd_per_mtok if price.cached_usd_per_mtok is None else price.cached_usd_per_mtok
    prompt = input_tokens * ((1.0 - cached_frac) * price.input_usd_per_mtok + cached_frac * cached)
    return (prompt + output_tokens * price.output_usd_per_mtok) / 1e6


def own_usd(output_tokens: Floats, usd_per_month: Floats, capacity: Floats) -> Floats:
    """What whole machines cost that carry so many output tokens a month, at least one of them, in USD; broadcasts.

    Source: arithmetic. Assumes: machines stay on all month, and each carries up to `capacity` tokens.
    """
    machines: Floats = np.maximum(np.ceil(np.round(output_tokens / capacity, 9)), 1.0)
    return machines * usd_per_month


def break_even(
    price: HostedPrice,
    usd_per_month: float,
    output_tokens_per_s: float,
    *,
    inputs_per_output: float = 0.0,
    cached_frac: float = 0.0,
    fill_frac: float = 1.0,
) -> BreakEven:
    """From which volume on machines of `usd_per_month` each cost less than an API.

    Each machine carries `output_tokens_per_s` (and the prompts that go with them) while it is full; over a month
    `fill_frac` of that, since traffic is not even.

    Source: own machines cost n C for volumes up to n times the capacity K, an API p a token: the first machine pays
    from C / p on (if that is at most K), every further one always if n C / p is at most (n - 1) K.
    Assumes: as `own_usd`; the same tokens count on both sides.

    Raises: SpecError: a figure is not positive, or a share is outside (0, 1].
    """
    for name, value, valid, allowed in (
        ("usd_per_month", usd_per_month, 0 < usd_per_month < inf, "above 0"),
        ("output_tokens_per_s", output_tokens_per_s, 0 < output_tokens_per_s < inf, "above 0"),
        ("fill_frac", fill_frac, 0 < fill_frac <= 1, "above 0, up to 1"),
        ("inputs_per_output", inputs_per_output, 0 <= inputs_per_output < inf, "0 or more"),
        ("cached_frac", cached_frac, 0 <= cached_frac <= 1, "0 or more, up to 1"),
    ):
        if not valid:
            raise SpecError(f"{name}: {value:g} is out of range; allowed: {allowed}")
    capacity = output_tokens_per_s * fill_frac * HOURS_PER_MONTH * HOUR_S
    each = float(api_usd(price, inputs_per_output, 1.0, cached_frac))
    least, own_each = usd_per_month / each, usd_per_month / capacity
    pays = least <= capacity
    dearer = f"a full machine costs ${1e6 * own_each:.3g} for a million output tokens, the API ${1e6 * each:.3g}"
    return BreakEven(
        provider=price.provider, model=price.model or price.name, api_usd_per_mtok=1e6 * each,
        own_usd_per_mtok=1e6 * own_each, capacity_per_machine=capacity, first=least if pays else None,
        always=_always(least, capacity) if pays else None, why="" if pays else dearer, date=price.date,
    )  # fmt: skip


def _always(first: float, capacity: float) -> float | None:
    """The volume from which a machine more always pays at once; None where the margin is too thin for any number."""
    if first >= capacity * (1 - 1e-9):
        return None
    machines = int(np.ceil(round(capacity / (capacity - first), 9)))  # the least n with n first <= (n - 1) capacity
    return (machines - 1) * first
