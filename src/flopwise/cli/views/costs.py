"""What alternatives and own machines cost, on the screen: sums over months, break-evens, prices of an hour."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.buy_or_build.alternatives import Alternative, ApiBreakEven, CostComparison, TippingPoint, Verdict
    from flopwise.fleet.onprem import AgainstCloud, OwnPrice

MARKS = {"api": "A", "open": "O", "finetune": "F", "pretrain": "S"}
SHOWN: dict[str, Callable[[float], str]] = {
    "tokens": units.format_count, "USD": units.format_usd, "times": "{:.3g}".format, "months": "{:.0f}".format,
}  # fmt: skip
WIDE = 30.0
"""Sums that lie so many times apart are drawn on a logarithmic axis."""
CLOUDS = 20
"""Offers that are shown of one accelerator."""


def blocks(found: CostComparison, paper: Screen) -> Iterator[str]:
    """The blocks, in the order in which they are read."""
    volume = found.tokens_per_month
    growth = f", {units.format_percent(found.growth_frac)} more each month" if found.growth_frac else ""
    read, written = units.format_count(volume["input"]), units.format_count(volume["output"])
    yield heading(
        f"{found.model}: {read} tokens in and {written} out a month{growth}, over {found.months} months", paper
    )
    feasible = [way for way in found.ways if way.feasible]
    yield table(("way", ">up front", ">first month", ">total", ">USD/M tokens"), [_row(way) for way in feasible], paper)
    yield from _verdict(found.verdict, paper)
    yield "What each takes:\n" + table(
        ("way", "training", ">it takes", "serving", ">filled"), [_requirements_row(way) for way in feasible], paper
    )
    for way in found.ways:
        if not way.feasible:
            yield f"{way.name}: not feasible\n" + "\n".join(f"  - {reason}" for reason in way.reasons)
    yield _chart(found, paper)
    if found.break_even:
        yield "Where own machines pay:\n" + table(
            ("way", "against", ">month", ">tokens a month", "why"), [_crossing(c) for c in found.break_even], paper
        )
    notes = [f"{way.name}: a loss of {way.loss:.3g} nats a token expected" for way in found.ways if way.loss]
    yield "Assumed:\n" + "\n".join(f"  - {said}" for said in [*found.assumptions, *_billing_notes(feasible), *notes])


def _verdict(made: Verdict, paper: Screen) -> Iterator[str]:
    """The answer in a sentence, how it comes about, and what would change it."""
    said = f"Cheapest: {made.cheapest}"
    if made.saves_usd is not None and made.against is not None:
        saves = _ranged(units.format_usd, made.saves_usd, made.saves_usd_low, made.saves_usd_high)
        said += f", {saves} less than {made.against}"
    if made.chance is not None:
        sure = "settled" if made.settled else "not settled"
        said += f"; so in {100 * made.chance:.0f} % of cases by measured errors: {sure}"
    yield "\n".join([said + ".", *(f"  - {why}" for why in made.because)])
    if made.turns:
        yield "What would change it, the nearest first:\n" + table(
            ("input", ">now", ">turns at", ">times", "then cheaper", "beside"), [_turn(t) for t in made.turns], paper
        )


def _turn(turn: TippingPoint) -> tuple[Any, ...]:
    show = SHOWN[turn.unit]
    times = None if turn.times is None else f"{turn.times:.3g}"
    at = None if turn.at is None else _ranged(show, turn.at, turn.low, turn.high, never=turn.unit != "times")
    return (turn.input, show(turn.now), at, times, turn.then if turn.at is not None else None, turn.why or None)


def _ranged(
    show: Callable[[float], str], value: float, low: float | None, high: float | None, *, never: bool = False
) -> str:
    """A figure with its ends; an end that is nowhere is said to be `never` where that means something."""
    if low is None and high is None:
        return show(value) if not never else f"{show(value)} (never at either end)"
    ends = ["never" if end is None else show(end) for end in (low, high)]
    return show(value) if ends == [show(value)] * 2 else f"{show(value)} ({ends[0]} to {ends[1]})"


def _row(way: Alternative) -> tuple[Any, ...]:
    usd = units.format_usd
    return (
        way.name,
        _ranged(usd, way.upfront_usd or 0.0, way.upfront_usd_low, way.upfront_usd_high),
        _ranged(usd, way.usd_per_month or 0.0, way.usd_per_month_low, way.usd_per_month_high),
        _ranged(usd, way.total_usd or 0.0, way.total_usd_low, way.total_usd_high),
        _ranged(
            usd, way.usd_per_million_tokens or 0.0, way.usd_per_million_tokens_low, way.usd_per_million_tokens_high
        ),
    )


def _requirements_row(way: Alternative) -> tuple[Any, ...]:
    run, serving = way.training, way.serving
    trained = takes = None
    if run is not None:
        times = f"{run.runs} x " if run.runs > 1 else ""
        trained = f"{times}{units.format_count(run.tokens)} tokens, {run.num_instances} x {run.provider} {run.instance}"
        takes = _ranged(units.format_seconds, run.seconds, run.seconds_low, run.seconds_high)
    served = filled = None
    if serving is not None:
        served = f"{serving.provider} {serving.what}"
        if serving.num_instances is not None:
            count = _ranged(
                "{:.0f}".format, serving.num_instances, serving.num_instances_low, serving.num_instances_high
            )
            served = f"{count} x {served}"
        if serving.last_what is not None:
            served += f", at last {serving.last_num_instances} x {serving.last_what}"
        if serving.filled_frac is not None:
            filled = _ranged(
                units.format_percent, serving.filled_frac, serving.filled_frac_low, serving.filled_frac_high
            )
    return (way.name, trained, takes, served, filled)


def _billing_notes(ways: list[Alternative]) -> list[str]:
    """The notes on how machines are billed, each once."""
    notes: dict[str, None] = {}
    for way in ways:
        if way.training is not None:
            run = way.training
            notes |= dict.fromkeys(f"{run.provider} {run.instance}: {note}" for note in run.price_notes)
        if way.serving is not None:
            notes |= dict.fromkeys(f"{way.serving.provider} {way.serving.what}: {n}" for n in way.serving.price_notes)
    return list(notes)


def _crossing(c: ApiBreakEven) -> tuple[Any, ...]:
    def month(number: float) -> str:
        return "at once" if number == 0 else f"{number:.0f}"

    when = None if c.month is None else _ranged(month, c.month, c.month_low, c.month_high, never=True)
    volume = None
    if c.tokens_per_month is not None:
        volume = _ranged(
            units.format_count, c.tokens_per_month, c.tokens_per_month_low, c.tokens_per_month_high, never=True
        )
    return (c.way, c.against, when, volume, c.why or None)


def _chart(found: CostComparison, paper: Screen) -> str:
    """What is paid by the end of each month."""
    feasible = [way for way in found.ways if way.feasible]
    ends = [way.cumulative_usd[-1] for way in feasible]
    wide = max(ends) > WIDE * min(ends)
    series = [
        Series(way.name, list(enumerate(way.cumulative_usd))[wide:], mark=MARKS[way.kind], line=True)
        for way in reversed(feasible)
    ]
    scale = ", logarithmic" if wide else ""  # from month 1 on, then: nothing is paid before it
    return chart(
        series, Axis("months", "{:.0f}".format), Axis(f"USD paid so far{scale}", units.format_usd, log=wide), paper
    )


def own_blocks(found: list[OwnPrice], paper: Screen) -> Iterator[str]:
    """All of them in one table; of one alone its month and the clouds as well."""
    busy = units.format_percent(found[0].utilisation)
    yield heading(f"Accelerators of one's own, worked {busy} of the hours that maintenance leaves", paper)
    yield table(
        (
            "accelerator", "grade", ">memory", ">bought for", ">USD/hour", ">USD/PFLOP-hour", ">USD/(TB/s)-hour",
            "cheapest cloud", ">USD/hour", ">pays from", "priced",
        ),
        [_own(row) for row in found],
        paper,
    )  # fmt: skip
    if len(found) == 1:
        [one] = found
        yield "A month of one:\n" + pairs([(name, units.format_usd(usd)) for name, usd in one.month.items()], paper)
        if one.against:
            yield "Against each offer that is paid by the hour:\n" + table(
                ("provider", "instance", "region", "bought", ">USD/hour", ">pays from", ">months", "priced"),
                [_cloud(row) for row in one.against[:CLOUDS]],
                paper,
            )
    remarks = {row.remark: None for row in found if row.remark}
    if remarks:
        names = {why: ", ".join(row.accelerator for row in found if row.remark == why) for why in remarks}
        yield "To know of them:\n" + "\n".join(f"  - {names[why]}: {why}" for why in remarks)


def _own(row: OwnPrice) -> tuple[Any, ...]:
    hour = f"{row.usd_per_gpu_hour:.3f}"
    if row.usd_per_gpu_hour_low != row.usd_per_gpu_hour_high:
        hour += f" ({row.usd_per_gpu_hour_low:.3f} to {row.usd_per_gpu_hour_high:.3f})"
    cloud = row.against[0] if row.against else None
    flops = None if row.per_pflop_hour is None else f"{row.per_pflop_hour:.3g}"
    speed = None if row.per_tb_per_s_hour is None else f"{row.per_tb_per_s_hour:.3g}"
    return (
        row.accelerator, row.grade, units.format_bytes(row.hbm_bytes), units.format_usd(row.price_usd), hour, flops,
        speed, *(_cheapest(cloud) if cloud is not None else (None, None, None)), row.price_date,
    )  # fmt: skip


def _cheapest(cloud: AgainstCloud) -> tuple[str, str, str]:
    return f"{cloud.provider} {cloud.instance}, {cloud.purchase}", f"{cloud.usd_per_gpu_hour:.3f}", _from(cloud)


def _cloud(row: AgainstCloud) -> tuple[Any, ...]:
    months = None if row.months is None else f"{row.months:.0f}"
    return (
        row.provider, row.instance, row.region, row.purchase, f"{row.usd_per_gpu_hour:.3f}", _from(row), months,
        row.price_date,
    )  # fmt: skip


def _from(row: AgainstCloud) -> str:
    """The utilisation from which own ones cost less."""
    return "never" if row.break_even_utilisation is None else units.format_percent(row.break_even_utilisation)
