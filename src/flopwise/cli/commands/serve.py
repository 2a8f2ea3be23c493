"""`flopwise serve`: how fast does it serve."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, parts
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.on_page import on_page
from flopwise.cli.options import add, flags
from flopwise.cli.parts import figure_of, memory_items
from flopwise.cli.progress import announce_compilation
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DatedSourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FLAG, name
from flopwise.serving.spec import (
    QueueSpec,
    RequestSpec,
    ResponseCacheSpec,
    ServingSpec,
    SessionsSpec,
    StartSpec,
    TechniqueRequest,
)
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.serving.answer import LatencyPercentiles, ServeAnswer
    from flopwise.serving.job import Ranged
    from flopwise.serving.load_curve import ServeSweep, SweepPoint


@options.command(
    "serve",
    "flopwise serve Llama-3.1-8B --gpu h100 --input 1024 --output 256 --concurrency 64",
    "flopwise serve Llama-3.1-8B --gpu l40s --weights fp8 --gpus 4 --rate 6 --json",
    "flopwise serve Llama-3.1-8B --gpu h100 --input 1000 --output 500 --sweep concurrency",
    "flopwise serve Llama-3.1-70B --gpu h100 --tp 4 --draft Llama-3.2-1B --acceptance 0.75 --concurrency 8",
)
@options.argument("model")
@flags(MachineSpec, "gpu", section="")
@flags(SharedSpec, "gpus")
@flags(ServingSpec, "tp pp ep dp", section="")
@flags(RequestSpec, section="")
@flags(SessionsSpec, section="Sessions")
@flags(QueueSpec)
@add("--static", FLAG, "A fixed batch: all prompts first, then all answers.", default=False)
@add("--encode", FLAG, "Embed: one pass over each input, without an answer.", default=False)
@add(
    "--simulate",
    FLAG,
    "Latencies under --rate by simulated requests, also where the closed form stands for them.",
    default=False,
)
@add(
    "--closed-form",
    FLAG,
    "Latencies in closed form where requests would be simulated; of --concurrency users means alone.",
    default=False,
)
@add("--sweep", name("axis"), "Show latency against throughput along concurrency, batch or tp, instead.")
@flags(ServingSpec, without="tp pp ep dp")
@flags(ResponseCacheSpec)
@flags(TechniqueRequest)
@flags(StartSpec)
@flags(MachineSpec, without="gpu")
@flags(DatedSourceSpec)
@options.explain_flag
@on_page("estimate")
def command(*, sweep: str | None, explain: bool, **given: Any) -> None:
    """Latency, throughput, maximum concurrency and cost per token.

    TTFT is the time to the first token, TPOT the time per token after it; models that do not generate have a latency.
    Input and output tokens share the cost by the time that prompts and answers take. If the model does not fit, the
    answer has its memory but no speed; if --rate cannot be sustained, it has the highest throughput. The exit code is
    then 1.
    """
    if sweep is not None:
        from flopwise.api.serve import serve_sweep

        options.refuse(["explain"], "applies to one estimate; leave it out with --sweep")
        swept = serve_sweep(given.pop("model"), sweep, on_compile=announce_compilation, **options.values(given))
        options.answer(swept, sweep_lines, further=_swept_further(swept))
        return
    answer = question(**given)
    further = {"What each change would do": options.command_line("explain", "serve")}
    options.answer(answer, lines, figure=figure_of if explain else None, further=further)
    if not (answer.fits and answer.keeps_up):
        click.get_current_context().exit(1)


def _swept_further(swept: ServeSweep) -> dict[str, str]:
    """The command of the last load before saturation, or of the degree with the highest throughput per accelerator."""
    point = swept.saturation
    if point is None:
        return {}
    if swept.axis == "tp":
        point = max(swept.running, key=lambda one: one.tokens_per_s_per_gpu)
    line = shlex.split(options.command_line("serve"))
    for place, word in enumerate(line):
        if word == "--sweep":
            line[place : place + 2] = []
            break
        if word.startswith("--sweep="):
            del line[place]
            break
    option = "--tp" if swept.axis == "tp" else "--concurrency"
    static = ["--static"] if swept.axis == "batch" and "--static" not in line else []
    point_of = {"concurrency": "{:,} requests in flight", "batch": "A batch of {:,}", "tp": "tp {:,}"}
    question = f"{point_of[swept.axis].format(point.value)}, in full"
    return {question: shlex.join([*line, *static, option, str(point.value)])}


def question(*, model: str, **given: Any) -> Any:
    """The answer to the parameters of this command."""
    from flopwise.api.serve import serve

    return serve(model, on_compile=announce_compilation, **options.values(given))


AXES = {
    "concurrency": ("requests in flight", "in flight"),
    "batch": ("fixed batch", "batch"),
    "tp": ("tensor-parallel degree", "tp"),
}
"""What a sweep goes along, in headings and columns."""


def lines(answer: ServeAnswer, paper: Screen) -> Iterator[str]:
    """The answer as people read it."""
    estimate = answer.estimate
    replicas = f"{answer.replicas:,} replicas on " if answer.replicas > 1 else ""
    where = f"{replicas}{answer.num_gpus:,} x {estimate.job.cluster.accelerator.name}"
    yield heading(f"Serving {estimate.job.model.name}: {where}", paper)
    for warning in _warnings(answer):
        yield paper.paint(f"WARNING: {warning}", "red")
    yield pairs(answer.settings, paper)
    if answer.fits:
        yield from _speed_sections(answer, paper)
    yield heading("Memory per accelerator", paper)
    yield from memory_items(answer.memory, paper, capacity=False)
    yield _cold_start(answer, paper)
    if answer.fits:
        yield heading("Cost and energy", paper)
        yield pairs(_cost(answer), paper)
    yield parts.quick_table(answer.quick, paper)
    yield parts.assumption_list(answer.assumptions)


def _speed_sections(answer: ServeAnswer, paper: Screen) -> Iterator[str]:
    """Latencies and rates, their percentiles under load, and what a step goes to."""
    estimate, load = answer.estimate, answer.under_load
    yield pairs(_speed_rows(answer), paper)
    if load is not None and answer.keeps_up:
        share = units.format_percent(load.utilisation_frac)
        rate = units.format_arrivals(load.requests_per_s, answer.noun)
        yield _percentile_table(f"At {rate}, {share} of capacity", load, answer, paper)
    if answer.closed_loop is not None:
        yield _percentile_table("Of all requests of these users", answer.closed_loop, answer, paper)
    yield from parts.priority_table(answer.by_priority, paper)
    yield heading(f"One step of the engine, bound by {estimate.bound}", paper)
    yield parts.shares(estimate.breakdown, units.format_seconds, paper)
    share = units.format_percent(estimate.roofline_frac)
    least = f"{units.format_seconds(estimate.lower_bound_s)} at datasheet rates, {share} of the estimate"
    yield pairs([("at least", least), ("MFU", units.format_percent(estimate.mfu_frac))], paper)


def _percentile_table(title: str, seen: LatencyPercentiles, answer: ServeAnswer, paper: Screen) -> str:
    """Latencies by percentile, with their intervals, below a title."""
    estimate = answer.estimate
    columns = {"latency": "ttft_s"} if estimate.tpot_s is None else {"TTFT": "ttft_s"}
    columns |= {} if estimate.further_token_s is None else {"TPOT": "tpot_s"}
    headers = ["percentile", *(text for name in columns for text in (f">{name}", "80 % interval"))]
    rows = [
        (
            p,
            *(
                text
                for name in columns.values()
                for text in (
                    units.format_seconds(getattr(seen, name)[p]),
                    " to ".join(map(units.format_seconds, seen.ends(name, p))),
                )
            ),
        )
        for p in seen.ttft_s
    ]
    return f"{heading(title, paper)}\n{table(headers, rows, paper)}"


def _warnings(answer: ServeAnswer) -> Iterator[str]:
    """Warnings of a model that does not fit, and of replicas that cannot keep up."""
    if not answer.fits:
        yield "weights and one sequence do not fit the memory; the engine would not start."
    load = answer.under_load
    if load is not None and not answer.keeps_up:
        gpus = load.replicas_needed * answer.estimate.num_gpus
        rate = units.format_arrivals(load.requests_per_s, answer.noun)
        yield (
            f"{rate} is {units.format_multiple(load.utilisation_frac)} it can sustain; the queue grows without bound. "
            f"At least {load.replicas_needed:,} replicas ({gpus:,} accelerators) are needed."
        )


def _inputs(number: float) -> str:
    """A number of inputs in words."""
    return "1 input" if round(number) == 1 else f"{number:,.0f} inputs"


def _speed_rows(answer: ServeAnswer) -> list[tuple[str, Any]]:
    estimate, replicas, drafts = answer.estimate, answer.replicas, answer.speculation
    together = estimate.concurrency * replicas
    requests, tokens = estimate.throughput, estimate.output_tokens_per_s
    tokens_ends, sequences_ends = answer.room_ends()
    whole = "{:,.0f}".format
    most = f"{estimate.max_concurrency * replicas:,} in flight"
    if estimate.tpot_s is not None:
        most += f" {units.format_interval(*sequences_ends, whole)}"
    if estimate.max_whole_contexts != estimate.max_concurrency:
        most += ", each with half of its answer on average; "
        most += f"{estimate.max_whole_contexts * replicas:,} at full length"
    if estimate.tpot_s is None or tokens is None:
        ends = units.format_interval(
            requests.low * replicas, requests.high * replicas, partial(format_number, digits=4)
        )
        return [
            ("latency", _seconds(estimate.ttft_s)),
            ("throughput", f"{format_number(requests.value * replicas, 4)} inputs/s {ends}"),
            ("per accelerator", f"{format_number(requests.value / estimate.num_gpus, 4)} inputs/s"),
            ("batch", f"{_inputs(together)} at once; at most {most}"),
        ]
    rows: list[tuple[str, Any]] = []
    if answer.keeps_up:
        mean = "" if answer.under_load is None and answer.closed_loop is None else "mean "
        rows.append((f"{mean}TTFT", _seconds(estimate.ttft_s)))
        if estimate.further_token_s is not None:
            rows.append((f"{mean}TPOT", _seconds(estimate.further_token_s)))
        ends = units.format_interval(estimate.e2e_low, estimate.e2e_high, units.format_seconds)
        rows.append((f"{mean}request" if mean else "whole request", f"{units.format_seconds(estimate.e2e_s)} {ends}"))
    ends = units.format_interval(tokens.low * replicas, tokens.high * replicas, _tokens)
    rows.append(("throughput", f"{_tokens(tokens.value * replicas)} tokens/s {ends}"))
    rows.append(("per accelerator", f"{_tokens(tokens.value / estimate.num_gpus)} tokens/s"))
    if answer.keeps_up and estimate.further_token_s is not None:
        rows.append(("per user", f"{1 / estimate.further_token_s.value:,.1f} tokens/s"))
    at_once = f"{together:,.0f}" if together >= 10 else f"{together:.2g}"
    decoding = f" with {at_once} decoding at once" if estimate.job.output_tokens > 1 else ""
    rows.append(("requests", f"{format_number(requests.value * replicas)}/s{decoding}"))
    room = f"{whole(estimate.kv_capacity_tokens * replicas)} tokens {units.format_interval(*tokens_ends, whole)}"
    rows += [("at most", most), ("cache", room)]
    if drafts is not None:
        far = f"faster up to {drafts.pays_up_to:,} decoding at once" if drafts.pays_up_to else "never faster here"
        gain = f"decoding {drafts.decode_speedup:.2f} x as fast; {far}"
        rows.append(("speculation", f"{drafts.tokens_per_step:.2f} tokens a step, {gain}"))
    if answer.host_bytes:
        rows.append(("on the host", f"{units.format_bytes(answer.host_bytes)} of weights"))
    return rows


def _tokens(per_s: float) -> str:
    """Whole tokens per second, below a hundred to three digits."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{format_number(per_s)}"


def _seconds(value: Ranged) -> str:
    return f"{units.format_seconds(value.value)} {units.format_interval(value.low, value.high, units.format_seconds)}"


def _cold_start(answer: ServeAnswer, paper: Screen) -> str:
    start = answer.cold_start
    title = heading(f"Cold start: {units.format_seconds(start.seconds)} until the first answer", paper)
    waits = f"{units.format_bytes(start.read_bytes)} a node from {start.storage}, bound by the {start.weights_bound}"
    bars = parts.shares(start.parts, units.format_seconds, paper)
    return "\n".join([title, bars, pairs([("weights", waits)], paper)])


def _cost(answer: ServeAnswer) -> list[tuple[str, Any]]:
    from flopwise.serving.answer import sound_positions

    estimate = answer.estimate
    hourly = units.format_cost(None if estimate.usd_per_hour is None else estimate.usd_per_hour * answer.replicas)
    if hourly is not None and answer.beside_usd_per_hour:
        hourly += f", and {units.format_cost(answer.beside_usd_per_hour)} of stores and caches"
    if estimate.tpot_s is None:
        return [
            ("per hour", hourly),
            ("per million inputs", units.format_cost(answer.usd_per_million_requests)),
            ("energy of an input", parts.energy(estimate.joules_per_request)),
        ]
    share = f"prompts take {units.format_percent(estimate.prefill_frac)} of the time, and of the bill"
    prompts = units.format_cost(estimate.usd_per_million_input_tokens)
    requests = units.format_cost(answer.usd_per_million_requests) if sound_positions(estimate.job) else None
    return [
        ("per hour", hourly),
        *([("per million requests", requests)] if requests else []),
        ("per million output tokens", units.format_cost(estimate.usd_per_million_output_tokens)),
        ("per million input tokens", None if prompts is None else f"{prompts} ({share})"),
        ("energy of an output token", parts.energy(estimate.joules_per_output_token)),
    ]


def sweep_lines(answer: ServeSweep, paper: Screen) -> Iterator[str]:
    """The sweep as text: table, curve and summary."""
    job, symbol = answer.first.estimate.job, units.CURRENCY.get().symbol
    title, column = AXES[answer.axis]
    yield heading(f"Serving {job.model.name} on {job.cluster.accelerator.name}, by {title}", paper)
    yield pairs(answer.settings, paper)
    decodes, rate = answer.unit == "tokens/s", f">{answer.unit}"
    latencies = [">TTFT", ">TPOT", ">request"] if decodes else [">latency"]
    rates = [rate, ">per GPU", *([">per user"] if decodes else []), ">MFU", ">of roofline"]
    paid = [f">{symbol}/M {what}" for what in (("input", "output") if decodes else ("inputs",))]
    headers = [f">{column}", *latencies, *rates, "bound", *paid]
    spare = [title for title in (">of roofline", ">MFU", ">request", ">per GPU") if title in headers]
    rows = [_point(p, len(headers), decodes=decodes) for p in answer.points]
    yield table(headers, rows, paper, spare=spare)
    yield _curve(answer, paper)
    yield parts.assumption_list(answer.first.assumptions)


def _point(p: SweepPoint, columns: int, *, decodes: bool) -> list[str]:
    if not p.fits:
        return [f"{p.value:,}", "no fit", *["-"] * (columns - 2)]
    times = (p.ttft_s, p.tpot_s, p.e2e_s) if decodes else (p.ttft_s,)
    tokens_usd = (p.usd_per_million_input_tokens, p.usd_per_million_output_tokens)
    user = "-" if p.tokens_per_s_per_user is None else f"{p.tokens_per_s_per_user:,.1f}"
    return [
        f"{p.value:,}",
        *("-" if seconds is None else units.format_seconds(seconds) for seconds in times),
        f"{p.tokens_per_s:,.0f}",
        f"{p.tokens_per_s_per_gpu:,.0f}",
        *([user] if decodes else []),
        units.format_percent(p.mfu_frac),
        units.format_percent(p.roofline_frac),
        p.bound,
        *(
            "-" if usd is None else format_number(units.in_currency(usd))
            for usd in (tokens_usd if decodes else (p.usd_per_million_requests,))
        ),
    ]


def _curve(answer: ServeSweep, paper: Screen) -> str:
    """Throughput of an accelerator against what a user sees: up and to the right is better."""
    seen, points = answer.curve()
    text, log = ("{:,.0f}".format, False) if seen != "latency" else (units.format_seconds, True)
    up = Axis(f"{answer.unit} of an accelerator", "{:,.0f}".format)
    return chart([Series("", points, line=True)], Axis(seen, text, log=log), up, paper)
