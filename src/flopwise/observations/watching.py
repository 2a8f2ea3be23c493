"""Reading an engine at intervals: growth of its counters, across restarts and outages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
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
from flopwise.pages import shown_address
from flopwise.records.histograms import Histogram
from flopwise.values import dataclass

LEAST_INTERVAL_S = 0.05


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
