"""`flopwise compare`: an API, open weights, fine-tuning or training from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.options import add, flags
from flopwise.cli.parts import bullets
from flopwise.cli.progress import Progress
from flopwise.cli.render import Screen, heading, table
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import CHANGE, COUNT, USD_OR_ZERO, ValueKind, choice, name, options_of, whole
from flopwise.search.spec import ConstraintsSpec, TargetsSpec, WorkloadSpec
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import DEFAULT_INPUT, DEFAULT_OUTPUT, RequestSpec, mean_tokens
from flopwise.training.spec import TrainingSpec

if TYPE_CHECKING:
    from flopwise.buy_or_build.alternatives import Alternative, ApiBreakEven, CostComparison, TippingPoint, Verdict

ADAPTERS, LATENCIES = "lora qlora lora_targets", "ttft tpot latency"
PLACES = "providers regions gpus vendors exclude software marketplace instances"
OF_WORKLOADS = (*ADAPTERS.split(), *LATENCIES.split(), *PLACES.split())
"""What is said as in the file of a workload."""
PURCHASE = options_of(ConstraintsSpec)["purchase"].kind


def _numbers(parse: Callable[[object, str], float]) -> Callable[[object, str], tuple[float, ...]]:
    """A reader of one number, or of two with a slash between, none of them negative."""

    def parse_numbers(value: object, what: str) -> tuple[float, ...]:
        text = str(value)
        parts = text.split("/")
        if len(parts) > 2:
            divided = "give input and output, divided by one slash"
            raise SpecError(f"{what}: {text[:60]!r} has {len(parts)} parts; {divided}")
        found = tuple(parse(part.strip(), what) for part in parts)
        if min(found) < 0 or sum(found) <= 0:
            raise SpecError(f"{what}: {text[:60]} is out of range; allowed: above 0")
        return found

    return parse_numbers


def _prices(value: object, what: str) -> tuple[float, ...]:
    found = _numbers(units.parse_usd)(value, what)
    if len(found) != 2:
        raise SpecError(f"{what}: {str(value)[:60]!r} is one price; give input and output, such as 0.15/0.60")
    return found


def _pretrain_tokens(value: object, what: str) -> float | None:
    return None if str(value).lower() == "auto" else COUNT.parse(value, what)


VOLUME = ValueKind("volume", _numbers(units.parse_count))
API_PRICE, PRETRAIN = ValueKind("in/out", _prices), ValueKind("tokens", _pretrain_tokens)


@options.command(
    "compare",
    "flopwise compare Llama-3.1-8B --tokens-per-month 500M --no-simulate",
    "flopwise compare Llama-3.1-8B --tokens-per-month 20B --api-price 0.15/0.60 --way api --way finetune --lora 16 "
    "--provider aws --no-simulate",
    work="planning each way",
)
@options.argument("model")
@add(
    "--tokens-per-month",
    VOLUME,
    "Tokens of the first month, prompts and answers: 500M, or apart as 400M/100M.",
    required=True,
)
@flags(RequestSpec, "input_tokens output_tokens", section="")
@add("--growth", CHANGE, "Traffic that each month adds, such as 5%; from -0.99 to 1.", field="growth_frac", default=0.0)
@flags(Traffic, "peak", section="")
@add("--months", whole(high=120), "Months to compare.", default=12)
@add("--way", choice("api", "open", "finetune", "pretrain"), "Only this way.", field="ways", repeated=True)
@add(
    "--api",
    name("api"),
    "A hosted model: groq/Llama-3.1-8B, or a name alone for its cheapest host.",
    field="apis",
    repeated=True,
)
@add(
    "--api-price", API_PRICE, "A price of your own, USD a million tokens: 0.15/0.60.", field="api_prices", repeated=True
)
@add("--finetune-tokens", COUNT, "Tokens of fine-tuning.", default="50M")
@flags(TrainingSpec, ADAPTERS, section="", for_file=True)
@add("--pretrain-tokens", PRETRAIN, "Tokens of training from scratch, or auto (default): the compute-optimal number.")
@add("--pretrain-model", name("model"), "Train this model from scratch instead, such as 1B.")
@add("--runs", whole(high=10_000), "Training runs paid for.", default=1)
@add(
    "--upkeep",
    USD_OR_ZERO,
    "USD a month for people and storage of a self-hosted service.",
    field="upkeep_usd_per_month",
    default=0.0,
)
@flags(TargetsSpec, LATENCIES, for_file=True)
@flags(ConstraintsSpec, PLACES, for_file=True)
@flags(ConstraintsSpec, "purchase")
@add(
    "--train-purchase",
    PURCHASE,
    "Purchase option of training, as --purchase.",
    repeated=True,
    section="Where it may run",
)
@flags(WorkloadSpec, "simulate")
@flags(SourceSpec, "assume_family facts calibration")
def command(
    *, model: str, tokens_per_month: tuple[float, ...], input_tokens: int | str | None, output_tokens: int | str | None,
    growth_frac: float, peak: float | None, **given: Any,
) -> None:  # fmt: skip
    """Fine-tune, train from scratch, or call an API, for the same traffic.

    Each way has an up-front cost (the cheapest plan of its training) and a monthly one (whole machines that serve, or
    tokens at an API), with their 80 % intervals. Shown are the cheapest way, what would change that, and the month and
    the volume at which machines of your own break even.
    """
    from flopwise.api.buy_or_build import compare
    from flopwise.api.prices import stale_notes
    from flopwise.buy_or_build.alternatives import KINDS, MonthlyTraffic
    from flopwise.search.workload import as_in_file

    means = (None if length is None else mean_tokens(length) for length in (input_tokens, output_tokens))
    volume, prompt, answer = _traffic(tokens_per_month, *means)
    traffic = MonthlyTraffic(
        tokens_per_month=volume, input_tokens=prompt, output_tokens=answer, growth_frac=growth_frac, peak=peak or 1.0
    )
    said = options.spellings(click.get_current_context(), settings=True)
    wanted = as_in_file({name: given[name] for name in OF_WORKLOADS if name in said})
    others = options.values({name: value for name, value in given.items() if name not in OF_WORKLOADS})
    ways = others.pop("ways") or KINDS
    with Progress("planning each way") as progress:
        found = compare(model, traffic=traffic, ways=ways, advance=progress, **wanted, **others)
    options.answer(found, blocks)
    options.say_age(stale_notes(found.price_dates()))


def _traffic(volume: tuple[float, ...], prompt: int | None, answer: int | None) -> tuple[float, int, int]:
    """Tokens a month, of a prompt and of an answer; the mix follows from IN/OUT where it is given so."""
    if len(volume) == 1:
        return volume[0], prompt or DEFAULT_INPUT, answer or DEFAULT_OUTPUT
    read, written = volume
    if min(read, written) <= 0:
        raise SpecError("--tokens-per-month: both sides of IN/OUT are above 0")
    if prompt is not None and answer is not None:
        raise SpecError("--output: follows from --input and the IN/OUT of --tokens-per-month; leave one of them out")
    if answer is not None:
        return read + written, max(1, round(answer * read / written)), answer
    prompt = prompt or DEFAULT_INPUT
    return read + written, prompt, max(1, round(prompt * written / read))


MARKS = {"api": "A", "open": "O", "finetune": "F", "pretrain": "S"}
SHOWN: dict[str, Callable[[float], str]] = {
    "tokens": units.format_count, "USD": units.format_usd, "times": "{:.3g}".format, "months": "{:.0f}".format,
}  # fmt: skip
WIDE = 30.0
"""Sums that lie so many times apart are drawn on a logarithmic axis."""


def blocks(found: CostComparison, paper: Screen) -> Iterator[str]:
    """The blocks, in the order in which they are read."""
    volume = found.tokens_per_month
    growth = f", {units.format_percent(found.growth_frac)} more each month" if found.growth_frac else ""
    read, written = units.format_count(volume["input"]), units.format_count(volume["output"])
    yield heading(_sentence(found.verdict), paper)
    yield heading(
        f"{found.model}: {read} tokens in and {written} out a month{growth}, over {found.months} months", paper
    )
    feasible = [way for way in found.ways if way.feasible]
    yield table(("way", ">up front", ">first month", ">total", ">per M tokens"), [_row(way) for way in feasible], paper)
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
    yield "Assumed:\n" + "\n".join(f"  - {text}" for text in [*found.assumptions, *_billing_notes(feasible), *notes])


def _sentence(made: Verdict) -> str:
    """The answer in a sentence."""
    text = f"Cheapest: {made.cheapest}"
    if made.saves_usd is not None and made.against is not None:
        saves = _with_ends(made, "saves_usd", units.format_usd)
        text += f", {saves} less than {made.against}"
    if made.chance is not None:
        sure = "settled" if made.settled else "not settled"
        text += f"; {100 * made.chance:.0f} % chance by measured errors: {sure}"
    return f"{text}."


def _verdict(made: Verdict, paper: Screen) -> Iterator[str]:
    """How the answer comes about, and what would change it."""
    if made.because:
        yield bullets("Because:", made.because)
    if made.turns:
        yield "What would change it, the nearest first:\n" + table(
            ("input", ">now", ">turns at", ">times", "then cheaper", "beside"), [_turn(t) for t in made.turns], paper
        )


def _turn(turn: TippingPoint) -> tuple[Any, ...]:
    show = SHOWN[turn.unit]
    times = None if turn.times is None else f"{turn.times:.3g}"
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
        return show(value) if not never else f"{show(value)} (never at either end)"
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
            served += f", at last {serving.last_num_instances} x {serving.last_what}"
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
        series, Axis("months", "{:.0f}".format), Axis(f"paid so far{scale}", units.format_usd, log=wide), paper
    )
