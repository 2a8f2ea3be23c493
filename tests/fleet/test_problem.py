"""What goes into the program for each way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from small import catalog

from flopwise.facts.offers import Offer
from flopwise.fleet.money import carbon_of
from flopwise.fleet.problem import carbon_weighed
from named import FACTS


@dataclass
class Emitting:
    """What of a way its carbon depends on."""

    workload: int
    kwh: float | None
    offer: Offer


def test_unknown_power_is_no_cleaner_than_what_is_known() -> None:
    east, west = (catalog().offers_for(region=r)[0] for r in ("us-east-1", "eu-west-1"))
    ways = [
        Emitting(0, 100.0, east), Emitting(0, 10.0, west), Emitting(0, None, east),
        Emitting(1, None, west), Emitting(2, 50.0, west),
    ]  # fmt: skip
    weighed = carbon_weighed(ways, FACTS)  # type: ignore[arg-type]  # as much of a way as is read
    kg = [carbon_of(w.kwh, w.offer, FACTS) for w in ways]
    assert weighed[:2] == kg[:2]
    assert weighed[2] == pytest.approx(max(k for k in kg[:2] if k))
    assert weighed[3] == 0, "nothing of this workload is known"
    assert weighed[4] == kg[4]
