"""The first page: its figures are sums over the whole plan, and say what they leave out."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from flopwise.fleet.assessment import Assessment, CostSaving
from flopwise.report.blocks import Points, Tile, Tiles
from flopwise.report.content import summary
from flopwise.report.words import bill_interval

sys.path.insert(0, str(Path(__file__).parent))
from samples import assessment, workload


def tiles(found: Assessment) -> dict[str, Tile]:
    (block,) = [b for b in summary(found) if isinstance(b, Tiles)]
    return {tile.name: tile for tile in block.tiles}


def signed(found: Assessment) -> list[str]:
    """The sentences on commitments."""
    (block,) = [b for b in summary(found) if isinstance(b, Points)]
    return [text for title, text in block.items if title == "Commitments."]


def test_accelerators_are_those_of_all_parts_of_a_workload() -> None:
    """chat is split: 2 machines of 1 GPU, and 3 of 8; its backup and machines that idle are not of it."""
    (row,) = assessment().allocation
    rows = [
        row,
        msgspec.structs.replace(row, provider="gcp", instance="g2-standard-96", count=3, num_gpus=24),
        msgspec.structs.replace(row, role="backup", count=1, num_gpus=1),
        msgspec.structs.replace(row, purchase="api", count=1, num_gpus=0),
    ]
    tile = tiles(assessment(allocation=rows))["accelerators"]
    assert tile.value == "26"
    assert tile.note.startswith("on 5 machines of 2 providers")


def test_carbon_says_of_how_many_workloads_it_is() -> None:
    dark = workload("tpu", energy_kwh_per_month=None, carbon_kg_per_month=None)
    assert "of 1 of 2 workloads" in tiles(assessment(workloads=[workload(), dark]))["carbon"].note
    assert tiles(assessment())["carbon"].note == "CO2 equivalent a month"
    assert "carbon" not in tiles(assessment(workloads=[dark]))


def reserved(usd: float, purchase: str, name: str = "chat", why: str = "") -> CostSaving:
    return CostSaving(what="reserved", workload=name, usd_per_month=usd, how="how", purchase=purchase, why=why)


def test_each_term_has_its_own_savings() -> None:
    (row,) = assessment().allocation
    rows = [msgspec.structs.replace(row, purchase=p) for p in ("reserved_1y", "reserved_3y")]
    savings = [reserved(100.0, "reserved_1y"), reserved(20.0, "reserved_1y"), reserved(7.0, "reserved_3y")]
    one, three = signed(assessment(allocation=rows, savings=savings))
    assert "they save $120 a month against on demand" in one
    assert "they save $7.00 a month against on demand" in three


def test_a_commitment_that_costs_more_is_warned_of() -> None:
    (row,) = assessment().allocation
    rows = [msgspec.structs.replace(row, purchase="reserved_1y")]
    why = "bought for the aws share"
    (told,) = signed(assessment(allocation=rows, savings=[
        reserved(500.0, "reserved_1y"), reserved(-1911.0, "reserved_1y", "nightly", why),
    ]))  # fmt: skip
    assert "they cost $1,411 a month more than on demand" in told
    assert "Check first: that for nightly costs $1,911 a month more (bought for the aws share)" in told
    assert tiles(assessment(savings=[reserved(-1911.0, "reserved_1y", why=why)]))["saved a month"].value == "-$1,911"


def test_a_mean_above_the_interval_is_explained() -> None:
    cost = assessment().usd_per_month
    usual = msgspec.structs.replace(cost, low=700.0, expected=735.0, high=760.0)
    rare = msgspec.structs.replace(usual, expected=770.0)
    assert bill_interval(usual) == "80 % interval $700 to $760"
    assert bill_interval(rare).endswith("$760; rare months that need far more machines lift the mean above it")
