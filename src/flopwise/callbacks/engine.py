"""Recording an inference engine from outside: its Prometheus metrics, read every few seconds."""

from __future__ import annotations

import platform
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from flopwise.callbacks.safe_writer import SafeWriter
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.spec import SourceSpec
from flopwise.observations.readings import (
    Reading,
    counters_of,
    engine_page,
    engines,
    growth,
    page_series,
    page_text,
    page_urls,
    reading,
)
from flopwise.pages import shown_address
from flopwise.records.model import Run, RunStatus
from flopwise.units import HOUR_S

GAUGES = {"waiting": "requests_waiting", "running": "requests_running", "cache": "cache_frac"}
RATES = {"requests": "requests_per_s", "output_tokens": "tokens_per_s"}
TOTALS = {"output_tokens": "tokens", "preemptions": "preemptions"}
MEANS = {"ttft": "ttft_s", "tpot": "itl_s", "itl": "itl_s", "latency": "e2e_s"}
"""What facts call a quantity, and the metric that it is recorded as; of histograms the mean of an interval."""
LONGEST_READING_S = 6.0
"""How long the end waits for a reading under way."""

Values = dict[str, float]


class EngineRecorder:
    """`with EngineRecorder("http://localhost:8000") as engine: ...` records the metrics of an engine meanwhile.

    `engine`: vllm, sglang, tensorrt-llm, tgi, llama.cpp (default: told by the names of its metrics). A counter that
    falls tells of a restart: all counters count from nothing again.
    """

    def __init__(
        self, url: str, *, engine: str | None = None, interval: float = 5.0, store: str | Path | None = None,
        name: str | None = None, model: str | None = None, price_usd_per_hour: float | None = None,
        facts: str | Path | None = None,
    ) -> None:  # fmt: skip
        """`url`: of the server, or of its metrics; `price_usd_per_hour`: of the machines that it runs on.

        Raises: SpecError: no http address, no such engine, or an interval that is none.
        """
        if not interval > 0:
            raise SpecError(f"interval: {interval} s; give more than 0")
        self._facts = SourceSpec(facts=None if facts is None else Path(facts)).catalog
        self._pages = page_urls(url, self._facts)
        self._url = shown_address(self._pages[0])
        if engine is not None and engine not in (known := engines(self._facts)):
            raise UnknownNameError("engine", engine, known)
        self.engine, self.interval, self._store, self._price = engine, interval, store, price_usd_per_hour
        self._named, self._model = name, model
        self._start_s, self._wall_s = time.perf_counter(), time.time()
        self._last: Reading | None = None
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
            self._thread.join(LONGEST_READING_S)
        self.scrape()
        self.end("finished" if error is None else "stopped" if isinstance(error, KeyboardInterrupt) else "failed")

    def begin(self) -> None:
        """Start the run."""
        settings = {"url": self._url, **({"engine": self.engine} if self.engine else {})}
        self.run = Run(
            run_id=uuid.uuid4().hex, name=self._named or urlsplit(self._url).netloc, task="serve", settings=settings,
            started_at_s=self._wall_s, model=self._model, host=platform.node() or None, price_usd_per_hour=self._price,
        )  # fmt: skip
        self._writer = SafeWriter(self._store, self.run, "the engine is")

    def end(self, status: RunStatus = "finished") -> None:
        """End the run and write the remaining values."""
        if self._writer is not None:
            self._writer.end(status)
            self._writer = None

    def _scrape_often(self) -> None:
        self.scrape()
        while not self._stop.wait(self.interval):
            self.scrape()

    def scrape(self) -> Values:
        """Read and record the metrics once; nothing where the engine does not answer."""
        at_s = time.perf_counter()
        try:
            now = self._reading(at_s)
        except (OSError, SpecError) as error:
            if not self._is_away:
                self._event("unreachable", f"{self._url} gives no metrics: {str(error)[:200]}")
            self._is_away = True
            return {}
        if self._is_away:
            self._event("reachable", f"{self._url} gives metrics again")
            self._is_away = False
        values = self._values(now)
        if self._price is not None:
            values["cost_usd"] = self._price * (at_s - self._start_s) / HOUR_S
        self.latest.update(values)
        if self._writer is not None and values:
            self._writer.add(self._wall_s + at_s - self._start_s, values)
        return values

    def _event(self, kind: str, text: str) -> None:
        if self._writer is not None:
            self._writer.event(kind, text)

    def _reading(self, at_s: float) -> Reading:
        """The present metrics of the engine.

        Raises:
            OSError, SpecError: it does not answer, or what answers is no engine that is known.
        """
        if len(self._pages) == 1 and self.engine is not None:
            series = page_series(page_text(self._pages[0]))
        else:
            page, engine, series = engine_page(self._pages, self._facts)
            self._pages, self._url = [page], shown_address(page)
            if self.engine is None:
                self.engine = engine
                self._event("engine", f"the names of its metrics are those of {engine}")
        return reading(series, self.engine, at_s, self._facts)

    def _values(self, now: Reading) -> Values:
        """The present metrics of the engine; of counters and histograms the growth since the last time."""
        assert self.engine is not None
        values = {metric: now.numbers[name] for name, metric in GAUGES.items() if name in now.numbers}
        if self._last is not None:
            grown = growth(self._last, now, counters_of(self.engine, self._facts))
            if grown.restarted:
                self._event("restart", "its counters fell: the engine was restarted")
            seconds = max(1e-9, now.at_s - self._last.at_s)
            values |= {metric: grown.numbers[name] / seconds for name, metric in RATES.items() if name in grown.numbers}
            for name, metric in MEANS.items():
                if grown.count(name) > 0 and name in grown.histograms:
                    values[metric] = grown.histograms[name].mean
            for name, metric in TOTALS.items():
                if name in grown.numbers:
                    self._totals[name] = values[metric] = self._totals.get(name, 0.0) + grown.numbers[name]
        self._last = now
        return values
