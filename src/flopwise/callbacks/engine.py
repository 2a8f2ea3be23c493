"""Recording an inference engine from outside: its Prometheus metrics, read every few seconds."""

from __future__ import annotations

import platform
import re
import threading
import time
import urllib.request
import uuid
import warnings
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.metrics import EXPORTERS, METRICS, MetricRecord
from flopwise.facts.spec import SourceSpec
from flopwise.records.model import Run, RunStatus
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from types import TracebackType

    from flopwise.facts.catalog import Facts

GAUGES = {"waiting": "requests_waiting", "running": "requests_running", "cache": "cache_frac"}
RATES = {"requests": "requests_per_s", "output_tokens": "tokens_per_s"}
TOTALS = {"output_tokens": "tokens", "preemptions": "preemptions"}
MEANS = {"ttft": "ttft_s", "tpot": "itl_s", "latency": "e2e_s"}
"""What facts call a quantity, and the metric that it is recorded as; of histograms the mean of an interval."""
TIMEOUT_S = 5.0
MOST_BYTES = 20_000_000

Values = dict[str, float]


class EngineRecorder:
    """`with EngineRecorder("http://localhost:8000") as engine: ...` records what the engine says of itself meanwhile.

    `engine`: vllm, sglang, tensorrt-llm, tgi, llama.cpp (default: told by the names of its metrics). A counter that
    falls tells of a restart: it counts from nothing again.
    """

    def __init__(
        self, url: str, *, engine: str | None = None, interval: float = 5.0, store: str | Path | None = None,
        name: str | None = None, model: str | None = None, price_usd_per_hour: float | None = None,
        facts: str | Path | None = None,
    ) -> None:  # fmt: skip
        """`url`: of the server, or of its metrics; `price_usd_per_hour`: of the machines that it runs on.

        Raises:
            SpecError: no http address, no such engine, or an interval that is none.
        """
        self._url = _address(url)
        if not interval > 0:
            raise SpecError(f"interval: {interval} s; give more than 0")
        known = SourceSpec(facts=None if facts is None else Path(facts)).catalog
        self._engines = _engines(known)
        if engine is not None and engine not in self._engines:
            raise UnknownNameError("engine", engine, self._engines)
        self._paths = {exporter.name: exporter.path for exporter in known.rows(EXPORTERS).values()}
        self.engine, self.interval, self._store, self._price = engine, interval, store, price_usd_per_hour
        self._named, self._model = name, model
        self._start_s, self._wall_s = time.perf_counter(), time.time()
        self._last: tuple[float, Values] | None = None
        self._totals: Values = {}
        self._is_away = False
        self._writer: Any = None
        self.run: Run | None = None
        """As the store has it, while it is recorded."""
        self.latest: Values = {}
        """The last value of each metric."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.begin()
        self._thread = threading.Thread(target=self._scrape_often, name="flopwise-engine", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S + 1.0)
        self.scrape()
        self.end("finished" if error is None else "stopped" if isinstance(error, KeyboardInterrupt) else "failed")

    def begin(self) -> None:
        """Begin the run."""
        from flopwise.records.writer import Writer  # noqa: PLC0415 - a database's libraries, when something is recorded

        settings = {"url": self._url, **({"engine": self.engine} if self.engine else {})}
        self.run = Run(
            run_id=uuid.uuid4().hex, name=self._named or urlsplit(self._url).netloc, task="serve", settings=settings,
            started_at_s=self._wall_s, model=self._model, host=platform.node() or None, price_usd_per_hour=self._price,
        )  # fmt: skip
        try:
            self._writer = Writer(self._store, self.run)
        except Exception as error:  # noqa: BLE001 - what is measured can still be read from `latest`
            warnings.warn(f"flopwise: the engine is not recorded: {error}", RuntimeWarning, stacklevel=2)

    def end(self, status: RunStatus = "finished") -> None:
        """End the run; what is left is written."""
        if self._writer is not None:
            self._writer.end(status)
            self._writer = None

    def _scrape_often(self) -> None:
        self.scrape()
        while not self._stop.wait(self.interval):
            self.scrape()

    def scrape(self) -> Values:
        """Read the metrics once and record what they say; nothing where the engine does not answer."""
        try:
            text = self._text()
            series = _series(text)
        except (OSError, ValueError, HTTPException) as error:
            if not self._is_away:
                self._event("unreachable", f"{self._url} gives no metrics: {str(error)[:200]}")
            self._is_away = True
            return {}
        if self._is_away:
            self._event("reachable", f"{self._url} gives metrics again")
            self._is_away = False
        if self.engine is None:
            self.engine = _engine_of({name for name, _, _ in series}, self._engines)
            if self.engine is not None:
                self._event("engine", f"the names of its metrics are those of {self.engine}")
        if self.engine is None:
            return {}
        at_s = time.perf_counter()
        values = self._values(at_s, series, self._engines[self.engine])
        if self._price is not None:
            values["cost_usd"] = self._price * (at_s - self._start_s) / HOUR_S
        self.latest.update(values)
        if self._writer is not None and values:
            self._writer.add(self._wall_s + at_s - self._start_s, values)
        return values

    def _event(self, kind: str, text: str) -> None:
        if self._writer is not None:
            self._writer.event(kind, text)

    def _text(self) -> str:
        url = self._url
        if not urlsplit(url).path.strip("/"):
            url = url.rstrip("/") + self._paths.get(self.engine or "vllm", "/metrics")
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - http or https: `_address`
            return str(answer.read(MOST_BYTES).decode("utf-8", "replace"))

    def _values(
        self, at_s: float, series: list[tuple[str, Mapping[str, str], float]], rows: list[MetricRecord]
    ) -> Values:
        """What the series say now, and of counters and histograms since the last time."""
        by_meaning = {row.meaning: row for row in rows}
        values: Values = {}
        for meaning, metric in GAUGES.items():
            row = by_meaning.get(meaning)
            if row is not None and (found := _matching(series, row, "")):
                total = sum(found) * row.scale
                values[metric] = total / len(found) if metric.endswith("_frac") else total
        counts = _counts(series, by_meaning)
        if self._last is not None:
            before_s, before = self._last
            grown = {name: value - before[name] for name, value in counts.items() if name in before}
            fallen = [name for name, change in grown.items() if change < 0]
            if fallen:
                self._event("restart", f"{fallen[0].partition('/')[0]} has fallen: the engine was started again")
                grown = {name: counts[name] for name in grown}
            seconds = max(1e-9, at_s - before_s)
            values |= {metric: grown[name] / seconds for name, metric in RATES.items() if name in grown}
            for name, metric in MEANS.items():
                requests = grown.get(f"{name}/count", 0.0)
                if requests > 0 and f"{name}/sum" in grown:
                    values[metric] = grown[f"{name}/sum"] / requests
            for name, metric in TOTALS.items():
                if name in grown:
                    self._totals[name] = values[metric] = self._totals.get(name, 0.0) + grown[name]
        self._last = at_s, counts
        return values


def _counts(series: list[tuple[str, Mapping[str, str], float]], by_meaning: Mapping[str, MetricRecord]) -> Values:
    """Counters by meaning, and sums and counts of histograms behind a slash."""
    counts: Values = {}
    for meaning in (*RATES, *TOTALS, *MEANS):
        row = by_meaning.get(meaning)
        if row is None:
            continue
        for part in ("sum", "count") if row.kind == "histogram" else ("",):
            if found := _matching(series, row, part and f"_{part}"):
                scale = 1.0 if part == "count" else row.scale
                counts[f"{meaning}/{part}" if part else meaning] = sum(found) * scale
    return counts


def _matching(series: list[tuple[str, Mapping[str, str], float]], row: MetricRecord, ending: str) -> list[float]:
    """Values of the series that a row means."""
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', row.labels))
    name = row.metric + ending
    return [
        value for one, labels, value in series if one == name and all(labels.get(k) == v for k, v in wanted.items())
    ]


def _series(text: str) -> list[tuple[str, Mapping[str, str], float]]:
    """(name, labels, value) of every sample of a page of metrics.

    Raises:
        ValueError: it is none.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - of this module alone

    return [
        (one.name, one.labels, one.value) for family in text_string_to_metric_families(text) for one in family.samples
    ]


def _engines(facts: Facts) -> dict[str, list[MetricRecord]]:
    """Rows by engine: exporters that know of requests in a batch."""
    rows = list(facts.rows(METRICS).values())
    names = dict.fromkeys(row.exporter for row in rows if row.meaning == "running")
    return {name: [row for row in rows if row.exporter == name] for name in names}


def _engine_of(names: Iterable[str], engines: Mapping[str, list[MetricRecord]]) -> str | None:
    """The engine that most of the names belong to; None where none does."""
    there = set(names)
    hits = {
        engine: sum(row.metric in there or f"{row.metric}_sum" in there for row in rows)
        for engine, rows in engines.items()
    }
    best = max(hits, key=lambda engine: hits[engine])
    return best if hits[best] else None


def _address(url: str) -> str:
    """`url` with its scheme.

    Raises:
        SpecError: it is no http address.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SpecError(f"{url[:200]!r} is no http address; as in http://localhost:8000")
    return urlunsplit(parts)
