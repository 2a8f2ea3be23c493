"""A way to carry a workload for a month: its electricity, from the building that its machines stand in."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

import flopwise
from flopwise.cost.energy import DEFAULT_POWER
from flopwise.fleet.planned import planned_workloads

sys.path.insert(0, str(Path(__file__).parent))
from small import catalog, platform


def test_electricity_of_runs_has_the_overhead_of_the_region_s_buildings() -> None:
    """Four runs a month of `tune`: the search's joules at its own overhead, then at that which data/carbon.csv has."""
    with (Path(flopwise.__file__).parent / "data" / "carbon.csv").open(encoding="utf-8", newline="") as file:
        published = {(r["provider"], r["region"]): float(r["pue"]) for r in csv.DictReader(file) if r["pue"]}
    (ways,) = [i.options for i in planned_workloads(platform(), catalog()) if i.job.name == "tune"]
    seen = set()
    for way in ways:
        pue = published.get((way.offer.provider, way.offer.region), 1.2)
        joules = way.candidate.energy_joules
        assert joules is not None
        assert way.kwh == pytest.approx(4 * joules / 3.6e6 / DEFAULT_POWER.pue * pue)
        seen.add(pue)
    assert len(seen - {1.2}) > 1
