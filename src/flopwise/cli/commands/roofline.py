"""`flopwise roofline`: how long any piece of work takes at least."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, questions
from flopwise.cli.render import Screen, bars, heading, pairs

if TYPE_CHECKING:
    from flopwise.cost.roofline import RooflineAnswer


@options.command(
    "roofline",
    "flopwise roofline --flops 1e15 --bytes 2TB --gpu h100",
    "flopwise roofline --flops 1e15 --bytes 2TB --gpu a100-80gb --gpus 8 --efficiency 0.5 --json",
    "flopwise roofline Llama-3.1-8B --gpu l40s --batch 4 --seq 2048",
)
@click.argument("model", type=options.Name("model"), required=False)
@click.option("--flops", type=options.FLOPS, help="Floating-point operations: 1e15.")
@click.option("--bytes", type=options.BYTES, help="Bytes moved to and from memory: 2TB.")
@click.option("--gpu", type=options.Name("gpu"), help="Accelerator, in any common spelling (or --instance).")
@click.option(
    "--dtype", type=options.Name("dtype"), default="bf16", show_default=True, help="Whose rate: bf16, fp8, fp64 ..."
)
@click.option(
    "--efficiency", type=options.FRACTION, help="Achieved share of the datasheet's rates (default: calibrated)."
)
@options.gpus_option
@click.option("--batch", type=options.BATCH, default=1, show_default=True, help="With a MODEL: samples or sequences.")
@options.seq_option
@click.option("--training", is_flag=True, help="With a MODEL: forward and backward.")
@questions.price_options
@questions.model_options
def command(**given: Any) -> None:
    """Compute time against memory time of any piece of work.

    Give --flops and --bytes, or a MODEL for one pass over --batch samples; models without layers use published figures.
    """
    if given["model"] is None and given["seq"] is not None:
        raise click.UsageError("--seq goes with a MODEL", click.get_current_context())
    answer = question(**given)
    options.answer(lambda: document(answer), lambda paper: lines(answer, paper))


def question(**given: Any) -> RooflineAnswer:
    """The answer to the parameters of this command."""
    from flopwise.api.roofline import roofline

    names = ("flops", "bytes", "dtype", "efficiency", "gpus", "batch", "seq", "training")
    return roofline(
        given["model"],
        machines=questions.machines(given),
        **{name: given[name] for name in names},
        **questions.model_arguments(given),
    )


def document(answer: RooflineAnswer) -> dict[str, Any]:
    """The answer as JSON."""
    apart = {"cluster", "settings"}
    plain = {n: getattr(answer, n) for n in answer.__dataclass_fields__ if n not in apart}
    return {
        "gpu": answer.cluster.accelerator.name,
        **plain,
        "price_source": answer.cluster.price_source or None,
        "settings": dict(answer.settings),
    }


def lines(answer: RooflineAnswer, paper: Screen) -> Iterator[str]:
    """The answer as people read it."""
    yield heading(f"Roofline: {answer.what} on {answer.num_gpus:,} x {answer.cluster.accelerator.name}", paper)
    intensity, ridge = answer.intensity_flops_per_byte, answer.ridge_flops_per_byte
    compute, memory = map(units.format_percent, (answer.compute_efficiency_frac, answer.memory_efficiency_frac))
    yield pairs(
        [
            ("work", f"{units.format_flops(answer.flops)} in {answer.dtype}, {units.format_bytes(answer.bytes)}"),
            ("intensity", None if intensity is None else f"{intensity:,.4g} FLOP/byte; the ridge is at {ridge:,.4g}"),
            ("achieved rates", f"{compute} of compute, {memory} of bandwidth ({answer.efficiency_source})"),
            *answer.settings,
        ],
        paper,
    )
    yield bars(
        [
            ("compute", answer.compute_s, units.format_seconds(answer.compute_s)),
            ("memory", answer.memory_s, units.format_seconds(answer.memory_s)),
        ],
        paper,
    )
    seconds, least = units.format_seconds(answer.seconds), units.format_seconds(answer.lower_bound_s)
    used, moved = units.format_percent(answer.utilisation_frac), units.format_percent(answer.bandwidth_frac)
    limit = "at least " if answer.partial else ""
    rows: list[tuple[str, Any]] = [
        ("time", f"{limit}{seconds}, bound by {answer.bound} (at least {least} at datasheet rates)"),
        ("utilisation", f"{used} of peak compute, {moved} of memory bandwidth"),
    ]
    if answer.partial:
        rows = [*rows[:1], *_limits(answer)]
    else:
        if answer.samples_per_s is not None:
            rows.append(("samples", f"{answer.samples_per_s:,.4g}/s"))
        rows += [("cost", questions.price(answer.cost_usd)), ("energy", questions.energy(answer.energy_joules))]
    yield pairs(rows, paper)
    yield questions.assumption_list(answer.assumptions)


def _limits(answer: RooflineAnswer) -> list[tuple[str, Any]]:
    """What follows from a time that is only the least."""
    cost, energy = questions.price(answer.cost_usd_at_least), questions.energy(answer.energy_joules_at_least)
    return [
        ("note", "an upper limit of speed: what activations move is not known and left out; convolutions run below it"),
        ("samples", f"at most {answer.samples_per_s_at_most:,.4g}/s"),
        ("cost", None if cost is None else f"at least {cost}"),
        ("energy", None if energy is None else f"at least {energy}"),
    ]
