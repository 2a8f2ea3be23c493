"""`flopwise roofline`: how long any piece of work takes at least."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options, parts
from flopwise.cli.on_page import on_page
from flopwise.cli.options import add, flags
from flopwise.cli.parts import figure_of
from flopwise.cli.render import Screen, bars, heading, pairs
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import BYTES, FLAG, FLOPS, name, options_of
from flopwise.training.spec import DataSpec
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.cost.roofline import RooflineAnswer


@options.command(
    "roofline",
    "flopwise roofline --flops 1e15 --bytes 2TB --gpu h100",
    "flopwise roofline --flops 1e15 --bytes 2TB --gpu a100-80gb --gpus 8 --efficiency 0.5 --json",
    "flopwise roofline Llama-3.1-8B --gpu l40s --batch 4 --seq 2048",
)
@options.argument("model", required=False)
@add("--flops", FLOPS, "Floating-point operations: 1e15.")
@add("--bytes", BYTES, "Bytes moved to and from memory: 2TB.")
@flags(MachineSpec, "gpu", section="")
@flags(SharedSpec, "gpus efficiency batch", section="")
@add("--dtype", name("dtype"), "Format whose rate is taken: bf16, fp8, fp64 ...", default="bf16")
@flags(DataSpec, "seq", section="")
@add("--training", FLAG, "With a MODEL: forward and backward pass.", default=False)
@flags(MachineSpec, without="gpu")
@flags(SourceSpec)
@options.explain_flag
@on_page("estimate")
def command(*, explain: bool, **given: Any) -> None:
    """Compute time and memory time of any operation, by the roofline.

    Give --flops and --bytes, or a MODEL for one pass over --batch samples (default: 1) of --seq tokens; models without
    layers use published figures.
    """
    from flopwise.api.roofline import roofline

    if given["model"] is None:
        options.refuse(["seq"], "goes with a MODEL")
    answer = roofline(given["model"], **options.values({n: v for n, v in given.items() if n != "model"}))
    options.answer(
        answer, lines, figure=figure_of if explain else None, further=_further(given, has_layers=not answer.partial)
    )


def _further(given: Mapping[str, Any], *, has_layers: bool) -> dict[str, str]:
    """The line that looks at the shapes of a model's layers; without them, at the device."""
    if given["model"] is None or not has_layers:
        return {"The device": shlex.join(["flopwise", "gpus", given["gpu"]])} if given["gpu"] else {}
    words = ["flopwise", "explain", given["model"]]
    for spec, names in ((MachineSpec, ["gpu"]), (SharedSpec, ["batch"]), (DataSpec, ["seq"])):
        for option in names:
            words += options_of(spec)[option].arguments(given[option])
    return {"What its shapes cost, and which would be faster": shlex.join(words)}


def lines(answer: RooflineAnswer, paper: Screen) -> Iterator[str]:
    """The answer as text."""
    yield heading(f"Roofline: {answer.what} on {answer.num_gpus:,} x {answer.cluster.accelerator.name}", paper)
    intensity, ridge = answer.intensity_flops_per_byte, answer.ridge_flops_per_byte
    compute, memory = map(units.format_percent, (answer.compute_efficiency_frac, answer.memory_efficiency_frac))
    yield pairs(
        [
            ("work", f"{units.format_flops(answer.flops)} in {answer.dtype}, {units.format_bytes(answer.bytes)}"),
            (
                "intensity",
                None
                if intensity is None
                else f"{format_number(intensity, 4)} FLOP/byte; the ridge is at {format_number(ridge, 4)}",
            ),
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
            rows.append(("samples", f"{format_number(answer.samples_per_s, 4)}/s"))
        rows += [("cost", units.format_cost(answer.cost_usd)), ("energy", parts.energy(answer.energy_joules))]
    yield pairs(rows, paper)
    yield parts.assumption_list(answer.assumptions)


def _limits(answer: RooflineAnswer) -> list[tuple[str, Any]]:
    """The figures that follow from a lower bound of the time."""
    cost, energy = units.format_cost(answer.cost_usd_at_least), parts.energy(answer.energy_joules_at_least)
    return [
        (
            "note",
            "an upper limit of speed: the traffic of activations is unknown and not counted; convolutions run slower",
        ),
        ("samples", f"at most {format_number(answer.samples_per_s_at_most or 0.0, 4)}/s"),
        ("cost", None if cost is None else f"at least {cost}"),
        ("energy", None if energy is None else f"at least {energy}"),
    ]
