"""Reading an engine at intervals: what its counters grew by, over restarts and absences."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.observations.readings import (
    Growth,
    Reading,
    Series,
    engine_of,
    engines,
    growth,
    older_than,
    page_series,
    reading,
)
from flopwise.pages import http_address, page_bytes, shown_address
from flopwise.records.histograms import Histogram

TIMEOUT_S = 5.0
MOST_BYTES = 64 * 2**20
"""Of one page."""
LEAST_INTERVAL_S = 0.05

Page = Callable[[str], str]


def page_text(url: str) -> str:
    """A page by HTTP.

    Raises:
        OSError: it cannot be had.
    """
    body = page_bytes(url, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES, headers={"Accept": "text/plain"})
    return body.decode("utf-8", "replace")


def page_urls(url: str, facts: Facts) -> list[str]:
    """Where an engine at `url` may have its metrics: the address itself where it names a page, else known paths.

    Raises:
        SpecError: no address of HTTP.
    """
    address = http_address(url, "the engine")
    parts = urlsplit(address)
    if parts.path.strip("/") and parts.path.strip("/") != "v1":
        return [address]
    known = engines(facts)
    paths = dict.fromkeys(e.path for e in facts.exporters if e.name in known)
    return [urlunsplit(parts._replace(path=path, query="", fragment="")) for path in paths]


def engine_page(urls: Sequence[str], facts: Facts, page: Page = page_text) -> tuple[str, str, Series]:
    """(address, engine, its metrics) of the first page that an engine has its metrics on.

    Raises:
        SpecError: none answers, or none with the metrics of an engine that is known; says why of each.
    """
    missing, strange = list[str](), list[str]()
    for url in urls:
        shown = shown_address(url)
        try:
            series = page_series(page(url))
            return url, engine_of(series, facts), series
        except urllib.error.HTTPError as fault:
            missing.append(f"{shown} answers {fault.code}")
        except OSError as fault:
            reason = getattr(fault, "reason", None) or fault.strerror or fault
            missing.append(f"{shown} cannot be reached ({reason})")
        except SpecError as fault:
            strange.append(f"{shown}: {fault}")
    if strange:
        raise SpecError("; ".join(strange))
    raise SpecError(f"no metrics: {'; '.join(missing)}. Is the engine up, and are its metrics switched on?")


def counters_of(engine: str, facts: Facts) -> frozenset[str]:
    """The numbers of an engine that only grow."""
    return frozenset(r.meaning for r in facts.metric_records if r.exporter == engine and r.kind == "counter")


@dataclass(slots=True)
class Watched:
    """What an engine did while it was watched: readings, and growth of its counters summed over restarts."""

    engine: str
    url: str
    readings: list[Reading] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)  # growth of counters
    histograms: dict[str, Histogram] = field(default_factory=dict)  # growth
    restarts: int = 0
    older_than: str | None = None  # a version of the engine
    missed: int = 0  # readings that could not be had
    growth: list[Growth] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        """First to last reading."""
        return self.readings[-1].at_s - self.readings[0].at_s if self.readings else 0.0

    def add(self, now: Reading, counters: frozenset[str]) -> None:
        """One more reading."""
        if self.readings:
            grown = growth(self.readings[-1], now, counters)
            self.restarts += grown.restarted
            for name, value in grown.numbers.items():
                self.numbers[name] = self.numbers.get(name, 0.0) + value
            for name, held in grown.histograms.items():
                self.histograms[name] = self.histograms[name].plus(held) if name in self.histograms else held
            self.growth.append(grown)
        self.readings.append(now)


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

    An engine that goes away is asked again until the time is over; one that begins anew counts from zero.

    Raises:
        SpecError: nobody answers at first, or what answers is no engine that is known.
    """
    address, engine, series = engine_page(page_urls(url, facts), facts, page)
    counters, begin, shown = counters_of(engine, facts), clock(), shown_address(address)
    watched = Watched(engine, shown, older_than=older_than(series, engine, facts))
    watched.add(reading(series, engine, begin, facts), counters)
    wait_s, asked = max(interval_s, LEAST_INTERVAL_S), 0
    while (now := clock()) < begin + seconds:
        asked += 1
        sleep(max(min(begin + asked * wait_s, begin + seconds) - now, 0.0))
        if progress is not None:
            progress(min(clock() - begin, seconds), seconds)
        try:
            held = reading(page_series(page(address)), engine, clock(), facts)
        except (OSError, SpecError):
            watched.missed += 1
            continue
        if held.numbers or held.histograms:
            watched.add(held, counters)
        else:
            watched.missed += 1
    if len(watched.readings) < 2:
        raise SpecError(f"{shown} answered once and then no more within {seconds:g} s: is the engine still up?")
    return watched
