"""`flopwise compare`: an API, open weights, fine-tuning or training from scratch, for the same traffic."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from flopwise import units
from flopwise.buy_or_build.alternatives import Alternative, ApiBreakEven, CostComparison, Decision, TippingPoint
from flopwise.buy_or_build.spec import AlternativesSpec, ComparisonSpec
from flopwise.cli import options
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.options import flag, flags
from flopwise.cli.parts import bullets
from flopwise.cli.progress import Progress
from flopwise.cli.render import Screen, heading, table
from flopwise.facts.spec import SourceSpec
from flopwise.options import defaults_of, options_of
from flopwise.search.spec import WorkloadSpec
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_number

SERVED = [name for name in options_of(AlternativesSpec) if "lora" not in name]
"""What is said of the machines that serve."""


@options.command(
    "compare",
    "flopwise compare Llama-3.1-8B --tokens-per-month 500M --no-simulate",
    "flopwise compare Llama-3.1-8B --tokens-per-month 20B --api-price 0.15/0.60 --way api --way finetune --lora 16 "
    "--provider aws --no-simulate",
    work="planning each way",
)
@options.argument("model")
@flag("tokens_per_month", options_of(ComparisonSpec)["tokens_per_month"], required=True)
@flags(ComparisonSpec, without="tokens_per_month purchase train_purchase")
@flags(AlternativesSpec, for_file=True)
@flags(ComparisonSpec, "purchase train_purchase")
@flags(WorkloadSpec, "simulate")
@flags(SourceSpec, "assume_family facts calibration")
def command(model: str, **given: Any) -> None:
    """Fine-tune, train from scratch, or call an API, for the same traffic.

    Each way has an up-front cost (the cheapest plan of its training) and a monthly one (machines for serving, or tokens
    of an API), with 80 % intervals. The answer has the cheapest way, what would change the verdict, and the month and
    the volume at which your own machines break even.
    """
    from flopwise.api.buy_or_build import compare
    from flopwise.api.prices import today
    from flopwise.price_import.age import age_notes

    stated = options.spellings(click.get_current_context(), settings=True)
    unstated = defaults_of(AlternativesSpec).keys() - stated.keys()
    given = {name: value for name, value in given.items() if name not in unstated}
    with Progress("planning each way") as progress:
        comparison = compare(model, advance=progress, **options.values(given))
    options.answer(comparison, blocks, further=_further(comparison, given))
    options.say_age(age_notes(comparison.price_dates(), today()))


def _further(comparison: CostComparison, given: Mapping[str, Any]) -> dict[str, str]:
    """The line that plans the machines which serve the weights."""
    own = next((way for way in comparison.ways if way.feasible and way.kind != "api"), None)
    if own is None:
        return {}
    stated = options.spellings(click.get_current_context(), settings=True)
    rate = comparison.requests_per_month / (HOURS_PER_MONTH * HOUR_S)
    words = ["flopwise", "plan", own.model, "--task", "serve", "--rate", f"{rate:.3g}"]
    words += ["--input", str(comparison.input_tokens)]
    words += ["--output", str(comparison.output_tokens)] if comparison.output_tokens else []
    for spec, names in ((AlternativesSpec, SERVED), (ComparisonSpec, ("purchase", "peak"))):
        for name in names:
            if name in stated:
                words += options_of(spec)[name].arguments(_plain(given[name]))
    return {f"The machines of {own.name}": shlex.join(words)}


def _plain(value: Any) -> Any:
    """A value of a file as the command line says it: `p95=1s`."""
    return next(f"{at}={time}" for at, time in value.items()) if isinstance(value, dict) else value


MARKS = {"api": "A", "open": "O", "finetune": "F", "pretrain": "S"}
SHOWN: dict[str, Callable[[float], str]] = {
    "tokens": units.format_count, "USD": units.format_usd, "times": format_number, "months": "{:.0f}".format,
}  # fmt: skip
WIDE = 30.0
"""Sums that lie so many times apart are drawn on a logarithmic axis."""


def blocks(comparison: CostComparison, paper: Screen) -> Iterator[str]:
    """The blocks, in the order in which they are read."""
    volume = comparison.tokens_per_month
    growth = f", {units.format_percent(comparison.growth_frac)} more each month" if comparison.growth_frac else ""
    read, written = units.format_count(volume["input"]), units.format_count(volume["output"])
    yield heading(
        f"{comparison.model}: {read} tokens in and {written} out a month{growth}, over {comparison.months} months",
        paper,
    )
    feasible = [way for way in comparison.ways if way.feasible]
    yield table(("way", ">up front", ">first month", ">total", ">per M tokens"), [_row(way) for way in feasible], paper)
    yield from _decision(comparison.decision, paper)
    yield "Machines of each way:\n" + table(
        ("way", "training", ">time", "serving", ">utilisation"), [_requirements_row(way) for way in feasible], paper
    )
    for way in comparison.ways:
        if not way.feasible:
            yield f"{way.name}: not feasible\n" + "\n".join(f"  - {reason}" for reason in way.reasons)
    yield _chart(comparison, paper)
    if comparison.break_even:
        yield "Break-even of your own machines:\n" + table(
            ("way", "against", ">after months", ">tokens a month", "why"), map(_crossing, comparison.break_even), paper
        )
    notes = [f"{way.name}: expected loss of {way.loss:.3g} nats per token" for way in comparison.ways if way.loss]
    yield "Assumed:\n" + "\n".join(
        f"  - {text}" for text in [*comparison.assumptions, *_billing_notes(feasible), *notes]
    )


def _decision(made: Decision, paper: Screen) -> Iterator[str]:
    """The composition of both totals, and the changes that would reverse the verdict."""
    if made.because:
        yield bullets("Composition of the totals:", made.because)
    if made.turns:
        yield "What would change the verdict, smallest change first:\n" + table(
            ("input", ">now", ">break-even", ">factor", "then cheaper", "note"), map(_turn, made.turns), paper
        )


def _turn(turn: TippingPoint) -> tuple[Any, ...]:
    show = SHOWN[turn.unit]
    times = None if turn.times is None else f"{format_number(turn.times)}"
    at = _with_ends(turn, "at", show, never=turn.unit != "times")
    return (turn.input, show(turn.now), at, times, turn.then if turn.at is not None else None, turn.why or None)


def _with_ends(record: Any, name: str, show: Callable[[float], str], *, never: bool = False) -> str | None:
    """A figure of a record with its ends, if it is known; an end that is nowhere is `never` where that means something.

    The ends are attributes of the same name, followed by `_low` and `_high`.
    """
    value = getattr(record, name)
    prefix = "" if name == "at" else f"{name}_"
    low, high = getattr(record, f"{prefix}low"), getattr(record, f"{prefix}high")
    if value is None:
        return None
    if low is None and high is None:
        return show(value) if not never else f"{show(value)} (never at either end of the interval)"
    ends = ["never" if end is None else show(end) for end in (low, high)]
    return show(value) if ends == [show(value)] * 2 else f"{show(value)} ({ends[0]} to {ends[1]})"


def _row(way: Alternative) -> tuple[Any, ...]:
    sums = ("upfront_usd", "usd_per_month", "total_usd", "usd_per_million_tokens")
    return (way.name, *(_with_ends(way, name, units.format_usd) or units.format_usd(0.0) for name in sums))


def _requirements_row(way: Alternative) -> tuple[Any, ...]:
    run, serving = way.training, way.serving
    trained = takes = served = filled = None
    if run is not None:
        times = f"{run.runs} x " if run.runs > 1 else ""
        trained = f"{times}{units.format_count(run.tokens)} tokens, {run.num_instances} x {run.provider} {run.instance}"
        takes = _with_ends(run, "seconds", units.format_seconds)
    if serving is not None:
        count = _with_ends(serving, "num_instances", "{:.0f}".format)
        served = f"{'' if count is None else f'{count} x '}{serving.provider} {serving.what}"
        if serving.last_what is not None:
            served += f", in the last month {serving.last_num_instances} x {serving.last_what}"
        filled = _with_ends(serving, "filled_frac", units.format_percent)
    return (way.name, trained, takes, served, filled)


def _billing_notes(ways: list[Alternative]) -> list[str]:
    """The notes on how machines are billed, each once."""
    parts = [part for way in ways for part in ((way.training, "instance"), (way.serving, "what"))]
    billed = [(f"{part.provider} {getattr(part, what)}", part.price_notes) for part, what in parts if part is not None]
    return list(dict.fromkeys(f"{what}: {note}" for what, notes in billed for note in notes))


def _crossing(c: ApiBreakEven) -> tuple[Any, ...]:
    def month(number: float) -> str:
        return "at once" if number == 0 else f"{number:.0f}"

    volume = _with_ends(c, "tokens_per_month", units.format_count, never=True)
    return (c.way, c.against, _with_ends(c, "month", month, never=True), volume, c.why or None)


def _chart(comparison: CostComparison, paper: Screen) -> str:
    """The chart of the cumulative cost by the end of each month."""
    feasible = [way for way in comparison.ways if way.feasible]
    ends = [way.cumulative_usd[-1] for way in feasible]
    wide = max(ends) > WIDE * min(ends)
    series = [
        Series(way.name, list(enumerate(way.cumulative_usd))[wide:], mark=MARKS[way.kind], line=True)
        for way in reversed(feasible)
    ]
    scale = ", logarithmic" if wide else ""  # from month 1 on, then: nothing is paid before it
    return chart(
        series, Axis("months", "{:.0f}".format), Axis(f"cumulative cost{scale}", units.format_usd, log=wide), paper
    )
