"""The requests of a `Traffic`, and when they arrive: one function for each process, from a rate and a generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.serving.sim.lengths import Lengths, Tokens
from flopwise.serving.sim.profiles import HOURS_PER_WEEK, weekly_rates
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.trace import (
    CHAINED_SUFFIX,
    LONGEST_S,
    RequestTrace,
    read_chained_trace,
    read_trace_columns,
    trace,
)
from flopwise.serving.spec import DEFAULT_INPUT, DEFAULT_OUTPUT
from flopwise.units import DAY_S, HOUR_S, format_arrivals, format_number, format_seconds
from flopwise.values import replace

Seconds = NDArray[np.float64]
Rng = np.random.Generator

DEFAULT_DURATION_S = 600.0
"""How long requests arrive where nothing is said."""
MOST_REQUESTS = 50_000_000
"""Requests that one trace may hold: 2.4 GB of columns."""
GRID = 4096
"""Points a period on which the integral of a varying rate is looked up."""
SEED_OF_PRIORITIES = 2
"""Beside the seed of the traffic: classes are drawn apart, so that requests are the same with and without them."""
MOST_PEAK = 50.0
"""Peak over mean that a daily profile may have."""


def _expected_requests(rate_per_s: float, duration_s: float) -> float:
    """The number of requests to expect.

    Raises: SpecError: a rate or a duration that cannot be, or too many requests to hold.
    """
    for name, value in (("rate", rate_per_s), ("duration", duration_s)):
        if not (math.isfinite(value) and value > 0):
            raise SpecError(f"{name} {value:g} is out of range; allowed: above 0")
    expected = rate_per_s * duration_s
    if expected > MOST_REQUESTS:
        raise SpecError(
            f"{rate_per_s:g} requests/s for {duration_s:g} s are {format_number(expected)} requests; allowed: up to "
            f"{MOST_REQUESTS:,} (shorten the duration)"
        )
    return expected


def uniform(rate_per_s: float, duration_s: float, rng: Rng) -> Seconds:
    """Equal gaps; shape (rate x duration,). Raises: SpecError: rate or duration not above 0. Source: definition."""
    del rng
    count = max(1, round(_expected_requests(rate_per_s, duration_s)))
    return np.arange(count) / rate_per_s


def poisson(rate_per_s: float, duration_s: float, rng: Rng) -> Seconds:
    """Independent arrivals at a constant rate; shape (number that came,), ascending seconds in [0, duration).

    Source: given their number, the arrivals of a Poisson process are uniform order statistics (Ross, Stochastic
    Processes, theorem 2.3.1).
    Raises: SpecError: rate or duration not above 0.
    """
    count = int(rng.poisson(_expected_requests(rate_per_s, duration_s)))
    return np.sort(rng.random(count)) * duration_s


def gamma(rate_per_s: float, duration_s: float, rng: Rng, *, cv: float = 2.0) -> Seconds:
    """Bursts: gaps of a gamma distribution whose standard deviation is `cv` times their mean; cv 1 is Poisson.

    Source: BurstGPT (arXiv:2401.17644) section 4 finds gamma gaps with cv above 1 in a chat service's traffic.
    Assumes: gaps are independent; the first is one of the stationary process only in the limit of many.
    Raises: SpecError: rate, duration or cv not above 0.
    """
    expected = _expected_requests(rate_per_s, duration_s)
    if not (math.isfinite(cv) and 0 < cv <= 100):
        raise SpecError(f"burstiness (cv) {cv:g} is out of range; allowed: above 0, up to 100 (1 is Poisson)")
    shape = cv**-2
    parts: list[Seconds] = []
    at, batch = 0.0, int(expected + 6 * cv * math.sqrt(expected)) + 16
    while at < duration_s:
        parts.append(at + np.cumsum(rng.gamma(shape, 1.0 / (shape * rate_per_s), batch)))
        at = float(parts[-1][-1])
    arrivals = np.concatenate(parts)
    return arrivals[arrivals < duration_s]


def concentration(peak_over_mean: float) -> float:
    """The k of exp(k cos x) whose highest value is `peak_over_mean` times its mean, e^k / I0(k).

    Source: von Mises distribution; solved by bisection. Raises: SpecError: below 1 or beyond `MOST_PEAK`.
    """
    if not 1 <= peak_over_mean <= MOST_PEAK:
        raise SpecError(f"peak over mean {peak_over_mean:g} is out of range; allowed: 1 to {MOST_PEAK:g}")
    low, high = 0.0, 1.0
    while _peak(high) < peak_over_mean:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _peak(middle) < peak_over_mean else (low, middle)
    return high


def _peak(k: float) -> float:
    angles = np.linspace(0, 2 * math.pi, GRID, endpoint=False)
    return float(1.0 / np.exp(k * (np.cos(angles) - 1.0)).mean())


def profile(hourly: Seconds, period_s: float) -> tuple[Seconds, Seconds]:
    """(seconds, expected share of the period's arrivals until then) of a rate given at equal steps, repeating.

    Source: the integral of straight lines between the steps.
    """
    steps = np.append(hourly, hourly[0])
    area = np.concatenate([[0.0], np.cumsum((steps[:-1] + steps[1:]) / 2)])
    return np.linspace(0.0, period_s, steps.size), area / area[-1]


def varying(
    rate_per_s: float, duration_s: float, rng: Rng, *, shape: Seconds, period_s: float = DAY_S, weekend: float = 1.0
) -> Seconds:
    """A Poisson process whose rate repeats `shape` every period around the mean `rate_per_s`.

    `shape`: relative rates at equal steps of the period, at least one above 0. `weekend`: the rate of each sixth and
    seventh period over that of the others.

    Source: time rescaling: arrivals of a unit Poisson process through the inverse of the integrated rate (Cinlar 1975,
    section 4.7).
    Raises: SpecError: rate or duration not above 0, or a shape without a rate.
    """
    _expected_requests(rate_per_s, duration_s)
    shape = np.asarray(shape, dtype=float)
    if not (shape.size and np.isfinite(shape).all() and (shape >= 0).all() and shape.any()):
        raise SpecError("a traffic profile needs rates of 0 and above, one of them above 0")
    if not (math.isfinite(weekend) and 0 <= weekend <= 10):
        raise SpecError(f"weekend {weekend:g} is out of range; allowed: 0 to 10 times the rate of other days")
    seconds, share = profile(shape, period_s)
    periods = math.ceil(duration_s / period_s)
    weights = np.where(np.arange(periods) % 7 >= 5, weekend, 1.0) / ((5 + 2 * weekend) / 7 if periods >= 7 else 1.0)
    at = (seconds[None, :-1] + np.arange(periods)[:, None] * period_s).ravel()
    ends = np.cumsum(weights)
    counts = (share[None, :-1] * weights[:, None] + (ends - weights)[:, None]).ravel()
    at, counts = np.append(at, periods * period_s), np.append(counts, ends[-1])
    mean = rate_per_s * period_s
    until = float(np.interp(duration_s, at, counts)) * mean
    count = int(rng.poisson(until))
    arrivals: Seconds = np.interp(np.sort(rng.random(count)) * until, counts * mean, at)
    return arrivals


def diurnal(
    rate_per_s: float,
    duration_s: float,
    rng: Rng,
    *,
    peak_over_mean: float = 2.0,
    peak_hour: float = 14.0,
    weekend: float = 1.0,
) -> Seconds:
    """A day's wave around the mean rate: a Poisson process with one peak a day, `peak_over_mean` times the mean.

    Source: exp(k cos x) as the shape of a day (von Mises); `varying`.
    Raises: SpecError: peak over mean below 1, or an hour outside the day.
    """
    if not 0 <= peak_hour <= 24:
        raise SpecError(f"peak hour {peak_hour:g} is out of range; allowed: 0 to 24")
    hours = np.arange(GRID) / GRID * 24
    k = concentration(peak_over_mean)
    shape = np.exp(k * (np.cos((hours - peak_hour) / 24 * 2 * math.pi) - 1.0))
    return varying(rate_per_s, duration_s, rng, shape=shape, weekend=weekend)


PROCESSES: dict[str, Callable[..., Seconds]] = {
    "poisson": poisson,
    "gamma": gamma,
    "uniform": uniform,
    "diurnal": diurnal,
    "profile": varying,
}
"""Arrival processes by the name that a user gives."""


def draw_requests(traffic: Traffic, spread: float = 0.0) -> RequestTrace:
    """The requests of `traffic`: a trace file's, or drawn from its seed.

    `spread`: share by which lengths that are given as one number vary (`Traffic.varies`).

    Raises: SpecError: a file or a value that cannot be; UnknownNameError: no such arrival process.
    """
    traffic.check()
    if traffic.trace is not None:
        return _replayed_requests(traffic, traffic.trace)
    drawn = _drawn_requests(traffic, spread)
    if traffic.priorities is None:
        return drawn
    classes = np.array([one.priority for one in traffic.priorities])
    shares = np.array([one.frac for one in traffic.priorities])
    own = np.random.default_rng([traffic.seed, SEED_OF_PRIORITIES])
    return replace(drawn, priority=own.choice(classes, len(drawn), p=shares / shares.sum()))


def _drawn_requests(traffic: Traffic, spread: float) -> RequestTrace:
    """Requests that are drawn from the seed of `traffic`, all of one priority; `spread`: as of `draw_requests`."""
    rng = np.random.default_rng(traffic.seed)
    arrival_s = _arrivals(traffic, rng)
    if traffic.turns is not None:
        return _session_turns(traffic, arrival_s, rng)
    count = arrival_s.size
    prompts, outputs = _drawn_lengths(traffic, count, rng, spread)
    if not traffic.prefixes:
        return trace(arrival_s, prompts, outputs)
    assert traffic.prefix_tokens is not None
    prefix = rng.integers(0, traffic.prefixes, count)
    shared = np.full(count, traffic.prefix_tokens)
    return trace(arrival_s, prompts + shared, outputs, prefix=prefix, prefix_tokens=shared)


def _session_turns(traffic: Traffic, arrival_s: Seconds, rng: Rng) -> RequestTrace:
    """Sessions that come at `arrival_s`: prompts of their turns begin with all prompts and answers before them.

    Source: definition of a chat: the whole history is sent again (OpenAI's chat completions, `messages`).
    Assumes: pauses are exponential around their means, those of tools drawn apart from those of people; a turn's own
    tokens do not depend on its place.
    """
    turns = Lengths.parse(str(traffic.turns)).draw(arrival_s.size, rng)
    count = int(turns.sum())
    if count > MOST_REQUESTS:
        raise SpecError(f"{count:,} turns; allowed: up to {MOST_REQUESTS:,}")
    own, outputs = _drawn_lengths(traffic, count, rng)
    session = np.repeat(np.arange(len(turns)), turns)
    starts = np.cumsum(turns) - turns
    system, named = np.zeros(count, dtype=np.int64), np.full(count, -1)
    if traffic.prefixes:
        system = np.full(count, traffic.prefix_tokens)
        named = np.repeat(rng.integers(0, traffic.prefixes, len(turns)), turns)
    grown = np.cumsum(own + outputs)
    before = np.concatenate([[0], grown])[starts]
    prompts = system + grown - outputs - np.repeat(before, turns)
    tools = rng.random(count) < (traffic.tool_share or 0.0)
    pause_s = rng.exponential(1.0, count) * np.where(tools, traffic.tool_pause or 0.0, traffic.think_s)
    pause_s[starts] = -1.0
    return trace(
        arrival_s[session], prompts, outputs, session=session, pause_s=pause_s, prefix=named, prefix_tokens=system
    )


def _drawn_lengths(traffic: Traffic, count: int, rng: Rng, spread: float = 0.0) -> tuple[Tokens, Tokens]:
    """Prompts and answers of `count` requests, as measured or by their distributions; `spread` as `draw_requests`."""
    if traffic.lengths_from is not None:
        columns = read_trace_columns(traffic.lengths_from)
        return empirical(columns["prompt_tokens"], columns["output_tokens"], count, rng)
    lengths = (traffic.input_tokens or DEFAULT_INPUT, traffic.output_tokens or DEFAULT_OUTPUT)
    both = [Lengths.parse(str(length)) for length in lengths]
    if traffic.varies:
        both = [_length_around(one, spread) for one in both]
    prompts, outputs = (one.draw(count, rng) for one in both)
    return prompts, outputs


def _length_around(length: Lengths, frac: float) -> Lengths:
    """Lengths between 1 - `frac` and 1 + `frac` of the number that is given; others as they are."""
    if not (frac and length.is_number):
        return length
    low = round((1.0 - frac) * length.mean)
    return Lengths(mean=length.mean, low=low, high=2.0 * length.mean - low)


def empirical(prompts: Tokens, outputs: Tokens, count: int, rng: Rng) -> tuple[Tokens, Tokens]:
    """Pairs of prompt and answer drawn together, with replacement, from measured ones; shapes (count,).

    Source: bootstrap. Raises: SpecError: no pairs, or columns of different lengths.
    """
    if not len(prompts) or len(prompts) != len(outputs):
        raise SpecError(f"{len(prompts)} prompts and {len(outputs)} answers: an empirical distribution needs pairs")
    rows = rng.integers(0, len(prompts), count)
    return np.asarray(prompts)[rows], np.asarray(outputs)[rows]


def _replayed_requests(traffic: Traffic, path: Path) -> RequestTrace:
    """The requests of a trace file, at its scale."""
    if path.suffix == CHAINED_SUFFIX:
        whole = read_chained_trace(path)
        whole = whole.take(np.arange(len(whole))[: traffic.requests])
        first_ps = whole.arrival_ps[0]
        return whole.arriving(np.rint((whole.arrival_ps - first_ps) / traffic.scale).astype(np.int64))
    columns = read_trace_columns(path)
    first = columns["arrival_s"][0]
    for name in {"arrival_s", "deadline_s"} & columns.keys():
        columns[name] = (columns[name] - first) / traffic.scale
    return trace(**{name: column[: traffic.requests] for name, column in columns.items()})


def _arrivals(traffic: Traffic, rng: Rng) -> Seconds:
    """Arrival times, before users of a closed loop are answered."""
    count, rate = traffic.num_requests, traffic.rate
    if count is not None and count > MOST_REQUESTS:
        raise SpecError(f"{count:,} requests; allowed: up to {MOST_REQUESTS:,}")
    if traffic.users is not None:
        return np.zeros(count or 0)
    assert rate is not None
    span = traffic.duration_s or DEFAULT_DURATION_S
    if count is not None:
        span = count / rate * (1.2 + 10 / count**0.5)  # enough to cut from
    if traffic.profile is not None:
        week = np.array(weekly_rates(traffic.profile))
        return varying(rate, span, rng, shape=week, period_s=HOURS_PER_WEEK * HOUR_S)[:count]
    wave = {"peak_over_mean": traffic.peak, "peak_hour": traffic.peak_hour, "weekend": traffic.weekend}
    shape = {name: value for name, value in {"cv": traffic.burstiness, **wave}.items() if value is not None}
    allowed: set[str] = {"gamma": {"cv"}, "diurnal": set(wave)}.get(traffic.arrivals, set())
    if shape.keys() - allowed:
        raise SpecError(
            f"{traffic.arrivals} arrivals take {', '.join(sorted(allowed)) or 'a rate only'}: --burstiness goes with "
            "gamma; --peak, --peak-hour and --weekend with diurnal"
        )
    arrival_s = PROCESSES[traffic.arrivals](rate, span, rng, **shape)[:count]
    if not arrival_s.size:
        raise SpecError(f"{rate:g} requests/s for {span:g} s: no request arrived; make the duration longer")
    if arrival_s[-1] > LONGEST_S:
        seldom, clock = format_arrivals(rate), format_seconds(LONGEST_S)
        raise SpecError(
            f"{arrival_s.size:,} requests at {seldom} take longer than the simulator's clock, {clock}: give a higher "
            "rate, fewer requests or a shorter duration"
        )
    return arrival_s
