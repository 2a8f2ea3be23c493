"""What each workload is, on what it should run, and what it will do there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flopwise.report.blocks import Bar, Bars, Block, Link, Table, Text
from flopwise.report.words import bought, count, digits, figure, hours, runs_on, share
from flopwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment, WorkloadResult

FIGURES = {
    "run_s": "one run",
    "ttft_s": "first token",
    "tpot_s": "each further token",
    "latency_s": "latency",
    "requests_per_s": "requests/s it can take",
    "tokens_per_s": "tokens/s",
    "output_tokens_per_s": "output tokens/s",
    "mfu_frac": "MFU",
    "step_s": "one step",
}
"""Figures of a plan in the order that they are shown."""
DRAWN = 30
"""Workloads in a picture; tables have all."""
OF_REQUESTS = {"ttft_s", "tpot_s", "latency_s"}


def shown_figures(w: WorkloadResult) -> Iterator[tuple[str, Any]]:
    """The figures worth showing: of runs nobody asks for the latency of a request, unless there is a target."""
    held = w.best.get("figures") or {}
    for name in FIGURES:
        if held.get(name) is None or (name in OF_REQUESTS and "run_s" in held and name not in w.targets):
            continue
        if name == "output_tokens_per_s" and "requests_per_s" in w.targets:
            continue  # what the traffic asks for, no figure of the plan
        yield name, held[name]


def figure_name(w: WorkloadResult, name: str) -> str:
    """`p95 latency`."""
    given = w.targets.get(name, {}).get("percentile") or (w.best.get("figures") or {}).get("percentile", "")
    return f"{given} {FIGURES[name]}".strip() if name in OF_REQUESTS else FIGURES[name]


def middle(value: Any) -> float:
    """The expected value of a figure, with an interval or without."""
    return float(value["value"] if isinstance(value, Mapping) else value)


def ends(name: str, value: Any) -> str:
    """Its interval in words."""
    if not isinstance(value, Mapping):
        return "-"
    return f"{figure(name, value['low'])} to {figure(name, value['high'])}"


def target(w: WorkloadResult, name: str) -> str:
    """What is asked of a figure."""
    asked = w.targets.get(name)
    if asked is None:
        return "-"
    return figure(name, float(asked["value"]))


def performance(w: WorkloadResult) -> str:
    """The figures that a recommendation names: how long a run takes, or the latency and what the machines can take."""
    ends_itself = "run_s" in (w.best.get("figures") or {})
    first = {*(("run_s", "tokens_per_s") if ends_itself else ("latency_s", "requests_per_s")), *w.targets}
    said = []
    for name, value in shown_figures(w):
        if name not in first:
            continue
        interval = "" if not isinstance(value, Mapping) else f" ({ends(name, value)})"
        told = figure(name, middle(value))
        if name.endswith("_per_s"):
            said.append(f"{told} {FIGURES[name].removesuffix(' it can take')}{interval}")
        else:
            said.append(f"{figure_name(w, name)} {told}{interval}")
    return "; ".join(said) or "-"


def workloads(assessment: Assessment) -> Iterator[Block]:
    """Requirements: what each workload is and what it takes."""
    yield Table(
        [
            "workload", "kind", "environment", "model", ">parameters", ">memory", ">FLOP/byte", "bound by",
            ">runs a month", ">hours a month",
        ],
        [
            (
                w.name, w.kind, w.environment, w.model or "-", count(w.parameters),
                "-" if w.memory_bytes is None else format_bytes(w.memory_bytes),
                "-" if w.intensity is None else digits(w.intensity), w.pattern or "-",
                "-" if w.runs_per_month is None else f"{w.runs_per_month:,.3g}", hours(w.hours_per_month),
            )
            for w in assessment.workloads
        ],
        "Memory of all devices of one copy, and operations for each byte of device memory moved, are of the "
        "recommended way to run it; hours are those that its machines are on.",
    )  # fmt: skip


def recommendations(assessment: Assessment) -> Iterator[Block]:
    """Machines, layout, what to expect, and why not the cheaper one."""
    linked = any(w.plan_file for w in assessment.workloads)
    rows: list[tuple[str | Link, ...]] = []
    for w in assessment.workloads:
        plan: tuple[str | Link, ...] = (Link("plan", w.plan_file) if w.plan_file else "-",) if linked else ()
        if not w.feasible:
            rows.append((w.name, "nothing runs it", "", "", "; ".join(w.reasons), *plan))
            continue
        way = f"{runs_on(assessment, w)}, {bought(str(w.best.get('purchase', '')))}".rstrip(", ")
        reason = w.why_not_cheaper or "it is the cheapest"
        rows.append((w.name, way, layout(w.best.get("layout") or {}), performance(w), reason, *plan))
    headers = ["workload", "machines", "laid out", "expected (in 8 of 10 cases)", "why not the cheaper one"]
    yield Table(
        [*headers, *(["the plan"] if linked else [])], rows,
        "Each plan holds the choice with its figures, and what else was considered." if linked else "",
    )  # fmt: skip


def layout(held: Mapping[str, Any]) -> str:
    """How the model lies on the devices, in a few words; what does not matter is left out."""
    if not held:
        return "-"
    split = [f"{axis} {held[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep") if int(held.get(axis) or 1) > 1]
    if "replicas" in held:
        copies = int(held["replicas"])
        first = f"{copies:,} {'replica' if copies == 1 else 'replicas'}{' of ' if split else ''}{' · '.join(split)}"
        cache = f", {held['kv_dtype']} cache" if held.get("kv_dtype") not in {None, held.get("weights")} else ""
        said = [first, f"up to {held.get('max_batch', '?')} at once", f"{held.get('weights', '?')} weights{cache}"]
        return "; ".join([*said, str(held.get("engine") or "")]).rstrip("; ")
    zero, recompute = int(held.get("zero") or 0), held.get("recompute")
    first = " · ".join(split) or "one device"
    said = [first + (f", ZeRO {zero}" if zero and int(held.get("dp") or 1) > 1 else "")]
    if held.get("micro_batch"):
        said.append(
            f"micro-batch {held['micro_batch']} of {held.get('global_batch', '?')} x {held.get('seq_len', '?')} tokens"
        )
    said += [str(held.get("precision") or "")]
    said += [f"recompute {recompute}" if recompute not in {None, "none"} else "", str(held.get("stack") or "")]
    return "; ".join(part for part in said if part)


def expected(assessment: Assessment) -> Iterator[Block]:
    """Every figure of every plan with its interval and target, and how much of each target is used."""
    used = [bar for w in assessment.workloads if w.feasible for bar in _used(w)]
    if used:
        kept = set(sorted(range(len(used)), key=lambda n: -used[n].value)[:DRAWN])
        most = "" if len(kept) == len(used) else f", of the {DRAWN} that need most of it"
        yield Bars(
            f"Time taken of the time allowed{most}, with the interval that holds in 8 of 10 cases",
            [bar for n, bar in enumerate(used) if n in kept], 100.0, "the target",
        )  # fmt: skip
    told = [w for w in assessment.workloads if any(True for _ in shown_figures(w))]
    runs = [w for w in told if "run_s" in w.best["figures"]]
    services = [w for w in told if "run_s" not in w.best["figures"]]
    if runs:
        yield Table(
            ["run", ">takes", "in 8 of 10 cases", ">allowed", ">chance to hold it", ">tokens/s", "in 8 of 10 cases",
             ">MFU"],
            [
                (w.name, *_cells(w, "run_s"), target(w, "run_s"), _odds(w, "run_s"),
                 *_cells(w, "tokens_per_s", "output_tokens_per_s"), _cells(w, "mfu_frac")[0])
                for w in runs
            ],
            "A run may take its share of the hours of its environment, or its deadline where that is shorter. Tokens "
            "are those trained on; of batches, those that come out.",
        )  # fmt: skip
    if services:
        yield Table(
            ["service", "latency", ">expected", "in 8 of 10 cases", ">target", ">chance to hold it",
             ">requests/s it takes", "in 8 of 10 cases", ">asked"],
            [row for w in services for row in _service(w)],
            "Requests are what the machines take before they are full; replicas are planned below that.",
        )  # fmt: skip
    if rows_of_intervals(told):
        yield Text("Intervals are the errors of the models, measured against published runs.")


def rows_of_intervals(told: Sequence[WorkloadResult]) -> bool:
    """Whether any figure has an interval."""
    return any(isinstance(v, Mapping) for w in told for v in w.best["figures"].values())


def _cells(w: WorkloadResult, *names: str) -> tuple[str, str]:
    """(expected, interval) of the first of `names` that is known."""
    held = w.best["figures"]
    name = next((n for n in names if held.get(n) is not None), None)
    return ("-", "-") if name is None else (figure(name, middle(held[name])), ends(name, held[name]))


def _service(w: WorkloadResult) -> Iterator[tuple[str, ...]]:
    """A row for each latency, those with a target first; what the machines take stands in the first one."""
    held = w.best["figures"]
    names = sorted(
        (n for n in FIGURES if n in OF_REQUESTS and held.get(n) is not None), key=lambda n: n not in w.targets
    )
    if len(names) == 2 and middle(held[names[0]]) == middle(held[names[1]]):
        names = names[:1]  # answered in one pass: the first token is the answer
    asked = w.targets.get("requests_per_s")
    takes = (*_cells(w, "requests_per_s"), "-" if asked is None else digits(asked["value"]))
    for number, name in enumerate(names):
        yield (
            "" if number else w.name, figure_name(w, name), *_cells(w, name), target(w, name), _odds(w, name),
            *(takes if number == 0 else ("", "", "")),
        )  # fmt: skip


def _odds(w: WorkloadResult, name: str) -> str:
    key = {"run_s": "deadline"}.get(name, name.removesuffix("_s"))
    odds = (w.best.get("meets") or {}).get(key)
    if odds is None or name not in w.targets:
        return "-"
    return "> 99 %" if odds > 0.99 else share(odds, 1.0)


def _used(w: WorkloadResult) -> Iterator[Bar]:
    """Latencies and runs as shares of what they may take, in percent."""
    held = w.best.get("figures") or {}
    for name, asked in w.targets.items():
        value = held.get(name)
        if name == "requests_per_s" or not isinstance(value, Mapping):
            continue
        most = float(asked["value"])
        low, mid, high = (100 * float(value[k]) / most for k in ("low", "value", "high"))
        said = f"{format_seconds(middle(value))} of {format_seconds(most)}"
        what = "" if len(w.targets) < 2 or name in {"run_s", "latency_s"} else f", {FIGURES[name]}"
        yield Bar(f"{w.name}{what}", mid, f"{said} ({mid:,.0f} %)", low, high, ends(name, value))
