"""Reading an engine at intervals: what its counters grew by, over restarts and absences."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.parse import urlsplit

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.observations.histograms import Histogram
from flopwise.observations.readings import ENGINES, Reading, engine_of, older_than, page_series, reading

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
    request = urllib.request.Request(url, headers={"Accept": "text/plain"})  # noqa: S310 - checked by `page_urls`
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as page:  # noqa: S310 - same
            body = page.read(MOST_BYTES + 1)
    except (HTTPException, ValueError) as fault:
        raise OSError(str(fault)) from None
    if len(body) > MOST_BYTES:
        raise OSError(f"larger than {MOST_BYTES:,} bytes")
    return str(body.decode("utf-8", "replace"))


def page_urls(url: str, facts: Facts) -> list[str]:
    """Where an engine at `url` may have its metrics: the address itself where it names a page, else known paths.

    Raises:
        SpecError: no address of HTTP.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise SpecError(f"{url[:100]!r} is no address of HTTP; give one such as http://localhost:8000")
    if parts.path.strip("/") and parts.path.strip("/") != "v1":
        return [parts.geturl()]
    paths = dict.fromkeys(e.path for e in facts.exporters if e.name in ENGINES)
    return [parts._replace(path=path, query="", fragment="").geturl() for path in paths]


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
    growth: list[tuple[float, float, dict[str, float]]] = field(default_factory=list)  # from, to, of counters

    @property
    def duration_s(self) -> float:
        """First to last reading."""
        return self.readings[-1].at_s - self.readings[0].at_s if self.readings else 0.0

    def add(self, now: Reading, counters: frozenset[str]) -> None:
        """One more reading."""
        if self.readings:
            before = self.readings[-1]
            began = before.started_s is not None and now.started_s is not None and now.started_s > before.started_s + 1
            fallen = any(now.numbers[n] < before.numbers[n] for n in counters & {*now.numbers} & {*before.numbers})
            self.restarts += began or fallen
            step: dict[str, float] = {}
            for name in counters & {*now.numbers}:
                old = 0.0 if began or fallen else before.numbers.get(name, now.numbers[name])
                step[name] = now.numbers[name] - old
                self.numbers[name] = self.numbers.get(name, 0.0) + step[name]
            for name, held in now.histograms.items():
                old_one = None if began or fallen else before.histograms.get(name)
                grown = held if old_one is None and (began or fallen) else held.since(old_one or held)
                self.histograms[name] = self.histograms[name].plus(grown) if name in self.histograms else grown
                step[name] = grown.count
            self.growth.append((before.at_s, now.at_s, step))
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
    address, text = _first_page(page_urls(url, facts), page)
    series = page_series(text)
    engine = engine_of(series, facts)
    counters = frozenset(r.meaning for r in facts.metric_records if r.exporter == engine and r.kind == "counter")
    begin = clock()
    watched = Watched(engine, address, older_than=older_than(series, engine, facts))
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
        raise SpecError(f"{address} answered once and then no more within {seconds:g} s: is the engine still up?")
    return watched


def _first_page(urls: list[str], page: Page) -> tuple[str, str]:
    """(address, text) of the first that answers.

    Raises:
        SpecError: none does; says why the first did not.
    """
    why: list[str] = []
    for url in urls:
        try:
            return url, page(url)
        except urllib.error.HTTPError as fault:
            why.append(f"{url} answers {fault.code}")
        except OSError as fault:
            reason = getattr(fault, "reason", None) or fault.strerror or fault
            why.append(f"{url} cannot be reached ({reason})")
    raise SpecError(f"no metrics: {'; '.join(why)}. Is the engine up, and are its metrics switched on?")
