"""`flopwise calibrate`: the constants of estimates, refitted to your own measurements."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags, force_flag, usage_error
from flopwise.cli.parts import bullets
from flopwise.cli.progress import Progress, note
from flopwise.cli.render import Screen, heading, known_text, table, verdict
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.options import DEGREE, FILE, FLAG, name, options_of
from flopwise.serving.spec import ServingSpec

if TYPE_CHECKING:
    from flopwise.fitting.profile import CalibrationProfile, KindErrors

PROFILE = name("name", 80)
MOST_REASONS = 8
DEPLOYMENT = "A deployment that was observed"
MACHINES = "gpu instance gpus_per_node network power_limit"


@options.command(
    "calibrate",
    "flopwise calibrate examples/measured-training.csv --name ours --dry-run",
    "flopwise calibrate examples/observed-vllm --model examples/observed-vllm/model --gpu 'EPYC 9R45' --dry-run",
    "flopwise calibrate --list",
    work="fitting",
)
@options.argument("files", FILE, required=False, nargs=-1, metavar="[FILE]...")
@add("--name", PROFILE, "Name of the profile (default: that of the first file).")
@add("--dry-run", FLAG, "Show the profile without writing it.", default=False)
@force_flag
@add("--list", FLAG, "List the profiles.", field="listing", default=False, section="Profiles")
@add("--show", PROFILE, "Show a profile: its constants and its sources.", section="Profiles")
@add("--remove", PROFILE, "Remove a profile, so that the shipped constants apply again.", section="Profiles")
@add(
    "--model",
    name("model", 4096),
    "Model that the deployment serves; FILE is then a folder of `flopwise observe`.",
    section=DEPLOYMENT,
)
@add(
    "--users", DEGREE,
        "Clients of a closed loop (default: as in FILE; else requests arrive at the recorded times).",
    section=DEPLOYMENT,
)  # fmt: skip
@flags(MachineSpec, MACHINES, section=DEPLOYMENT)
@flags(ServingSpec, section=DEPLOYMENT)
@flags(SourceSpec, "facts calibration")
def command(
    *, files: tuple[Path, ...], listing: bool, show: str | None, remove: str | None, facts: Path | None, **given: Any
) -> None:
    """Refit constants to your own measurements.

    FILE is a file of `flopwise probe`, a CSV file as `flopwise backtest` reads it, or the name of a recorded run; with
    --model it is the folder of `flopwise observe`, or a load generator's result, of a service of that model. Constants
    about which the measurements carry enough information are refitted and written into a profile, which `--calibration
    NAME` applies to every estimate; the error of no kind of measurement increases. With --calibration the fit starts
    from that profile. Profiles are kept in a folder of yours (FLOPWISE_CALIBRATIONS, else flopwise/calibrations in your
    data folder).
    """
    from flopwise.api.calibrate import calibrate
    from flopwise.fitting.profile import calibration_profile, calibrations, remove_calibration

    if sum((bool(files), listing, show is not None, remove is not None)) != 1:
        raise usage_error("give measurement files, or one of --list, --show and --remove")
    of_service = [*MACHINES.split(), *options_of(ServingSpec), "users"]
    if not files:
        options.refuse(
            ["name", "dry_run", "force", "facts", "calibration", "model", *of_service], "goes with measurement files"
        )
    if given["model"] is None:
        options.refuse(of_service, "needs --model, the model that the deployment serves")
        given = {key: value for key, value in given.items() if key not in of_service}
    if listing:
        profiles = calibrations()
        shown = (
            {"A profile in full": shlex.join(["flopwise", "calibrate", "--show", profiles[0].name])} if profiles else {}
        )
        options.answer(profiles, _listing, further=shown)
    elif show is not None:
        profile = calibration_profile(show)
        line = shlex.join(["flopwise", "train", "MODEL", "--gpu", "GPU", "--calibration", profile.name])
        options.answer(profile, _report, further={"An estimate with it": line})
    elif remove is not None:
        path = remove_calibration(remove)
        rest = {"The profiles that are left": "flopwise calibrate --list"}
        options.answer({"removed": remove, "path": str(path)}, lambda *_: [f"Removed {remove} ({path})."], further=rest)
    else:
        with Progress("fitting") as progress:
            done = calibrate(*files, facts=facts, advance=progress, **options.values(given))
        if given["dry_run"]:
            line = options.command_line("calibrate").replace(" --dry-run", "")
            further = {"The same, written as a profile": line}
        else:
            further = {"The profile again": shlex.join(["flopwise", "calibrate", "--show", done.name])}
        options.answer(done, _report, further=further)
        if not given["dry_run"]:
            note(f"`--calibration {done.name}` lets an estimate use it")


def _listing(profiles: Sequence[CalibrationProfile], paper: Screen) -> Iterator[str]:
    if not profiles:
        yield "No calibration profiles; estimates use the shipped constants."
        return
    count = "1 calibration profile" if len(profiles) == 1 else f"{len(profiles)} calibration profiles"
    yield verdict(f"{count}; --calibration NAME uses one in an estimate.", paper)
    yield table(
        ("name", "made", ">constants", "devices", ">error before", ">after", ">left out", "files"),
        [
            (p.name, p.date, len(p.constants), ", ".join(p.devices) or None, *_overall(p), ", ".join(p.files))
            for p in profiles
        ],
        paper,
    )


def _overall(profile: CalibrationProfile) -> tuple[str | None, ...]:
    """Median errors of the kind with most figures."""
    most = max(profile.errors, key=lambda one: one.rows, default=None)
    return (None,) * 3 if most is None else tuple(known_text(error, units.format_percent) for error in _medians(most))


def _medians(one: KindErrors) -> tuple[float | None, ...]:
    return one.median_before, one.median_after, one.median_left_out


def _verdict(profile: CalibrationProfile) -> str:
    """The constants that changed, and the median error before and now of the kind with most figures."""
    count = len(profile.constants)
    text = f"Calibration profile {profile.name} of {profile.date}: {units.format_items(count, 'constant')} changed"
    before, now, left_out = _overall(profile)
    if before is None or now is None:
        return f"{text}."
    unseen = "" if left_out is None else f", {left_out} on rows that were left out"
    return f"{text}; the median error is {now} instead of {before}{unseen}."


def _report(profile: CalibrationProfile, paper: Screen) -> Iterator[str]:
    yield verdict(_verdict(profile), paper)
    yield f"From {', '.join(profile.files)}" + (f", on profile {profile.based_on}" if profile.based_on else "") + "."
    for device in profile.devices:
        yield f"It adds a device: --gpu {device!r}, or --gpu here."
    if profile.constants:
        yield table(
            ("constant", "of", ">before", ">now", "unit", ">figures", "from"),
            [
                (c.name, c.scope, None if c.before is None else f"{c.before:.4g}", f"{c.after:.4g}", c.unit,
                 c.rows or None, c.source)
                for c in profile.constants
            ],
            paper,
        )  # fmt: skip
    if profile.errors:
        yield heading("Errors (median, and the 90th percentile)", paper)
        yield table(
            ("measurement", "of", ">figures", ">before", ">now", ">left out", ">80 % within"),
            [
                (e.kind, e.family, e.rows, _pair(e.median_before, e.p90_before), _pair(e.median_after, e.p90_after),
                 _pair(e.median_left_out, e.p90_left_out), None if e.interval is None else f"x {e.interval:.3g}")
                for e in profile.errors
            ],
            paper,
        )  # fmt: skip
        yield (
            "'now' covers the rows that were fitted; 'left out' predicts each model, row or stretch of traffic with "
            "constants fitted without it, the error to expect for new ones."
        )
    reasons = [f"{rows:,} x {why}" for why, rows in profile.skipped[:MOST_REASONS]]
    if profile.notes or reasons:
        yield bullets("To know:", [*profile.notes, *reasons])


def _pair(median: float | None, p90: float | None) -> str | None:
    return None if median is None or p90 is None else f"{units.format_percent(median)}, {units.format_percent(p90)}"
