"""`calibrate`: a profile of your own measurements, which estimates then use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flopwise.api.prices import today
from flopwise.cost.spec import MachineSpec
from flopwise.facts.catalog import load_facts
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.fitting.deployment import observed_profile
from flopwise.fitting.measured import Measurements
from flopwise.fitting.profile import CalibrationProfile, MadeProfile, free_name
from flopwise.keywords import takes
from flopwise.options import BATCH, take
from flopwise.serving.spec import ServingSpec

SERVED = (MachineSpec, ServingSpec, SourceSpec)


@takes(*SERVED, users=BATCH)
def calibrate(
    *files: str | Path,
    name: str | None = None,
    model: ModelName | None = None,
    users: int | None = None,
    facts: str | Path | None = None,
    calibration: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    advance: Callable[[float, float | None], None] | None = None,
    **deployment: Any,
) -> CalibrationProfile:
    """Refit the constants that measurements can decide, into a calibration profile.

    Options of machines and of the deployment (`gpu="h100", tp=2` ...) say how an observed `model` is served.

    Args:
        files: what `flopwise probe` wrote, CSV files as `backtest` reads them, or names of recorded runs; with a
            `model`, observations that `flopwise observe` wrote, or results of a load generator.
        name: of the profile (default: as the first file).
        model: what an observed deployment serves.
        users: clients of a closed loop, where a file does not say how many; None takes requests at their times.
        calibration: profile to start from, instead of the shipped constants.
        dry_run: write nothing.
        force: replace a profile of the same name.

    Raises:
        SpecError: a file is broken or of no known kind, nothing in it can be predicted, requests are too few, or
            the name is taken.

    Examples:
        >>> import flopwise
        >>> profile = flopwise.calibrate("examples/measured-training.csv", name="ours", dry_run=True)
        >>> profile.name
        'ours'
    """
    paths, date = [Path(file) for file in files], today().isoformat()

    def profile_name(wanted: str) -> str:
        return free_name(wanted, force=force or dry_run or calibration == wanted)

    if model is not None and paths:
        chosen = profile_name(name or paths[0].resolve().stem)
        machines, served, source = take({"facts": facts, "calibration": calibration, **deployment}, *SERVED)
        made = observed_profile(model, served, machines, source, paths, chosen, date, users)
    else:
        given = Measurements.without_deployment(paths, [*deployment, *(["users"] if users is not None else [])])
        chosen = profile_name(name or Path(given.files[0]).stem)
        made = MadeProfile.of(given, load_facts(facts, calibration), chosen, date, advance)
    if not dry_run:
        made.write(force=force or calibration == chosen)
    return made.profile
