"""How often machines fail or are taken away: published records of large runs, and of spot capacity.

What a record says is kept as published (failures in so many days on so many GPUs, a share of instances a month); rates
follow from it. Of spot capacity every provider has a rate: its accelerator's, else that of all of its machines, else
the one assumed of those who publish none. None of these is zero, for a rate of zero is a price that is too good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from flopwise import units
from flopwise.facts import tables
from flopwise.facts.tables import Count, FactTable, Positive, Row, SourcedRow
from flopwise.values import dataclass

PERIODS_S = {"hour": units.HOUR_S, "day": units.DAY_S, "month": 365.25 / 12 * units.DAY_S}
_share = tables.number(units.parse_count, "a share above 0 and below 1", high=0.999999, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord(SourcedRow):
    """Interruptions of jobs on `gpus` accelerators in `days` days."""

    name: str
    gpus: Count
    days: Positive
    failures: Positive
    aliases: tuple[str, ...] = ()
    accelerator: str = ""

    @property
    def mtbf_gpu_s(self) -> float:
        """Mean time between failures of one accelerator with its share of the machine around it, in s."""
        return self.gpus * self.days * units.DAY_S / self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRecord(SourcedRow):
    """The share of a provider's spot instances that it takes back within a period; accelerator None: of all kinds.

    `provider` ANY: what is assumed of those who publish no rate.
    """

    provider: str
    least_frac: float
    most_frac: float
    period: str
    accelerator: str | None = None

    @property
    def interruptions_per_s(self) -> float:
        """Rate of one instance, from the middle of the published range: -ln(1 - share) / period."""
        return -math.log1p(-(self.least_frac + self.most_frac) / 2) / PERIODS_S[self.period]

    @property
    def share(self) -> str:
        """The assumed interruptions, as text."""
        low, high = 100 * self.least_frac, 100 * self.most_frac
        return f"{low:.0f} to {high:.0f} % of instances are interrupted per {self.period}"

    @property
    def text(self) -> str:
        """The share with its source, date and confidence."""
        return f"{self.share} ({self.source}, {self.date}, {self.confidence} confidence)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord(SourcedRow):
    """The paid time before the first step of a run, by run or by layer of its model.

    `stacks`: the training stacks that it holds for, or `any`.
    """

    name: str
    seconds: Positive
    per: Literal["run", "layer"]
    stacks: tuple[str, ...]


def _check_share(row: Row, record: SpotRecord, _: Sequence[SpotRecord]) -> None:
    if record.least_frac > record.most_frac or not record.most_frac:
        raise row.error("most_frac", record.most_frac, "allowed: above 0, and no less than least_frac")


STARTS = FactTable(
    file="run_start.csv", meaning="what a run waits for before its first step", row=StartRecord, key=("name",),
    readers={"per": tables.choice("run", "layer")},
)  # fmt: skip
FAILURES = FactTable(
    file="failures.csv", meaning="how often a run on a given number of GPUs was interrupted",
    row=FailureRecord, key=("name",),
)  # fmt: skip
SPOT = FactTable(
    file="spot.csv", meaning="the share of spot instances that a provider reclaims", row=SpotRecord,
    key=("provider", "accelerator"), check=_check_share,
    readers={"least_frac": _share, "most_frac": _share, "period": tables.choice(*PERIODS_S)},
)  # fmt: skip
