"""`flopwise compare`: an API, open weights, fine-tuning or training from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.progress import Progress
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import CHANGE, COUNT, USD_OR_ZERO, Kind, choice, name, options_of, whole
from flopwise.search.spec import ConstraintsSpec, TargetsSpec, WorkloadSpec
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import DEFAULT_INPUT, DEFAULT_OUTPUT, RequestSpec, mean_tokens
from flopwise.training.spec import TrainingSpec

ADAPTERS, LATENCIES, PLACES = "lora qlora lora_targets", "ttft tpot latency", "providers regions gpus instances"
OF_WORKLOADS = (*ADAPTERS.split(), *LATENCIES.split(), *PLACES.split())
"""What is said as in the file of a workload."""
PURCHASE = options_of(ConstraintsSpec)["purchase"].kind


def _numbers(parse: Callable[[object, str], float]) -> Callable[[object, str], tuple[float, ...]]:
    """A reader of one number, or of two with a slash between, none of them negative."""

    def read(value: object, what: str) -> tuple[float, ...]:
        text = str(value)
        parts = text.split("/")
        if len(parts) > 2:
            divided = "give input and output, divided by one slash"
            raise SpecError(f"{what}: {text[:60]!r} has {len(parts)} parts; {divided}")
        found = tuple(parse(part.strip(), what) for part in parts)
        if min(found) < 0 or sum(found) <= 0:
            raise SpecError(f"{what}: {text[:60]} is out of range; allowed: above 0")
        return found

    return read


def _prices(value: object, what: str) -> tuple[float, ...]:
    found = _numbers(units.parse_usd)(value, what)
    if len(found) != 2:
        raise SpecError(f"{what}: {str(value)[:60]!r} is one price; give input and output, such as 0.15/0.60")
    return found


def _pretrain_tokens(value: object, what: str) -> float | None:
    return None if str(value).lower() == "auto" else COUNT.parse(value, what)


@options.command(
    "compare",
    "flopwise compare Llama-3.1-8B --tokens-per-month 500M --no-simulate",
    "flopwise compare Llama-3.1-8B --tokens-per-month 20B --api-price 0.15/0.60 --way api --way finetune --lora 16 "
    "--provider aws --no-simulate",
)
@options.argument("model")
@add(
    "--tokens-per-month",
    Kind("volume", _numbers(units.parse_count)),
    "Tokens of the first month, prompts and answers: 500M, or apart as 400M/100M.",
    required=True,
)
@declared(RequestSpec, "input_tokens output_tokens", section="")
@add("--growth", CHANGE, "Traffic that each month adds, such as 5%; from -0.99 to 1.", field="growth_frac", default=0.0)
@declared(Traffic, "peak", section="")
@add("--months", whole(high=120), "How far to look.", default=12)
@add(
    "--way",
    choice("api", "open", "finetune", "pretrain"),
    "Only this way.",
    field="ways",
    repeated=True,
)
@add(
    "--api",
    name("api"),
    "A hosted model: groq/Llama-3.1-8B, or a name alone for its cheapest host.",
    field="apis",
    repeated=True,
)
@add(
    "--api-price",
    Kind("in/out", _prices),
    "A price of your own, USD a million tokens: 0.15/0.60.",
    field="api_prices",
    repeated=True,
)
@add("--finetune-tokens", COUNT, "Tokens of fine-tuning.", default="50M")
@declared(TrainingSpec, ADAPTERS, section="", written=True)
@add(
    "--pretrain-tokens",
    Kind("tokens", _pretrain_tokens),
    "Tokens from scratch, or auto (default): as many as are compute-optimal.",
)
@add("--pretrain-model", name("model"), "Train this model from scratch instead, such as 1B.")
@add("--runs", whole(high=10_000), "Training runs paid for.", default=1)
@add(
    "--upkeep",
    USD_OR_ZERO,
    "USD a month: people, storage of an own service.",
    field="upkeep_usd_per_month",
    default=0.0,
)
@declared(TargetsSpec, LATENCIES, written=True)
@declared(ConstraintsSpec, PLACES, written=True)
@declared(ConstraintsSpec, "purchase")
@add("--train-purchase", PURCHASE, "As --purchase, for what trains.", repeated=True, section="Where it may run")
@declared(WorkloadSpec, "simulate")
@declared(SourceSpec, "assume_family facts")
def command(
    *,
    model: str,
    tokens_per_month: tuple[float, ...],
    input_tokens: int | str | None,
    output_tokens: int | str | None,
    growth_frac: float,
    peak: float | None,
    **given: Any,
) -> None:
    """Fine-tune, train from scratch, or call an API, for the same traffic.

    Each way is an up-front sum (the cheapest plan of its training) and what each month costs (whole machines that
    serve, or tokens at an API); shown with what measured errors allow at either end, the cheapest way and what would
    change that, and the month and the volume from which on own machines pay.
    """
    import msgspec

    from flopwise.api.buy_or_build import compare
    from flopwise.api.prices import stale_notes
    from flopwise.buy_or_build.alternatives import KINDS, MonthlyTraffic
    from flopwise.cli.views import costs as view
    from flopwise.search.workload import as_in_file

    means = (None if length is None else mean_tokens(length) for length in (input_tokens, output_tokens))
    volume, prompt, answer = _traffic(tokens_per_month, *means)
    traffic = MonthlyTraffic(
        tokens_per_month=volume, input_tokens=prompt, output_tokens=answer, growth_frac=growth_frac, peak=peak or 1.0
    )
    said = options.given(click.get_current_context())
    wanted = as_in_file({name: given[name] for name in OF_WORKLOADS if name in said})
    others = options.values({name: value for name, value in given.items() if name not in OF_WORKLOADS})
    ways = others.pop("ways") or KINDS
    with Progress("planning each way") as progress:
        found = compare(model, traffic=traffic, ways=ways, advance=progress, **wanted, **others)
    options.answer(lambda: msgspec.to_builtins(found), lambda paper: view.blocks(found, paper))
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
