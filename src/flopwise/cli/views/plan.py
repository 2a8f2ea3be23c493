"""A plan on the screen: the ranked table, the front of cost against time, levers, and what was ruled out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cli.views import plan_serving as serving

if TYPE_CHECKING:
    from flopwise.search.answer import Candidate, Lever, Plan, SimulatedFigures

TRAINING = ("pretrain", "finetune")
LABELS = {
    "step_s": "step", "tokens_per_s": "tokens/s", "tokens_per_s_per_gpu": "tokens/s per GPU", "gpu_hours": "GPU-hours",
    "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "whole request", "output_tokens_per_s": "output tokens/s",
    "requests_per_s_capacity": "requests/s it sustains", "busy_frac": "busy",
    "usd_per_million_tokens": "per million tokens",
}  # fmt: skip
"""How the figures of a candidate are called on the screen."""


def blocks(plan: Plan, paper: Screen, top: int) -> Iterator[str]:
    """The blocks of a plan, in the order in which they are read."""
    yield heading(title(plan), paper)
    shown = plan.plans[:top] or plan.misses
    if plan.plans:
        more = f" (the best {top} of {len(plan.plans)} instance types)" if len(plan.plans) > top else ""
        yield f"Plans that meet every target, by {plan.objective}{more}:"
    elif shown:
        yield "No plan meets every target. The nearest misses:"
    if shown:
        yield table(*candidates(shown, plan), paper)
    if plan.floors:
        yield "What physics allows:\n" + "\n".join(f"  - {serving.floor(one)}" for one in plan.floors)
    if plan.plans:
        yield detail(plan.plans[0], paper)
    yield from serving.fronts(plan, paper) if plan.fronts else (front(plan, paper),)
    if any(row.cost_usd is not None for row in plan.target_costs):
        yield "What each target costs, as estimated:\n" + serving.target_costs(plan.target_costs, paper)
    if plan.levers:
        yield "What one change to the best plan would do:\n" + levers(plan.levers, paper)
    if plan.ruled_out:
        rows = [(f"{r.count:,}", r.unit, r.reason, r.example) for r in plan.ruled_out]
        yield "Ruled out:\n" + table((">count", "of", "reason", "example"), rows, paper)
    if plan.assumptions:
        yield "Assumed:\n" + "\n".join(f"  - {a}" for a in dict.fromkeys(plan.assumptions))
    yield f"{plan.evaluated:,} candidates evaluated in {units.format_seconds(plan.elapsed_s)}"


def title(plan: Plan) -> str:
    """What is planned, and what it has to hold."""
    workload = plan.workload
    targets = {k: v for k, v in workload.get("targets", {}).items() if v is not None}
    text = f"{workload.get('name') or workload['model']}: {plan.task}"
    if workload.get("name"):
        text += f" {workload['model']}"
    told = [f"{k} {_target(v)}" for k, v in targets.items()]
    return text + (f" with {', '.join(told)}" if told else "")


def _target(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return str(value)


def candidates(rows: list[Candidate], plan: Plan) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Headers and rows of the ranked table, with notes where there are any."""
    headers, cells = _candidates(rows, plan)
    notes = [serving.note(c) for c in rows]
    if not any(notes):
        return headers, cells
    return (*headers, "note"), [(*row, note or "-") for row, note in zip(cells, notes, strict=True)]


def _candidates(rows: list[Candidate], plan: Plan) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    task = plan.task
    runs = task in (*TRAINING, "batch")
    first = ("#", "provider", "instance", "region", ">GPUs", "GPU", "layout", ">memory")
    last = (">energy", ">meets")
    if runs:
        headers: tuple[str, ...] = (*first, ">time", ">USD/h", ">cost", *last)
        return headers, [(*_where(c), layout(c), _memory(c), units.format_seconds(c.seconds), *_money(c)) for c in rows]
    if task == "encode":
        headers = (*first, ">latency", ">USD/h", ">USD/month", *last)
        return headers, [(*_where(c), layout(c), _memory(c), _time(c.figures.get("e2e_s")), *_money(c)) for c in rows]
    simulated = any(c.simulated is not None for c in rows)
    times: list[tuple[str, str, str | None]] = []
    for name, title in (("ttft", "TTFT"), ("tpot", "TPOT")):
        times.append((f">{title}", name, None))
        if simulated:
            times.append((">simulated", name, serving.percentile(plan, name)))
    headers = (*first, *(title for title, _, _ in times), ">USD/h", ">USD/month", *last)
    return headers, [
        (*_where(c), layout(c), _memory(c), *(_latency(c, *t[1:]) for t in times), *_money(c)) for c in rows
    ]


def _latency(c: Candidate, name: str, simulated: str | None) -> str | None:
    """An estimated latency, or a percentile of the simulated ones."""
    return _time(c.figures.get(f"{name}_s")) if simulated is None else serving.simulated(c, name, simulated)


def _where(c: Candidate) -> tuple[Any, ...]:
    bought = "" if c.purchase == "on_demand" else f" {c.purchase}"
    return (c.rank, c.provider, f"{c.num_instances} x {c.instance}{bought}", c.region, c.num_gpus, c.gpu)


def _money(c: Candidate) -> tuple[Any, ...]:
    energy = None if c.energy_joules is None else units.format_joules(c.energy_joules)
    return (units.format_usd(c.usd_per_hour), units.format_usd(c.cost_usd), energy, meets(c))


def _memory(c: Candidate) -> str:
    return f"{c.memory_bytes / units.GIB:,.0f}/{c.capacity_bytes / units.GIB:,.0f} GiB"


def _time(value: float | None) -> str | None:
    return None if value is None else units.format_seconds(value)


def meets(c: Candidate) -> str | None:
    """The probability of the target least likely to be met."""
    return f"{100 * min(c.meets.values()):.0f} %" if c.meets else None


def layout(c: Candidate) -> str:
    """The layout in the field's letters, degrees of 1 left out."""
    held = c.layout
    parts = [f"{k}{held[k]}" for k in ("dp", "tp", "pp", "cp", "ep") if held.get(k, 1) != 1]
    if held.get("zero"):
        parts.append(f"hsdp{held['shard']}" if held.get("shard") else f"zero{held['zero']}")
    if held.get("interleave", 1) != 1:
        parts.append(f"v{held['interleave']}")
    if held.get("schedule", "1f1b") != "1f1b":
        parts.append(str(held["schedule"]))
    if "micro_batch" in held:
        parts.append(f"mb{held['micro_batch']}")
    if held.get("recompute", "none") != "none":
        every = held.get("recompute_every", 1)
        parts.append(f"recompute {held['recompute']}" + (f"/{every}" if every > 1 else ""))
    if held.get("offload"):
        parts.append(f"offload {'+'.join(held['offload'])}")
    if "replicas" in held:
        parts += [f"{held['replicas']} replicas", f"batch {held['max_batch']}"]
    parts.append(str(held.get("precision") or held.get("weights")))
    if held.get("kv_dtype", "bf16") != "bf16":
        parts.append(f"kv {held['kv_dtype']}")
    return " ".join(parts)


def detail(best: Candidate, paper: Screen) -> str:
    """The best plan in full."""
    rows: list[tuple[str, Any]] = [
        ("best plan", f"{best.num_instances} x {best.provider} {best.instance} ({best.region}), {best.purchase}"),
        ("layout", ", ".join(f"{k} {v}" for k, v in best.layout.items())),
        ("price", f"{units.format_usd(best.usd_per_hour)}/h, of {best.price_date}: {best.price_source}"),
    ]
    for name, value in best.figures.items():
        if value is not None:
            rows.append((LABELS[name], _figure(name, value)))
    if best.simulated is not None:
        rows += _run(best.simulated)
    rows += [(f"meets {name}", f"{100 * p:.0f} % likely") for name, p in best.meets.items()]
    return pairs(rows, paper)


def _run(run: SimulatedFigures) -> list[tuple[str, Any]]:
    """What the simulator says of the best plan."""
    rows: list[tuple[str, Any]] = [("simulated", f"{run.requests:,} requests through {run.replicas:,} replicas")]
    for label, values in (("TTFT", run.ttft_s), ("TPOT", run.tpot_s), ("whole request", run.e2e_s)):
        shown = [f"{p} {units.format_seconds(v)}" for p, v in values.items() if v is not None and p != "mean"]
        if shown:
            rows.append((f"  {label}", ", ".join(shown)))
    if run.goodput_frac is not None:
        rows.append(("  within all targets", units.format_percent(run.goodput_frac)))
    cache = f"cache at most {units.format_percent(run.kv_peak_frac)} full"
    dropped = f"; {run.dropped:,} requests too long for the model or the cache" if run.dropped else ""
    return [*rows, ("  busy", f"{units.format_percent(run.utilisation_frac)} of the time, {cache}{dropped}")]


def _figure(name: str, value: float) -> str:
    if name.endswith("_frac"):
        return units.format_percent(value)
    if name.startswith("usd_per"):
        return units.format_usd(value)
    if "_per_s" in name:
        return units.format_count(value) if value >= 1e5 else f"{value:,.4g}"
    return units.format_seconds(value) if name.endswith("_s") else f"{value:,.4g}"


def front(plan: Plan, paper: Screen) -> str:
    """The chart of cost against time; the chosen plans stand out. What the front holds for less energy is left out."""
    service = plan.task in ("serve", "encode")
    points: list[tuple[float, float]] = []
    for c in sorted(plan.front, key=lambda c: (c.cost_usd, c.seconds)):
        if not points or c.seconds < points[-1][0]:
            points.append((c.seconds, c.cost_usd))
    if len(points) < 2:
        return ""
    chosen = [(c.seconds, c.cost_usd) for c in plan.plans[:10]]
    series = [Series("cheapest at each time", points, line=True)]
    if chosen:
        series.append(Series("the ten best plans", chosen, line=False, mark="o"))
    x = Axis("time of a request" if service else "time of the run", units.format_seconds, log=True)
    y = Axis("USD a month" if service else "USD", units.format_usd, log=True)
    return chart(series, x, y, paper)


def levers(rows: list[Lever], paper: Screen) -> str:
    """Each change with what it does to memory, time and cost, in percent."""

    def ratio(value: float | None) -> str | None:
        return None if value is None else f"{100 * (value - 1):+.0f} %"

    held = [
        (
            lever.change,
            ratio(lever.memory),
            ratio(lever.seconds),
            ratio(lever.cost),
            "yes" if lever.fits else "no",
            lever.note,
        )
        for lever in rows
    ]
    return table(("change", ">memory", ">time", ">cost", "fits", "note"), held, paper)


def comparison(one: Plan, two: Plan, paper: Screen) -> Iterator[str]:
    """Two plans side by side: their best candidates, and which instance types only one of them has."""
    yield heading(f"{title(one)}  against  {title(two)}", paper)
    first, second = one.plans[:1] or one.misses[:1], two.plans[:1] or two.misses[:1]
    if not first or not second:
        yield "One of the plans holds no candidate."
        return
    a, b = first[0], second[0]
    rows = [
        (
            "instances",
            f"{a.num_instances} x {a.provider} {a.instance}",
            f"{b.num_instances} x {b.provider} {b.instance}",
            None,
        ),
        ("GPUs", f"{a.num_gpus} x {a.gpu}", f"{b.num_gpus} x {b.gpu}", None),
        ("layout", layout(a), layout(b), None),
        ("time", units.format_seconds(a.seconds), units.format_seconds(b.seconds), _change(a.seconds, b.seconds)),
        (
            "USD/h",
            units.format_usd(a.usd_per_hour),
            units.format_usd(b.usd_per_hour),
            _change(a.usd_per_hour, b.usd_per_hour),
        ),
        ("cost", units.format_usd(a.cost_usd), units.format_usd(b.cost_usd), _change(a.cost_usd, b.cost_usd)),
        ("memory", _memory(a), _memory(b), _change(a.memory_bytes, b.memory_bytes)),
        ("meets", meets(a), meets(b), None),
    ]
    yield table(("", ">first", ">second", ">change"), rows, paper)
    names_a = {(c.provider, c.instance) for c in one.plans}
    names_b = {(c.provider, c.instance) for c in two.plans}
    for which, only in (("first", names_a - names_b), ("second", names_b - names_a)):
        if only:
            listed = ", ".join(f"{p} {i}" for p, i in sorted(only)[:8])
            yield f"Only in the {which}: {listed}{' ...' if len(only) > 8 else ''}"


def _change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before else "-"
