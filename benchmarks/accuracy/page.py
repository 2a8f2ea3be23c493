"""Write docs/accuracy.md and its pictures: predicted against measured, by class.

    python benchmarks/accuracy/page.py [-o DOCS]

Of kinds whose constants were fitted with a source or publisher left out in turn, the predictions drawn are those of
constants that have not seen it. Nothing depends on the machine or the day.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import thumb
from rows import KINDS, Case, cases, unseen_errors

from flopwise.backtests.serving import row_engine
from flopwise.backtests.summary import summarize
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from report import percent, quantities, rule, table

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLASSES = 7
"""Classes with a colour of their own: those with most rows; the others are grey."""
NEAR = 1.25
"""The band drawn beside the line of equality, as a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture: the rows of a kind and quantity, and what their colours say."""

    kind: str
    quantity: str
    title: str
    unit: str
    colour: str
    of: Callable[[Case], str]


def _architecture(case: Case) -> str:
    try:
        return load_facts().accelerator(case.row["gpu"]).architecture
    except SpecError:
        return "not known"


def _engine(case: Case) -> str:
    try:
        return row_engine(case.row, load_facts()).name
    except SpecError:
        return case.row["engine"]


def _column(name: str) -> Callable[[Case], str]:
    return lambda case: case.row.get(name) or "not stated"


PICTURES = (
    Picture(kind="training", quantity="", title="Training throughput", unit="tokens/s per accelerator",
            colour="architecture", of=_architecture),
    Picture(kind="memory", quantity="", title="Memory of training", unit="bytes of an accelerator",
            colour="how it was read", of=_column("reading")),
    Picture(kind="serving", quantity="ttft_s", title="Time to the first token", unit="s", colour="engine",
            of=_column("engine")),
    Picture(kind="serving", quantity="tpot_s", title="Time of each further token", unit="s", colour="engine",
            of=_column("engine")),
    Picture(kind="serving", quantity="output_tokens_per_s", title="Throughput of a server", unit="output tokens/s",
            colour="engine", of=_column("engine")),
    Picture(kind="kernels", quantity="", title="Kernels", unit="s", colour="operation", of=_column("op")),
)  # fmt: skip


def picture_file(picture: Picture) -> str:
    """The name of a picture's file."""
    return f"accuracy-{picture.kind}{f'-{picture.quantity}' if picture.quantity else ''}.png".replace("_", "-")


def points(picture: Picture, members: Sequence[Case]) -> list[tuple[str, float, float]]:
    """(class, measured, predicted) of each row that has both; of constants that have not seen it, where there are."""
    unseen = unseen_errors(picture.kind)
    found = []
    for case in members:
        measured, error = case.prediction.measured, unseen.get(case.key, case.prediction.error)
        if measured and error is not None and error > -1:
            found.append((picture.of(case), measured, measured * (1 + error)))
    return found


def draw(picture: Picture, drawn: Sequence[tuple[str, float, float]], file: Path) -> None:
    """Measured across, predicted up, both logarithmic; a line where they are equal and a band of 25 %."""
    classes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, measured, predicted in drawn:
        classes[name].append((measured, predicted))
    order = sorted(classes, key=lambda name: (-len(classes[name]), name))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
        rest = [pair for name in order[CLASSES:] for pair in classes[name]]
        groups = [(name, classes[name], f"C{number}") for number, name in enumerate(order[:CLASSES])]
        for name, pairs, colour in [*([("others", rest, "0.7")] if rest else []), *groups]:
            across, up = np.array(pairs).T
            axes.scatter(across, up, s=9, alpha=0.55, linewidths=0, color=colour, label=f"{name} ({len(pairs):,})")
        ends = np.array([min(min(m, p) for _, m, p in drawn), max(max(m, p) for _, m, p in drawn)])
        axes.plot(ends, ends, color="0.2", linewidth=0.8)
        axes.fill_between(ends, ends / NEAR, ends * NEAR, color="0.5", alpha=0.15, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel=f"measured, {picture.unit}", ylabel=f"predicted, {picture.unit}")
        axes.set_title(f"{picture.title}: {len(drawn):,} rows", loc="left", fontweight="bold")
        axes.legend(title=picture.colour, fontsize=7, title_fontsize=7, frameon=False, loc="upper left")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=110, metadata={"Software": None})
        plt.close(figure)


def sentence(picture: Picture, drawn: Sequence[tuple[str, float, float]]) -> str:
    """What a picture shows, in words, for those who do not see it."""
    errors = np.array([abs(predicted / measured - 1) for _, measured, predicted in drawn])
    unseen = ", by constants that have not seen the row's source" if unseen_errors(picture.kind) else ""
    within = percent(float(np.mean(errors <= NEAR - 1)))
    return (
        f"{picture.title}: {len(drawn):,} published measurements, half of them predicted within "
        f"{percent(float(np.median(errors)))}, {within} within 25 %{unseen}. Colours: {picture.colour}."
    )


HEAD = """\
# Accuracy

Every estimate is compared with what others measured and published: training runs, memory, kernels, served requests. The
rows, each with its source and date, are in [benchmarks/truth](../benchmarks/truth/README.md). `make accuracy`
predicts them again from a clone and writes this page and the full [report](../benchmarks/accuracy/REPORT.md), which has
each source and the rows that are farthest off. No measured figure enters its own prediction."""
HOW = """\
Error is predicted / measured - 1. *Unseen* is the median under constants fitted without the row's source (training:
without its publisher), over the rows that were there when the constants were fitted. *In the interval* is the share of
measurements inside the 80 % interval that every estimate prints; on sources that neither constants nor intervals have
seen it is 80 %. The *rule of thumb* is the simplest formula in use, fitted to the other sources as well."""
READ = """\
## How to read an interval

An 80 % interval says that 8 of 10 measurements of this class lay in it, on sources that its width was not fitted to.
It is wider where no row was measured on the architecture, or where inputs that matter (micro-batch, recompute,
software) are left to assumptions; the answer then says so under "rests on". `flopwise calibrate` narrows it with
your own measurements: see [calibrate](questions/calibrate.md). The end of each section of the
report explains the largest errors, and why no constant would correct them."""


def accuracy_page(kinds: Mapping[str, Sequence[Case]], shown: Mapping[Picture, str]) -> str:
    """The page; `shown`: what each picture shows."""
    rows = []
    for kind, predicted in kinds.items():
        unseen = unseen_errors(kind)
        for name, own in quantities(predicted).items():
            s = summarize(c.prediction for c in own)
            left = [abs(unseen[c.key]) for c in own if c.key in unseen]
            rows.append((
                kind, name, f"{s.predicted_rows:,}", percent(s.median_abs_error), percent(s.p90_abs_error),
                percent(s.bias, signed=True), percent(float(np.median(left))) if left else "-", percent(s.coverage),
                rule(own)[1].partition(" / ")[0], thumb.NAMES[kind],
            ))  # fmt: skip
    heads = (
        "kind",
        "quantity",
        "rows",
        "median error",
        "90th percentile",
        "bias",
        "unseen",
        "in the interval",
        "rule of thumb",
        "which is",
    )
    parts = [HEAD, HOW, table(heads, rows), "## Predicted against measured"]
    for picture, text in shown.items():
        parts += [f"![{picture.title}: predicted against measured](images/{picture_file(picture)})", text]
    return "\n\n".join([*parts, READ]) + "\n"


def main() -> None:
    """Write the page and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=DOCS)
    docs = parser.parse_args().output
    kinds = {kind: cases(kind) for kind in KINDS}
    shown = {}
    for picture in PICTURES:
        of = quantities(kinds[picture.kind])
        members = of[picture.quantity] if picture.quantity else kinds[picture.kind]
        drawn = points(picture, members)
        draw(picture, drawn, docs / "images" / picture_file(picture))
        shown[picture] = sentence(picture, drawn)
    (docs / "accuracy.md").write_text(accuracy_page(kinds, shown), encoding="utf-8")


if __name__ == "__main__":
    main()
