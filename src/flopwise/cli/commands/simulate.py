"""`flopwise simulate`: what users of a service see, request by request."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from flopwise import units
from flopwise.cli import options, parts
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.on_page import on_page
from flopwise.cli.options import add, flags
from flopwise.cli.parts import bullets
from flopwise.cli.progress import Progress, announce_compilation
from flopwise.cli.render import Screen, bars, heading, pairs, table
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DatedSourceSpec
from flopwise.options import DEGREE, FILE, FLAG, FRACTION, options_of
from flopwise.results import Result
from flopwise.search.spec import TargetsSpec
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import (
    AutoscaleSpec,
    BatchRequest,
    ResponseCacheSpec,
    Scheduling,
    ServingSpec,
    TechniqueRequest,
)
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.observations.comparison import ReplayComparison
    from flopwise.serving.sim.answer import SimulateAnswer
    from flopwise.serving.sim.batch import BatchAnswer, WorkersForecast
    from flopwise.serving.sim.elasticity import AutoscaleAnswer, Provision, Size
    from flopwise.serving.sim.result import RunSummary, Slo

REPLICAS, QUEUE, CACHE = (set(options_of(spec)) for spec in (AutoscaleSpec, BatchRequest, ResponseCacheSpec))
SCALING = "Replicas that come and go"
TARGETS = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "e2e_s"}
"""Limits, and the figures of a run that they bound."""
GROUPS: tuple[tuple[tuple[str, ...], set[str]], ...] = (
    (("autoscale",), REPLICAS - QUEUE),
    (("queue",), QUEUE - REPLICAS - set(options_of(Traffic))),
    (("response_cache",), CACHE),
    (("autoscale", "queue"), REPLICAS & QUEUE),
    (("autoscale", "response_cache"), {"attain"}),
)
"""Options that say nothing without one of others, those first."""
NOT_QUEUED = {
    *options_of(Scheduling), *(set(options_of(Traffic)) - QUEUE), *TARGETS, "autoscale", "response_cache",
    "vertical", "replicas",
}  # fmt: skip
"""Options that say nothing of a queue."""


@options.command(
    "simulate",
    "flopwise simulate Llama-3.1-8B --gpu h100 --rate 8 --input lognormal:900:cv=1 --ttft 500ms --tpot 40ms",
    "flopwise simulate Llama-3.1-70B --gpu h100 --tp 4 --weights fp8 --replicas 2 --users 64 --json",
    "flopwise simulate Llama-3.1-8B --gpu l40s --replicas 3 --trace examples/trace.csv --scale 2",
    "flopwise simulate Llama-3.1-8B --gpu l4 --rate 1 --duration 20min --autoscale concurrency --target 8 --ttft 2s",
    "flopwise simulate Llama-3.1-8B --gpu l40s --replay examples/observed",
    "flopwise simulate Llama-3.1-8B --gpu h100 --queue 2M --workers 8 --deadline 6h --provider aws",
    "flopwise simulate Llama-3.1-8B --gpu l4 --rate 2 --response-cache 500 --distinct 5000 --repeated 60%",
    "flopwise simulate Llama-3.1-70B --gpu h100 --tp 4 --rate 2 --draft eagle --acceptance 0.7 --shared-prefix 500",
    most_used="gpu replicas rate input_tokens output_tokens users duration_s ttft tpot "
    "latency weights engine replay autoscale",
    work="simulating",
)
@options.argument("model")
@flags(MachineSpec, "gpu", section="")
@add("--replicas", DEGREE, "Replicas behind the balancer.", default=1)
@flags(ServingSpec, "tp pp ep dp", section="")
@add(
    "--replay",
    FILE,
    "Folder of an observation, whose trace is replayed and compared with its measurements.",
    section="Traffic",
)
@flags(Traffic)
@flags(TargetsSpec, "ttft tpot latency", section="Latency targets")
@flags(Scheduling)
@flags(AutoscaleSpec)
@add(
    "--attain", FRACTION,
    "Share of requests that fixed replicas must answer in time (default: as the autoscaler; cache: 99%).",
    section=SCALING,
)  # fmt: skip
@add(
    "--vertical",
    FLAG,
    "Compare fewer, larger replicas with more, smaller ones on the same accelerators.",
    default=False,
    section=SCALING,
)
@flags(BatchRequest, without=" ".join({*options_of(Traffic), *options_of(AutoscaleSpec)}))
@flags(ResponseCacheSpec)
@flags(TechniqueRequest)
@flags(ServingSpec, without="tp pp ep dp")
@flags(MachineSpec, without="gpu")
@flags(DatedSourceSpec)
@options.explain_flag
@on_page("serve")
def command(*, explain: bool, **given: Any) -> None:
    """Latency percentiles of simulated requests, engine step by engine step.

    Traffic is a trace file, a rate with lengths, or users who wait for their answers. Every engine step is simulated:
    batching, prefill chunks, cache blocks, preemption. Requests that can never run are dropped and counted. The exit
    code is 1 if no request is answered, or if a limit at a percentile (--ttft p95=1s) is missed.

    --autoscale scales replicas with the traffic; with --queue spot workers process a fixed number of requests;
    --response-cache answers repeated prompts from a cache.
    """
    from flopwise.api import simulate as api
    from flopwise.api.observe import replay
    from flopwise.serving.sim.autoscale import Autoscaling
    from flopwise.serving.sim.elasticity import replica_sizes
    from flopwise.serving.sim.request import ResponseCache

    check_option_groups(given["purchase"])
    model, shared = given["model"], options.values(given, ServingSpec, MachineSpec, TechniqueRequest, DatedSourceSpec)
    if given["queue"] is not None:
        options.refuse(["explain"], "of requests through replicas; leave it out with --queue")
        with Progress("simulating") as progress:
            worked = api.batch(model, report=progress, **options.values(given, BatchRequest), **shared)
        options.answer(worked, batch_lines, further=_batch_further(worked, given))
        return
    question = options.values(given, Traffic, Scheduling) | shared
    question |= {"slo": _objective(given), "on_compile": announce_compilation}
    rule = Autoscaling.of(AutoscaleSpec(**options.values(given, AutoscaleSpec)))
    cache = ResponseCache.of(ResponseCacheSpec(**options.values(given, ResponseCacheSpec)))
    cached = options.values({"attain": given["attain"], "cache": cache})
    elastic, sizes = None, cast("tuple[Size, ...]", ())
    if rule is not None:
        with Progress("simulating") as progress:
            elastic = api.autoscale(model, rule=rule, report=progress, **cached, **question)
    replayed = None
    if given["replay"] is not None:
        replayed = replay(model, given["replay"], replicas=given["replicas"], **cached, **question)
        run = replayed.answer
    else:
        run = elastic.answer if elastic else api.simulate(model, replicas=given["replicas"], **cached, **question)
    if given["vertical"]:
        sizes = replica_sizes(model, rule=rule, replicas=given["replicas"], **question)

    comparison = None if replayed is None else replayed.comparison
    _show(run, elastic, sizes, comparison, _targets(run.summary, given), _further(run, given), explain=explain)


def _show(
    run: SimulateAnswer,
    elastic: AutoscaleAnswer | None,
    sizes: tuple[Size, ...],
    comparison: ReplayComparison | None,
    targets: Sequence[_LatencyTarget],
    further: Mapping[str, str],
    *,
    explain: bool,
) -> None:
    """Give the answer, and end with 1 where nothing was answered or a target is missed."""
    from flopwise.serving.sim.explain import SimulatedFigureTree

    def text(_: Result, paper: Screen) -> Iterator[str]:
        yield from lines(run, paper) if elastic is None else autoscale_lines(elastic, paper)
        yield from vertical_lines(sizes, paper)
        if comparison is not None:
            yield from replay_lines(comparison, paper)

    def plain(answer: Result) -> dict[str, Any]:
        document = answer.document() | vertical_document(sizes)
        if targets:
            document |= {"targets": [one._asdict() for one in targets]}
        return document if comparison is None else document | {"comparison": comparison}

    def verdict(answer: Result) -> str:
        return " ".join([*map(_judgement, targets), answer.verdict])

    figure = (lambda _: SimulatedFigureTree(run).tree()) if explain else None
    options.answer(elastic or run, text, plain, figure, verdict=verdict, further=further)
    if not run.summary.completed or not all(one.holds for one in targets):
        click.get_current_context().exit(1)


class _LatencyTarget(NamedTuple):
    """A latency at a percentile, its limit and what the run had; seconds."""

    latency: str
    percentile: str
    limit_s: float
    measured_s: float
    holds: bool


def _targets(summary: RunSummary, given: Mapping[str, Any]) -> list[_LatencyTarget]:
    """The targets that name a percentile; one without answered requests is missed."""
    targets = []
    for name, figure in TARGETS.items():
        limit = given[name]
        if limit is not None and limit.stated:
            had = getattr(getattr(summary, figure), limit.percentile)
            targets.append(_LatencyTarget(name, limit.percentile, limit.seconds, had, bool(had <= limit.seconds)))
    return targets


KEPT = (
    (MachineSpec, ("provider", "region", "marketplace", "include_retired", "gpu")),
    (ServingSpec, ("weights", "kv_dtype", "engine")),
)
"""What a plan of the same queue keeps."""
OF_RUNS = ("trace", "requests")
"""Options that mean something else in a plan."""


def _further(run: SimulateAnswer, given: Mapping[str, Any]) -> dict[str, str]:
    """The line that ranks the machines for this load, with every stated option that a plan has, too."""
    from flopwise.cli.commands.plan import command as plan

    stated = options.spellings(click.get_current_context(), settings=True)
    known = {flag for param in plan.params for flag in param.opts}
    if given["arrivals"] == "diurnal":  # a plan is sized for the peak of the day
        known -= {"--arrivals"}
    words = ["flopwise", "plan", run.job.model.name, "--task", "serve", *_load_words(run, given, stated)]
    for name, limit in zip(TARGETS, run.slo, strict=True):
        if limit is not None:
            words += [f"--{name}", f"{given[name].percentile}={limit:g}s"]
    for spec in (Traffic, Scheduling, ResponseCacheSpec, TechniqueRequest, ServingSpec, MachineSpec, DatedSourceSpec):
        for name, declared in options_of(spec).items():
            if name in stated and name not in OF_RUNS and declared.flags[0].partition("/")[0] in known:
                words += declared.arguments(given[name])
    return {"The cheapest machines for this load": shlex.join(words)}


def _load_words(run: SimulateAnswer, given: Mapping[str, Any], stated: Mapping[str, str]) -> list[str]:
    """The rate, users or trace of a run, and lengths that nobody stated, as `flopwise plan` takes them."""
    from flopwise.observations.observation import TRACE_FILE

    trace = run.simulated.trace
    file = given["trace"] if given["replay"] is None else given["replay"] / TRACE_FILE
    if file is not None:
        faster = [] if given["scale"] == 1 else ["--rate", f"{trace.requests_per_s:.3g}"]
        return ["--trace", str(file), *faster]
    words = ["--concurrency", str(given["users"])] if given["users"] else []
    lengths = {"input_tokens": ("--input", trace.prompt), "output_tokens": ("--output", trace.output)}
    for name, (flag, drawn) in lengths.items():
        if name not in stated and not given["turns"]:
            words += [flag, f"{drawn.mean():.0f}"]
    return words


def _batch_further(worked: BatchAnswer, given: Mapping[str, Any]) -> dict[str, str]:
    """The line that ranks the machines for this queue."""
    stated = options.spellings(click.get_current_context(), settings=True)
    words = ["flopwise", "plan", given["model"], "--task", "batch", "--requests", f"{worked.queue.requests:.0f}"]
    for spec, names in ((BatchRequest, ("input_tokens", "output_tokens", "deadline")), *KEPT):
        for name in names:
            if name in stated:
                words += options_of(spec)[name].arguments(given[name])
    return {"The cheapest machines for this queue": shlex.join([*words, "--purchase", "spot"])}


def _judgement(one: _LatencyTarget) -> str:
    limit, had = map(units.format_seconds, (one.limit_s, one.measured_s))
    what = f"{TITLES[TARGETS[one.latency]]} {one.percentile}"
    return f"{'Meets' if one.holds else 'Misses'} {what} of {limit}: {had}."


def _objective(given: dict[str, Any]) -> Slo:
    """Limits of a good request: every limit, whatever the percentile at which it is a target.

    Raises: SpecError: a limit of the mean, which says nothing of a request.
    """
    from flopwise.serving.sim.result import Percentiles, Slo

    limits = {name: given[name] for name in TARGETS if given[name] is not None}
    for name, limit in limits.items():
        if limit.percentile not in Percentiles._fields:
            raise options.usage_error(
                f"--{name}: allowed in a simulation: {', '.join(Percentiles._fields)}, such as p95=1s"
            )
    return Slo(*(limits[name].seconds if name in limits else None for name in TARGETS))


def check_option_groups(purchase: str) -> None:
    """Refuse options that do not go together. Raises SpecError: names them."""
    spelled = options.spellings(click.get_current_context())
    flag = {p.name: options.spelling(p) for p in click.get_current_context().command.params}
    for leaders, led in GROUPS:
        if not any(leader in spelled for leader in leaders):
            options.refuse(led, f"only with {' or '.join(flag[leader] for leader in leaders)}")
    why = None
    if {"autoscale", "replicas"} <= spelled.keys():
        why = "--autoscale decides how many replicas there are: give --min-replicas, --max-replicas"
    elif {"vertical", "response_cache"} <= spelled.keys():
        why = "--vertical compares replicas without a --response-cache; give one of them"
    elif "replay" in spelled and (other := sorted({"trace", "rate", "users", "autoscale", "queue"} & spelled.keys())):
        why = f"--replay takes its requests from the observation, for fixed replicas: leave {flag[other[0]]} out"
    elif "queue" in spelled:
        options.refuse(NOT_QUEUED, "not with --queue, where all requests are there from the start")
        if "purchase" in spelled and purchase != "spot":
            why = "the --workers of a --queue are spot machines; --fallback and the comparison are on demand"
    if why is not None:
        raise options.usage_error(why)


TITLES = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "between tokens", "e2e_s": "whole request",
    "wait_s": "wait for admission",
}  # fmt: skip
ONE_PASS_TITLES = {"e2e_s": "latency", "wait_s": "wait for a batch"}
"""Of models that answer in one pass."""
HEADERS = [">replicas", ">at most", ">in time", ">TTFT p50", ">p99", ">TPOT p99", ">replica-hours", ">cost"]
SPARE = (">at most", ">replica-hours")
ENDS = ("low", "high")


def lines(answer: SimulateAnswer, paper: Screen) -> Iterator[str]:
    """The run as people read it."""
    yield from _summary_lines(answer, paper)
    line = answer.simulated.timeline
    if len(line.time_s) >= 3:
        curves = [_curve("running", line.time_s, line.running), _curve("waiting", line.time_s, line.queue, mark="w")]
        yield chart(curves, Axis("time", units.format_seconds), Axis("requests", "{:,.0f}".format), paper, rows=10)
    yield parts.assumption_list(answer.assumptions)


def _curve(name: str, times: Any, values: Any, *, mark: str = "") -> Series:
    return Series(name, list(zip(times.tolist(), values.tolist(), strict=True)), mark=mark, line=True)


def _summary_lines(answer: SimulateAnswer, paper: Screen, *, most: bool = False) -> Iterator[str]:
    """The figures of a run; `most`: there were never more replicas, but often fewer."""
    summary = answer.summary
    replicas = f"{answer.replicas:,} replicas of " if answer.replicas > 1 else ""
    replicas = f"up to {replicas}" if most else replicas
    gpus = f"{answer.gpus_per_replica:,} x {answer.job.cluster.accelerator.name}"
    requests = units.format_items(summary.requests, "request")
    yield heading(f"{requests} to {answer.job.model.name} on {replicas}{gpus}", paper)
    for warning in _warnings(summary):
        yield paper.paint(f"WARNING: {warning}", "red")
    yield pairs(answer.settings, paper)
    titles = TITLES if answer.job.decodes else ONE_PASS_TITLES
    rows = [
        [title, *(units.format_seconds(v) if isfinite(v) else "-" for v in getattr(summary, name))]
        for name, title in titles.items()
    ]
    yield table(["", ">p50", ">p90", ">p95", ">p99"], rows, paper)
    intervals = [
        f"{titles[name]} {percentile} {units.format_seconds(low)} to {units.format_seconds(high)}"
        for name, by_percentile in answer.intervals.items()
        if name in titles
        for percentile, (low, high) in by_percentile.items()
    ]
    if intervals:
        yield f"80 % intervals: {'; '.join(intervals)}."
    yield pairs(_rates(answer), paper)
    yield from parts.priority_table(answer.simulated.by_priority(), paper)
    yield from _session_lines(answer, paper)
    yield from _cache_lines(answer, paper)


def _warnings(summary: RunSummary) -> Iterator[str]:
    """Warnings of the simulation."""
    for reason, count in summary.drop_reasons.items():
        if count:
            yield f"{count:,} {'request was' if count == 1 else 'requests were'} dropped: {reason}."
    if summary.mean_queue > max(summary.mean_running, 1.0):
        yield "requests wait far longer than they run: the replicas do not keep up with this traffic."


def _rates(answer: SimulateAnswer) -> list[tuple[str, Any]]:
    summary, share, generates = answer.summary, units.format_percent, answer.job.decodes
    targets = zip(("TTFT", "TPOT", "request"), answer.slo, strict=True)
    slo = ", ".join(f"{name} {units.format_seconds(limit)}" for name, limit in targets if limit is not None)
    goodput = f"{format_number(summary.goodput_per_s)}/s: {share(summary.goodput_frac)} of requests within {slo}"
    usd = units.format_cost(answer.usd_per_million_output_tokens)
    machines_usd = None if answer.cost_usd is None else answer.cost_usd - sum(answer.beside_usd.values())
    paid = f"{units.format_cost(machines_usd)} for {format_number(summary.replica_hours)} replica-hours"
    beside = [f"{units.format_cost(usd)} for {what}" for what, usd in answer.beside_usd.items()]
    if beside:
        paid = f"{units.format_cost(answer.cost_usd)}: {', '.join([paid, *beside])}"
    answered = format_number(summary.requests_per_s)
    rows = [
        ("answered", f"{summary.completed:,} in {units.format_seconds(summary.duration_s)}: {answered}/s"),
        ("goodput", goodput if slo else None),
        (
            "throughput",
            f"{summary.output_tokens_per_s:,.0f} output tokens/s, {summary.total_tokens_per_s:,.0f} with input"
            if generates
            else f"{summary.total_tokens_per_s - summary.output_tokens_per_s:,.0f} input tokens/s",
        ),
        ("busy", f"{share(summary.utilisation_frac)} of the time in engine steps"),
        (
            "in flight",
            f"{format_number(summary.mean_running)} running and {format_number(summary.mean_queue)} waiting on average",
        ),
        (
            "cache",
            f"{share(summary.kv_mean_frac)} filled on average, {share(summary.kv_peak_frac)} at most"
            if generates
            else None,
        ),
        ("preempted", f"{summary.preemptions:,} times" if summary.preemptions else None),
        ("prefix cache", f"{share(summary.reused_frac)} of prompt tokens reused" if summary.reused_frac else None),
        ("cost", None if answer.cost_usd is None else paid),
        ("per million tokens", usd and f"{usd} (output, including the cost of their prompts)"),
    ]
    return [row for row in rows if row[1] is not None]


def _session_lines(answer: SimulateAnswer, paper: Screen) -> Iterator[str]:
    """From where the beginnings of prompts came, and what a session costs; nothing where none share any."""
    report = answer.sessions
    if report is None:
        return
    share, turn_s = units.format_percent, report.turn_ttft_s
    rows = []
    if report.sessions:
        rows.append(
            (
                "sessions",
                f"{report.ended:,} of {report.sessions:,} ended, {format_number(report.turns_per_session)} turns each",
            )
        )
    if isfinite(turn_s["p95"]):
        later = f"{units.format_seconds(turn_s['p50'])}, {units.format_seconds(turn_s['p95'])} at p95"
        rows.append(("TTFT of later turns", later))
    rows.append(("on the device", f"{share(report.device_frac)} of prompt tokens"))
    rows += [(f"from {name}", f"{share(frac)} of prompt tokens") for name, frac in report.store_fracs.items()]
    rows.append(("computed", f"{share(report.computed_frac)} of prompt tokens"))
    if report.stores_usd:
        rows.append(("stores", f"{units.format_cost(report.stores_usd)} for this run"))
    if report.usd_per_session is not None:
        rows.append(("a session", units.format_usd(report.usd_per_session)))
    yield heading("Shared prefixes", paper)
    yield pairs(rows, paper)


def _cache_lines(answer: SimulateAnswer, paper: Screen) -> Iterator[str]:
    """The effect of a cache of answers; nothing without one."""
    report = answer.cache
    if report is None:
        return
    percent, second = units.format_percent, units.format_seconds
    mine, bare = answer.summary, report.without
    expiry = " without expiry" if isfinite(report.cache.ttl_s) else ""
    hits = f"{percent(report.hit_frac)}; in the long run {percent(report.long_run_frac)}{expiry}"
    rows = [
        ("hits", f"{report.hits:,}: {hits}"),
        ("TTFT p95", f"{second(mine.ttft_s.p95)}; {second(bare.ttft_s.p95)} without it"),
        ("busy", f"{percent(mine.utilisation_frac)}; {percent(bare.utilisation_frac)} without it"),
    ]
    if report.attain is not None:
        counts = f"{report.fewest or 'no number of'} replicas with it, {report.fewest_without or 'no number'} without"
        rows.append((f"{percent(report.attain)} in time", counts))
    if report.usd:
        rows.append(("its memory", f"{units.format_cost(report.usd)} for this run"))
    if report.saved_usd is not None:
        rows.append(("saved", f"{units.format_usd(report.saved_usd)} in this run"))
    yield heading("Cache of answers", paper)
    yield pairs(rows, paper)


def autoscale_lines(answer: AutoscaleAnswer, paper: Screen) -> Iterator[str]:
    """The run as people read it: against fixed numbers of replicas, and over time."""
    yield from _summary_lines(answer.answer, paper, most=True)
    scaled, line = answer.elastic, answer.elastic.line
    starting = f"{scaled.starts:,}: {format_number(scaled.starting_s / units.HOUR_S)} replica-hours until they served"
    mean = f"{format_number(scaled.mean)}"
    paid = f"{format_number(scaled.paid_s / units.HOUR_S, 4)}, {mean} replica{'s' * (mean != '1')} on average"
    yield pairs([("cold starts", starting), ("replica-hours", paid)], paper)
    yield heading("Against fixed numbers of replicas", paper)
    objective = any(limit is not None for limit in answer.answer.slo)
    rows = [[p.name, *_cells(p, objective=objective)] for p in answer.provisions]
    yield table(["", *HEADERS], rows, paper, spare=SPARE)
    if answer.attain is not None and answer.unreached is None:
        yield f"The peak is the fewest that answer {100 * answer.attain:.4g} % of the requests in time."
    if answer.unreached is not None:
        yield f"There is no fixed peak: {answer.unreached}."
    if len(line.time_s) >= 3:
        seen, times, count = scaled.simulated.timeline, line.time_s, format_number
        arrivals = Series("arrivals", list(zip(*answer.arrivals, strict=True)), line=True)
        there = [_curve("starting as well", times, line.ready + line.starting), _curve("ready", times, line.ready)]
        flight = [_curve("running", times, seen.running), _curve("waiting", times, seen.queue)]
        for label, curves in (("requests/s", [arrivals]), ("replicas", there), ("requests", flight)):
            yield chart(curves, Axis("time", units.format_seconds), Axis(label, count), paper, rows=7)
    yield parts.assumption_list((*answer.answer.assumptions, *answer.notes))


def _cells(one: Provision, *, objective: bool) -> list[Any]:
    summary = one.summary
    seconds = (summary.ttft_s.p50, summary.ttft_s.p99, summary.tpot_s.p99)
    return [
        f"{format_number(one.replicas)}",
        one.most,
        units.format_percent(summary.goodput_frac, 2) if objective else None,
        *(units.format_seconds(s) if isfinite(s) else None for s in seconds),
        f"{format_number(one.replica_hours)}",
        units.format_cost(one.cost_usd),
    ]


def vertical_document(sizes: tuple[Size, ...]) -> dict[str, Any]:
    """Replicas of every size as JSON; empty unless --vertical is given."""
    rows: list[dict[str, Any]] = [{"tp": s.tp, "most_replicas": s.most, "why": s.why or None} for s in sizes]
    for row, size in zip(rows, sizes, strict=True):
        if size.provision is not None:
            row.update(size.provision.document(), gpu_hours=size.provision.replica_hours * size.tp)
    return {"vertical": rows} if rows else {}


def vertical_lines(sizes: tuple[Size, ...], paper: Screen) -> Iterator[str]:
    """The same accelerators as many small replicas or few large ones."""
    if not sizes:
        return
    yield heading("The same accelerators as replicas of other sizes", paper)
    rows = [
        [f"tp {s.tp}", *(_cells(s.provision, objective=True) if s.provision else [None, s.most, *[None] * 6])]
        for s in sizes
    ]
    yield table(["", *HEADERS], rows, paper, spare=SPARE)
    yield "\n".join(f"tp {s.tp}: {s.why}" for s in sizes if s.why)


def batch_lines(answer: BatchAnswer, paper: Screen) -> Iterator[str]:
    """A queue on spot workers as people read it."""
    from flopwise.serving.sim.batch import SHARES

    done, work, second, percent = answer.outcome, answer.queue, units.format_seconds, units.format_percent
    yield heading(f"{work.requests:,.0f} requests to {answer.job.model.name} on {work.workers:,} spot workers", paper)
    yield pairs(answer.settings, paper)
    usd = [units.format_usd(done.percentile("usd", share)) if answer.priced else None for share in SHARES.values()]
    after = ["done after", *(second(done.percentile("seconds", share)) for share in SHARES.values())]
    yield table(["", *(f">{name}" for name in SHARES)], [after, ["cost", *usd]], paper)
    rows = [
        ("interruptions", f"{format_number(float(done.interruptions.mean()))} on average"),
        ("useful", f"{percent(answer.long_run_frac)} of a spot worker's time in the long run"),
    ]
    if done.met_frac is not None:
        rows.insert(0, ("deadline", f"met with {units.format_chance(done.met_frac)} probability"))
    if work.fallback_workers:
        rows.append(("fell back", f"in {percent(float(done.fell_back.mean()))} of the trials"))
    yield pairs(rows, paper)
    yield heading("Trials by the time until the queue is empty", paper)
    counts, edges = answer.histogram
    yield bars([(f"to {second(end)}", n, f"{n:,}") for n, end in zip(counts, edges[1:], strict=True)], paper)
    yield heading("Other numbers of workers", paper)
    cells = [
        (
            one.name, one.workers, second(one.p50_s), second(one.p95_s),
            None if one.met_frac is None else percent(one.met_frac), units.format_cost(one.mean_usd),
        )
        for one in _numbers(answer)
    ]  # fmt: skip
    yield table(["", ">workers", ">p50", ">p95", ">deadline met", ">mean cost"], cells, paper)
    yield _cheapest(answer)
    yield parts.assumption_list(answer.assumptions)


def _numbers(answer: BatchAnswer) -> list[WorkersForecast]:
    """The numbers of workers of the table: spot, on demand, and the fewest on demand that do."""
    return [*answer.sweep, answer.on_demand, *([answer.fewest_on_demand] if answer.fewest_on_demand else [])]


def _cheapest(answer: BatchAnswer) -> str:
    """The cheapest number of workers that meets the deadline in nine of ten cases."""
    from flopwise.serving.sim.batch import CONFIDENCE

    if answer.queue.deadline_s is None:
        return ""
    good = [one for one in _numbers(answer) if one.met_frac is not None and one.met_frac >= CONFIDENCE]
    if not good:
        return f"None of these meets the deadline with {units.format_percent(CONFIDENCE, 0)} probability."
    best = min(good, key=lambda one: (one.mean_usd if one.mean_usd is not None else 0.0, one.workers))
    kind = "spot" if best.name == "spot" else "on-demand"
    cost = "" if best.mean_usd is None else f" for {units.format_usd(best.mean_usd)}"
    sure = units.format_percent(CONFIDENCE, 0)
    return f"Cheapest of these that meets the deadline with {sure} probability: {best.workers:,} {kind} workers{cost}."


def replay_lines(compared: ReplayComparison, paper: Screen) -> Iterator[str]:
    """An observation beside the same traffic simulated."""
    yield heading("Measured against simulated", paper)
    rows = []
    for one in compared.figures:
        latency, _, which = one.name.partition(" ")
        title = TITLES.get(f"{latency}_s")
        text, name = (_number, one.name) if title is None else (units.format_seconds, f"{title} {which}")
        band = "" if one.low is None or one.high is None else f"{text(one.low)} to {text(one.high)}"
        gap = None if one.difference is None else units.format_change(one.difference + 1, 1)
        rows.append([name, text(one.measured), text(one.predicted), gap, band])
    yield table(["", ">measured", ">simulated", ">difference", "80 % interval"], rows, paper)
    second = units.format_seconds
    for of in dict.fromkeys(term.of for term in compared.terms):
        yield heading(f"Mean time of a {of}, by term", paper)
        terms = [term for term in compared.terms if term.of == of]
        cells = [
            [t.name, None if t.measured_s is None else _seconds_text(t.measured_s), second(t.predicted_s)]
            for t in terms
        ]
        yield table(["", ">measured", ">simulated"], cells, paper)
    yield bullets("What differs", compared.findings)


def _number(value: float) -> str:
    return f"{format_number(value)}"


def _seconds_text(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return units.format_seconds(seconds) if seconds >= 0 else f"-{units.format_seconds(-seconds)}"
