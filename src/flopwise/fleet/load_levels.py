"""A service that follows its traffic: which part of the peak's machines each hour of the week takes, and for how long.

Machines are added before the hour that needs them, a cold start ahead, and taken away at the end of an hour: scheduled
scaling, as clouds' autoscalers and KEDA's cron have it; a policy on top answers what the profile does not foresee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flopwise.errors import SpecError
from flopwise.fleet.schedules import WEEKS_PER_MONTH, WeeklySchedule
from flopwise.units import HOUR_S
from flopwise.values import dataclass

MOST_LEVELS = 12
"""Maximum number of load levels; further ones are merged, each with the next higher one."""
SLIGHT = 1e-6
"""Share of the peak's machines of an hour without traffic in which one machine stays on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevels:
    """Levels of load: the share of the peak's machines that each takes, ascending to 1, and its paid hours a month.

    `by_hour`: the level of each hour of the week, from Monday 0:00; None where the service is off.
    """

    shares: tuple[float, ...]
    hours: tuple[float, ...]
    by_hour: tuple[int | None, ...]
    starts_per_month: float = 1.0
    cold_start_s: float = 0.0

    @classmethod
    def of_traffic(
        cls,
        rates: Sequence[float], schedule: WeeklySchedule, *, headroom: float = 0.0, cold_start_s: float = 0.0,
        cool_down_s: float = 0.0, least_share: float = SLIGHT, most: int = MOST_LEVELS,
    ) -> LoadLevels:  # fmt: skip
        """The levels of a service whose traffic has these `rates` by the hour of the week, straight lines between them.

        An hour takes what the higher of its two ends takes, `headroom` beyond it, at least `least_share` of the peak's
        machines (0: none without traffic) and never more than the peak's. Machines that an hour has more than the one
        before are paid from a cold start earlier, those that it has less until a cool-down later.

        Source: arithmetic; hours of a week are scaled to the month of the schedule (730 h where it is always on).
        Raises: SpecError: no traffic while it is on.
        Assumes: machines needed are proportional to the rate; starts and cool-downs count as half an hour at most;
        machines that are turned on and off with the schedule are ready when it begins.
        """
        number, top = len(rates), max(rates)
        ends = [max(rates[h], rates[(h + 1) % number]) / top for h in range(number)]
        wanted = [min(1.0, max(end * (1.0 + headroom), least_share)) for end in ends]
        on = _on_frac(schedule)
        values = _joined_levels(
            sorted({round(w, 9) for w, part in zip(wanted, on, strict=True) if w and part}), wanted, most
        )
        if not values:
            raise SpecError("the profile has no traffic in the hours that the service is on")
        level = {w: next(n for n, v in enumerate(values) if v >= round(w, 9)) for w in set(wanted) if w}
        by_hour = tuple(level[w] if w and part else None for w, part in zip(wanted, on, strict=True))
        hours, rises = [0.0] * len(values), 0
        lead, lag = (min(seconds / HOUR_S, 0.5) for seconds in (cold_start_s, cool_down_s))
        for h, (here, part) in enumerate(zip(by_hour, on, strict=True)):
            following = by_hour[(h + 1) % number]
            if here is None:
                continue
            hours[here] += part
            if following is not None and following != here:
                early, late = (lead, 0.0) if following > here else (0.0, lag)
                rises += following > here
                hours[here] += late - early
                hours[following] += early - late
        month = schedule.hours_per_month / sum(on)
        return cls(
            shares=(*values[:-1], 1.0), hours=tuple(h * month for h in hours), by_hour=by_hour,
            starts_per_month=max(schedule.starts_per_month, rises * month), cold_start_s=cold_start_s,
        )  # fmt: skip

    @property
    def day_shares(self) -> list[float]:
        """The share of a month's machine-hours that each day of the week has, from Monday."""
        hours = [0.0 if level is None else self.shares[level] for level in self.by_hour]
        days = [sum(hours[24 * day : 24 * day + 24]) for day in range(7)]
        return [day / sum(days) / WEEKS_PER_MONTH for day in days]

    def machines(self, count: int, unit: int = 1) -> tuple[int, ...]:
        """Machines on at each level of `count` at the peak, in whole replicas of `unit` machines."""
        units = count / unit
        return tuple(unit * math.ceil(round(units * share, 9)) for share in self.shares)

    def paid_hours(self, machines: Sequence[int]) -> float:
        """Machine-hours a month of `machines` at each level."""
        return sum(n * hours for n, hours in zip(machines, self.hours, strict=True))


def _on_frac(schedule: WeeklySchedule) -> list[float]:
    """The part of each hour of the week in which machines are on."""
    return [
        sum(max(0, min(stop, 60 * h + 60) - max(start, 60 * h)) for start, stop in schedule.windows) / 60
        for h in range(7 * 24)
    ]


def _joined_levels(values: list[float], wanted: Sequence[float], most: int) -> list[float]:
    """At most so many of the values, those left out joined to the next higher, where that adds least machine-hours."""
    weight = [sum(round(w, 9) == v for w in wanted) for v in values]
    while len(values) > most:
        added = [weight[n] * (values[n + 1] - values[n]) for n in range(len(values) - 1)]
        least = added.index(min(added))
        weight[least + 1] += weight[least]
        del values[least], weight[least]
    return values
