"""The cost of a job so far and projected to its end."""

from __future__ import annotations

from flopwise.telemetry.readings import WatchReading
from flopwise.units import DAY_S, HOUR_S
from flopwise.values import dataclass

NO_RATE_S = 10 * 365 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Cost of a job at one time; None without a price, or without a known end."""

    usd_per_hour: float | None = None
    total_usd: float | None = None
    day_usd: float | None = None  # of the last 24 hours
    started_at_s: float | None = None
    ends_at_s: float | None = None
    projected_usd: float | None = None
    done_frac: float | None = None


def spend(
    reading: WatchReading, *, price: float | None, started_at_s: float, tokens: float | None, planned_s: float | None,
    rate: float | None, at_s: float | None = None,
) -> Spend:  # fmt: skip
    """Cost at a reading, as recorded by the run, else price times time; the end follows from the job's own rate.

    `tokens`: of the whole run; `planned_s`: its planned time; `rate`: tokens/s over the last minutes; `at_s`: the
    present time, if there is no newer reading.
    Source: arithmetic. Assumes: all machines are paid for from the start, also without readings.
    """
    at_s = reading.at_s if at_s is None else max(at_s, reading.at_s)
    job, elapsed = reading.job, max(0.0, at_s - started_at_s)
    total = None if price is None else price * elapsed / HOUR_S
    if "cost_usd" in job:
        total = job["cost_usd"] + (price or 0.0) * (at_s - reading.at_s) / HOUR_S
    remaining, done = job.get("eta_s"), None
    if tokens and "tokens" in job:
        done = min(1.0, job["tokens"] / tokens)
        if remaining is None and rate:
            remaining = max(0.0, tokens - job["tokens"]) / rate
    elif remaining is None and planned_s is not None and tokens is not None and rate is None:
        remaining = max(0.0, planned_s - elapsed)
    if remaining is not None and not 0 <= remaining < NO_RATE_S:
        remaining = None
    projected = None
    if total is not None and remaining is not None and price is not None:
        projected = total + price * remaining / HOUR_S
    return Spend(
        usd_per_hour=price, total_usd=total, day_usd=None if price is None else price * min(elapsed, DAY_S) / HOUR_S,
        started_at_s=started_at_s, ends_at_s=None if remaining is None else at_s + remaining,
        projected_usd=projected, done_frac=done,
    )  # fmt: skip
