"""Comparison of runs: settings that differ, and figures that differ by more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flopwise.records.explanation import HIGHER_IS_BETTER
from flopwise.records.measured import Measured
from flopwise.records.steady import Statistic
from flopwise.values import dataclass

SURE = 1.96
"""Number of standard errors within which 95 % of random differences lie."""
_FIELDS = ("task", "model", "gpu", "gpus", "host", "price_usd_per_hour", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A metric of several runs. `against`: relative differences to the first run; `sure`: whether they exceed noise."""

    metric: str
    levels: tuple[Statistic | None, ...]
    against: tuple[float | None, ...]
    sure: tuple[bool | None, ...]  # None where the noise is not known
    planned: tuple[float | None, ...]  # measured / expected - 1

    @property
    def better(self) -> tuple[bool | None, ...]:
        """For each run true if it is better than the first; None where the difference does not exceed noise."""
        more = self.metric in HIGHER_IS_BETTER
        pairs = zip(self.against, self.sure, strict=True)
        return tuple(None if d is None or not sure else (d > 0) == more for d, sure in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several runs, each compared with the first."""

    runs: tuple[Measured, ...]
    settings: Mapping[str, tuple[str, ...]]  # those that differ, a text for each run
    contrasts: tuple[Contrast, ...]


def comparison(runs: Sequence[Measured]) -> Comparison:
    """The differences between runs."""
    metrics = dict.fromkeys(name for one in runs for name in (*one.levels, *one.totals))
    return Comparison(
        runs=tuple(runs),
        settings=_differing([_settings(one) for one in runs]),
        contrasts=tuple(_contrast(name, runs) for name in metrics),
    )


def _settings(one: Measured) -> dict[str, str]:
    """All settings of a run, as text by name."""
    run = one.run
    plain = {name: getattr(run, name) for name in _FIELDS}
    plain |= {**run.settings, **{f"{name} version": version for name, version in run.software.items()}}
    return {name: str(value) for name, value in plain.items() if value is not None}


def _differing(settings: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    names = dict.fromkeys(name for one in settings for name in one)
    rows = {name: tuple(one.get(name, "-") for one in settings) for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def _contrast(metric: str, runs: Sequence[Measured]) -> Contrast:
    levels = tuple(one.statistic(metric) for one in runs)
    first = levels[0]
    contrasts = [_against(first, one) for one in levels]
    expected = [None if one.run.expected is None else one.run.expected.figures.get(metric) for one in runs]
    planned = tuple(
        None if one is None or figure is None or not figure.value else one.value / figure.value - 1
        for one, figure in zip(levels, expected, strict=True)
    )
    return Contrast(
        metric=metric, levels=levels, against=tuple(d for d, _ in contrasts), sure=tuple(s for _, s in contrasts),
        planned=planned,
    )  # fmt: skip


def _against(first: Statistic | None, other: Statistic | None) -> tuple[float | None, bool | None]:
    """(relative difference, whether it exceeds two standard errors of both together).

    Source: the error of a ratio of independent figures (delta method). Assumes: runs are independent.
    """
    if first is None or other is None or not first.value:
        return None, None
    difference = other.value / first.value - 1
    if first is other:
        return 0.0, None
    if first.error is None or other.error is None or first.value < 0 or other.value <= 0:
        return difference, None
    error = math.hypot(first.error / first.value, other.error / other.value)
    return difference, abs(math.log(other.value / first.value)) > SURE * error
