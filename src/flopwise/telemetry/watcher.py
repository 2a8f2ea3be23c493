"""`watch`: what a job does now, what bounds it, and which limits it crosses, across outages of the source."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

from flopwise.errors import SpecError
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.results import attributes
from flopwise.telemetry.actions import BudgetCommand, KeptState, Webhook
from flopwise.telemetry.diagnosis import Bound, Diagnosis
from flopwise.telemetry.expected import BUDGETS, Expected
from flopwise.telemetry.history import History
from flopwise.telemetry.limits import Alarms, AlertChange, Look
from flopwise.telemetry.money import Spend, spend
from flopwise.telemetry.readings import SourceLostError, Values, WatchReading
from flopwise.telemetry.spec import WatchSpec
from flopwise.values import dataclass, replace

QUIET_S = 900.0
"""Time for which a source may have no new readings: steps of large runs take minutes."""
RENEW_S = 15.0
"""Time between two diagnoses of readings that arrive together."""
BACKFILL_S = 1200.0
"""Period of the first reading of a server: longer than the duration of any limit."""
SETTLE_S = 120.0
"""Time after which a changed diagnosis is accepted: longer than a usual checkpoint or evaluation."""


class Diagnoser:
    """Diagnoses without flicker: a new one is accepted after `settle_s`."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._shown: Diagnosis | None = None
        self._other: tuple[Bound, bool | None, float] | None = None

    def steady_diagnosis(self, newest: Diagnosis, at_s: float) -> Diagnosis:
        """The accepted diagnosis, with new evidence if the newest one is the same."""
        shown = self._shown
        kind = (newest.bound, newest.healthy)
        if shown is None or shown.bound == "unknown" or kind == (shown.bound, shown.healthy):
            self._shown, self._other = newest, None
            return newest
        if self._other is None or self._other[:2] != kind or at_s < self._other[2]:
            self._other = (*kind, at_s)
        if at_s - self._other[2] >= self._settle_s:
            self._shown, self._other = newest, None
            return newest
        return replace(shown, at_plan=newest.at_plan)


class ReadingSource(Protocol):
    """A source of readings. One that is not `live` returns all readings at the first call."""

    @property
    def title(self) -> str:
        """Name of the source for messages."""

    @property
    def live(self) -> bool:
        """True if more readings follow."""

    def readings(self) -> list[WatchReading]:
        """Readings since the last call, in order. Raises SourceLostError: the source does not answer."""

    def close(self) -> None:
        """Release resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """The status at one time. `changes`: alerts that fired or cleared since the previous status."""

    source: str
    at_s: float
    reading: WatchReading
    expected: Expected
    diagnosis: Diagnosis
    spend: Spend
    firing: tuple[AlertChange, ...] = ()
    pending: tuple[AlertChange, ...] = ()
    changes: tuple[AlertChange, ...] = ()
    source_lost: str = ""
    readings: int = 0
    messages: tuple[str, ...] = ()  # of actions

    def document(self) -> dict[str, Any]:
        """The document for `--json`."""
        reading, plan = self.reading, self.expected
        return {
            "source": self.source, "at_s": self.at_s, "source_lost": self.source_lost or None,
            "devices": [
                {"device": device, "name": reading.names.get(device, ""), "lost": False, **values}
                for device, values in reading.devices.items()
            ] + [{"device": device, "lost": True} for device in sorted(reading.lost)],
            "job": dict(reading.job), "host": dict(reading.host),
            "plan": None if not plan.origin else {
                "title": plan.title, "origin": plan.origin, "bound": plan.bound or None, "layout": plan.layout or None,
                "figures": {n: {"value": v, "low": low, "high": high} for n, (v, low, high) in plan.figures.items()},
                **attributes(plan, "planned_usd planned_s tokens"),
            },
            "diagnosis": self.diagnosis,
            "spend": {**attributes(self.spend, " ".join(Spend.__slots__)), "budget_usd": plan.budget_usd},
            "alerts": [alert_document(change) for change in self.firing],
            "pending": [alert_document(change) for change in self.pending],
            "changes": [alert_document(change) for change in self.changes],
            "limits": [attributes(one, "name quantity threshold above for_s severity why") for one in plan.limits],
            "notes": [*reading.notes, *self.messages], "readings": self.readings,
        }  # fmt: skip


def alert_document(change: AlertChange) -> dict[str, Any]:
    """An alert that fires or clears, for JSON and webhooks; `text` is one line for chats."""
    limit = change.limit
    word = ("FIRING" if change.firing else "cleared") + (f" on {change.device}" if change.device else "")
    sign = "above" if limit.above else "below"
    value, threshold = limit.value_text(change.value), limit.value_text(limit.threshold)
    return {
        "alert": limit.name, "state": "firing" if change.firing else "cleared", **attributes(
            change, "limit.severity device limit.quantity value limit.threshold limit.above limit.for_s at_s since_s "
            "limit.summary limit.why limit.action"),
        "text": f"{limit.name} {word}: {limit.summary} ({value}; {sign} {threshold})",
    }  # fmt: skip


class Watcher:
    """Compares each reading of a job with its expected figures."""

    def __init__(
        self, source: ReadingSource, expected: Expected, spec: WatchSpec, *, state: KeptState | None = None,
        started_at_s: float | None = None, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`started_at_s`: start time of the job; None: time of the first reading.

        Raises: SpecError: an invalid webhook or command.
        """
        self._source, self._expected, self._spec, self._now = source, expected, spec, now
        self._history = History(max(spec.window, BACKFILL_S))
        self._alarms, self._diagnoser = Alarms(expected.limits), Diagnoser()
        self._started_at_s, self._state = started_at_s, state
        self._messages: list[str] = []
        self._webhook = None if spec.webhook is None else Webhook(spec.webhook, self._messages.append)
        self._command = None
        if spec.exec_on_budget is not None:
            self._command = BudgetCommand(spec.exec_on_budget, state, self._messages.append)
            if state is None:
                self._messages.append(UNKEPT)
        self._count = 0
        self._clocks: dict[str, float] = {}
        self._facts: dict[str, Values] = {}
        self._answered_s: float | None = None
        self._diagnosed: tuple[float, Diagnosis] | None = None

    @classmethod
    def of(cls, spec: WatchSpec) -> Watcher:
        """A watcher from options.

        Raises: SpecError: incompatible options; no source; no such plan, run, program or address.
        """
        from flopwise.telemetry.recorded import RunSource  # noqa: PLC0415 - light, and its libraries are not loaded

        spec.check()
        source = open_source(spec)
        run = source.run if isinstance(source, RunSource) else None
        plan = None
        if spec.plan is not None:
            from flopwise.search.answer import read_plan  # noqa: PLC0415 - only with a plan

            plan = read_plan(spec.plan)
        expected = Expected.of(spec, run, plan)
        started = None if run is None else run.started_at_s
        if spec.started is not None:
            started = time.time() - spec.started
        state = None
        if spec.state is not None:
            state = KeptState(spec.state, anew=spec.anew)
        elif run is not None and spec.exec_on_budget is not None:
            budgets = (str(expected.budget_usd), str(spec.budget_per_day))
            state = KeptState.of_job((run.run_id, *budgets), anew=spec.anew)
        if state is not None and started is None:
            started = state.started_at_s()
            if started is None:
                started = time.time()
                state.start(started)
        return cls(source, expected, spec, state=state, started_at_s=started)

    @property
    def live(self) -> bool:
        """True if more readings follow."""
        return self._source.live

    @property
    def interval_s(self) -> float:
        """Time between two readings."""
        return self._spec.interval

    def look(self) -> WatchStatus:
        """The last status with all readings that are there; `changes`: what fired and cleared with any of them.

        Raises: SpecError: the source never answered, or has nothing that is known.
        """
        readings, lost = self._next_readings()
        if not readings:
            return self._quiet_status(lost)
        changes = list[AlertChange]()
        for place, reading in enumerate(readings, start=1):
            if self._add(reading):
                changes += self._step()
                if readings[-1].at_s - reading.at_s <= BACKFILL_S:  # as far back as a source that goes on is read
                    self._diagnosis(renew=place == len(readings))
        return self._status(changes, "", renew=False)

    def looks(self) -> Iterator[WatchStatus]:
        """A status for each new reading, at least one.

        Raises: SpecError: the source never answered, or has no known measures.
        """
        readings, lost = self._next_readings()
        if not readings:
            yield self._quiet_status(lost)
        for place, reading in enumerate(readings, start=1):
            yield from self.take(reading, last=place == len(readings))

    def take(self, reading: WatchReading, *, last: bool = True) -> Iterator[WatchStatus]:
        """The status with one more reading; `last`: of several readings, only the last one renews the diagnosis."""
        if self._add(reading):
            yield self._status(self._step(), "", renew=last)

    def _next_readings(self) -> tuple[Sequence[WatchReading], str]:
        """New readings, and the reason if there are none."""
        try:
            readings, lost = self._source.readings(), ""
        except SourceLostError as error:
            readings, lost = [], str(error)
        if readings:
            self._answered_s = self._now()
        elif self._answered_s is None or not self._history.readings:
            raise SpecError(lost or f"{self._source.title}: {NOTHING}")
        return readings, lost

    def _add(self, reading: WatchReading) -> bool:
        """Add a reading; False if it is ignored."""
        if not self._history.add(self._with_limits(reading)):
            return False
        self._count += 1
        if self._started_at_s is None:
            self._started_at_s = reading.at_s
        return True

    def _step(self) -> list[AlertChange]:
        """Alerts that fire or clear with the latest reading, with their actions: stop command and webhook."""
        return self._react(self._alarms.step(self._look()))

    def _react(self, changes: list[AlertChange]) -> list[AlertChange]:
        if self._command is not None:
            if any(change.limit.name in BUDGETS for change in self._alarms.active()):
                self._command.run()
            self._command.check()
        for change in changes:
            if self._webhook is not None:
                self._webhook.post({"source": self._source.title, "title": self._expected.title}
                                   | alert_document(change))  # fmt: skip
        return changes

    def _quiet_status(self, lost: str) -> WatchStatus:
        """The status without a new reading; time and cost of a running job continue."""
        if not self.live:
            return self._status(self._react([]), "")
        now, quiet_s = self._now(), self._now() - (self._answered_s or 0.0)
        if not lost and quiet_s > QUIET_S:
            lost = "there are no new readings"
        changes = self._react(self._alarms.step(self._look(now, max(0.0, quiet_s) if lost else 0.0)))
        return self._status(changes, lost, clock_s=now)

    def _with_limits(self, reading: WatchReading) -> WatchReading:
        """The reading with limits of devices from facts, if they report none, and the highest clock so far."""
        devices: dict[str, Values] = {}
        for device, values in reading.devices.items():
            facts = self._known_limits(reading.names.get(device, ""))
            if "sm_clock_hz" in values:
                self._clocks[device] = max(self._clocks.get(device, 0.0), values["sm_clock_hz"])
                facts = {"max_clock_hz": self._clocks[device], **facts}
            devices[device] = {**facts, **values}
        return replace(reading, devices=devices)

    def _known_limits(self, name: str) -> Values:
        if name not in self._facts:
            self._facts[name] = device_limits(name) if name else {}
        return self._facts[name]

    def _look(self, clock_s: float | None = None, lost_s: float = 0.0) -> Look:
        plan = self._expected
        return Look(
            history=self._history, spend=self._spend(clock_s), clock_s=clock_s, requests_per_s=plan.requests_per_s,
            mfu_per_token_rate=plan.mfu_per_token_rate, boost_clock_hz=plan.boost_clock_hz, source_lost_s=lost_s,
        )  # fmt: skip

    def _spend(self, clock_s: float | None) -> Spend:
        latest, start = self._history.latest, self._started_at_s
        return spend(
            latest, at_s=clock_s, price=self._expected.usd_per_hour, tokens=self._expected.tokens,
            started_at_s=latest.at_s if start is None else start, planned_s=self._expected.planned_s,
            rate=self._history.window(self._spec.window).value("tokens_per_s") if self._expected.tokens else None,
        )  # fmt: skip

    def _status(
        self, changes: Sequence[AlertChange], lost: str, *, clock_s: float | None = None, renew: bool = True
    ) -> WatchStatus:
        """`clock_s`: the present time, if there is no new reading."""
        messages, self._messages[:] = tuple(self._messages), []
        return WatchStatus(
            source=self._source.title, at_s=self._history.latest.at_s if clock_s is None else clock_s,
            reading=self._history.latest, expected=self._expected,
            diagnosis=self._diagnosis(renew=renew), spend=self._spend(clock_s), firing=tuple(self._alarms.active()),
            pending=tuple(self._alarms.active(firing=False)), changes=tuple(changes), source_lost=lost,
            readings=self._count, messages=messages,
        )  # fmt: skip

    def _diagnosis(self, *, renew: bool) -> Diagnosis:
        if not renew and self._diagnosed and 0 <= self._history.latest.at_s - self._diagnosed[0] < RENEW_S:
            return self._diagnosed[1]
        window = self._history.window(self._spec.window)
        rates = {name: window.value(name) for name in ("tokens_per_s", "output_tokens_per_s")}
        latencies = {name: window.value(name) for name in self._expected.figures if name.rpartition("_p")[0]}
        at_plan = self._expected.at_plan(rates, latencies)
        serves = self._expected.serves
        if serves is None:
            serves = window.value("requests_running") is not None
        newest = Diagnosis.of(window, serves=serves, at_plan=at_plan, layout=self._expected.layout)
        self._diagnosed = self._history.latest.at_s, self._diagnoser.steady_diagnosis(newest, self._history.latest.at_s)
        return self._diagnosed[1]

    def close(self) -> None:
        """Post queued alerts, and close the source."""
        if self._webhook is not None:
            self._webhook.close()
        self._source.close()


def device_limits(name: str) -> Values:
    """Limits of a device by the name that its driver reports; empty for an unknown device."""
    from flopwise.facts.catalog import load_facts  # noqa: PLC0415 - once for each kind of device

    try:
        chip = load_facts(None).accelerator(name)
    except SpecError:
        return {}
    link = chip.link_bytes_per_s
    known = {"power_limit_w": chip.tdp_w, "max_clock_hz": chip.boost_clock_hz,
             "nvlink_limit_bytes_per_s": None if link is None else 2 * link}  # fmt: skip
    return {measure: value for measure, value in known.items() if value is not None}


UNKEPT = (
    "give --state FILE, one per job, to keep the start time and whether the stop command has run; without it a "
    "restarted watch may run the command again"
)
NOTHING = (
    "there is nothing to read yet. For a run that has just begun, wait for its first steps. A Prometheus server with "
    "no known series has to scrape dcgm-exporter, an engine with metrics enabled, the progress of a run, or "
    "node_exporter (`flopwise export prometheus-scrape`); check --match as well"
)


def open_source(spec: WatchSpec) -> ReadingSource:
    """The source that the options name; by default the devices of this machine.

    Raises: SpecError: there is no source, or it cannot be read; the message says what to install.
    """
    if spec.prometheus is not None:
        from flopwise.telemetry.prometheus import PrometheusSource  # noqa: PLC0415 - each source loads its own library

        return PrometheusSource(spec.prometheus, spec.match, max(spec.interval, 1.0), BACKFILL_S)
    if spec.run is not None:
        from flopwise.telemetry.recorded import RunSource  # noqa: PLC0415 - same

        return RunSource.of(spec.store, spec.run, spec.interval, BACKFILL_S)
    from flopwise.telemetry.nvml import NvmlSource  # noqa: PLC0415 - same

    return NvmlSource()


@takes(WatchSpec)
def watch(**options: Any) -> WatchStatus:
    """Take one status of a job: its bound, its progress against the plan, and its cost.

    Reads this machine's GPUs, a Prometheus server (`prometheus=URL`) or a recorded run (`run=NAME`).

    Raises:
        SpecError: no source, or options that cannot be; says what to install or to give.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.watch(run=one.run.run_id).source
        'run ...'
    """
    with closing(Watcher.of(*take(options, WatchSpec))) as watcher:
        return watcher.look()


@takes(WatchSpec)
def watch_live(**options: Any) -> Iterator[WatchStatus]:
    """A status for each reading of a job, for as long as the source has some.

    Raises:
        SpecError: as `watch`.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> next(flopwise.watch_live(run=one.run.run_id)).source
        'run ...'
    """
    with closing(Watcher.of(*take(options, WatchSpec))) as watcher:
        yield from watcher.looks()
        while watcher.live:
            time.sleep(watcher.interval_s)
            yield from watcher.looks()
