"""An observation of a service: latencies, load and cache usage, and the requests as a trace to replay."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.rows import each_row
from flopwise.files import write_whole
from flopwise.observations.readings import (
    Growth,
    Page,
    Reading,
    counters_of,
    engine_page,
    growth,
    older_than,
    page_series,
    page_text,
    page_urls,
    reading,
)
from flopwise.observations.requests import MeasuredRequests, read_requests
from flopwise.observations.spec import ObserveSpec
from flopwise.pages import shown_address
from flopwise.records.histograms import Histogram
from flopwise.serving.sim.trace import read_trace_columns
from flopwise.units import format_number
from flopwise.values import dataclass

LEAST_INTERVAL_S = 0.05
FORMAT, VERSION = "flopwise-observation", 1
OBSERVATION_FILE, TRACE_FILE = "observation.json", "trace.csv"
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATENCIES = {"ttft": "ttft_s", "itl": "itl_s", "e2e": "e2e_s"}
_HISTOGRAMS = {"ttft": "ttft", "itl": "itl", "tpot": "itl", "latency": "e2e"}
"""Latency by the meaning of a metric; where an engine has both, `itl` is the more precise one."""
COUNTS = ("requests", "latency", "output_lengths", "ttft")
"""Metrics that count answered requests, preferred ones first: a counter, or histograms with one value per request."""
MEASURED = ("ttft_s", "e2e_s")
"""Columns of a trace file that belong to the answers, not to the requests."""
FROM_ENGINE, FROM_LOAD = "engine", "load generator"


@dataclass(slots=True)
class Watched:
    """The readings of an engine, and the growth of its counters summed across restarts."""

    engine: str
    url: str
    readings: list[Reading] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)  # growth of counters
    histograms: dict[str, Histogram] = field(default_factory=dict)  # growth
    restarts: int = 0
    older_than: str | None = None  # the engine's version is older than this one
    missed: int = 0  # readings that failed
    growth: list[Growth] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        """Time from the first to the last reading, in seconds."""
        return self.readings[-1].at_s - self.readings[0].at_s if self.readings else 0.0

    def add(self, now: Reading, counters: frozenset[str]) -> None:
        """Add a reading."""
        if self.readings:
            grown = growth(self.readings[-1], now, counters)
            self.restarts += grown.restarted
            for name, value in grown.numbers.items():
                self.numbers[name] = self.numbers.get(name, 0.0) + value
            for name, histogram in grown.histograms.items():
                self.histograms[name] = self.histograms[name].plus(histogram) if name in self.histograms else histogram
            self.growth.append(grown)
        self.readings.append(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLatency:
    """Mean and percentiles of a latency, in seconds; from an engine's histogram with the ends of each bucket."""

    source: str  # engine (from when it received the request) or load generator (as its clients measured)
    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    low: dict[str, float]  # by percentile, where only the bucket is known
    high: dict[str, float | None]  # None: above the last bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A service over a period, in seconds, tokens and requests; None: not measured."""

    engine: str | None
    url: str | None
    began_at_s: float  # seconds since 1970
    duration_s: float
    requests: int
    failed: int = 0
    users: int | None = None  # of a closed loop, where the load generator's file says so
    ttft: ObservedLatency | None = None
    itl: ObservedLatency | None = None
    e2e: ObservedLatency | None = None
    queue_s: float | None = None  # means of a request: before its first step,
    prefill_s: float | None = None  # of its prompt's steps,
    decode_s: float | None = None  # and from its first token to its last
    waiting: float | None = None  # means over the readings
    running: float | None = None
    cache_frac: float | None = None
    most_waiting: float | None = None
    most_running: float | None = None
    most_cache_frac: float | None = None
    requests_per_s: float = 0.0
    input_tokens: float | None = None  # means of a request
    output_tokens: float | None = None
    cached_frac: float | None = None  # of prompt tokens, found in the prefix cache
    preemptions: int | None = None
    tokens_per_step: float | None = None
    step_s: float | None = None  # of the engine while it ran, mean
    restarts: int = 0
    missed_readings: int = 0
    readings: int = 0
    trace_from: str = FROM_ENGINE
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """Requests to replay: the columns of a trace file."""

    arrival_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    cached: np.ndarray  # tokens of the prompt that begin as others' do
    ttft_s: np.ndarray  # as measured; for a generated trace the mean of the interval, NaN where it has none
    e2e_s: np.ndarray


def observation(
    watched: Watched | None, load: MeasuredRequests | None, *, seed: int = 0
) -> tuple[Observation, TraceColumns | None]:
    """The observation, and its trace, from an engine's metrics, a load generator's requests, or both.

    Latencies are those of the clients if known. The trace has the load generator's requests; without them it is
    generated: arrivals from the growth of the engine's counters, spread over each interval, and lengths drawn from its
    histograms. There is no trace for an engine that counts tokens but not requests (llama.cpp).

    Raises: SpecError: no request was answered in that time, or prompt lengths are not known.
    """
    assert watched is not None or load is not None
    notes: list[str] = []
    trace = _trace_of_load(load, watched, notes) if load is not None else _drawn_trace(watched, seed, notes)  # type: ignore[arg-type]  # one of them is there
    engine = {} if watched is None else _engine_figures(watched, notes)
    if load is not None:
        clients = {name: _client_latency(getattr(load, column)) for name, column in LATENCIES.items()}
        engine |= {name: latency for name, latency in clients.items() if latency is not None}
        span = float((load.arrival_s + load.e2e_s).max())
        engine |= {
            "requests": len(load),
            "failed": load.failed,
            "users": load.users,
            "requests_per_s": len(load) / span,
            "trace_from": FROM_LOAD,
        }
        engine["output_tokens"] = float(load.output.mean())
        if load.failed:
            notes.append(f"{load.failed:,} requests failed; figures and the trace leave them out")
        if watched is None:
            engine |= {"engine": None, "url": None, "began_at_s": load.began_at_s, "duration_s": span}
    if trace is not None:
        engine["input_tokens"] = float(trace.prompt.mean())
    return Observation(**engine, notes=tuple(notes)), trace


def _client_latency(seconds: np.ndarray) -> ObservedLatency | None:
    there = seconds[np.isfinite(seconds)]
    if not len(there):
        return None
    at = {name: float(np.quantile(there, share)) for name, share in SHARES.items()}
    return ObservedLatency(source=FROM_LOAD, count=len(there), mean=float(there.mean()), **at, low={}, high={})


def _engine_figures(watched: Watched, notes: list[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "engine": watched.engine, "url": watched.url, "began_at_s": watched.readings[0].at_s,
        "duration_s": watched.duration_s, "restarts": watched.restarts, "missed_readings": watched.missed,
        "readings": len(watched.readings),
    }  # fmt: skip
    if watched.older_than is not None:
        notes.append(f"its metric names show that the engine is older than {watched.engine} {watched.older_than}")
    if watched.restarts:
        lost = sum(_in_flight(r) for r, step in zip(watched.readings, watched.growth, strict=False) if step.restarted)
        notes.append(
            f"the engine restarted {watched.restarts} time{'s' if watched.restarts > 1 else ''}: its counts just "
            f"before a restart are not known, and {lost:,.0f} requests in flight were lost"
        )
    if watched.missed:
        notes.append(f"{watched.missed} of {watched.missed + len(watched.readings)} readings failed")
    grown, numbers = watched.histograms, watched.numbers
    for meaning in ("tpot", "itl", "ttft", "latency"):
        if meaning in grown and grown[meaning].count > 0:
            histogram = grown[meaning]
            at = {name: histogram.quantile(share) for name, share in SHARES.items()}
            figures[_HISTOGRAMS[meaning]] = ObservedLatency(
                source=FROM_ENGINE, count=round(histogram.count), mean=histogram.mean,
                **{name: bound.value for name, bound in at.items() if bound},
                low={name: bound.low for name, bound in at.items() if bound},
                high={name: bound.high if math.isfinite(bound.high) else None for name, bound in at.items() if bound},
            )  # fmt: skip
    figures |= _means(watched)
    done = _num_answered(watched)
    figures |= {"requests": round(done), "requests_per_s": done / max(watched.duration_s, 1e-9)}
    if done and "output_tokens" in numbers:
        figures["output_tokens"] = numbers["output_tokens"] / done
    if numbers.get("input_tokens") and "cached_tokens" in numbers:
        figures["cached_frac"] = min(numbers["cached_tokens"] / numbers["input_tokens"], 1.0)
    if "preemptions" in numbers:
        figures["preemptions"] = round(numbers["preemptions"])
    if "steps" in grown and grown["steps"].count > 0:
        figures["tokens_per_step"] = grown["steps"].mean
        figures["step_s"] = _busy_s(watched) / grown["steps"].count
    return figures


def _means(watched: Watched) -> dict[str, Any]:
    """Mean times of a request's stages and of a token (where only sums are counted), and mean requests in flight."""
    means: dict[str, Any] = {}
    seconds, tokens = (watched.numbers.get(name, 0.0) for name in ("decode_s", "output_tokens"))
    if seconds and tokens:
        empty = dict.fromkeys(SHARES)
        means["itl"] = ObservedLatency(
            source=FROM_ENGINE, count=round(tokens), mean=seconds / tokens, **empty, low={}, high={}
        )  # fmt: skip
    for meaning, name in (("queue", "queue_s"), ("prefill", "prefill_s"), ("decode", "decode_s")):
        histogram = watched.histograms.get(meaning)
        if histogram is not None and histogram.count > 0:
            means[name] = histogram.mean
    for meaning, name in (("waiting", "waiting"), ("running", "running"), ("cache", "cache_frac")):
        values = [r.numbers[meaning] for r in watched.readings if meaning in r.numbers]
        if values:
            means |= {name: float(np.mean(values)), f"most_{name}": float(np.max(values))}
    return means


def _in_flight(reading: Reading) -> float:
    """Requests that an engine runs or queues."""
    return reading.numbers.get("running", 0.0) + reading.numbers.get("waiting", 0.0)


def _busy_s(watched: Watched) -> float:
    """An upper bound of the time in which the engine computed steps, in seconds.

    All requests between two readings with nothing in flight began and ended in between: the engine was busy for at most
    their total time in prefill and decode, and for at most the intervals in which it computed steps.
    """
    busy = stepped = stayed = 0.0
    for step, after in zip(watched.growth, watched.readings[1:], strict=True):
        stepped += (step.end_s - step.begin_s) * (step.count("steps") > 0)
        stayed += sum(step.histograms[name].total for name in ("prefill", "decode") if name in step.histograms)
        if not _in_flight(after):
            busy += min(stepped, stayed) if {"prefill", "decode"} <= {*step.histograms} else stepped
            stepped = stayed = 0.0
    return busy + stepped  # the times of requests that are still in flight are not known


def _num_answered(watched: Watched) -> float:
    """Number of answered requests: by their counter, else by a histogram with one value per request."""
    counts = [watched.histograms[name].count for name in COUNTS if name in watched.histograms]
    return watched.numbers.get("requests", 0.0) or max(counts, default=0.0)


def _trace_of_load(load: MeasuredRequests, watched: Watched | None, notes: list[str]) -> TraceColumns:
    prompt, cached = load.prompt.copy(), load.cached.copy()
    unknown = prompt < 1
    if np.any(unknown):
        answered = _num_answered(watched) if watched is not None else 0.0
        tokens = watched.numbers.get("input_tokens", 0.0) if watched is not None else 0.0
        if not answered or not tokens:
            raise SpecError("the load generator's file has no prompt lengths; give the engine's address as well")
        prompt[unknown] = max(round(tokens / answered), 1)
        notes.append("all prompts have the mean length, since the load generator's file does not give each length")
    if watched is not None and not np.any(cached):
        cached = _cached_tokens(prompt, watched)
    return TraceColumns(load.arrival_s, prompt, load.output, np.minimum(cached, prompt), load.ttft_s, load.e2e_s)


def _cached_tokens(prompt: np.ndarray, watched: Watched) -> np.ndarray:
    """Cached tokens of each prompt: the share that the engine counted over all prompts."""
    read, cached = watched.numbers.get("input_tokens", 0.0), watched.numbers.get("cached_tokens", 0.0)
    share = min(cached / read, 1.0) if read else 0.0
    return np.floor(prompt * share).astype(np.int64)


def _drawn_trace(watched: Watched, seed: int, notes: list[str]) -> TraceColumns | None:
    """A generated trace: arrivals from the growth of counters, lengths from histograms or means."""
    last = watched.readings[-1]
    if not {*COUNTS} & {*last.numbers, *last.histograms}:
        notes.append(
            f"no trace, because {watched.engine} counts tokens but not requests; give a load generator's file (--load)"
        )
        return None
    rng = np.random.default_rng(seed)
    times: list[float] = []
    means: list[tuple[float, float]] = []  # of a first token, and of a further one
    begin, owed = watched.readings[0].at_s, 0.0
    name = next((n for n in COUNTS if any(step.count(n) for step in watched.growth)), COUNTS[0])
    for step, before, after in zip(watched.growth, watched.readings, watched.readings[1:], strict=False):
        left = 0.0 if step.restarted else _in_flight(before)  # a restart loses the requests in flight
        owed += step.count(name) + _in_flight(after) - left
        count = max(round(owed), 0)
        owed -= count
        times += (step.begin_s - begin + (step.end_s - step.begin_s) * np.sort(rng.random(count))).tolist()
        means += [(_mean_of(step, "ttft"), _mean_of(step, "itl", "tpot"))] * count
    answered = _num_answered(watched)
    if not times or not answered:
        raise SpecError(
            f"{watched.url}: no request was answered within {format_number(watched.duration_s)} s; observe it under "
            "load, and for longer than an answer takes (--for)"
        )
    count = len(times)
    lengths = []
    for meaning, counter in (("prompt_lengths", "input_tokens"), ("output_lengths", "output_tokens")):
        histogram = watched.histograms.get(meaning)
        if histogram is not None and histogram.count > 0:
            lengths.append(np.maximum(np.rint(histogram.draws(count, rng)), 1).astype(np.int64))
        elif watched.numbers.get(counter):
            lengths.append(np.full(count, max(round(watched.numbers[counter] / answered), 1), dtype=np.int64))
            notes.append(f"all requests have the mean {counter.replace('_', ' ')}: the engine has no histogram of them")
        else:
            raise SpecError(f"{watched.url}: the engine has no metric of {counter.replace('_', ' ')}")
    notes.append(
        "the trace is generated: arrivals are spread over each interval between readings, and lengths are drawn from "
        "the engine's histograms; a load generator's file (--load) has the real requests"
    )
    first, gap = np.array(means).T
    whole = first + np.where(lengths[1] > 1, gap * (lengths[1] - 1), 0.0)
    return TraceColumns(
        np.array(times), lengths[0], lengths[1], _cached_tokens(lengths[0], watched), first, np.maximum(whole, first)
    )


def _mean_of(step: Growth, *names: str) -> float:
    """The mean of the first of these histograms that grew; NaN where none did."""
    return next((step.histograms[n].mean for n in names if n in step.histograms and step.count(n) > 0), math.nan)


def write_observation(folder: Path, answer: Observation, trace: TraceColumns | None) -> None:
    """Write `observation.json` and, if there is a trace, `trace.csv` into a folder, which is created if necessary.

    Raises: SpecError: they cannot be written.
    """
    document = {"format": FORMAT, "version": VERSION, **asdict(answer)}
    write_whole(folder / OBSERVATION_FILE, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    if trace is None:
        (folder / TRACE_FILE).unlink(missing_ok=True)  # of an earlier observation
        return
    shared = bool(np.any(trace.cached))
    lines = ["arrival_s,prompt_tokens,output_tokens," + ("prefix,prefix_tokens," if shared else "") + "ttft_s,e2e_s"]
    for row in zip(trace.arrival_s, trace.prompt, trace.output, trace.cached, trace.ttft_s, trace.e2e_s, strict=True):
        arrival, prompt, output, cached, *measured = row
        prefix = f"{'shared' if cached else ''},{cached}," if shared else ""
        times = ",".join(f"{seconds:.6f}" if math.isfinite(seconds) else "" for seconds in measured)
        lines.append(f"{arrival:.6f},{prompt},{output},{prefix}{times}")
    write_whole(folder / TRACE_FILE, ("\n".join(lines) + "\n").encode())


def read_observation(folder: Path) -> Observation:
    """Read an observation and check its trace.

    Raises: SpecError: it does not exist, is damaged, or has a newer version.
    """
    path = folder / OBSERVATION_FILE
    try:
        document = json.loads(path.read_bytes())
    except OSError as fault:
        raise SpecError(
            f"{folder}: no observation there ({fault.strerror or fault}); `flopwise observe URL -o DIR` writes one"
        ) from None
    except ValueError as fault:
        raise SpecError(f"{path}: damaged ({fault})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise SpecError(f"{path}: not a file of `flopwise observe`")
    if document.get("version") != VERSION:
        raise SpecError(f"{path}: written by a newer flopwise (version {document.get('version')}); update this one")
    if (folder / TRACE_FILE).exists():
        read_trace_columns(folder / TRACE_FILE)
    return _from_document({k: v for k, v in document.items() if k not in {"format", "version"}}, path)


def watch_engine(
    url: str,
    seconds: float,
    facts: Facts,
    *,
    interval_s: float = 1.0,
    page: Page = page_text,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[float, float], None] | None = None,
) -> Watched:
    """Read the metrics of the engine at `url` for `seconds`, one reading an `interval_s`.

    An engine that stops answering is asked again until the time is over; after a restart counters start from zero.

    Raises: SpecError: nothing answers at the start, or no known engine does.
    """
    address, engine, series = engine_page(page_urls(url, facts), facts, page)
    counters, begin, shown = counters_of(engine, facts), clock(), shown_address(address)
    watched = Watched(engine, shown, older_than=older_than(series, engine, facts))
    watched.add(reading(series, engine, begin, facts), counters)
    wait_s, polls = max(interval_s, LEAST_INTERVAL_S), 0
    while (now := clock()) < begin + seconds:
        polls += 1
        sleep(max(min(begin + polls * wait_s, begin + seconds) - now, 0.0))
        if progress is not None:
            progress(min(clock() - begin, seconds), seconds)
        try:
            latest = reading(page_series(page(address)), engine, clock(), facts)
        except (OSError, SpecError):
            watched.missed += 1
            continue
        if latest.numbers or latest.histograms:
            watched.add(latest, counters)
        else:
            watched.missed += 1
    if len(watched.readings) < 2:
        raise SpecError(f"{shown} answered only once within {seconds:g} s; check that the engine is still running")
    return watched


def observed_service(
    url: str | None, how: ObserveSpec, facts: Facts, folder: Path | str | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Observation:  # fmt: skip
    """The observation of the engine at `url`, of a load generator's file, or of both; written where there is a folder.

    Raises: SpecError: neither is given, nobody answers, no request was answered, or a file cannot be read.
    """
    if url is None and how.load is None:
        raise SpecError("nothing to observe: give an engine's address, or --load with a load generator's file")
    load = None if how.load is None else read_requests(how.load)
    watched = None
    if url is not None:
        watched = watch_engine(url, how.seconds, facts, interval_s=how.interval_s, progress=progress)
    figures, trace = observation(watched, load, seed=how.seed)
    if folder is not None:
        write_observation(Path(folder), figures, trace)
    return figures


def measured_requests(path: Path) -> MeasuredRequests:
    """The requests of an observation (its folder, or its `observation.json`), or of a load generator's file.

    Raises: SpecError: there are no requests, or they cannot be read; gives the reason.
    """
    folder = path.parent if path.name == OBSERVATION_FILE else path
    if not folder.is_dir():
        return read_requests(path)
    seen, file = read_observation(folder), folder / TRACE_FILE
    if not file.exists():
        raise SpecError(f"{folder}: no trace, since the engine does not count requests; observe again with --load FILE")
    columns = read_trace_columns(file)
    try:
        ttft_s, e2e_s = np.array([
            [float(row[name] or "nan") for name in MEASURED] for row in each_row(file, MEASURED)
        ]).T  # fmt: skip
    except ValueError as fault:
        raise SpecError(f"{file}: {', '.join(MEASURED)} cannot be read ({fault}); observe the service again") from None
    count = len(ttft_s)
    return MeasuredRequests(
        arrival_s=columns["arrival_s"], prompt=columns["prompt_tokens"], output=columns["output_tokens"],
        cached=columns.get("prefix_tokens", np.zeros(count, dtype=np.int64)), ttft_s=ttft_s, e2e_s=e2e_s,
        began_at_s=seen.began_at_s, failed=seen.failed, users=seen.users, drawn=seen.trace_from == FROM_ENGINE,
    )  # fmt: skip


def _from_document(document: dict[str, Any], path: Path) -> Observation:
    import msgspec  # noqa: PLC0415 - only where one is read

    known = {field.name for field in fields(Observation)}
    try:
        return msgspec.convert({k: v for k, v in document.items() if k in known}, Observation)
    except msgspec.ValidationError as fault:
        raise SpecError(f"{path}: damaged ({fault})") from None
