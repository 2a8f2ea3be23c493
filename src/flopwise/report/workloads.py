"""What each workload is, on what it should run, and what it will do there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flopwise.fleet.assessment import Assessment, WorkloadResult
from flopwise.report.blocks import Bar, Bars, Block, Link, Table, Text
from flopwise.report.words import dash, digits, enumeration, figure, hours, purchase_text, runs_on
from flopwise.storage.spec import STALL_FRAC
from flopwise.units import (
    format_bytes,
    format_chance,
    format_count,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
)

FIGURES = {
    "run_s": "one run", "start_s": "start of a run", "ttft_s": "first token", "tpot_s": "each further token",
    "latency_s": "latency", "requests_per_s": "requests/s it sustains", "tokens_per_s": "tokens/s",
    "output_tokens_per_s": "output tokens/s", "mfu_frac": "MFU", "step_s": "one step",
}  # fmt: skip
"""Figures of a plan in the order that they are shown."""
DRAWN = 30
"""Workloads in a picture; tables have all."""
OF_REQUESTS = {"ttft_s", "tpot_s", "latency_s"}


def _figures(w: WorkloadResult) -> Mapping[str, Any]:
    return w.best.get("figures") or {}


def _shown_figures(w: WorkloadResult) -> Iterator[tuple[str, Any]]:
    """The figures worth showing: of runs nobody asks for the latency of a request, unless there is a target."""
    figures = _figures(w)
    for name in FIGURES:
        if figures.get(name) is None or (name in OF_REQUESTS and "run_s" in figures and name not in w.targets):
            continue
        if name == "output_tokens_per_s" and "requests_per_s" in w.targets:
            continue  # what the traffic asks for, no figure of the plan
        yield name, figures[name]


def _name(w: WorkloadResult, name: str) -> str:
    """`p95 latency`."""
    for one in (w.targets.get(name), _figures(w).get(name)):
        if name in OF_REQUESTS and isinstance(one, Mapping) and "percentile" in one:
            return f"{one['percentile']} {FIGURES[name]}"
    return FIGURES[name]


def _middle(value: Any) -> float:
    """The expected value of a figure, with an interval or without."""
    return float(value["value"] if isinstance(value, Mapping) else value)


def _interval(name: str, value: Any) -> str:
    """The interval of a figure in words."""
    return f"{figure(name, value['low'])} to {figure(name, value['high'])}" if isinstance(value, Mapping) else "-"


def _target(w: WorkloadResult, name: str) -> str:
    """The target of a figure, in words."""
    return dash(w.targets.get(name), lambda target: figure(name, float(target["value"])))


def performance(w: WorkloadResult) -> str:
    """The figures that a recommendation names: how long a run takes, or the latency and what the machines can take."""
    main = ("run_s", "tokens_per_s") if "run_s" in _figures(w) else ("latency_s", "requests_per_s")
    parts = []
    for name, value in _shown_figures(w):
        if name in main or name in w.targets:
            interval = f" ({_interval(name, value)})" if isinstance(value, Mapping) else ""
            words, text = figure(name, _middle(value)), _name(w, name).removesuffix(" it can take")
            parts.append((f"{words} {text}" if name.endswith("_per_s") else f"{text} {words}") + interval)
    return "; ".join(parts) or "-"


def workloads(assessment: Assessment) -> Iterator[Block]:
    """Requirements: what each workload is and what it takes."""
    yield Table(
        [
            "workload", "kind", "environment", "model", ">parameters", ">memory", ">FLOP/byte", "bound by",
            ">runs a month", ">hours a month",
        ],
        [
            (
                w.name, w.kind, w.environment, w.model or "-", dash(w.parameters, format_count),
                dash(w.memory_bytes, format_bytes), dash(w.intensity, digits), w.pattern or "-",
                dash(w.runs_per_month, lambda runs: f"{format_number(runs)}"), hours(w.hours_per_month),
            )
            for w in assessment.workloads
        ],
        "Memory is that of all devices of one copy, FLOP/byte counts bytes moved to and from device memory, both as "
        "recommended; hours are those in which the machines are on.",
    )  # fmt: skip


def recommendations(assessment: Assessment) -> Iterator[Block]:
    """Machines, layout, what to expect, and why not a cheaper one."""
    linked = any(w.plan_file for w in assessment.workloads)
    rows: list[tuple[str | Link, ...]] = []
    for w in assessment.workloads:
        plan: tuple[str | Link, ...] = (Link("plan", plan_page(w.plan_file)) if w.plan_file else "-",) if linked else ()
        if not w.feasible:
            rows.append((w.name, "no machine runs it", "", "", "; ".join(w.reasons), *plan))
            continue
        way = f"{runs_on(assessment, w)}, {purchase_text(str(w.best.get('purchase', '')))}".rstrip(", ")
        reason = w.why_not_cheaper or "it is the cheapest"
        rows.append((w.name, way, layout(w.best.get("layout") or {}), performance(w), reason, *plan))
    headers = ["workload", "machines", "layout", "expected (80 % interval)", "why not a cheaper one"]
    yield Table(
        [*headers, *(["the plan"] if linked else [])], rows,
        "Each plan shows the choice with its figures, and the alternatives." if linked else "",
    )  # fmt: skip


def plan_page(plan_file: str) -> str:
    """The page beside the file of a plan."""
    return f"{plan_file.removesuffix('.json')}.html"


def layout(plan: Mapping[str, Any]) -> str:
    """The layout of the model on the devices, in a few words, without degrees of 1."""
    if not plan:
        return "-"
    split = " · ".join(
        f"{axis} {plan[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep") if int(plan.get(axis) or 1) > 1
    )
    if "replicas" in plan:
        copies = int(plan["replicas"])
        cache = f", {plan['kv_dtype']} cache" if plan.get("kv_dtype") not in {None, plan.get("weights")} else ""
        parts = [
            f"{copies:,} {'replica' if copies == 1 else 'replicas'}{' of ' if split else ''}{split}",
            f"up to {plan.get('max_batch', '?')} at once", f"{plan.get('weights', '?')} weights{cache}",
            str(plan.get("engine") or ""),
        ]  # fmt: skip
    else:
        zero, recompute = int(plan.get("zero") or 0), plan.get("recompute")
        every, first = int(plan.get("recompute_every") or 1), plan.get("recompute_first")
        some = f" of first {first}" if first else f"/{every}" if every > 1 else ""
        batch = f"of {plan.get('global_batch', '?')} x {plan.get('seq_len', '?')} tokens"
        parts = [
            (split or "one device") + (f", ZeRO {zero}" if zero and int(plan.get("dp") or 1) > 1 else ""),
            f"micro-batch {plan['micro_batch']} {batch}" if plan.get("micro_batch") else "",
            str(plan.get("precision") or ""), f"recompute {recompute}{some}" if recompute not in {None, "none"} else "",
            str(plan.get("stack") or ""),
        ]  # fmt: skip
    return "; ".join(part for part in parts if part)


RATES = ("average_bytes_per_s", "needed_bytes_per_s", "node_needed_bytes_per_s", "link_bytes_per_s")
SERVICE_RATES = ("average_bytes_per_s", "full_bytes_per_s", "node_full_bytes_per_s", "link_bytes_per_s")


def expected_figures(assessment: Assessment) -> Iterator[Block]:
    """Every figure of every plan with its interval and target, and how much of each target is used."""
    used = [bar for w in assessment.workloads if w.feasible for bar in _target_bars(w)]
    if used:
        kept = set(sorted(range(len(used)), key=lambda n: -used[n].value)[:DRAWN])
        most = "" if len(kept) == len(used) else f", of the {DRAWN} that need most of it"
        yield Bars(
            f"Time taken of the time allowed{most}, with its 80 % interval",
            [bar for n, bar in enumerate(used) if n in kept], 100.0, "the target",
        )  # fmt: skip
    shown = [w for w in assessment.workloads if any(True for _ in _shown_figures(w))]
    runs = [w for w in shown if "run_s" in w.best["figures"]]
    services = [w for w in shown if "run_s" not in w.best["figures"]]
    if runs:
        yield Table(
            ["run", ">takes", "80 % interval", ">starts in", ">allowed", ">chance to meet it", ">tokens/s",
             "80 % interval", ">MFU"],
            [
                (w.name, *_cells(w, "run_s"), _cells(w, "start_s")[0], _target(w, "run_s"), _odds(w, "run_s"),
                 *_cells(w, "tokens_per_s", "output_tokens_per_s"), _cells(w, "mfu_frac")[0])
                for w in runs
            ],
            "A run may take its share of the hours of its environment, or its deadline if that is shorter. Its start "
            "(machines, image, weights, data, compilation) is paid for but not part of its time. Tokens are those "
            "trained on; of batches, output tokens.",
        )  # fmt: skip
    if links := [(w.name, need) for w in runs for need in w.best.get("network", []) if "step_bytes" in need]:
        yield Table(
            ["network of", "link", "sent per step and accelerator", ">on average", ">needed to stay hidden",
             ">per node", ">link bandwidth"],
            [_link_row(name, need, "step_bytes", RATES) for name, need in links],
            "Bandwidth of one accelerator in one direction; per node, of all its accelerators together. To stay "
            "hidden: messages take no longer than the computation that can overlap them.",
        )  # fmt: skip
    if services:
        yield Table(
            ["service", "latency", ">expected", "80 % interval", ">target", ">chance to meet it",
             ">capacity, requests/s", "80 % interval", ">load"],
            [row for w in services for row in _service_rows(w)],
            "Capacity is what the machines sustain; replicas are planned below it.",
        )  # fmt: skip
    if links := [(w.name, need) for w in shown for need in w.best.get("network", []) if "request_bytes" in need]:
        yield Table(
            ["network of", "link", "sent per request and accelerator", ">at the planned rate", ">at full load",
             ">per node", ">link bandwidth"],
            [_link_row(name, need, "request_bytes", SERVICE_RATES) for name, need in links],
            "Bandwidth of one accelerator in one direction; for a node, of all its accelerators at full load.",
        )  # fmt: skip
    if stored := [(w.name, need) for w in shown for need in w.best.get("storage", [])]:
        yield Table(
            ["storage of", "for", ">size", ">every", ">needed", ">per machine", ">assumed"],
            [_storage_row(name, need) for name, need in stored],
            "Bandwidth of all machines together unless per machine; assumed: in the plan's times. Data are read as "
            "fast as they are trained on, without a cache; their size is that of an epoch, and no step waits for "
            "them. Checkpoints are written as often as loses least, and once by a shorter run; needed is what keeps "
            f"writing to {format_percent(STALL_FRAC, 0)} of the time. Weights are loaded when a machine starts.",
        )  # fmt: skip
    if any(isinstance(value, Mapping) for w in shown for value in w.best["figures"].values()):
        yield Text(
            "Intervals come from the errors of our predictions of published runs. The interval of a whole answer is "
            "computed from those of TTFT and TPOT, whose errors are assumed to add up; it was checked on the published "
            "runs that report whole answers (latency_s of `flopwise backtest serving`)."
        )
    bare = [w for w in shown if str(w.best.get("evidence")).startswith("no measured run")]
    if bare:
        yield Text(
            "No run was measured on the architecture of "
            + enumeration([f"{w.name} ({w.best['gpu']})" for w in bare], 8)
            + ": these intervals are wider, by as much as leaving an architecture out of the backtests costs."
        )


def _link_row(name: str, need: Mapping[str, Any], sent: str, rates: Sequence[str]) -> tuple[str, ...]:
    """One kind of link of a workload: what is sent over it by purpose (`need[sent]`), and the bandwidths."""
    return (
        name, f"{need['link']}, {'between nodes' if need['between_nodes'] else 'inside'}",
        ", ".join(f"{what.replace('_', ' ')} {format_bytes(n)}" for what, n in need[sent].items()),
        *(dash(need[rate], lambda value: format_rate(value, "B/s")) for rate in rates),
    )  # fmt: skip


def _storage_row(name: str, need: Mapping[str, Any]) -> tuple[str, ...]:
    """One purpose of storage of a workload: bytes of a transfer, and the bandwidths."""
    rates = ("needed_bytes_per_s", "node_needed_bytes_per_s", "assumed_bytes_per_s")
    return (
        name, need["purpose"], format_bytes(need["nbytes"]), dash(need["every_s"], format_seconds),
        *(dash(need[rate], lambda value: format_rate(value, "B/s")) for rate in rates),
    )  # fmt: skip


def _cells(w: WorkloadResult, *names: str) -> tuple[str, str]:
    """(expected, interval) of the first of `names` that is known."""
    figures = w.best["figures"]
    name = next((n for n in names if figures.get(n) is not None), None)
    return ("-", "-") if name is None else (figure(name, _middle(figures[name])), _interval(name, figures[name]))


def _service_rows(w: WorkloadResult) -> Iterator[tuple[str, ...]]:
    """A row for each latency, those with a target first; what the machines take stands in the first one."""
    figures = w.best["figures"]
    names = [n for n in FIGURES if n in OF_REQUESTS and figures.get(n) is not None]
    names.sort(key=lambda n: n not in w.targets)
    if len(names) == 2 and _middle(figures[names[0]]) == _middle(figures[names[1]]):
        names = names[:1] if names[0] in w.targets else names[1:]  # answered in one pass: no token is the first
    rate = dash(w.targets.get("requests_per_s"), lambda target: digits(target["value"]))
    for number, name in enumerate(names):
        yield (
            "" if number else w.name, _name(w, name), *_cells(w, name), _target(w, name), _odds(w, name),
            *(("", "", "") if number else (*_cells(w, "requests_per_s"), rate)),
        )  # fmt: skip


def _odds(w: WorkloadResult, name: str) -> str:
    key = {"run_s": "deadline"}.get(name, name.removesuffix("_s"))
    odds = (w.best.get("meets") or {}).get(key)
    if odds is None or name not in w.targets:
        return "-"
    return format_chance(odds)


def _target_bars(w: WorkloadResult) -> Iterator[Bar]:
    """Latencies and runs as shares of what they may take, in percent."""
    for name, target in w.targets.items():
        value = _figures(w).get(name)
        if name == "requests_per_s" or not isinstance(value, Mapping):
            continue
        most = float(target["value"])
        low, mid, high = (100 * float(value[k]) / most for k in ("low", "value", "high"))
        text = f"{format_seconds(_middle(value))} of {format_seconds(most)} ({mid:,.0f} %)"
        what = "" if len(w.targets) < 2 or name in {"run_s", "latency_s"} else f", {FIGURES[name]}"
        yield Bar(f"{w.name}{what}", mid, text, low, high, _interval(name, value))
