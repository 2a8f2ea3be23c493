"""Options of recorded runs: the store, and the selection of runs."""

from __future__ import annotations

import datetime as dt
from functools import partial

from flopwise import options, units
from flopwise.errors import SpecError
from flopwise.options import Spec, ValueKind, option
from flopwise.values import dataclass

LONGEST_AGE_S = 1e10
_which = partial(option, section="Which runs")


def _since(value: object, what: str) -> str:
    """A day, or a time before now, as text."""
    text = str(value).strip()
    if _day(text) is None:
        try:
            age_s = units.parse_seconds(text, what)
        except SpecError:
            raise SpecError(f"{what}: {text[:60]!r} is neither a time (7d, 12h) nor a day (2026-11-01)") from None
        if not 0 < age_s < LONGEST_AGE_S:
            raise SpecError(f"{what}: {text[:60]} is out of range; allowed: a time above 0, or a day (2026-11-01)")
    return text


def _day(text: str) -> float | None:
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp() if "-" in text else None
    except (ValueError, OverflowError, OSError):
        return None


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec(Spec):
    """Options of the store of recorded runs."""

    store: str | None = option(
        "--store", options.name("url|path", 4096),
        "Store of runs: the path of an SQLite file, or postgresql://USER@HOST/DATABASE of a team (default: "
        "FLOPWISE_RUNS, else runs.db in your data folder).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter(Spec):
    """The selection of runs: those that match all options."""

    task: str | None = _which("--task", options.choice("pretrain", "finetune", "serve"), "Runs of this task.")
    model: str | None = _which("--model", options.name("text"), "Runs whose model's name contains this text.")
    status: str | None = _which(
        "--status", options.choice("running", "finished", "stopped", "failed"),
        "Runs with this status; a run that was killed stays running.",
    )
    since: str | None = _which(
        "--since", ValueKind("time|day", _since, "time or day"), "Runs that began within this time or since this day.",
    )
    # fmt: on

    def since_s(self, now_s: float) -> float | None:
        """Earliest beginning of the runs, in seconds since 1970."""
        if self.since is None:
            return None
        day_s = _day(self.since)
        return now_s - units.parse_seconds(self.since) if day_s is None else day_s
