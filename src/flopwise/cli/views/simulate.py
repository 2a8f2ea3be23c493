"""A simulation on the screen: percentiles, how replicas fared, queue and batch over time; and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import questions
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.serving.sim.answer import SimulateAnswer
    from flopwise.serving.sim.result import RunSummary

LATENCIES = (
    ("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("between tokens", "itl_s"), ("whole request", "e2e_s"),
    ("wait for the batch", "wait_s"),
)  # fmt: skip


def document(answer: SimulateAnswer) -> dict[str, Any]:
    """The run as the JSON that scripts rely on."""
    found, held = answer.summary, answer.simulated
    plain = {name: value for name, value in found._asdict().items() if name not in dict(_named())}
    return {
        "model": answer.job.model.name,
        "gpu": answer.job.cluster.accelerator.name,
        "replicas": answer.replicas,
        "num_gpus": answer.replicas * answer.gpus_per_replica,
        **{name: getattr(found, name)._asdict() for name in dict(_named())},
        **{f"{name}_p50_{end}": value for name, ends in answer.intervals.items()
           for end, value in zip(("low", "high"), ends, strict=True)},
        **plain,
        "replica_hours": found.replica_hours,
        "cost_usd": answer.cost_usd,
        "usd_per_million_output_tokens": answer.usd_per_million_output_tokens,
        "slo": answer.slo._asdict(),
        "timeline": held.timeline._asdict(),
        **_cache_document(answer),
        "settings": dict(answer.settings),
        "assumptions": list(answer.assumptions),
    }  # fmt: skip


def _named() -> list[tuple[str, str]]:
    return [(name, title) for title, name in LATENCIES]


def blocks(answer: SimulateAnswer, paper: Screen) -> Iterator[str]:
    """The run as people read it."""
    yield from summary_blocks(answer, paper)
    yield from _timeline(answer, paper)
    yield questions.assumption_list(answer.assumptions)


def summary_blocks(answer: SimulateAnswer, paper: Screen, *, most: bool = False) -> Iterator[str]:
    """The figures of a run; `most`: there were never more replicas, but often fewer."""
    found = answer.summary
    replicas = f"{answer.replicas:,} replicas of " if answer.replicas > 1 else ""
    replicas = f"up to {replicas}" if most else replicas
    gpus = f"{answer.gpus_per_replica:,} x {answer.job.cluster.accelerator.name}"
    yield heading(
        f"{found.requests:,} request{'s'[: found.requests != 1]} to {answer.job.model.name} on {replicas}{gpus}", paper
    )
    for warning in _warnings(found):
        yield paper.paint(f"WARNING: {warning}", "red")
    yield pairs(answer.settings, paper)
    yield table(
        ["", ">p50", ">p90", ">p95", ">p99"],
        [_latency(title, getattr(found, name)) for title, name in LATENCIES],
        paper,
    )
    told = [f"{name.removesuffix('_s').upper()} p50 {_ends(ends)}" for name, ends in answer.intervals.items()]
    if told:
        yield f"In 8 of 10 cases: {'; '.join(told)}."
    yield pairs(_rates(answer), paper)
    yield from _cached(answer, paper)


def _ends(ends: tuple[float, float]) -> str:
    return f"{units.format_seconds(ends[0])} to {units.format_seconds(ends[1])}"


def _latency(title: str, values: Any) -> list[str]:
    return [title, *(units.format_seconds(v) if isfinite(v) else "-" for v in values)]


def _warnings(found: RunSummary) -> Iterator[str]:
    """What went wrong on the way."""
    for reason, count in found.drop_reasons.items():
        if count:
            yield f"{count:,} {'request was' if count == 1 else 'requests were'} dropped: {reason}."
    if found.mean_queue > max(found.mean_running, 1.0):
        yield "requests wait far longer than they run: the replicas do not keep up with this traffic."


def _rates(answer: SimulateAnswer) -> list[tuple[str, Any]]:
    found, share = answer.summary, units.format_percent
    targets = zip(("TTFT", "TPOT", "request"), answer.slo, strict=True)
    slo = ", ".join(f"{name} {units.format_seconds(limit)}" for name, limit in targets if limit is not None)
    goodput = f"{found.goodput_per_s:,.3g}/s: {share(found.goodput_frac)} of requests within {slo}"
    paid = f"{questions.price(answer.cost_usd)} for {found.replica_hours:,.3g} replica-hours"
    rows = [
        ("answered", f"{found.completed:,} in {units.format_seconds(found.duration_s)}: {found.requests_per_s:,.3g}/s"),
        ("goodput", goodput if slo else None),
        ("throughput", f"{found.output_tokens_per_s:,.0f} output tokens/s, {found.total_tokens_per_s:,.0f} in all"),
        ("busy", f"{share(found.utilisation_frac)} of the time in engine steps"),
        ("in flight", f"{found.mean_running:,.3g} running and {found.mean_queue:,.3g} waiting on average"),
        ("cache", f"{share(found.kv_mean_frac)} filled on average, {share(found.kv_peak_frac)} at most"),
        ("preempted", f"{found.preemptions:,} times" if found.preemptions else None),
        ("prefix cache", f"{share(found.reused_frac)} of prompt tokens reused" if found.reused_frac else None),
        ("cost", None if answer.cost_usd is None else paid),
        ("per million output tokens", questions.price(answer.usd_per_million_output_tokens)),
    ]
    return [row for row in rows if row[1] is not None]


def _timeline(answer: SimulateAnswer, paper: Screen) -> Iterator[str]:
    """Requests that wait and that run, over time."""
    line = answer.simulated.timeline
    if len(line.time_s) < 3:
        return
    running = list(zip(line.time_s.tolist(), line.running.tolist(), strict=True))
    waiting = list(zip(line.time_s.tolist(), line.queue.tolist(), strict=True))
    yield chart(
        [Series("running", running, line=True), Series("waiting", waiting, mark="w", line=True)],
        Axis("time", units.format_seconds),
        Axis("requests", "{:,.0f}".format),
        paper,
        rows=10,
    )


def _cache_document(answer: SimulateAnswer) -> dict[str, Any]:
    """What a cache of answers did, as JSON; nothing without one."""
    report = answer.cache
    if report is None:
        return {}
    return {
        "response_cache": {
            "hits": report.hits,
            "hit_frac": report.hit_frac,
            "long_run_hit_frac": report.long_run_frac,
            "cost_usd": report.usd,
            "saved_usd": report.saved_usd,
            "attain": report.attain,
            "fewest_replicas": report.fewest,
            "fewest_replicas_without": report.fewest_without,
            "without": {"ttft_s": report.without.ttft_s._asdict(), "goodput_frac": report.without.goodput_frac,
                        "utilisation_frac": report.without.utilisation_frac},
        }
    }  # fmt: skip


def _cached(answer: SimulateAnswer, paper: Screen) -> Iterator[str]:
    """What a cache of answers did."""
    report = answer.cache
    if report is None:
        return
    percent, second = units.format_percent, units.format_seconds
    mine, bare = answer.summary, report.without
    expiry = ", were there no expiry" if isfinite(report.cache.ttl_s) else ""
    hits = f"{percent(report.hit_frac)}; in the long run {percent(report.long_run_frac)}{expiry}"
    told = [
        ("hits", f"{report.hits:,}: {hits}"),
        ("TTFT p95", f"{second(mine.ttft_s.p95)}; {second(bare.ttft_s.p95)} without it"),
        ("busy", f"{percent(mine.utilisation_frac)}; {percent(bare.utilisation_frac)} without it"),
    ]
    if report.attain is not None:
        counts = f"{report.fewest or 'no number of'} replicas with it, {report.fewest_without or 'no number'} without"
        told.append((f"{percent(report.attain)} in time", counts))
    if report.usd:
        told.append(("its memory", f"{questions.price(report.usd)} for this run"))
    if report.saved_usd is not None:
        told.append(("saved", f"{units.format_usd(report.saved_usd)} in this run"))
    yield heading("Cache of answers", paper)
    yield pairs(told, paper)
