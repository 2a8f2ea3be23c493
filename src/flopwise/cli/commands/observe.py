"""`flopwise observe`: what a running service does."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags
from flopwise.cli.parts import bullets
from flopwise.cli.progress import Progress
from flopwise.cli.render import Screen, pairs, table
from flopwise.facts.spec import SourceSpec
from flopwise.observations.spec import ObserveSpec
from flopwise.options import FILE
from flopwise.results import plain
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.observations.observation import Observation, ObservedLatency

TITLES = {"ttft": "TTFT", "itl": "between tokens", "e2e": "whole request"}
PERCENTILES = ("p50", "p90", "p95", "p99")


@options.command(
    "observe",
    "flopwise observe --load examples/guidellm.json",
    "flopwise simulate Llama-3.1-8B --gpu l40s --replay examples/observed",
)
@options.argument("url", required=False)
@flags(ObserveSpec)
@add("-o --output", FILE, "Write observation.json and trace.csv into this folder.")
@flags(SourceSpec, "facts")
def command(*, url: str | None, output: Path | None, facts: Path | None, **given: Any) -> None:
    """Latencies, load and cache usage of a running engine, and its traffic as a trace.

    URL is the address of vLLM, SGLang, TensorRT-LLM, TGI or llama.cpp, whose metrics are read at intervals. Without URL
    only a load generator's file is read. `flopwise observe http://localhost:8000 -o seen` writes the trace that
    `flopwise simulate --replay seen` replays and compares.
    """
    from flopwise.api import observe as api

    with Progress("observing") as progress:
        observation = api.observe(url, out=output, facts=facts, progress=progress, **options.values(given, ObserveSpec))
    if output is None:
        further = {"The same, with a trace that can be replayed": options.command_line("observe") + " -o seen"}
    else:
        again = f"flopwise simulate MODEL --gpu GPU --replay {shlex.quote(str(output))}"
        further = {"The same traffic on a planned deployment": again}
    options.answer(observation, _report, plain, verdict=_verdict, further=further)


def _verdict(seen: Observation) -> str:
    """The requests and their latencies at p95 in a sentence."""
    where = f"{seen.engine} at {seen.url}" if seen.engine else "the load generator's file"
    latencies = [(TITLES[name], getattr(getattr(seen, name), "p95", None)) for name in TITLES]
    known = [f"{title} {units.format_seconds(value)}" for title, value in latencies if value is not None]
    times = f"; {', '.join(known)} at p95" if known else ""
    return f"{seen.requests:,} requests answered in {units.format_seconds(seen.duration_s)} ({where}){times}."


def _report(seen: Observation, paper: Screen) -> Iterator[str]:
    rows = [(TITLES[name], getattr(seen, name)) for name in TITLES]
    yield table(
        ["", ">mean", *(f">{p}" for p in PERCENTILES), "by"],
        [[title, *_cells(latency), latency.source] for title, latency in rows if latency is not None],
        paper,
    )
    percent, second = units.format_percent, units.format_seconds
    mean_in, mean_out = (format_number(mean or 0, 4) for mean in (seen.input_tokens, seen.output_tokens))
    each = format_number(seen.tokens_per_step or 0)
    shown = (
        ("answered", f"{seen.requests:,}: {format_number(seen.requests_per_s)}/s", True),
        ("failed", f"{seen.failed:,}", seen.failed),
        ("lengths", f"{mean_in} tokens in, {mean_out} out on average", True),
        ("in flight", _with_most(seen.running, seen.most_running, "running"), seen.running is not None),
        ("queue", _with_most(seen.waiting, seen.most_waiting, "waiting"), seen.waiting is not None),
        ("cache", f"{percent(seen.cache_frac or 0)} filled on average", seen.cache_frac is not None),
        ("prefix hits", f"{percent(seen.cached_frac or 0)} of prompt tokens", seen.cached_frac is not None),
        ("a request", f"{second(seen.queue_s or 0)} queued, {second(seen.prefill_s or 0)} in prefill",
         seen.queue_s is not None and seen.prefill_s is not None),
        ("a step", f"{second(seen.step_s or 0)}, {each} tokens", seen.step_s is not None),
        ("preempted", f"{seen.preemptions or 0:,}", seen.preemptions),
    )  # fmt: skip
    yield pairs([(name, text) for name, text, there in shown if there], paper)
    if seen.notes:
        yield bullets("Notes", seen.notes)


def _cells(latency: ObservedLatency) -> list[str | None]:
    """Mean and percentiles; with the ends of its bucket where a percentile is known to a bucket only."""
    second = units.format_seconds
    cells = [None if latency.mean is None else second(latency.mean)]
    for name in PERCENTILES:
        value, low, high = getattr(latency, name), latency.low.get(name), latency.high.get(name)
        if value is None:
            cells.append(None)
        elif name not in latency.high:
            cells.append(second(value))
        elif high is None:
            cells.append(f"> {second(low or 0)}")
        else:
            cells.append(f"{second(value)} ({second(low or 0)}-{second(high)})")
    return cells


def _with_most(mean: float | None, most: float | None, what: str) -> str:
    return f"{format_number(mean or 0)} {what} on average, {format_number(most or 0)} at most"
