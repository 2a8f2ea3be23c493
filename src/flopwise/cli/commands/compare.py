"""`flopwise compare`: an API, open weights, fine-tuning or training from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from flopwise import units
from flopwise.cli import options, questions
from flopwise.cli.progress import Progress
from flopwise.errors import SpecError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
CONSTRAINTS = ("providers", "regions", "gpus", "instances")
TARGETS = ("ttft", "tpot", "latency")
PROMPT, ANSWER = 1024, 256


class Volume(options.Name):
    """Tokens of a month: all of them, or `IN/OUT`; a tuple of one or two numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the numbers; SpecError says what is allowed."""
        return _numbers(super().convert(value, param, ctx), options.spelling(param), units.parse_count, most=2)


class Prices(options.Name):
    """USD for a million tokens, `IN/OUT`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the two prices; SpecError says what is allowed."""
        what = options.spelling(param)
        found = _numbers(super().convert(value, param, ctx), what, units.parse_usd, most=2)
        if len(found) != 2:
            raise SpecError(f"{what}: {str(value)[:60]!r} is one price; give input and output, such as 0.15/0.60")
        return found


def _numbers(text: str, what: str, parse: Callable[[object, str], float], most: int) -> tuple[float, ...]:
    """The numbers between slashes, none of them negative."""
    parts = text.split("/")
    if len(parts) > most:
        raise SpecError(f"{what}: {text[:60]!r} has {len(parts)} parts; give input and output, divided by one slash")
    found = tuple(parse(part.strip(), what) for part in parts)
    if min(found) < 0 or sum(found) <= 0:
        raise SpecError(f"{what}: {text[:60]} is out of range; allowed: above 0")
    return found


def _text(name: str, key: str, help_text: str, *, multiple: bool = False) -> Decorator:
    return click.option(f"--{name}", key, type=options.Name(name), help=help_text, multiple=multiple)


@options.command(
    "compare",
    "flopwise compare Llama-3.1-8B --tokens-per-month 500M --no-simulate",
    "flopwise compare Llama-3.1-8B --tokens-per-month 20B --api-price 0.15/0.60 --way api --way finetune --lora 16 "
    "--provider aws --no-simulate",
)
@options.model_argument
@click.option(
    "--tokens-per-month",
    type=Volume("volume"),
    required=True,
    help="Tokens of the first month, prompts and answers: 500M, or apart as 400M/100M.",
)
@click.option("--input", "input_tokens", type=options.TOKENS, help=f"Tokens of a prompt [{PROMPT}].")
@click.option("--output", "output_tokens", type=options.TOKENS, help=f"Tokens of an answer [{ANSWER}].")
@click.option("--growth", type=options.CHANGE, help="Traffic that each month adds, such as 5% [0]; from -0.99 to 1.")
@click.option("--peak", type=float, default=1.0, show_default=True, help="Highest rate over the mean rate.")
@click.option("--months", type=options.Whole(high=120), default=12, show_default=True, help="How far to look.")
@click.option(
    "--way",
    "ways",
    type=click.Choice(["api", "open", "finetune", "pretrain"]),
    multiple=True,
    help="Only this way; may be repeated [all].",
)
@_text("api", "apis", "A hosted model: groq/Llama-3.1-8B, or a name alone for its cheapest host.", multiple=True)
@click.option(
    "--api-price",
    "api_prices",
    type=Prices("in/out"),
    multiple=True,
    help="A price of your own, USD a million tokens: 0.15/0.60.",
)
@click.option("--finetune-tokens", type=options.COUNT, default="50M", show_default=True, help="Tokens of fine-tuning.")
@questions.grouped(*questions.adapter_options)
@_text("pretrain-tokens", "pretrain_tokens", "Tokens from scratch, or auto: as many as are compute-optimal [auto].")
@_text("pretrain-model", "pretrain_model", "Train this model from scratch instead, such as 1B [MODEL].")
@click.option("--runs", type=options.Whole(high=10_000), default=1, show_default=True, help="Training runs paid for.")
@click.option("--upkeep", type=options.USD_OR_ZERO, default=0.0, help="USD a month: people, storage of an own service.")
@_text("ttft", "ttft", "Target of one's own service: time to the first token, such as p95=1s.")
@_text("tpot", "tpot", "Target: time per output token, such as p95=50ms.")
@_text("latency", "latency", "Target: whole request, such as p99=5s.")
@_text("provider", "providers", "Only this provider; may be repeated.", multiple=True)
@_text("region", "regions", "Only this region; may be repeated.", multiple=True)
@_text("gpu", "gpus", "Only this accelerator; may be repeated.", multiple=True)
@_text("instance", "instances", "Only this instance type; may be repeated.", multiple=True)
@click.option("--purchase", type=options.PURCHASE, multiple=True, help="Way to buy what serves [on_demand].")
@click.option("--train-purchase", type=options.PURCHASE, multiple=True, help="Way to buy what trains [on_demand].")
@click.option("--no-simulate", is_flag=True, help="Take services as estimated; do not run the best through traffic.")
@options.family_option
@options.facts_option
def command(**given: Any) -> None:
    """Fine-tune, train from scratch, or call an API, for the same traffic.

    Each way is an up-front sum (the cheapest plan of its training) and what each month costs (whole machines that
    serve, or tokens at an API); shown with what measured errors allow at either end, the cheapest way and what would
    change that, and the month and the volume from which on own machines pay.
    """
    import msgspec

    from flopwise.api.buy_or_build import compare
    from flopwise.api.prices import stale_ways
    from flopwise.buy_or_build.alternatives import KINDS, MonthlyTraffic
    from flopwise.cli.commands.plan import _latency, method
    from flopwise.cli.views import buy_or_build as view

    volume, prompt, answer = _traffic(given["tokens_per_month"], given["input_tokens"], given["output_tokens"])
    with Progress("planning each way") as progress:
        found = compare(
            given["model"],
            traffic=MonthlyTraffic(
                tokens_per_month=volume, input_tokens=prompt, output_tokens=answer,
                growth_frac=given["growth"] or 0.0, peak=given["peak"],
            ),
            ways=given["ways"] or KINDS,
            method=method(given["lora"], given["lora_targets"], qlora=given["qlora"]),
            pretrain_tokens=_auto(given["pretrain_tokens"]),
            targets={name: _latency(given[name]) for name in TARGETS if given[name]},
            constraints={name: list(given[name]) for name in CONSTRAINTS if given[name]},
            upkeep_usd_per_month=given["upkeep"],
            simulate=not given["no_simulate"],
            advance=progress,
            **{
                name: given[name]
                for name in (
                    "months", "apis", "api_prices", "finetune_tokens", "pretrain_model", "runs", "purchase",
                    "train_purchase", "facts", "assume_family",
                )
            },
        )  # fmt: skip
    options.answer(lambda: msgspec.to_builtins(found), lambda paper: view.blocks(found, paper))
    options.say_age(stale_ways(found))


def _auto(text: str | None) -> float | None:
    return None if text is None or text.lower() == "auto" else units.parse_count(text, "--pretrain-tokens")


def _traffic(volume: tuple[float, ...], prompt: int | None, answer: int | None) -> tuple[float, int, int]:
    """Tokens a month, of a prompt and of an answer; the mix follows from IN/OUT where it is given so."""
    if len(volume) == 1:
        return volume[0], prompt or PROMPT, answer or ANSWER
    read, written = volume
    if min(read, written) <= 0:
        raise SpecError("--tokens-per-month: both sides of IN/OUT are above 0")
    if prompt is not None and answer is not None:
        raise SpecError("--output: follows from --input and the IN/OUT of --tokens-per-month; leave one of them out")
    if answer is not None:
        return read + written, max(1, round(answer * read / written)), answer
    prompt = prompt or PROMPT
    return read + written, prompt, max(1, round(prompt * written / read))
