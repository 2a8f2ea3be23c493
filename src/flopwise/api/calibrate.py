"""`calibrate`: a profile of one's own measurements, which estimates then use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flopwise.fitting.profile import CalibrationProfile


def calibrate(
    *files: str | Path,
    name: str | None = None,
    facts: str | Path | None = None,
    calibration: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    advance: Callable[[float, float | None], None] | None = None,
) -> CalibrationProfile:
    """Refit the constants that measurements can decide into the profile `name` (default: as the first file).

    `files`: what `flopwise probe` wrote, CSV files as `flopwise backtest` reads them, or names of recorded runs.
    `calibration`: the profile to start from, instead of the shipped constants. `dry_run`: write nothing; `force`: over
    a profile of the same name. `advance(done, whole)` is called as the fit goes.

    Raises:
        SpecError: a file is broken or of no known kind, nothing in them can be predicted, or the name is taken.
    """
    from flopwise.api.prices import today
    from flopwise.facts.catalog import load_facts
    from flopwise.facts.profiles import checked_name
    from flopwise.fitting.measured import read_measurements
    from flopwise.fitting.profile import make_profile, write_profile

    given = read_measurements([Path(file) for file in files])
    chosen = checked_name(name or Path(given.files[0]).stem)
    made = make_profile(given, load_facts(facts, calibration), chosen, today().isoformat(), advance)
    if not dry_run:
        write_profile(made, force=force or calibration == chosen)
    return made.profile


def calibrations() -> list[CalibrationProfile]:
    """All calibration profiles, by name.

    Raises:
        SpecError: one is damaged.
    """
    from flopwise.facts.profiles import profile_names
    from flopwise.fitting.profile import read_profile

    return [read_profile(name) for name in profile_names()]


def calibration_profile(name: str) -> CalibrationProfile:
    """What a calibration profile says, and what it was made of.

    Raises:
        UnknownNameError: there is none of that name.
        SpecError: it is damaged.
    """
    from flopwise.fitting.profile import read_profile

    return read_profile(name)


def remove_calibration(name: str) -> Path:
    """Remove a calibration profile; the folder that is gone.

    Raises:
        UnknownNameError: there is none of that name.
        SpecError: it cannot be removed.
    """
    import shutil

    from flopwise.errors import SpecError
    from flopwise.facts.profiles import profile_path

    folder = profile_path(name)
    try:
        shutil.rmtree(folder)
    except OSError as fault:
        raise SpecError(f"{folder}: cannot be removed ({fault.strerror or fault})") from None
    return folder
