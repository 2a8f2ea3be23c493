"""Figures and names as a report writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from flopwise.fleet.assessment import Assessment, MonthlyCost, WorkloadResult
from flopwise.units import format_count, format_number, format_percent, format_seconds, format_usd, in_currency

if TYPE_CHECKING:
    from flopwise.fleet.check import Check

BOUGHT = {
    "on_demand": "on demand", "spot": "spot", "reserved_1y": "reserved 1 year", "reserved_3y": "reserved 3 years",
    "owned": "own machines", "api": "API, per token",
}  # fmt: skip

TELLING = 0.1
"""Of the planned bill: by which the expected one differs visibly."""
DIFFERENCE = {
    "demand": "months whose demand needs more or fewer machines", "prices": "prices that move",
    "interruptions": "interruptions of spot machines", "prediction": "months in which predictions are off",
}  # fmt: skip
"""What makes the expected bill another than the planned one, by the part of the simulation that varies most."""
AS_PLANNED = "at list prices"
"""Words for the bill that all tables split: demand, prices and machines as planned."""


def dash(value: Any, write: Callable[[Any], str]) -> str:
    """A figure as `write` has it, a dash where it is not known."""
    return "-" if value is None else write(value)


def usd(value: float | None) -> str:
    """Dollars, whole from a hundred on."""
    if value is None:
        return "-"
    return format_usd(value, 0 if abs(in_currency(value)) >= 99.995 else 2)


def change_text(value: float | None) -> str:
    """A change in dollars."""
    if value is None:
        return "-"
    return "no change" if abs(value) < 0.005 else f"{'+' if value > 0 else '-'}{usd(abs(value))}"


def hourly(value: float | None) -> str:
    """A price of an hour, with enough digits to multiply by hand."""
    return "-" if value is None else format_usd(value, 3 if in_currency(value) < 10 else 2)


def between(low: float | None, high: float | None) -> str:
    """An interval of dollars."""
    if low is None or high is None:
        return "-"
    return "fixed" if usd(low) == usd(high) else f"{usd(low)} to {usd(high)}"


def hours(value: float) -> str:
    """Hours of a month: `730`, `37`, `1.3`."""
    return f"{value:,.0f}" if value >= 10 else f"{value:,.1f}" if value >= 1 else f"{value:,.2f}"


def digits(value: float) -> str:
    """Three digits that count, never as a power of ten: `13.2 k`, `1,040`, `61.5`, `0.25`."""
    if abs(value) >= 1e4:
        return format_count(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{format_number(value)}"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return format_percent(part / whole, 0 if part >= 0.1 * whole else 1) if whole else "-"


def purchase_text(purchase: str) -> str:
    """A way to buy in words."""
    return BOUGHT.get(purchase, purchase.replace("_", " "))


def sentence(text: str) -> str:
    """With a capital first and a full stop at the end."""
    stripped = text.strip()
    ended = stripped if stripped.endswith((".", "!", "?")) else f"{stripped}."
    return ended[:1].upper() + ended[1:]


def enumeration(names: list[str], most: int = 3) -> str:
    """`a, b and c`; beyond `most` how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def largest(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Largest first."""
    return sorted(values.items(), key=lambda item: -item[1])


def figure(name: str, value: float) -> str:
    """A figure of a plan in its unit, by the end of its name."""
    if name.endswith("_s") and not name.endswith("_per_s"):
        return format_seconds(value)
    return format_percent(value) if name.endswith("_frac") else digits(value)


def machines(best: Mapping[str, Any]) -> str:
    """`16 x B200 (2 x aws p6-b200.48xlarge)`."""
    if best.get("purchase") == "api":
        return f"the API of {best.get('provider')}, {best.get('instance')}"
    gpus, instances = best.get("num_gpus"), best.get("num_instances")
    devices = f"{gpus:,} x {best.get('gpu', '?')}" if gpus else str(best.get("gpu", "?"))
    return f"{devices} ({instances:,} x {best.get('provider')} {best.get('instance')})" if instances else devices


def runs_on(assessment: Assessment, w: WorkloadResult) -> str:
    """The machines of a workload: those it is planned on, and where it is split, all of them."""
    rows = [a for a in assessment.allocation if a.workload == w.name and a.role == "primary"]
    if len(rows) < 2:
        return machines(w.best)
    return " and ".join(f"{a.count:,} x {a.provider} {a.instance} ({a.gpu})" for a in rows)


def bill_interval(cost: MonthlyCost) -> str:
    """The 80 % interval of a month's bill, and why its mean may stand outside."""
    rare = cost.expected is not None and cost.expected > cost.high
    far = "; rare months that need far more machines lift the mean above it" if rare else ""
    return f"80 % interval {between(cost.low, cost.high)}{far}"


def planned_text(assessment: Assessment) -> str:
    """The planned bill, and from what the expected one differs by more than a tenth of it."""
    cost, drawn = assessment.usd_per_month, assessment.scenarios
    text = f"{usd(cost.total)} {AS_PLANNED}"
    if cost.expected is None or drawn is None or abs(cost.expected - cost.total) <= TELLING * cost.total:
        return text
    what, _ = max(drawn.drivers.items(), key=lambda item: item[1])
    return f"{text}; {DIFFERENCE[what]} make the difference, on average"


CHANGE_HEADERS = ["workload", "change", ">a month", ">share", ">workload after it", ">all after it", "how"]
"""Of a table of `change_rows`."""


def change_rows(answer: Check) -> list[tuple[str, ...]]:
    """Rows of a table of the changes of a check, the easiest of each workload first."""
    return [
        (
            w.name, c.what, change_text(-c.saves_usd_per_month),
            dash(c.difference_frac, lambda part: format_percent(part, 0)), usd(c.usd_per_month),
            usd(c.fleet_usd_per_month), c.how,
        )
        for w in answer.workloads
        for c in w.changes
    ]  # fmt: skip
