"""Shape advice on the screen and as JSON: the table of operations, then what to change, then what is fine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cli.views import parts

if TYPE_CHECKING:
    from flopwise.shapes.answer import ShapeAnswer
    from flopwise.shapes.kernels import KernelShape
    from flopwise.shapes.rules import Advice

SMALL = 0.003
"""Share of the pass below which an operation is not drawn."""


def document(answer: ShapeAnswer) -> dict[str, Any]:
    """The answer as JSON."""
    clock = answer.clock
    of_answer = ("pass_s", "kernels_s", "memory_bound_frac", "ridge_flops_per_byte", "l2_ridge_flops_per_byte")
    return {
        "model": clock.model.name,
        "gpu": clock.cluster.accelerator.name,
        **{name: getattr(clock, name) for name in ("task", "tp", "batch", "seq", "dtype")},
        **{name: getattr(answer, name) for name in of_answer},
        "operations": [_row(o) for o in answer.operations],
        "advice": [_plain(a) for a in answer.advice],
        "fine": [_plain(f) for f in answer.fine],
        "stacks": [s._asdict() for s in answer.stacks],
        "settings": dict(answer.settings),
        "assumptions": list(answer.assumptions),
    }


def _plain(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _row(operation: KernelShape) -> dict[str, Any]:
    tiling = operation.tiling
    return _plain(operation) | {"tiling": None if tiling is None else tiling._asdict()}


def lines(answer: ShapeAnswer, paper: Screen) -> Iterator[str]:
    """The answer as people read it."""
    clock = answer.clock
    yield heading(f"Shapes of {clock.model.name} on {clock.cluster.accelerator.name}", paper)
    cache = answer.l2_ridge_flops_per_byte
    ridge = f"{answer.ridge_flops_per_byte:,.0f} FLOP/byte of {clock.dtype} from memory"
    yield pairs(
        [
            *answer.settings,
            ("time", f"{units.format_seconds(answer.pass_s)}, of it kernels {units.format_seconds(answer.kernels_s)}"),
            ("memory-bound", f"{units.format_percent(answer.memory_bound_frac)} of the pass"),
            ("ridge", ridge + (f", {cache:,.0f} from L2" if cache is not None else "")),
        ],
        paper,
    )
    yield heading("Operations on one rank, the longest first", paper)
    yield _operations(answer, paper)
    if answer.advice:
        yield heading("What to change, the largest gain first (each alone; of one pass)", paper)
        yield _advice(answer.advice, paper)
    else:
        yield "Nothing to change: no single change of shape saves 0.5 % of the pass."
    yield "\n".join(["Fine as it is", *(f"  - {f.what}: {f.why}" for f in answer.fine)])
    yield parts.assumption_list(answer.assumptions)


def _operations(answer: ShapeAnswer, paper: Screen) -> str:
    rows = sorted(answer.operations, key=lambda o: -o.share_frac)
    drawn = [o for o in rows if o.share_frac >= SMALL]
    head = ["operation", ">x", ">m", ">n", ">k", ">FLOP/B", "bound", ">achieved", ">waves", ">last", ">share"]
    text = table(head, map(_cells, drawn), paper)
    rest = sum(o.share_frac for o in rows) - sum(o.share_frac for o in drawn)
    if len(drawn) < len(rows):
        text += f"\n{len(rows) - len(drawn)} smaller ones take {units.format_percent(rest)} together."
    return text


def _cells(o: KernelShape) -> tuple[Any, ...]:
    m, n, k = (None if v is None else f"{v:,.0f}" for v in (o.m, o.n, o.k))
    if o.kind == "grouped" and o.m is not None:
        m = f"{o.groups:,.0f} x {o.m / o.groups:,.3g}"
    waves = None if o.tiling is None else f"{o.tiling.waves:,.2f}"
    last = None if o.tiling is None else f"{100 * o.tiling.last_wave_frac:.0f} %"
    intensity = f"{o.intensity_flops_per_byte:,.0f}" if o.intensity_flops_per_byte >= 1 else None
    achieved, share = units.format_percent(o.achieved_frac, 0), units.format_percent(o.share_frac)
    return (o.name, o.layers, m, n, k, intensity, o.bound, achieved, waves, last, share)


def _advice(advice: tuple[Advice, ...], paper: Screen) -> str:
    rows = [
        (a.what, a.now, a.better, units.format_seconds(a.gain_s), units.format_percent(a.gain_frac),
         ("MUST: " if a.needed else "") + a.why)
        for a in advice
    ]  # fmt: skip
    return table(["what", "now", "better", ">saves", ">of the pass", "why"], rows, paper)
