"""What a plan of a service has beside others: simulated percentiles, two fronts, the price of each target, floors."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, table

if TYPE_CHECKING:
    from flopwise.search.answer import Candidate, Floor, Plan, TargetCost

OLD_DAYS = 180
"""Prices older than that are marked."""
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}


def percentile(plan: Plan, target: str) -> str:
    """The percentile that a latency of a plan is held at."""
    asked = plan.workload.get("targets", {}).get(target)
    return next(iter(asked)) if isinstance(asked, dict) else "p95"


def simulated(c: Candidate, name: str, at: str) -> str | None:
    """A simulated percentile; None where the candidate was not run."""
    value = None if c.simulated is None else getattr(c.simulated, f"{name}_s").get(at)
    return None if value is None else units.format_seconds(value)


def note(c: Candidate, today: date | None = None) -> str:
    """What is to be known of a row: replicas raised, why it was not run, an old price."""
    told = [c.note] if c.note else []
    try:
        days = ((today or datetime.now(UTC).date()) - date.fromisoformat(c.price_date[:10])).days
    except ValueError:
        days = 0  # some sources give a month, or no date
    if days > OLD_DAYS:
        told.append(f"price {days} days old")
    return "; ".join(told)


def fronts(plan: Plan, paper: Screen) -> list[str]:
    """A chart of cost against TTFT, and one against TPOT; the best plans stand out as they were estimated."""
    drawn = []
    for name, points in plan.fronts.items():
        if len(points) < 2:
            continue
        column = f"{name}_s"
        series = [Series("cheapest at each", _points(points, column), line=True)]
        series.append(Series("the ten best plans", _points(plan.plans[:10], column), mark="o"))
        x = Axis(f"{NAMES[name]} ({percentile(plan, name)}, estimated)", units.format_seconds, log=True)
        drawn.append(chart(series, x, Axis("USD a month", units.format_usd, log=True), paper, rows=10))
    return [one for one in drawn if one]


def _points(rows: list[Candidate], column: str) -> list[tuple[float, float]]:
    return [(value, c.cost_usd) for c in rows if (value := c.figures.get(column)) is not None]


def target_costs(rows: list[TargetCost], paper: Screen) -> str:
    """Each target moved a step: what the best plan then costs, and what that saves."""

    def moved(row: TargetCost) -> str:
        if row.to_s is None:
            return "none"
        return f"{row.to_percentile} {units.format_seconds(row.to_s)}"

    held: list[tuple[Any, ...]] = [
        (
            NAMES[row.target],
            f"{row.percentile} {units.format_seconds(row.from_s)}",
            moved(row),
            None if row.cost_usd is None else units.format_usd(row.cost_usd),
            None if row.saves_usd is None else units.format_usd(row.saves_usd),
            None if row.saves_frac is None else f"{100 * row.saves_frac:.0f} %",
            row.instead or "nothing meets it",
        )
        for row in rows
    ]
    return table(("target", ">as it is", ">moved to", ">cost", ">saves", ">share", "with"), held, paper)


def floor(one: Floor) -> str:
    """One sentence: what physics allows, on which device, against which target."""
    parts = " + ".join(f"{name} {units.format_seconds(s)}" for name, s in one.parts.items() if s)
    how = f"tp {one.layout['tp']}, {one.layout['weights']} weights"
    verdict = "physics forbids it" if one.seconds > one.limit_s else "physics would allow it"
    return (
        f"{NAMES[one.target]} {units.format_seconds(one.limit_s)}: {verdict}, the fastest device allowed takes "
        f"{units.format_seconds(one.seconds)} at least ({one.gpu} in {one.instance}, {how}: {parts})"
    )
