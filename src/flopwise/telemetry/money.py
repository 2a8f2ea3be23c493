"""What a job costs so far and will have cost, and the file that keeps it while `watch` is not running."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.telemetry.readings import WatchReading
from flopwise.units import DAY_S, HOUR_S

NO_RATE_S = 10 * 365 * DAY_S
CLAIM_S = 60.0
"""A claim of the stop command that is older and says of no start is one of a watch that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Money of a job at one moment; None where there is no price, or no end in sight."""

    usd_per_hour: float | None = None
    total_usd: float | None = None
    day_usd: float | None = None  # of the last 24 hours
    started_at_s: float | None = None
    ends_at_s: float | None = None
    projected_usd: float | None = None
    done_frac: float | None = None


def spend(
    reading: WatchReading, *, price: float | None, started_at_s: float, tokens: float | None, planned_s: float | None,
    rate: float | None, at_s: float | None = None,
) -> Spend:  # fmt: skip
    """What is spent at a reading: what the run recorded, else the price times the time; the end by the job's own rate.

    `tokens`: of the whole run, `planned_s` its time as planned, `rate` of the last minutes in tokens a second, `at_s`:
    later than the reading, where nothing was read since.
    Source: arithmetic. Assumes: all machines are paid from the start on, also while nothing is read.
    """
    at_s = reading.at_s if at_s is None else max(at_s, reading.at_s)
    job, elapsed = reading.job, max(0.0, at_s - started_at_s)
    total = None if price is None else price * elapsed / HOUR_S
    if "cost_usd" in job:
        total = job["cost_usd"] + (price or 0.0) * (at_s - reading.at_s) / HOUR_S
    remaining, done = job.get("eta_s"), None
    if tokens and "tokens" in job:
        done = min(1.0, job["tokens"] / tokens)
        if remaining is None and rate:
            remaining = max(0.0, tokens - job["tokens"]) / rate
    elif remaining is None and planned_s is not None and tokens is not None and rate is None:
        remaining = max(0.0, planned_s - elapsed)
    if remaining is not None and not 0 <= remaining < NO_RATE_S:
        remaining = None
    projected = None
    if total is not None and remaining is not None and price is not None:
        projected = total + price * remaining / HOUR_S
    return Spend(
        usd_per_hour=price, total_usd=total, day_usd=None if price is None else price * min(elapsed, DAY_S) / HOUR_S,
        started_at_s=started_at_s, ends_at_s=None if remaining is None else at_s + remaining,
        projected_usd=projected, done_frac=done,
    )  # fmt: skip


class KeptState:
    """When a job began, and whether its stop command was run: kept in a file, so that a restart goes on with it."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        """`anew`: forget what is kept."""
        self.path = path
        self._ran = path.with_name(f"{path.name}.ran")
        if anew:
            self.path.unlink(missing_ok=True)
            self._ran.unlink(missing_ok=True)

    @classmethod
    def of_job(cls, identity: Sequence[str], *, anew: bool = False) -> KeptState:
        """In a file of the user's data folder, named after what the job is known by."""
        from platformdirs import user_data_path  # noqa: PLC0415 - a named file does without

        name = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
        return cls(user_data_path("flopwise", appauthor=False) / "watch" / f"{name}.json", anew=anew)

    def started_at_s(self) -> float | None:
        """When the job began; None where nothing is kept.

        Raises:
            SpecError: the file is none of ours.
        """
        try:
            data: Any = json.loads(self.path.read_text(encoding="utf-8"))
            return float(data["started_at_s"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise SpecError(
                f"--state: {self.path} cannot be read as what watch keeps; name another, or --anew"
            ) from None

    def start(self, at_s: float) -> None:
        """Keep when the job began. Raises SpecError where it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
            part.write_text(json.dumps({"started_at_s": at_s}) + "\n", encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            raise SpecError(f"--state: {self.path} cannot be written ({error.strerror or error})") from None

    def claim_run(self) -> bool:
        """Whether the command may run now: once, however many watch. Raises SpecError where it cannot be noted."""
        try:
            self._ran.parent.mkdir(parents=True, exist_ok=True)
            if (
                self._ran.exists()
                and not self._ran.stat().st_size
                and time.time() - self._ran.stat().st_mtime > CLAIM_S
            ):
                self._ran.unlink(missing_ok=True)  # of a watch that was killed before the command began
            with self._ran.open("x", encoding="utf-8"):
                return True
        except FileExistsError:
            return False
        except OSError as error:
            raise SpecError(f"--state: {self._ran} cannot be written ({error.strerror or error})") from None

    def note_run(self, *, begun: bool) -> None:
        """Say what came of a claim: the command began, or it did not and may be tried again."""
        with contextlib.suppress(OSError):
            if begun:
                self._ran.write_text(f"{time.time()}\n", encoding="utf-8")
            else:
                self._ran.unlink(missing_ok=True)
