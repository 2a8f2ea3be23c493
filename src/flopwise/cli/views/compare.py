"""Ways of spreading a training job against the number of GPUs: table, chart, reasons, JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import questions
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.api.compare import CompareAnswer
    from flopwise.search.scaling import ScalingPoint

MARKS = {
    "data": "D", "zero-1": "Z", "fsdp": "F", "tensor": "T", "pipeline": "P", "context": "C", "expert": "E",
    "hybrid": "H",
}  # fmt: skip
"""What each way is drawn with."""


def document(answer: CompareAnswer) -> dict[str, Any]:
    """The comparison as the JSON that scripts rely on."""
    from flopwise.search.scaling import document as plain

    return {
        "model": answer.model.name,
        "gpu": answer.cluster.accelerator.name,
        "num_gpus": answer.num_gpus,
        "seq_len": int(answer.recipe.seq_len),
        "global_batch": int(answer.recipe.global_batch),
        **plain(answer.comparison),
        "settings": dict(answer.settings),
        "assumptions": list(answer.assumptions),
    }


def blocks(answer: CompareAnswer, paper: Screen) -> Iterator[str]:
    """The comparison as people read it."""
    from flopwise.search.scaling import BENT_FRAC, MEANINGS

    found = answer.comparison
    kind = "Weak" if found.weak else "Strong"
    yield heading(f"{kind} scaling of {answer.model.name} up to {answer.num_gpus:,} accelerators", paper)
    yield pairs(answer.settings, paper)
    shown = [bend.strategy for bend in found.bends]
    if found.reference is None:
        yield "No layout fits the memory on any of these numbers of accelerators."
    else:
        on = found.reference.num_gpus
        yield f"Throughput of an accelerator, over that of the best layout on the fewest that hold the job ({on:,}):"
    yield table([">GPUs", *(f">{name}" for name in shown)], _rows(answer, shown), paper)
    yield chart(_series(answer, shown), Axis("accelerators", "{:,.0f}".format, log=True), _axis(), paper)
    rows = [
        (b.strategy, MEANINGS[b.strategy], "-" if b.num_gpus is None else f"{b.num_gpus:,}", b.reason)
        for b in found.bends
    ]
    yield f"Where each falls below {100 * BENT_FRAC:.0f} %, and why:"
    yield table(["way", "what grows", ">from GPUs", "because"], rows, paper)
    yield questions.assumption_list(answer.assumptions)


def _axis() -> Axis:
    return Axis("throughput of an accelerator, over the reference", lambda v: f"{100 * v:.0f} %")


def _rows(answer: CompareAnswer, shown: list[str]) -> list[list[str]]:
    held = {(p.num_gpus, p.strategy): p for p in answer.comparison.points}
    counts = sorted({count for count, _ in held})
    return [[f"{count:,}", *(_cell(held.get((count, name))) for name in shown)] for count in counts]


def _cell(point: ScalingPoint | None) -> str:
    """Efficiency, or why there is none."""
    if point is None or point.layout is None:
        return "-"
    if not point.fits:
        return "no fit"
    return "-" if point.efficiency_frac is None else units.format_percent(point.efficiency_frac)


def _series(answer: CompareAnswer, shown: list[str]) -> list[Series]:
    """One line for each way, the hybrid last, over the others."""
    found = []
    for name in shown:
        mine = [p for p in answer.comparison.points if p.strategy == name and p.efficiency_frac is not None]
        points = [(float(p.num_gpus), float(p.efficiency_frac or 0.0)) for p in mine]
        if points:
            found.append(Series(name, points, mark=MARKS[name], line=True))
    return found
