"""A plan as people read it: the best, the others, what each target costs, and what would change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from flopwise import units
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.parts import bullets, network_table
from flopwise.cli.render import Screen, decimal, heading, known_text, pairs, table
from flopwise.errors import SpecError
from flopwise.facts.offers import UNDATED, beside_date, days_old, retirement_note
from flopwise.search.answer import (
    LATENCIES,
    RUNS,
    TARGET_NAMES,
    Candidate,
    Floor,
    Plan,
    Rejection,
    SimulatedFigures,
    SimulatedSessions,
)
from flopwise.search.spec import TRAINING
from flopwise.units import format_number

METHODS = {"lora": "LoRA", "qlora": "QLoRA", "full": ""}
"""Ways of fine-tuning, as a heading names them."""
BATCHES = ("micro_batch", "global_batch", "max_batch", "batch", "seq_len")
"""Sizes of a layout, which are shown whatever they are."""
LABELS = {
    "step_s": "step", "tokens_per_s": "tokens/s", "tokens_per_s_per_gpu": "tokens/s per GPU", "gpu_hours": "GPU-hours",
    "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "whole request", "output_tokens_per_s": "output tokens/s",
    "requests_per_s_capacity": "requests/s it sustains", "busy_frac": "share of what it sustains",
    "usd_per_million_tokens": "per million tokens", "usd_per_session": "per session",
    "prompt_found_frac": "prompts found in caches", "input_tokens_per_month": "input tokens a month",
    "output_tokens_per_month": "output tokens a month",
}  # fmt: skip
"""How the figures of a candidate are called on the screen."""
LAYOUT_NAMES = {
    "kv_dtype": "KV cache", "seq_len": "sequence length", "micro_batch": "micro-batch", "max_batch": "batch up to",
    "recompute_every": "recompute every", "recompute_first": "recompute first", "zero": "ZeRO",
}  # fmt: skip
"""How parts of a layout are called in its text, where not by their key."""
MET = {"memory": "fits in memory"}
"""How the probability of a target is called that is no figure of the candidate."""
SERVED = {"ttft_s": "ttft", "tpot_s": "tpot", "e2e_s": "latency"}
"""Latencies, and the targets that say at which percentile they are held."""
WITHOUT_FIRST = ("encode", "batch")
"""Tasks without a first token: an encoder has none, and the requests of a batch wait for one another."""
UNMEASURED = "no measured run of this kind on this architecture"
"""How the evidence of such a candidate begins."""
LARGER = 1.05
"""Memory at the end of an assumed input, over that of the plan, from which the chance to fit says what is assumed."""
OLD_DAYS = 180
"""Prices older than that are marked."""


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
        yield from _candidates(shown, plan, paper)
    if plan.floors:
        yield bullets("Physical limits:", map(floor, plan.floors))
    yield from _first(plan, paper)
    yield from _fronts(plan, paper) if plan.fronts else (_front(plan, paper),)
    if any(row.cost_usd is not None for row in plan.target_costs):
        yield "What each target costs, as estimated:\n" + _target_costs(plan, paper)
    if plan.levers:
        yield "What one change to the best plan would do:\n" + _levers(plan, paper)
    yield from _ports(plan, paper)
    if plan.ruled_out:
        rows = [(*_count_and_unit(r), r.reason, r.example) for r in plan.ruled_out]
        yield "Ruled out:\n" + table((">count", "of", "reason", "example"), rows, paper)
    if plan.assumptions:
        yield bullets("Assumed:", dict.fromkeys(plan.assumptions))
    timed = f"{plan.evaluated:,} layouts, {plan.timed:,} timed,"
    what = timed if plan.timed else f"{plan.evaluated:,} candidates evaluated"
    yield f"{what} in {units.format_seconds(plan.elapsed_s)}"


def _first(plan: Plan, paper: Screen) -> Iterator[str]:
    """The best plan in full, and what its links carry."""
    if plan.plans:
        yield _best(plan.plans[0], plan, paper)
        yield from _traffic(plan.plans[0], paper)


def further(plan: Plan, row: str = "Row 1") -> dict[str, str]:
    """The command of the best plan alone, or of the nearest miss; `row`: how the label calls it."""
    one = next(iter(plan.plans or plan.misses), None)
    if one is None or not one.reproduce:
        return {}
    exact = one.simulated is None or " --requests " in one.reproduce  # of services percentiles are not means
    exact |= one.figures.get("tpot_s", 0.0) is None and " --closed-form" not in one.reproduce  # answers in one pass
    same = "with the same figures" if exact else "as estimated, before its simulation"
    if " --turns " in one.reproduce:
        same = "simulated, with the same means and cost per session" if one.simulated else "simulated"
    return {f"{row} in full, {same}": one.reproduce}


def _ports(plan: Plan, paper: Screen) -> Iterator[str]:
    """The cheapest plan with each other software, against the best plan; nothing where there is none."""
    headers = ("software", "machines", ">cost", ">against plan 1", ">measured rows", "what has to be ported")
    rows = []
    for port in plan.if_you_port:
        machines = f"{port.num_instances} x {port.provider} {port.instance} ({port.gpu})"
        change = f"{'-' if port.saves_usd > 0 else '+'}{units.format_usd(abs(port.saves_usd))}"
        cost = units.format_usd(port.cost_usd)
        rows.append((port.software, machines, cost, change, port.rows, "; ".join(port.work)))
    if rows:
        yield "If you port:\n" + table(headers, rows, paper)


def title(plan: Plan) -> str:
    """The workload and its targets, as a heading."""
    workload = plan.workload
    text = f"{workload.get('name') or workload['model']}: {plan.task}"
    if workload.get("name"):
        text += f" {workload['model']}"
    method, tokens = workload.get("method") or {}, (workload.get("data") or {}).get("tokens")
    if kind := METHODS.get(method.get("kind", "")):
        text += f" with {kind}"
    if tokens is not None:
        text += f" on {units.format_count(tokens) if isinstance(tokens, int | float) else tokens} tokens"
    elif (samples := (workload.get("data") or {}).get("samples")) is not None:
        text += f" on {units.format_count(samples) if isinstance(samples, int | float) else samples} samples"
    if load := _load_text(workload.get("traffic") or {}):
        text += f", {load}" if workload.get("name") else f" {load}"
    targets = []
    for target, value in workload.get("targets", {}).items():
        if value is not None:
            limit = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            if target == "budget":
                usd = units.parse_usd(value)
                limit = units.format_usd(usd, 0 if round(units.in_currency(usd), 2).is_integer() else None)
            targets.append(f"{TARGET_NAMES.get(target, target)} {limit}")
    return text + (f"; targets: {', '.join(targets)}" if targets else "")


def _load_text(traffic: Mapping[str, Any]) -> str:
    """The traffic of a service or a batch as the workload states it: `20 requests/s, 1,000 tokens in, 250 out`."""

    def shown(value: object, text: Callable[[float], str], read: Callable[[object], float]) -> str:
        try:
            return text(read(value))
        except SpecError:
            return str(value)  # a distribution of lengths

    def count(name: str, noun: str, where: str = "") -> str | None:
        value = traffic.get(name)
        if value is None:
            return None
        number = shown(value, "{:,.0f}".format, units.parse_count)
        return f"{number} {noun}{'s'[: number != '1']}{where}"

    noun = "session" if traffic.get("turns") is not None else "request"
    rate, trace = traffic.get("requests_per_s"), traffic.get("trace")
    parts = (
        None if rate is None else shown(rate, lambda per_s: units.format_arrivals(per_s, noun), units.parse_rate),
        count("requests", noun),
        count("concurrency", noun, " in flight"),
        None if trace is None else f"the requests of {Path(str(trace)).name}",
        count("input_tokens", "token", " in"),
        count("output_tokens", "token", " out"),
    )
    return ", ".join(filter(None, parts))


SPARE = (">energy", ">start", ">per hour", ">estimated TTFT", ">estimated TPOT", ">memory", "region")
"""Columns of the ranked table that a narrow terminal does without, the first first."""


def _candidates(rows: list[Candidate], plan: Plan, paper: Screen) -> Iterator[str]:
    """The ranked table, and below it the notes on its rows."""
    times = _time_columns(rows, plan)
    cost = ">cost" if plan.task in (*TRAINING, "batch") else ">cost a month"
    headers = ["#", "machines", "region", "GPUs", "layout", *(f">{column}" for column, *_ in times), ">memory"]
    headers += [">per hour", cost, ">energy", ">meets"]
    cells, notes = [], dict[str, list[int]]()
    for c in rows:
        bought = "" if c.purchase == "on_demand" or c.is_hosted else f" {c.purchase.replace('_', ' ')}"
        where = (c.rank, f"{c.machines}{bought}", c.region, None if c.is_hosted else f"{c.num_gpus} x {c.gpu}")
        energy = None if c.energy_joules is None else units.format_joules(c.energy_joules)
        hourly = None if c.is_hosted else units.format_usd(c.usd_per_hour)
        paid = (hourly, units.format_usd(c.cost_usd), energy, c.likely)
        cells.append(
            (*where, None if c.is_hosted else layout(c), *(_latency(c, *t[1:]) for t in times), _memory(c), *paid)
        )
        if note := _note(c):
            notes.setdefault(note, []).append(c.rank)
    yield table(headers, cells, paper, spare=[title for title in SPARE if title in headers])
    if notes:
        named = (f"{', '.join(map(str, ranks))}: {note}" for note, ranks in notes.items())
        yield bullets("Notes on rows", named)


def _time_columns(rows: list[Candidate], plan: Plan) -> list[tuple[str, str, str | None]]:
    """(title, figure, simulated percentile) of the columns that say how long it takes."""
    if plan.task in (*TRAINING, "batch"):
        return [*([("start", "start", None)] if any(c.start_s for c in rows) else []), ("time", "", None)]
    if plan.task == "encode":
        return [("latency", "e2e_s", None)]
    if all(c.simulated is None for c in rows):
        return [(LATENCIES[target], f"{target}_s", None) for target in ("ttft", "tpot")]
    columns: list[tuple[str, str, str | None]] = []
    for target in ("ttft", "tpot"):
        title, percentile = LATENCIES[target], plan.percentile(target)
        columns += [(f"{title} {percentile}", f"{target}_s", percentile), (f"estimated {title}", f"{target}_s", None)]
    return columns


def _latency(c: Candidate, figure: str, percentile: str | None) -> str | None:
    """The run's time or that of its start, an estimated latency, or a percentile of the simulated ones."""
    value = c.start_s if figure == "start" else c.figures.get(figure) if figure else c.seconds
    value = None if c.is_hosted else value
    if percentile is not None:
        value = None if c.simulated is None else getattr(c.simulated, figure).get(percentile)
    return known_text(value, units.format_seconds)


def _note(c: Candidate, today: date | None = None) -> str:
    """The remarks on a row: replicas raised, no simulation, an old price."""
    notes = [note for note in (c.note, c.price_note, retirement_note(c.retires_on)) if note]
    if c.evidence.startswith(UNMEASURED):
        notes.append(UNMEASURED)
    try:
        days = days_old(c.price_date[:10], today or datetime.now(UTC).date())
    except ValueError:
        days = 0  # some sources give a month, or no date
    if days > OLD_DAYS:
        notes.append(f"price {days} days old")
    return "; ".join(notes)


def _memory(c: Candidate) -> str:
    if c.memory_frac is None:
        return "-"
    return f"{c.memory_bytes / units.GIB:,.0f}/{c.capacity_bytes / units.GIB:,.0f} GiB"


def layout(c: Candidate) -> str:
    """The layout in the field's letters, degrees of 1 left out."""
    fields = c.layout
    words = [f"{k}{fields[k]}" for k in ("dp", "tp", "pp", "cp", "ep") if fields.get(k, 1) != 1]
    if fields.get("zero"):
        words.append(f"hsdp{fields['shard']}" if fields.get("shard") else f"zero{fields['zero']}")
    if fields.get("interleave", 1) != 1:
        words.append(f"v{fields['interleave']}")
    if fields.get("schedule", "1f1b") != "1f1b":
        words.append(str(fields["schedule"]))
    if "micro_batch" in fields:
        words.append(f"mb{fields['micro_batch']}")
    if fields.get("recompute", "none") != "none":
        every, first = fields.get("recompute_every", 1), fields.get("recompute_first", 0)
        some = f" of first {first}" if first else f"/{every}" if every > 1 else ""
        words.append(f"recompute {fields['recompute']}{some}")
    if fields.get("offload"):
        words.append(f"offload {'+'.join(fields['offload'])}")
    if "replicas" in fields:
        words += [units.format_items(fields["replicas"], "replica"), f"batch {fields['max_batch']}"]
    if "prefill_gpus" in fields:
        words.append(f"{fields['prefill_gpus']} for prompts each")
    words.append(str(fields.get("precision") or fields.get("weights")))
    if fields.get("kv_dtype", "bf16") != "bf16":
        words.append(f"kv {fields['kv_dtype']}")
    return " ".join(words)


def _best(best: Candidate, plan: Plan, paper: Screen) -> str:
    """The best plan in full."""
    bought = "" if best.is_hosted else f" ({best.region}), {best.purchase.replace('_', ' ')}"
    rows: list[tuple[str, Any]] = [("best plan", f"{best.machines}{bought}")]
    if not best.is_hosted:
        rows += [("layout", _layout_text(best.layout, plan.task)), ("price", _price(best))]
    rows += _interval_rows(best, plan)
    if best.start_s:
        first = "step" if plan.task in TRAINING else "request"
        when = (
            f"{units.format_seconds(best.start_s)} before the first {first} (boot, image, weights, data, compilation)"
        )
        rows.append(("start", f"{when}; {units.format_usd(best.start_usd)} of the cost"))
    figures = {name: value for name, value in best.figures.items() if value is not None}
    if plan.task in WITHOUT_FIRST:
        figures.pop("ttft_s", None)
    figures.pop("e2e_s", None)  # of a service it stands above, with its interval; a run does not wait for one
    rows += [(_label(name, plan), _figure(name, value, plan.task)) for name, value in figures.items()]
    if best.simulated is not None:
        rows += _simulation_rows(best.simulated, queued=plan.task == "batch")
    chances = {name: f"{units.format_chance(p)} chance" for name, p in best.meets.items()}
    if (larger := [one.name for one in plan.unstated if one.memory_high > LARGER]) and "memory" in chances:
        chances["memory"] += f" with the {' and the '.join(larger)} assumed below"
    rows += [(MET.get(name, f"meets {TARGET_NAMES.get(name, name)}"), text) for name, text in chances.items()]
    return pairs(rows, paper)


def _label(figure: str, plan: Plan) -> str:
    """The name of a candidate's figure; of latencies under a rate with their percentile."""
    target = SERVED.get(figure)
    if target is None or not {"requests_per_s", "trace"} & (plan.workload.get("traffic") or {}).keys():
        return LABELS[figure]
    return f"{LABELS[figure]} {plan.percentile(target)}"


def _layout_text(layout: Mapping[str, Any], task: str) -> str:
    """The layout in words, without the axes that nothing is split over and what counts only beside others."""
    idle = {name for name, value in layout.items() if value in (0, 1, "none", None) and name not in BATCHES}
    if task == "encode":
        idle.add("kv_dtype")
    if "pp" in idle:
        idle |= {"schedule", "interleave"}
    if layout.get("recompute_first"):
        idle.discard("recompute_first")
    if "recompute" in idle:
        idle.add("recompute_every")
    return ", ".join(
        f"{LAYOUT_NAMES.get(name, name.replace('_', ' '))} {decimal(value) if isinstance(value, float) else value}"
        for name, value in layout.items()
        if name not in idle
    )


def _interval_rows(best: Candidate, plan: Plan) -> Iterator[tuple[str, str]]:
    """Time, cost and energy with their 80 % intervals, and what those rest on."""
    runs, seconds = plan.task in RUNS, units.format_seconds
    month = "" if runs else " a month"
    for title, figure, text in (
        ("time" if runs else _label("e2e_s", plan), "seconds", seconds),
        ("cost" + month, "cost_usd", units.format_usd),
        ("energy" + month, "energy_joules", units.format_joules),
    ):
        value, ends = getattr(best, figure), best.ends(figure)
        if value is not None and ends is not None:
            low, high = map(text, ends)
            same = f"{text(value)}, the same at both ends of the 80 % interval"
            yield title, same if low == high else f"{text(value)} {units.format_interval(*ends, text)}"
    if best.evidence:
        yield "based on", best.evidence


def _price(best: Candidate) -> str:
    """The hourly price of the machines, with its day, source and remarks."""
    dated = "undated" if best.price_date == UNDATED else best.price_date and f"of {best.price_date}"
    note = beside_date(best.price_note) if dated else best.price_note
    words = [f"{units.format_usd(best.usd_per_hour)}/h", dated, note, retirement_note(best.retires_on)]
    return f"{', '.join(filter(None, words))}: {best.price_source}"


def _simulation_rows(run: SimulatedFigures, *, queued: bool) -> list[tuple[str, Any]]:
    """Figures of the simulation; `queued`: all requests arrive at the start, so only the time per token is shown."""
    rows: list[tuple[str, Any]] = [
        ("simulated", f"{run.requests:,} requests through {units.format_items(run.replicas, 'replica')}")
    ]
    latencies = {"TTFT": run.ttft_s, "TPOT": run.tpot_s, "whole request": run.e2e_s}
    one_pass = run.tpot_s["p50"] is None and run.ttft_s == run.e2e_s
    if one_pass:
        del latencies["TTFT"]
    for label, values in {"TPOT": run.tpot_s}.items() if queued else latencies.items():
        shown = [f"{p} {units.format_seconds(v)}" for p, v in values.items() if v is not None and p != "mean"]
        if shown:
            rows.append((f"  {label}", ", ".join(shown)))
    for priority, one in run.by_priority.items():
        first = ", ".join(f"{p} {units.format_seconds(one['ttft_s'][p])}" for p in ("p50", "p95"))
        rows.append((f"  priority {priority}", f"{units.format_percent(one['frac'])} of requests, TTFT {first}"))
    if run.goodput_frac is not None:
        rows.append(("  within all targets", units.format_percent(run.goodput_frac)))
    if run.sessions is not None:
        rows += _session_rows(run.sessions)
    cache = "" if one_pass else f", cache at most {units.format_percent(run.kv_peak_frac)} full"
    dropped = f"; {run.dropped:,} requests too long for the model or the cache" if run.dropped else ""
    busy = f"{units.format_percent(run.utilisation_frac)} of the time in engine steps"
    return [*rows, ("  busy", f"{busy}{cache}{dropped}")]


def _session_rows(sessions: SimulatedSessions) -> Iterator[tuple[str, Any]]:
    """The origin of histories, the TTFT of later turns, and the cost of a session."""
    turns = f"{sessions.sessions:,}, {format_number(sessions.turns_per_session)} turns each"
    yield "  sessions", turns
    shares = {"the device": sessions.device_frac, **sessions.store_fracs, "computed": sessions.computed_frac}
    yield "  prompts", ", ".join(f"{units.format_percent(share)} {name}" for name, share in shares.items())
    later = [f"{p} {units.format_seconds(v)}" for p, v in sessions.turn_ttft_s.items() if v is not None]
    if later:
        yield "  TTFT of later turns", ", ".join(later)


def _figure(name: str, value: float, task: str) -> str:
    if name == "usd_per_session":
        return units.format_cost(value) or ""
    if name.endswith("_frac"):
        return units.format_percent(value)
    if name.startswith("usd_per"):
        counted = "input" if task == "encode" else "output, including the cost of their prompts"
        return f"{units.format_usd(value)} ({counted})"
    if "_per_s" in name:
        return decimal(value)
    return units.format_seconds(value) if name.endswith("_s") else decimal(value)


def _front(plan: Plan, paper: Screen) -> str:
    """The chart of cost against time; the chosen plans stand out. What the front holds for less energy is left out."""
    service = plan.task in ("serve", "encode")
    points: list[tuple[float, float]] = []
    for c in sorted(plan.front, key=lambda c: (c.cost_usd, c.seconds)):
        if not points or c.seconds < points[-1][0]:
            points.append((c.seconds, c.cost_usd))
    if len(points) < 2:
        return ""
    series = [Series("cheapest at each time", points, line=True)]
    if plan.plans:
        series.append(Series("the ten best plans", [(c.seconds, c.cost_usd) for c in plan.plans[:10]], mark="o"))
    x = Axis("time of a request" if service else "time of the run", units.format_seconds, log=True)
    return chart(series, x, Axis("monthly cost" if service else "total cost", units.format_usd, log=True), paper)


def _fronts(plan: Plan, paper: Screen) -> Iterator[str]:
    """A chart of cost against TTFT, and one against TPOT; the best plans stand out as they were estimated."""
    for target, rows in plan.fronts.items():
        if len(rows) < 2:
            continue

        def points(some: list[Candidate], figure: str = f"{target}_s") -> list[tuple[float, float]]:
            return [(value, c.cost_usd) for c in some if (value := c.figures.get(figure)) is not None]

        series = [Series("cheapest at each", points(rows), line=True)]
        series.append(Series("the ten best plans", points(plan.plans[:10]), mark="o"))
        x = Axis(f"{LATENCIES[target]} ({plan.percentile(target)}, estimated)", units.format_seconds, log=True)
        yield chart(series, x, Axis("monthly cost", units.format_usd, log=True), paper, rows=10)


def _traffic(best: Candidate, paper: Screen) -> Iterator[str]:
    """The traffic on the links of the best plan and to storage, where it has any."""
    if best.network:
        yield "Network that plan 1 needs, of each accelerator in one direction:"
        yield table(*network_table(best.network), paper)
    if best.storage:
        yield "Storage that plan 1 needs, of all machines together:"
        yield table(*_storage_table(best.storage), paper)


def _storage_table(needs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Headers and rows of what storage has to deliver and take, by purpose."""
    rates = ("needed_bytes_per_s", "node_needed_bytes_per_s", "assumed_bytes_per_s")
    rows = [
        (
            need["purpose"],
            units.format_bytes(need["nbytes"]),
            "-" if need["every_s"] is None else units.format_seconds(need["every_s"]),
            *("-" if need[name] is None else units.format_rate(need[name], "B/s") for name in rates),
        )
        for need in needs
    ]
    return ["for", ">size", ">every", ">needed", ">for a machine", ">assumed"], rows


def _target_costs(plan: Plan, paper: Screen) -> str:
    """Each target moved a step: what the best plan then costs, and by how much that is more or less than plan 1."""

    def change(saved: float | None, shown: Callable[[float], str]) -> str | None:
        return None if saved is None else f"{'-' if saved > 0 else '+' if saved < 0 else ''}{shown(abs(saved))}"

    rows = [
        (
            LATENCIES[row.target],
            f"{row.percentile} {units.format_seconds(row.from_s)}",
            "none" if row.to_s is None else f"{row.to_percentile} {units.format_seconds(row.to_s)}",
            None if row.cost_usd is None else units.format_usd(row.cost_usd),
            change(row.saves_usd, units.format_usd),
            change(row.saves_frac, lambda frac: f"{100 * frac:.0f} %"),
            row.instead or "no plan meets it",
        )
        for row in plan.target_costs
    ]
    return table(("target", ">now", ">moved to", ">cost", ">change", ">share", "with"), rows, paper)


def _levers(plan: Plan, paper: Screen) -> str:
    """Each single change with what it does to memory, time and cost, in percent."""
    rows = [
        (
            one.change,
            *(known_text(ratio, units.format_change) for ratio in (one.memory, one.seconds, one.cost)),
            "yes" if one.fits else "no",
            one.note,
        )
        for one in plan.levers
    ]
    return table(("change", ">memory", ">time", ">cost", "fits", "note"), rows, paper)


def floor(one: Floor) -> str:
    """A sentence on the physical bound of a target, and on the device that reaches it."""
    terms = " + ".join(f"{name} {units.format_seconds(s)}" for name, s in one.parts.items() if s)
    how = f"tp {one.layout['tp']}, {one.layout['weights']} weights"
    verdict = "is impossible" if one.seconds > one.limit_s else "is physically possible"
    return (
        f"{LATENCIES[one.target]} {units.format_seconds(one.limit_s)} {verdict}: the fastest allowed device takes at "
        f"least {units.format_seconds(one.seconds)} ({one.gpu} in {one.instance}, {how}: {terms})"
    )


def reasons(plan: Plan) -> list[str]:
    """Sentences on how the nearest misses miss, and on the bounds of the targets, for a message."""
    floors = [floor(f) for f in plan.floors if f.forbids]
    for miss in plan.misses[:3]:
        over = {name: units.format_times(ratio) for name, ratio in miss.shortfall.items() if ratio > 1}
        short = [
            f"min_gpus {times} its GPUs" if name == "min_gpus" else f"{TARGET_NAMES.get(name, name)} {times} its limit"
            for name, times in over.items()
        ]
        odds = [
            f"{TARGET_NAMES.get(name, name)} {units.format_chance(p)} chance"
            for name, p in miss.meets.items()
            if miss.shortfall.get(name, 0) <= 1
        ]
        floors.append(f"nearest: {miss.num_instances} x {miss.provider} {miss.instance}: {', '.join(short + odds)}")
    return floors + [f"{' '.join(_count_and_unit(r))}: {r.reason}" for r in plan.decisive[:5]]


def _count_and_unit(one: Rejection) -> tuple[str, str]:
    """The number that was ruled out, and its noun: `1,204`, `layouts`."""
    return f"{one.count:,}", one.unit.removesuffix("s") if one.count == 1 else one.unit


def comparison(one: Plan, two: Plan, paper: Screen) -> Iterator[str]:
    """Two plans side by side: their best candidates, and which instance types only one of them has."""
    yield heading(f"{title(one)}  against  {title(two)}", paper)
    first, second = one.plans[:1] or one.misses[:1], two.plans[:1] or two.misses[:1]
    if not first or not second:
        yield "One of the plans has no candidate."
        return
    both = (first[0], second[0])

    def row(label: str, text: Any, value: Any = None) -> tuple[Any, ...]:
        """A row, with the change from the first to the second `value`."""
        change = None
        if value is not None:
            before, after = map(value, both)
            change = units.format_change(after / before, 1) if before else "-"
        return (label, *map(text, both), change)

    rows = [
        row("instances", lambda c: f"{c.num_instances} x {c.provider} {c.instance}"),
        row("GPUs", lambda c: f"{c.num_gpus} x {c.gpu}"),
        row("layout", layout),
        row("time", lambda c: units.format_seconds(c.seconds), lambda c: c.seconds),
        row("per hour", lambda c: units.format_usd(c.usd_per_hour), lambda c: c.usd_per_hour),
        row("cost", lambda c: units.format_usd(c.cost_usd), lambda c: c.cost_usd),
        row("memory", _memory, lambda c: c.memory_bytes),
        row("meets", lambda c: c.likely),
    ]
    yield table(("", ">first", ">second", ">change"), rows, paper)
    names = [{(c.provider, c.instance) for c in plan.plans} for plan in (one, two)]
    for which, only in (("first", names[0] - names[1]), ("second", names[1] - names[0])):
        if only:
            listed = ", ".join(f"{p} {i}" for p, i in sorted(only)[:8])
            yield f"Only in the {which}: {listed}{' ...' if len(only) > 8 else ''}"
