"""The phases in which a platform is built: tasks in weeks with what each waits for, quotas to ask for by date, dollars.

Durations are assumptions, stated with each task: no provider publishes how long a quota takes. Tasks are placed as late
as the phase's month allows, so that a date is the last one that does.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence

from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import Allotment, Phase, PhaseTask, QuotaRequest
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import ChosenWorkload
from flopwise.fleet.schedules import months_between
from flopwise.fleet.spec import API, OWNED
from flopwise.units import format_usd

PHASES = ("development", "staging", "training", "production", "large models")
LARGE = 20e9
"""Parameters from which a model is large."""
ACCOUNT_WEEKS, DATA_WEEKS, MEASURE_WEEKS, LOAD_WEEKS, TRIAL_WEEKS, SIGN_WEEKS = 2, 1, 1, 2, 1, 1
"""Accounts with network, identity and storage; images and data in place; one machine measured; a load test with its
alerts; a short run with restart from a checkpoint; a contract. Assumed."""
QUOTA_WEEKS, SCARCE_WEEKS, ORDER_WEEKS = 1, 4, 12
"""A quota; one of accelerators that are scarce (`SCARCE_BYTES` of memory and more, or `MANY` at once); own machines
from the order until they run. Assumed."""
SCARCE_BYTES, MANY = 60e9, 16
QUOTAS = "quotas"
MONTHS = 12


def roadmap(fleet: SolvedFleet, today: str | None) -> list[Phase]:
    """Phases in the order of their months, else in the standard order, each with the cost that it adds.

    A phase without a month begins as soon as its tasks allow, after the one before. Where the tasks of one with a month
    had to begin before `today`, it says by how many weeks it is late.
    """
    groups: dict[tuple[str, int], list[ChosenWorkload]] = {}
    for chosen in fleet.chosen:
        groups.setdefault((chosen.job.spec.starts or "", PHASES.index(_phase_name(chosen))), []).append(chosen)
    phases, running, known, week = list[Phase](), 0.0, set[str](), 0
    ordered = sorted(groups.items(), key=lambda group: group[0])
    for (start, number), members in ordered:
        names = [chosen.name for chosen in members]
        usd = sum(fleet.cost.by_workload.get(name, 0.0) for name in names)
        running += usd
        rows = [row for row in fleet.rows if row.workload in names]
        tasks = _tasks(rows, members, known, fleet.facts)
        known |= {row.provider for row in rows}
        weeks = max((task.week + task.weeks for task in tasks), default=0)
        begins, late = _first_day(start, weeks, today, week)
        week += 0 if start else weeks
        months = _months_until_next(start, [key for (key, _), _ in ordered])
        text = f"adds {format_usd(usd, 0)} a month; {format_usd(running, 0)} from then on"
        phase = Phase(
            name=PHASES[number], start=start or None, workloads=names, usd_per_month=usd, text=text, weeks=weeks,
            begins=None if begins is None else begins.isoformat(), weeks_late=late, tasks=tasks,
            quotas=_quotas(rows, members, _asking_day(tasks, begins), fleet),
            usd=None if months is None else running * months,
        )  # fmt: skip
        phases.append(phase)
    return phases


def _first_day(start: str, weeks: int, today: str | None, week: int) -> tuple[dt.date | None, int]:
    """(Monday of a phase's first task, weeks by which that is over); without a month `week` weeks from today."""
    if today is None:
        return (_monday(dt.date.fromisoformat(f"{start}-01")) - dt.timedelta(weeks=weeks) if start else None), 0
    now = _monday(dt.date.fromisoformat(today))
    if not start:
        return now + dt.timedelta(weeks=week), 0
    begins = _monday(dt.date.fromisoformat(f"{start}-01")) - dt.timedelta(weeks=weeks)
    return begins, max(0, (now - begins).days // 7)


def _asking_day(tasks: Sequence[PhaseTask], begins: dt.date | None) -> dt.date | None:
    """The day from which quotas can be asked for, and on which they have to be."""
    week = next((task.week for task in tasks if task.name.startswith(QUOTAS)), 0)
    return None if begins is None else begins + dt.timedelta(weeks=week)


def _phase_name(chosen: ChosenWorkload) -> str:
    job, figures = chosen.job, chosen.figures
    if job.spec.task == "develop" or job.environment in {"development", "staging"}:
        return "staging" if job.environment == "staging" else "development"
    if figures is not None and figures.parameters >= LARGE:
        return "large models"
    return "training" if job.trains else "production"


def _monday(day: dt.date) -> dt.date:
    """The Monday of a day's week."""
    return day - dt.timedelta(days=day.weekday())


def _months_until_next(start: str, starts: Sequence[str]) -> int | None:
    """Months from a phase's beginning until the next one begins; None where one is not known, and of the last."""
    later = sorted({other for other in starts if other > start}) if start else []
    same = [other for other in starts if other == start]
    return months_between(start, later[0]) if later and len(same) == 1 else None


def _tasks(
    rows: Sequence[Allotment], members: Sequence[ChosenWorkload], known: set[str], facts: Facts
) -> list[PhaseTask]:
    """The tasks of a phase, each with the week in which it can begin, after those it waits for."""
    rented = [row for row in rows if row.purchase not in {OWNED, API}]
    new = sorted({row.provider for row in rows if row.purchase != OWNED} - known)
    quota = max((_quota_weeks(row, facts) for row in rented), default=0)
    owned, models = any(row.purchase == OWNED for row in rows), [c for c in members if c.job.workload is not None]
    reserved = sorted({f"{row.count} x {row.provider} {row.instance}" for row in rented if "reserved" in row.purchase})
    ending, staying = any(c.job.ends for c in models), any(not c.job.ends for c in models)
    wanted: list[tuple[str, int, tuple[str, ...]]] = [
        (f"accounts, network, identity and storage with {', '.join(new)}", ACCOUNT_WEEKS if new else 0, ()),
        (f"{QUOTAS} requested and granted", quota, ("accounts",)),
        ("own machines ordered and running", ORDER_WEEKS if owned and OWNED not in known else 0, ()),
        ("images, weights and data in place", DATA_WEEKS, ("accounts", "own machines")),
        ("one machine measured (flopwise calibrate), plan updated", MEASURE_WEEKS if models else 0,
         ("quotas", "own machines", "images")),
        ("short runs, with a restart from a checkpoint", TRIAL_WEEKS if ending else 0, ("one",)),
        ("load test at the peak, alerts, the move to the backup", LOAD_WEEKS if staying else 0, ("one",)),
        (f"contracts for {', '.join(reserved)}", SIGN_WEEKS if reserved else 0, ("load", "short", "one")),
    ]  # fmt: skip
    known |= {OWNED} if owned else set()
    done, tasks = dict[str, PhaseTask](), list[PhaseTask]()
    for name, weeks, waits in wanted:
        before = [done[first] for first in done if first.startswith(waits)] if waits else []
        if weeks:
            week = max((task.week + task.weeks for task in before), default=0)
            done[name] = PhaseTask(name=name, week=week, weeks=weeks, after=[task.name for task in before])
            tasks.append(done[name])
    return tasks


def _quota_weeks(row: Allotment, facts: Facts) -> int:
    """Weeks from asking for machines until they are granted."""
    device = facts.accelerators.get(row.gpu)
    scarce = device is not None and device.kind != "cpu" and device.hbm_bytes >= SCARCE_BYTES
    return SCARCE_WEEKS if scarce or row.num_gpus >= MANY else QUOTA_WEEKS


def _quotas(
    rows: Sequence[Allotment], members: Sequence[ChosenWorkload], ask_by: dt.date | None, fleet: SolvedFleet
) -> list[QuotaRequest]:
    """Machines to ask for, by kind; those of the year to come with the growth that the fleet states.

    Assumes: all workloads of the phase run at once; who is asked has an account by then.
    """
    growth = {c.name: (1.0 + c.job.growth_per_month) ** MONTHS for c in members}
    kinds: dict[tuple[str, str, str, str], list[Allotment]] = {}
    for row in rows:
        if row.purchase not in {OWNED, API}:
            kinds.setdefault((row.provider, row.region, row.instance, row.purchase), []).append(row)
    requests = []
    for (provider, region, instance, purchase), own in sorted(kinds.items()):
        weeks = max(_quota_weeks(row, fleet.facts) for row in own)
        request = QuotaRequest(
            provider=provider, region=region, instance=instance, purchase=purchase,
            count=sum(row.count for row in own), gpu=own[0].gpu, num_gpus=sum(row.num_gpus for row in own),
            count_in_a_year=math.ceil(round(sum(row.count * growth.get(row.workload, 1.0) for row in own), 6)),
            weeks=weeks, ask_by=None if ask_by is None else ask_by.isoformat(),
            workloads=list(dict.fromkeys(row.workload for row in own)),
        )  # fmt: skip
        requests.append(request)
    return requests
