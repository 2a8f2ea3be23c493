"""What several answers have in common: rules of thumb, assumptions, shares of a whole, provenance, prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.render import Screen, bars, heading, pairs, table
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.cost.memory_answer import MemoryAnswer
    from flopwise.cost.quick import QuickFormula
    from flopwise.provenance import Figure
    from flopwise.serving.sim.result import ClassFigures

FITS = {True: "it fits", False: "it does not fit", None: "whether it fits is not known"}
"""What a margin means, by what an answer says of it."""


def figure_of(answer: Any) -> Figure:
    """The tree of an answer's figures."""
    from flopwise.changes.explanation import answer_figure

    return answer_figure(answer)


def quick_table(rules: Sequence[QuickFormula], paper: Screen) -> str:
    """A table of the rules of thumb and the estimate."""
    from flopwise.provenance import Figure, format_value

    def figure_text(value: float | None, unit: str) -> str | None:
        return None if value is None else format_value(Figure("x", value, unit, kind="given"))

    def signed_percent(fraction: float | None) -> str | None:
        if fraction is None:
            return None
        return f"{fraction + 1:.0f} x" if fraction > 9 else units.format_change(fraction + 1)

    rows = [
        (r.name, r.formula, figure_text(r.value, r.unit), figure_text(r.estimate, r.unit), signed_percent(r.error_frac))
        for r in rules
    ]
    return table(["rule of thumb", "formula", ">says", ">estimate", ">off by"], rows, paper) if rows else ""


def priority_table(classes: Mapping[int, ClassFigures], paper: Screen) -> Iterator[str]:
    """A table of latencies by class of requests; nothing where all are alike."""
    if not classes:
        return
    seconds = units.format_seconds
    rows = [
        (
            f"{priority:,}", units.format_percent(one.frac), *map(seconds, (one.ttft_s.p50, one.ttft_s.p95)),
            *("-" if isnan(each) else seconds(each) for each in (one.tpot_s.p50, one.tpot_s.p95)),
        )
        for priority, one in classes.items()
    ]  # fmt: skip
    headers = [">priority", ">of requests", ">TTFT p50", ">p95", ">TPOT p50", ">p95"]
    yield f"{heading('By priority', paper)}\n{table(headers, rows, paper)}"


def assumption_list(assumptions: Iterable[str]) -> str:
    """The assumptions, one a line; substituted values in one line together."""
    lines = _with_lenders_folded(dict.fromkeys(assumptions))
    return bullets("Assumptions", lines) if lines else ""


def _with_lenders_folded(assumptions: Iterable[str]) -> list[str]:
    """The assumptions, with those of `resolve_parameters` on substituted values joined into one at the end."""
    from flopwise.cost.rates import LENT

    rest: list[str] = []
    lenders: dict[str, list[str]] = {}
    for sentence in assumptions:
        if LENT[0] not in sentence or not sentence.endswith(LENT[2]):
            rest.append(sentence)
            continue
        who, _, names = sentence.partition(LENT[0])[0].partition(": ")
        scope = sentence.removesuffix(LENT[2]).rpartition(LENT[1])[2].strip("'")
        source = "all hardware" if scope == "any" else scope
        lenders.setdefault(who, []).append(f"{names.count(', ') + 1} from {source}")
    if lenders:
        parts = ", ".join(f"{who} ({' and '.join(dict.fromkeys(lent))})" for who, lent in lenders.items())
        rest.append(f"values of related hardware where measurements are missing (listed by --json): {parts}")
    return rest


def bullets(title: str, lines: Iterable[str]) -> str:
    """A line, and others below it."""
    return "\n".join([title, *(f"  - {line}" for line in lines)])


def shares(rows: Sequence[tuple[str, float]], text: Callable[[float], str], paper: Screen) -> str:
    """Bars of the parts of a whole; parts of 0 are left out."""
    whole = sum(size for _, size in rows) or 1.0
    shown = [
        (name.replace("_", " "), size, f"{text(size)}  {100 * size / whole:5.1f} %") for name, size in rows if size > 0
    ]
    return bars(shown, paper)


def energy(joules: float | None) -> str | None:
    """Energy in watt-hours, small amounts in joules."""
    if joules is None:
        return None
    if joules >= units.HOUR_S:
        return units.format_joules(joules)
    return f"{joules:,.0f} J" if joules >= 100 else f"{format_number(joules)} J"


def memory_items(answer: MemoryAnswer, paper: Screen, *, capacity: bool = True) -> Iterator[str]:
    """Item by item with bars, the total against the device, and remedies.

    With `capacity` how many sequences the device holds.
    """
    gib = units.format_gib
    rows = [(name, size, gib(size)) for name, size in answer.items if size > 0]
    yield bars([*rows, ("total", answer.per_gpu_bytes, gib(answer.per_gpu_bytes))], paper)
    total = f"{gib(answer.per_gpu_bytes)} {units.format_interval(answer.low_bytes, answer.high_bytes, gib)}"
    totals: list[tuple[str, Any]] = [("total", total)]
    if answer.moments:
        (name, _), *others = answer.moments
        backward = next(((n, b) for n, b in others if "backward" in n), None)
        beside = "" if backward is None or "backward" in name else f"; {backward[0]}: {gib(backward[1])}"
        totals.append(("peak", f"{name}{beside}"))
    if answer.host_bytes:
        totals.append(("in host memory", gib(answer.host_bytes)))
    if answer.capacity_bytes is not None and answer.margin_bytes is not None:
        totals.append(("device", gib(answer.capacity_bytes)))
        if answer.usable_bytes is not None and answer.usable_bytes != answer.capacity_bytes:
            totals.append(("the engine uses", gib(answer.usable_bytes)))
        totals.append(("margin", f"{gib(answer.margin_bytes)}: {FITS[answer.fits]}"))
    if capacity and answer.max_concurrency is not None:
        cached = ""
        if answer.kv_capacity_tokens is not None:
            least, most = (answer.kv_capacity_tokens * share for share in answer.capacity_ends)
            cached = f"; cache of {answer.kv_capacity_tokens:,.0f} tokens (80 % interval: {least:,.0f} to {most:,.0f})"
        totals.append(("at most", f"{units.format_items(round(answer.max_concurrency), 'sequence')}{cached}"))
    yield pairs(totals, paper)
    if answer.remedies:
        priced = any(r.slower_frac is not None for r in answer.remedies)
        prices = (None if r.slower_frac is None else units.format_times(1 + r.slower_frac) for r in answer.remedies)
        changes = [(r.change, gib(r.saves_bytes), r.fits, p) for r, p in zip(answer.remedies, prices, strict=True)]
        headers, most = ["change", ">saves", "enough", ">each token as long"], 4 if priced else 3
        yield table(headers[:most], [row[:most] for row in changes], paper)


def network_table(needs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Headers and rows of the traffic on each kind of link, for a step of training or a request of a service."""
    rows, one = list[tuple[str, ...]](), "step" if "step_bytes" in needs[0] else "request"
    most, words = {"step": ("needed", "to stay hidden"), "request": ("full", "at full load")}[one]
    for need in needs:
        sent = need[f"{one}_bytes"].items()
        what = ", ".join(f"{name.replace('_', ' ')} {units.format_bytes(n)}" for name, n in sent)
        rates = ("average_bytes_per_s", f"{most}_bytes_per_s", f"node_{most}_bytes_per_s", "link_bytes_per_s")
        shown = ("-" if need[name] is None else units.format_rate(need[name], "B/s") for name in rates)
        rows.append((f"{need['link']}, {'between nodes' if need['between_nodes'] else 'inside'}", what, *shown))
    return ["link", f"a {one} sends", ">on average", f">{words}", ">for a node", ">link bandwidth"], rows
