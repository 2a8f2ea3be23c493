"""What several answers have in common: rules of thumb, assumptions, shares of a whole, provenance, prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.jsonout import attributes, entries, interval, notes
from flopwise.cli.render import Screen, bars, pairs, table

if TYPE_CHECKING:
    from flopwise.cost.memory_answer import MemoryAnswer
    from flopwise.cost.quick import QuickFormula
    from flopwise.serving.memory_answer import ServingMemoryAnswer
    from flopwise.training.memory_answer import TrainingMemoryAnswer


def quick(rules: Iterable[QuickFormula]) -> list[dict[str, Any]]:
    """Rules of thumb as JSON."""
    return [attributes(rule, "name formula unit value estimate error=error_frac") for rule in rules]


def quick_table(rules: Sequence[QuickFormula], paper: Screen) -> str:
    """The rules of thumb beside the estimate."""
    from flopwise.provenance import Figure, format_value

    def shown(value: float | None, unit: str) -> str | None:
        return None if value is None else format_value(Figure("x", value, unit, kind="given"))

    def signed_percent(fraction: float | None) -> str | None:
        if fraction is None:
            return None
        return f"{fraction + 1:.0f} x" if fraction > 9 else f"{100 * fraction:+.0f} %"

    rows = [
        (r.name, r.formula, shown(r.value, r.unit), shown(r.estimate, r.unit), signed_percent(r.error_frac))
        for r in rules
    ]
    return table(["rule of thumb", "formula", ">says", ">estimate", ">off by"], rows, paper) if rows else ""


def assumption_list(assumptions: Iterable[str]) -> str:
    """What was assumed, one a line; values that stand in for others, in one line together."""
    lines = _with_lenders_folded(dict.fromkeys(assumptions))
    return bullets("Assumptions", lines) if lines else ""


def _with_lenders_folded(assumptions: Iterable[str]) -> list[str]:
    """The same sentences; those of `resolve_parameters`, on values that stand in for others, as one at the end."""
    from flopwise.cost.rates import LENT

    rest: list[str] = []
    lenders: dict[str, list[str]] = {}
    for sentence in assumptions:
        if LENT[0] not in sentence or not sentence.endswith(LENT[2]):
            rest.append(sentence)
            continue
        who, _, names = sentence.partition(LENT[0])[0].partition(": ")
        scope = sentence.removesuffix(LENT[2]).rpartition(LENT[1])[2].strip("'")
        lenders.setdefault(who, []).append(f"{names.count(', ') + 1} of {scope}")
    if lenders:
        parts = ", ".join(f"{who} ({' and '.join(dict.fromkeys(lent))})" for who, lent in lenders.items())
        rest.append(f"not measured, so values of relatives stand in (named by --json): {parts}")
    return rest


def bullets(title: str, lines: Iterable[str]) -> str:
    """A line, and others below it."""
    return "\n".join([title, *(f"  - {line}" for line in lines)])


def shares(rows: Sequence[tuple[str, float]], text: Callable[[float], str], paper: Screen) -> str:
    """Bars of the parts of a whole; parts that are nothing are left out."""
    whole = sum(size for _, size in rows) or 1.0
    shown = [
        (name.replace("_", " "), size, f"{text(size)}  {100 * size / whole:5.1f} %") for name, size in rows if size > 0
    ]
    return bars(shown, paper)


def between(low: float, high: float, text: Callable[[float], str]) -> str:
    """The ends of an interval, in parentheses."""
    return f"(80 % interval: {text(low)} to {text(high)})"


def either(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def price(value: float | None) -> str | None:
    """US dollars, or nothing where they are not known; small amounts to three digits."""
    if value is None:
        return None
    return f"${value:.3g}" if 0 < value < 0.01 else units.format_usd(value)


def per_million(usd_per_hour: float | None, each_per_s: float) -> float | None:
    """US dollars for a million of what comes at `each_per_s`."""
    return None if usd_per_hour is None or not each_per_s else usd_per_hour / (each_per_s * units.HOUR_S) * 1e6


def energy(joules: float | None) -> str | None:
    """Energy in watt-hours, small amounts in joules."""
    if joules is None:
        return None
    return f"{joules:,.3g} J" if joules < units.HOUR_S else units.format_joules(joules)


def memory_document(answer: MemoryAnswer) -> dict[str, Any]:
    """The memory as the JSON that scripts rely on."""
    return {
        **attributes(answer, "model=model.name task gpu=accelerator.name per_gpu_bytes low_bytes high_bytes"),
        "items": entries(answer.items, "bytes"),
        "worst_rank": answer.worst_rank,
        "moments": entries(answer.moments, "bytes"),
        **attributes(answer, "host_bytes capacity_bytes usable_bytes margin_bytes fits fits_probability"),
        "remedies": [attributes(remedy, "change saves_bytes fits") for remedy in answer.remedies],
        "interval": interval(answer.band),
        **attributes(answer, "kv_capacity_tokens max_concurrency max_whole_contexts"),
        "quick": quick(answer.quick),
        **notes(answer),
    }


def memory_verdict(answer: TrainingMemoryAnswer | ServingMemoryAnswer) -> str:
    """Whether it fits, how sure that is, and what would make it fit, in a few words."""
    gib, usable, chance = units.format_gib, answer.usable_bytes, answer.fits_probability
    if answer.accelerator is None or usable is None or chance is None:
        ends = between(answer.low_bytes, answer.high_bytes, gib)
        return f"{gib(answer.per_gpu_bytes)} per accelerator {ends}. Name a device (--gpu) to see whether it fits."
    where = f"{int(answer.layout.num_gpus):,} x {answer.accelerator.name}"
    each = f"{gib(answer.per_gpu_bytes)} of {gib(usable)}" + " each" * (int(answer.layout.num_gpus) > 1)
    odds = f"{100 * chance:.0f} % chance that it runs"
    if answer.fits:
        most, context = answer.max_concurrency, getattr(answer, "context", None)
        room = f" At most {most:,.0f} sequences of {context:,} tokens at once." if most and context else ""
        return f"Fits {where}: {each}, {odds}.{room}"
    enough = [remedy.change for remedy in answer.remedies if remedy.fits][:3]
    fewest = next((rule.estimate for rule in answer.quick if rule.name == "GPUs"), None)
    if fewest is not None and fewest > answer.layout.num_gpus and (answer.task == "train" or not enough):
        enough.append(f"{fewest:,.0f} of them" + ", fully sharded" * (answer.task == "train"))
    mend = f"It would fit with {either(enough)}." if enough else "No single change makes it fit."
    return f"Does not fit {where}: {each}, {odds}. {mend}"


def memory_items(answer: MemoryAnswer, paper: Screen, *, capacity: bool = True) -> Iterator[str]:
    """Item by item with bars, the total against the device, and what would make it fit.

    With `capacity` how many sequences the device holds.
    """
    gib = units.format_gib
    rows = [(name, size, gib(size)) for name, size in answer.items if size > 0]
    yield bars([*rows, ("total", answer.per_gpu_bytes, gib(answer.per_gpu_bytes))], paper)
    total = f"{gib(answer.per_gpu_bytes)} {between(answer.low_bytes, answer.high_bytes, gib)}"
    told: list[tuple[str, Any]] = [("total", total)]
    if answer.moments:
        (name, _), *others = answer.moments
        backward = next(((n, b) for n, b in others if "backward" in n), None)
        beside = "" if backward is None or "backward" in name else f"; {backward[0]}: {gib(backward[1])}"
        told.append(("peak", f"{name}{beside}"))
    if answer.host_bytes:
        told.append(("in host memory", gib(answer.host_bytes)))
    if answer.capacity_bytes is not None and answer.margin_bytes is not None:
        told.append(("device", gib(answer.capacity_bytes)))
        if answer.usable_bytes is not None and answer.usable_bytes != answer.capacity_bytes:
            told.append(("the engine uses", gib(answer.usable_bytes)))
        told.append(("margin", f"{gib(answer.margin_bytes)}: it {'fits' if answer.fits else 'does not fit'}"))
    if capacity and answer.max_concurrency is not None:
        cached = f"; cache of {answer.kv_capacity_tokens:,.0f} tokens" if answer.kv_capacity_tokens is not None else ""
        told.append(("at most", f"{answer.max_concurrency:,.0f} sequences{cached}"))
    yield pairs(told, paper)
    if answer.remedies:
        changes = [(r.change, gib(r.saves_bytes), r.fits) for r in answer.remedies]
        yield table(["change", ">saves", "enough"], changes, paper)


def network_table(needs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Headers and rows of what each kind of link has to carry, for a step of training or a request of a service."""
    rows, one = list[tuple[str, ...]](), "step" if "step_bytes" in needs[0] else "request"
    most, words = {"step": ("needed", "not to be seen"), "request": ("full", "at full load")}[one]
    for need in needs:
        sent = need[f"{one}_bytes"].items()
        what = ", ".join(f"{name.replace('_', ' ')} {units.format_bytes(n)}" for name, n in sent)
        rates = ("average_bytes_per_s", f"{most}_bytes_per_s", f"node_{most}_bytes_per_s", "link_bytes_per_s")
        shown = ("-" if need[name] is None else units.format_rate(need[name], "B/s") for name in rates)
        rows.append((f"{need['link']}, {'between nodes' if need['between_nodes'] else 'inside'}", what, *shown))
    return ["link", f"a {one} sends", ">on average", f">{words}", ">of a node", ">the link has"], rows
