"""`flopwise fit`: which weight format fits, and what it does."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, parts
from flopwise.cli.on_page import on_page
from flopwise.cli.options import add, flags
from flopwise.cli.render import Screen, pairs, table
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DatedSourceSpec
from flopwise.options import CONTEXT, NAMES, options_of
from flopwise.serving.spec import DEFAULT_CONTEXT, DEFAULT_OUTPUT, ServingSpec
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.changes.format_fit import FitAnswer, FormatFit


@options.command(
    "fit",
    "flopwise fit Llama-3.3-70B --gpu 2xa100-80gb --context 32k",
    "flopwise fit Qwen3-30B-A3B --gpu rtx4090 --formats awq,nvfp4 --kv-dtype fp8 --json",
)
@options.argument("model")
@flags(MachineSpec, "gpu", section="")
@add("--context", CONTEXT, f"Tokens of a request, answer included: 32k (32,768); default: {DEFAULT_CONTEXT:,}.")
@add("--output", CONTEXT, f"Tokens of the answer, part of --context (default: {DEFAULT_OUTPUT}).")
@add("--formats", NAMES, "Weight formats to compare: bf16,fp8,awq (default: those that engine and device run).")
@flags(ServingSpec, without="weights")
@flags(MachineSpec, without="gpu")
@flags(DatedSourceSpec)
@options.explain_flag
@on_page("estimate")
def command(*, explain: bool, **given: Any) -> None:
    """Weight formats compared: fit, longest context, requests at once, speed, price.

    All given accelerators form one replica: `--gpu 2xa100-80gb`. Each request has --context tokens; tokens/s and price
    are for as many requests as memory holds (--max-batch 1: for one user alone). The exit code is 1 if no format fits.
    """
    from flopwise.api.fit import fit
    from flopwise.changes.format_fit import FitAnswer

    answer = fit(given.pop("model"), **options.values(given))
    options.answer(answer, lines, figure=FitAnswer.figure if explain else None, further=_further(answer, given))
    if all(row.service is None for row in answer.formats):
        click.get_current_context().exit(1)


def lines(answer: FitAnswer, paper: Screen) -> Iterator[str]:
    """The matrix as people read it."""
    yield pairs(answer.settings, paper)
    headers = ["weights", ">GiB each", "fits", ">chance", ">longest context", ">requests at once"]
    if answer.output_tokens:
        paid = [f">{units.CURRENCY.get().symbol}/M {tokens}" for tokens in ("input", "output")]
        headers += [">tokens/s", ">of one user", ">TTFT", *paid, ">scores kept"]
        rows = [(*_memory_cells(row), *_generation_cells(row), _quality_share(row)) for row in answer.formats]
    else:
        headers += [">inputs/s", ">latency", ">scores kept"]
        rows = [(*_memory_cells(row), *_pass_cells(row), _quality_share(row)) for row in answer.formats]
    spare = (">TTFT", ">of one user", ">scores kept")
    yield table(headers, rows, paper, spare=[title for title in spare if title in headers])
    yield parts.assumption_list(answer.assumptions)


def _memory_cells(row: FormatFit) -> tuple[Any, ...]:
    """Size and fit of a format, and what memory holds."""
    size = f"{row.weights_bytes / units.GIB:,.1f}"
    return (row.weights, size, row.memory.fits, row.chance, f"{row.longest_context:,}", f"{row.most_requests:,}")


def _generation_cells(row: FormatFit) -> tuple[str | None, ...]:
    """Speed and price of tokens, with as many requests as memory holds."""
    service = row.service
    if service is None:
        return (None,) * 5
    rate, each = service.output_tokens_per_s or service.throughput, service.tpot_s
    user = None if each is None else f"{1 / each.value:,.1f}"
    prices = (service.usd_per_million_input_tokens, service.usd_per_million_output_tokens)
    amounts = (None if usd is None else units.in_currency(usd) for usd in prices)
    paid = (None if amount is None else f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}" for amount in amounts)
    return (f"{rate.value:,.0f}", user, units.format_seconds(service.ttft_s.value), *paid)


def _pass_cells(row: FormatFit) -> tuple[str | None, ...]:
    """Speed of a model that answers in one pass, and its latency at that speed."""
    if row.service is None:
        return (None, None)
    return f"{format_number(row.service.throughput.value)}", units.format_seconds(row.service.ttft_s.value)


def _quality_share(row: FormatFit) -> str | None:
    """Share of the 16-bit model's scores that evaluations found kept."""
    return None if row.quality is None else " to ".join(dict.fromkeys(units.format_percent(q) for q in row.quality))


def _further(answer: FitAnswer, given: dict[str, Any]) -> dict[str, str]:
    """The line that goes deeper: the recommended format's, or that of machines that hold the model."""
    lengths = ["--input", str(answer.context - answer.output_tokens)]
    lengths += ["--output", str(answer.output_tokens)] if answer.output_tokens else []
    best = answer.recommendation
    if best is None:
        wanted = "--task serve --concurrency 1" if answer.output_tokens else "--task encode --rate 1"
        dated = options_of(DatedSourceSpec)["software_month"].arguments(given.get("software_month"))
        words = ["flopwise", "plan", answer.model.name, *wanted.split(), *lengths, *dated]
        return {"Machines that it fits": shlex.join(words)}
    spellings = options.spellings(click.get_current_context())
    words = ["flopwise", "serve", answer.model.name, "--weights", best.weights]
    for spec in (MachineSpec, ServingSpec, DatedSourceSpec):
        for name, declared in options_of(spec).items():
            if name in spellings:
                words += declared.arguments(given.get(name))
    return {f"{best.weights} in full": shlex.join([*words, *lengths])}
