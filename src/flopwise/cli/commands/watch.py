"""`flopwise watch`: a job while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from flopwise.cli import options
from flopwise.cli.options import add, flags, output_form, usage_error
from flopwise.cli.parts import bullets
from flopwise.cli.render import Screen, heading, pairs, plain_text, screen, table, verdict
from flopwise.options import FLAG, name, whole
from flopwise.telemetry.spec import WatchSpec
from flopwise.units import format_number, format_percent, format_seconds, format_usd

if TYPE_CHECKING:
    from flopwise.telemetry.diagnosis import BoundRule
    from flopwise.telemetry.exposition import MetricsPage
    from flopwise.telemetry.watcher import Watcher, WatchStatus

MOST_DEVICES = 32
"""Rows that a screen shows."""


@options.command("watch", "flopwise watch --rules")
@add("--once", FLAG, "Print one status; the exit code is 1 if an alert fires.", default=False)
@add("--rules", FLAG, "List the rules that determine what bounds a job, with their thresholds.", default=False)
@add("--serve", whole(low=0, high=65_535), "Serve the status as Prometheus metrics at this port.")
@add("--listen", name("address", 255), "Where to serve: 0.0.0.0 is every network.", default="127.0.0.1")
@flags(WatchSpec)
def command(*, once: bool, rules: bool, serve: int | None, listen: str, **given: Any) -> None:
    """Live view of a job: what bounds it, whether it is on plan, its cost, alerts.

    Reads this machine's NVIDIA GPUs, a Prometheus server (--prometheus), or a recorded run (--run). Reports what bounds
    the job and what would improve it, compares it with a plan (--plan), and reports each alert once when it fires and
    once when it clears. With --once the exit code is 1 if an alert fires. A run that has ended is replayed, and the
    exit code is 1 if any alert fired.
    """
    from flopwise.telemetry.watcher import Watcher

    if rules:
        from flopwise.telemetry.diagnosis import RULES

        context = click.get_current_context()
        named = [key for key in context.params if context.get_parameter_source(key) is ParameterSource.COMMANDLINE]
        if set(named) - {"rules", "json", "csv", "markdown"}:
            raise usage_error("--rules only lists the rules; leave out what to watch")
        further = {"What bounds a job on this machine": "flopwise watch --once"}
        options.answer(RULES, _rule_blocks, further=further)
        return
    if once and serve is not None:
        raise usage_error("--once prints one status, --serve runs until it is stopped: give one of them")
    page: MetricsPage | None = None
    watcher = Watcher.of(WatchSpec(**options.values(given)))
    try:
        if serve is not None:
            from flopwise.telemetry.exposition import MetricsPage

            page = MetricsPage(serve, listen)
            click.echo(f"metrics are served at http://{listen}:{page.port}/metrics", err=True)
        if once or not watcher.live:
            fired = _look(watcher)
        elif form := output_form():
            raise usage_error(f"--{form} prints one status: give --once, too")
        else:
            fired = _follow(watcher, page)
    finally:
        watcher.close()
        if page is not None:
            page.close()
    if fired:
        click.get_current_context().exit(1)


def _rule_blocks(rules: Sequence[BoundRule], paper: Screen) -> Iterator[str]:
    """The order of the rules, and their table."""
    yield verdict(
        f"{len(rules)} rules, tried in this order: the first whose conditions all hold is the diagnosis.", paper
    )
    rows = [
        (rule.bound, rule.name, ", ".join(f"{c.measure} {c.sign} {c.threshold:g}" for c in rule.conditions),
         rule.certain)
        for rule in rules
    ]  # fmt: skip
    yield table(["bound", "when", "conditions", "certain"], rows, paper)


def _look(watcher: Watcher) -> bool:
    """Show the last status; whether an alert fires, or of a run that is over: whether one ever did."""
    status = watcher.look()
    ended, changes = not watcher.live, status.changes

    def text(one: WatchStatus, paper: Screen) -> Iterator[str]:
        yield from blocks(one, paper)
        if ended and changes:
            yield bullets("Alerts while it ran:", [_line(change) for change in changes])

    again = options.command_line("watch", without=("--once",))
    options.answer(
        status, text, lambda one: one.document(), further=None if ended else {"The same, as it changes": again}
    )
    return bool(status.firing) or (ended and any(change.firing for change in changes))


def _follow(watcher: Watcher, page: MetricsPage | None) -> bool:
    """Look until the run ends or somebody stops it: on a terminal in place, else a line for each alert.

    Whether an alert fired, of a run that has ended.
    """
    paper, fired = screen(), False

    def step(tell: Callable[[str], object]) -> WatchStatus:
        nonlocal fired
        status = None
        for status in watcher.looks():
            fired = fired or any(change.firing for change in status.changes)
            _tell(status, tell)
            if page is not None:
                page.status = status
        assert status is not None
        return status

    try:
        if paper.width is None:
            status = step(click.echo)
            while watcher.live:
                time.sleep(watcher.interval_s)
                status = step(click.echo)
        else:
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            with Live(console=Console(), screen=False, auto_refresh=False) as live:
                while True:
                    status = step(live.console.print)
                    live.update(Text.from_ansi("\n\n".join(b for b in blocks(status, screen()) if b)), refresh=True)
                    if not watcher.live:
                        break
                    time.sleep(watcher.interval_s)
    except KeyboardInterrupt:
        return False
    click.echo(plain_text(f"{status.source} has ended"))
    return fired


def _tell(status: WatchStatus, out: Callable[[str], object]) -> None:
    for change in status.changes:
        out(_line(change))
    for text in status.messages:
        out(plain_text(text))


def _line(change: Any) -> str:
    from flopwise.telemetry.watcher import alert_document

    when = datetime.fromtimestamp(change.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    one = alert_document(change)
    return plain_text(f"{when}  {one['text']}" + (f"; {one['action']}" if change.firing else ""))


def blocks(status: WatchStatus, paper: Screen) -> Iterator[str]:
    """The status as people read it."""
    one, plan = status.diagnosis, status.expected
    title = f"{plain_text(plan.title)}: {one.summary}" if plan.title else f"{status.source}: {one.summary}"
    yield heading(plain_text(title), paper)
    facts = [("source", status.source if not status.source_lost else f"{status.source}: {status.source_lost}")]
    facts += [("evidence", "; ".join(one.evidence))] * bool(one.evidence)
    facts += [("less certain", one.missing)] * bool(one.missing)
    facts += [("remedy", one.lever)] * bool(one.lever)
    yield pairs([(key, plain_text(value)) for key, value in facts], paper)
    if status.reading.devices or status.reading.lost:
        headers = ["GPU", "model", ">busy", ">tensor", ">memory bw", ">memory", ">temp", ">power", ">clock", "held by",
                   ">PCIe GB/s", ">NVLink GB/s", ">Xid"]  # fmt: skip
        rows = list(_device_rows(status))
        hidden = len(rows) - MOST_DEVICES
        yield table(headers, rows[:MOST_DEVICES], paper, spare=("model", ">PCIe GB/s", ">NVLink GB/s"))
        if hidden > 0:
            yield f"and {hidden} more"
    yield pairs(list(_job_pairs(status)), paper)
    if status.firing or status.pending:
        rows = [_alert_row(change, "fires") for change in status.firing]
        rows += [_alert_row(change, "pending") for change in status.pending]
        yield table(["alert", "", "where", ">value", ">limit", "what to do"], rows, paper)
    if status.reading.notes:
        yield bullets("Not read:", [plain_text(note) for note in status.reading.notes[:5]])


def _device_rows(status: WatchStatus) -> Iterator[tuple[Any, ...]]:
    from flopwise.facts.device_limits import THROTTLE_BITS

    reading = status.reading
    words = {4: "power limit", **THROTTLE_BITS}

    def scale_text(value: float | None, scale: float, text: str) -> str | None:
        return None if value is None else text.format(value / scale)

    for device, v in reading.devices.items():
        used, total = v.get("memory_used_bytes"), v.get("memory_total_bytes")
        limits = ", ".join(text for bit, text in words.items() if int(v.get("throttle_bits", 0)) & bit)
        yield (
            device, reading.names.get(device, ""), _percent(v.get("busy_frac")), _percent(v.get("tensor_active_frac")),
            _percent(v.get("memory_active_frac", v.get("memory_busy_frac"))),
            _percent(used / total) if used is not None and total else scale_text(used, 2**30, "{:.1f} GiB"),
            scale_text(v.get("temperature_c"), 1, "{:.0f} C"), scale_text(v.get("power_w"), 1, "{:.0f} W"),
            scale_text(v.get("sm_clock_hz"), 1e6, "{:.0f} MHz"), limits,
            scale_text(v.get("pcie_bytes_per_s"), 1e9, "{:.1f}"),
            scale_text(v.get("nvlink_bytes_per_s"), 1e9, "{:.1f}"), scale_text(v.get("xid"), 1, "{:.0f}"),
        )  # fmt: skip
    for device in sorted(reading.lost):
        yield (device, "lost", *[None] * 11)


def _percent(value: float | None) -> str | None:
    return None if value is None else format_percent(value, 0)


def _job_pairs(status: WatchStatus) -> Iterator[tuple[str, Any]]:
    job, plan = status.reading.job, status.expected
    rows = (("output_tokens_per_s", "output tokens/s"), ("tokens_per_s", "tokens/s"), ("requests_per_s", "requests/s"))
    for measure, words in rows:
        if measure in job:
            planned = ""
            if measure in plan.figures:
                value, low, high = plan.figures[measure]
                planned = f" (planned {format_number(value, 4)}, {format_number(low, 4)} to {format_number(high, 4)})"
            yield words, f"{format_number(job[measure], 4)}{planned}"
    for measure, words in (("ttft", "first token"), ("tpot", "time of a token"), ("latency", "whole answer")):
        percentiles = [(p, job[f"{measure}_p{p}_s"]) for p in (50, 95, 99) if f"{measure}_p{p}_s" in job]
        if percentiles:
            yield words, ", ".join(f"p{percent} {format_seconds(value)}" for percent, value in percentiles)
    if "requests_waiting" in job:
        yield "requests", f"{job.get('requests_running', 0):,.0f} running, {job['requests_waiting']:,.0f} waiting"
    for measure, words in (("cache_frac", "KV cache"), ("mfu_frac", "MFU"), ("data_wait_frac", "waits for data")):
        if measure in job:
            yield words, format_percent(job[measure], 1)
    yield from _money_pairs(status)


def _money_pairs(status: WatchStatus) -> Iterator[tuple[str, Any]]:
    spend, plan = status.spend, status.expected
    if spend.usd_per_hour is not None:
        yield "price", f"{format_usd(spend.usd_per_hour)} an hour"
    if spend.total_usd is not None:
        budget = "" if plan.budget_usd is None else f" of {format_usd(plan.budget_usd)}"
        yield "spent", f"{format_usd(spend.total_usd)}{budget}"
    if spend.ends_at_s is not None:
        when = datetime.fromtimestamp(spend.ends_at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        total = "" if spend.projected_usd is None else f", {format_usd(spend.projected_usd)} in all"
        done = "" if spend.done_frac is None else f"; {format_percent(spend.done_frac, 1)} is done"
        yield "ends", f"{when}{total}{done}"


def _alert_row(change: Any, state: str) -> tuple[str, ...]:
    limit = change.limit
    return (limit.name, state, change.device or "job", limit.value_text(change.value),
            limit.value_text(limit.threshold), limit.action)  # fmt: skip
