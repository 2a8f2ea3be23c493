"""The page of a plan says what its JSON says, and leaves nothing raw."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from small import BATCH, CHAT, TUNE, answer

from flopwise.report.blocks import Bars, Points, Section, Table, Tiles
from flopwise.report.pages import html, markdown
from flopwise.report.plan_page import plan_document
from flopwise.report.words import hourly, usd
from flopwise.search.answer import Plan
from flopwise.units import format_seconds

NAMES = [workload["name"] for workload in (CHAT, TUNE, BATCH)]


@pytest.fixture
def plans() -> Mapping[str, Plan]:
    """Those of the small fleet: each workload but the desks."""
    found = answer().plans
    assert list(found) == NAMES
    return found


def _section(plan: Plan, title: str) -> Section:
    return next(section for section in plan_document(plan, "x").sections if section.title == title)


@pytest.mark.parametrize("name", NAMES)
def test_the_choice_is_the_first_plan(name: str, plans: Mapping[str, Plan]) -> None:
    best = plans[name].plans[0]
    tiles, points = (
        next(block for block in _section(plans[name], "The choice").blocks if isinstance(block, kind))
        for kind in (Tiles, Points)
    )
    assert isinstance(tiles, Tiles)
    assert [tile.value for tile in tiles.tiles][:3] == [
        usd(best.cost_usd), format_seconds(best.seconds), f"{best.num_gpus:,}",
    ]  # fmt: skip
    low, high = best.ends("cost_usd") or (0.0, 0.0)
    assert low <= best.cost_usd <= high
    assert (usd(low) in tiles.tiles[0].note) or usd(low) == usd(high)
    assert isinstance(points, Points)
    said = dict(points.items)["Machines."]
    assert best.instance in said
    assert hourly(best.usd_per_hour) in said


@pytest.mark.parametrize("name", NAMES)
def test_all_others_are_listed_in_their_order(name: str, plans: Mapping[str, Plan]) -> None:
    plan = plans[name]
    bars, table = _section(plan, "What else was considered").blocks
    assert isinstance(bars, Bars)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == [str(c.rank) for c in plan.plans]
    assert [bar.value for bar in bars.bars] == [c.cost_usd for c in plan.plans][: len(bars.bars)]
    assert all(bar.low is None or bar.low <= bar.value for bar in bars.bars)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_written_both_ways(name: str, plans: Mapping[str, Plan]) -> None:
    made = plan_document(plans[name], name)
    assert plans[name].verdict in markdown(made).replace("\\", "")
    assert "nan" not in html(made).lower().replace("finance", "")


def test_a_plan_without_an_answer_says_what_ruled_it_out(plans: Mapping[str, Plan]) -> None:
    plan = next(iter(plans.values()))
    empty = Plan(
        workload=plan.workload, task=plan.task, objective="cost", plans=[], front=[], misses=[],
        ruled_out=plan.ruled_out, levers=[], assumptions=[], evaluated=0, elapsed_s=0.0,
    )  # fmt: skip
    made = plan_document(empty, "x")
    assert [section.title for section in made.sections] == (["Ruled out"] if plan.ruled_out else [])
    assert "No offer can run this" in made.subtitle
