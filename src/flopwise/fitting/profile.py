"""A calibration profile: made of measurements, written as a folder of facts, read back, removed."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import flopwise
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.prediction import Prediction
from flopwise.backtests.training import row_job
from flopwise.errors import FlopwiseError, SpecError, UnknownNameError
from flopwise.facts import profiles
from flopwise.facts.accelerators import ACCELERATORS, ALIASES
from flopwise.facts.calibration import FIELDS, Parameter
from flopwise.facts.catalog import CALIBRATION, ERRORS_FILE, Facts, load_facts
from flopwise.facts.software import ENGINES
from flopwise.fitting.measured import ALIASES as NAMES_OF_DEVICE
from flopwise.fitting.measured import PROBED, MeasuredRow, Measurements, ProbedFacts
from flopwise.fitting.refit import (
    MOVING,
    PARTS,
    Advance,
    MeasuredFigure,
    Refit,
    family_of,
    figure_errors,
    refits,
    with_parameters,
)
from flopwise.fitting.robust import Array, Constant
from flopwise.folders import write_folder
from flopwise.units import format_items
from flopwise.values import dataclass, replace

FORMAT, VERSION = "flopwise-calibration", 1
SOURCE = "flopwise calibrate"
PARAMETERS_FILE = f"{CALIBRATION}/measured.json"
MOST_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
BANDED = ("training", "serving")
"""Kinds whose estimates have a device's own errors: `flopwise.cost.intervals.device_band`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """One constant of a profile: its value before (None: a new device), its value now, and the rows behind it."""

    name: str
    scope: str
    unit: str
    meaning: str
    before: float | None
    after: float
    rows: int  # figures that move it; 0: taken from a probe's single operations
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KindErrors:
    """Errors of one kind of measurement, as |predicted / measured - 1|.

    `median_left_out` and `p90_left_out` are of figures whose model or row the constants have not seen; None with too
    few. `interval` (a factor either way) is what new figures stay within, and `coverage_left_out` the share of figures
    that such a factor of the other groups' figures holds.
    """

    kind: str
    family: str
    rows: int
    median_before: float
    p90_before: float
    median_after: float
    p90_after: float
    left_out: str = ""
    median_left_out: float | None = None
    p90_left_out: float | None = None
    interval: float | None = None
    coverage_left_out: float | None = None
    stacks: tuple[str, ...] = ()  # of training, what the rows ran on


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationProfile:
    """A profile, with the files it was made of."""

    format: str = FORMAT
    version: int = VERSION
    name: str
    date: str
    flopwise: str
    files: tuple[str, ...]
    based_on: str | None = None  # the profile that it started from
    devices: tuple[str, ...] = ()  # that it adds to the catalog
    constants: tuple[FittedConstant, ...] = ()
    errors: tuple[KindErrors, ...] = ()
    skipped: tuple[tuple[str, int], ...] = ()  # why rows were not used, and how many
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeProfile:
    """A profile with the files of its folder, by their paths in it."""

    profile: CalibrationProfile
    files: dict[str, bytes]

    @classmethod
    def of(cls, given: Measurements, facts: Facts, name: str, date: str, advance: Advance | None = None) -> MadeProfile:
        """Refit the constants that the measurements determine, starting from the facts (and their profile, if any).

        Raises: SpecError: none of the rows can be predicted, and no probe brings a device.
        """
        base = None if facts.profile is None else facts.profile.name
        given = replace(given, probed=tuple(_with_power(one, facts) for one in given.probed))
        probed = [one for one in given.probed if one.parameters]
        devices = {row["name"]: row for one in probed for row in one.devices}
        with_probe = _with_probes(facts, probed)
        figures, skipped = predicted_figures(given.rows, with_probe)
        if not figures and not probed:
            reasons = [f"{text} ({count} rows)" for text, count in skipped.most_common(3)]
            reasons += [note for one in given.probed for note in one.notes]
            why = "; ".join(reasons) or "there are no rows"
            raise SpecError(f"nothing to calibrate with: {why}")
        moving = [f for f in figures if f.row.kind in MOVING]
        still = [f for f in figures if f.row.kind not in MOVING]
        fits = [*refits(moving, with_probe, advance)]
        moved = [_parameter(c, v, one, with_probe, date) for one in fits for c, v in one.values.items()]
        new = {(p.name, p.scope): p for p in (*(p for one in probed for p in one.parameters), *moved)}
        fixed = figure_errors(still, with_probe)
        untouched = Refit(still, {}, {}, fixed, fixed, fixed, "row")
        own = [*_product_errors(probed, facts, with_probe)]
        errors = [one for refit in (*fits, untouched, *own) for one in _errors(refit)]
        profile = CalibrationProfile(
            name=name, date=date, flopwise=flopwise.__version__, files=given.files, based_on=base,
            devices=tuple(devices), errors=tuple(errors), skipped=tuple(skipped.most_common()),
            constants=tuple(_constant(p, fits, facts) for p in new.values()),
            notes=(*_notes(given, fits, skipped), *_scatter_notes(own)),
        )  # fmt: skip
        return MadeProfile(
            profile=profile, files=profile_files(profile, facts, [*new.values()], devices, _bands(errors, date))
        )

    def write(self, *, force: bool) -> Path:
        """Write the profile's folder and return it; over one of the same name with `force` only.

        Raises: SpecError: there is one of that name, or the folder cannot be written.
        """
        name, made = free_name(self.profile.name, force=force), self.files
        folder = profiles.profiles_folder() / name
        known = (ACCELERATORS.file, ALIASES.file, ERRORS_FILE, ENGINES.file)
        write_folder(folder, made, stale=lambda to: [n for n in known if n not in made and (to / n).is_file()])
        load_facts(None, name)  # what could not be read would be told here, not by the next estimate
        return folder


def predicted_figures(rows: Sequence[MeasuredRow], facts: Facts) -> tuple[list[MeasuredFigure], Counter[str]]:
    """The figures that can be predicted, and the reasons why others cannot, with their counts."""
    predict = {kind: KINDS[kind].predictor(facts) for kind in {row.kind for row in rows}}
    figures, skipped = list[MeasuredFigure](), Counter[str]()
    for place, row in enumerate(rows):
        for one in predict[row.kind](row.row):
            if one.predicted is None:
                skipped[one.skipped or "no prediction"] += 1
            elif one.measured:
                figures.append(_figure(row, one, one.measured, facts, place))
    return figures, skipped


def _figure(row: MeasuredRow, one: Prediction, measured: float, facts: Facts, place: int) -> MeasuredFigure:
    try:
        family = family_of(facts.accelerator(row.row.get("gpu", "")))
    except FlopwiseError:  # a weights file names no device
        family = ""
    name = one.band.exact_name or one.band.name if one.band is not None else row.kind
    parts = name.partition("@")[0].split(".")
    band = ".".join(parts[: 2 if parts[0] == "serving" else 1])
    group = row.row.get("model") or f"part {place % PARTS}"
    job = row_job(row.row, facts) if row.kind == "training" else None
    return MeasuredFigure(row, one.quantity, measured, family, band, group, job)


def _with_power(probed: ProbedFacts, facts: Facts) -> ProbedFacts:
    """New devices with a power limit: watts a core of the processors of the catalog that are called most alike.

    Assumes: cores of a family draw alike; what a virtual machine calls a core is one.
    """
    known = [c for c in facts.accelerators.values() if c.kind == "cpu" and c.tdp_w and c.num_sms]
    rows, notes = list[dict[str, Any]](), list[str]()
    for row in probed.devices:
        words = set(str(row["name"]).lower().split())
        likeness = [len(words & set(c.name.lower().split())) + (c.vendor == row["vendor"]) for c in known]
        alike = [c for c, much in zip(known, likeness, strict=True) if much == max(likeness)]
        watts = statistics.median(c.tdp_w / c.num_sms for c in alike if c.tdp_w and c.num_sms) if alike else None
        if watts is not None and not row.get("tdp_w"):
            cores = float(row["num_sms"])
            whose = alike[0].name if len(alike) == 1 else f"the median of {len(alike)} like it in the catalog"
            notes.append(f"{row['name']}: power is not measured: {cores:g} x {watts:.2g} W a core, {whose}")
            row = {**row, "tdp_w": f"{cores * watts:.3g}", "notes": f"{row['notes']}; {notes[-1]}"}  # noqa: PLW2901
        rows.append(row)
    return replace(probed, devices=tuple(rows), notes=(*probed.notes, *notes))


def _with_probes(facts: Facts, probed: Sequence[ProbedFacts]) -> Facts:
    """The facts with the devices of probes, which are read as a facts folder's rows are."""
    return with_parameters(_with_devices(facts, probed), [p for one in probed for p in one.parameters])


def _with_devices(facts: Facts, probed: Sequence[ProbedFacts]) -> Facts:
    rows = [row for one in probed for row in one.devices]
    if not rows:
        return facts
    import tempfile  # noqa: PLC0415 - probes alone need it

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / ACCELERATORS.file
        path.write_bytes(_csv(rows))
        read = ACCELERATORS.overlay(facts.rows(ACCELERATORS), path)
    chips = {**facts.accelerators, **{row["name"]: read[row["name"],] for row in rows}}
    facts = facts.with_tables(accelerators=chips)
    facts.__dict__.pop("spellings", None)
    return facts


def _product_errors(probed: Sequence[ProbedFacts], facts: Facts, with_probe: Facts) -> Iterator[Refit]:
    """Errors on the products that new devices were probed with: the shipped constants at their rates, and their own.

    They say how much of what was measured the few constants keep; nothing is left out.
    """
    rows = [MeasuredRow("kernels", row, "") for one in probed for row in one.own_rows]
    figures, _ = predicted_figures(rows, with_probe)
    if figures:
        before = figure_errors(figures, _with_devices(facts, probed))
        yield Refit(figures, {}, {}, before, figure_errors(figures, with_probe), None, "")


def _scatter_notes(own: Sequence[Refit]) -> Iterator[str]:
    if any(np.median(np.abs(np.expm1(one.after))) > np.median(np.abs(np.expm1(one.before))) for one in own):
        yield "the probe's products scatter more than a device's own do: probe again while nothing else runs"


def _parameter(constant: Constant, value: float, refit: Refit, facts: Facts, date: str) -> Parameter:
    """The fitted parameter, as its row is written."""
    scope, count = constant.scopes[0], refit.rows[constant]
    like = next(p for p in facts.calibration.parameters if p.name == constant.name)
    fitted_on = format_items(count, "measured figure")
    return replace(
        like, scope=scope, value=float(f"{value:.4g}"), fitted_on=fitted_on, source=SOURCE, date=date, profile=""
    )


def _constant(parameter: Parameter, fits: Sequence[Refit], facts: Facts) -> FittedConstant:
    fitted = {(c.name, c.scopes[0]): (c.prior, n) for one in fits for c, n in one.rows.items()}
    prior, rows = fitted.get((parameter.name, parameter.scope), (None, 0))
    shipped = facts.calibration.has(parameter.name, parameter.scope) or rows
    return FittedConstant(
        name=parameter.name, scope=parameter.scope, unit=parameter.unit, meaning=parameter.meaning,
        before=prior if shipped else None, after=parameter.value, rows=rows, source=parameter.source,
    )  # fmt: skip


def _errors(refit: Refit) -> Iterator[KindErrors]:
    """Errors of each kind and family."""
    figures = refit.figures
    for kind, family in dict.fromkeys((f.band, f.family) for f in figures):
        own = np.array([(f.band, f.family) == (kind, family) for f in figures])
        before, after = (np.abs(np.expm1(errors[own])) for errors in (refit.before, refit.after))
        one = KindErrors(
            kind=kind, family=family, rows=int(own.sum()), median_before=float(np.median(before)),
            p90_before=float(np.quantile(before, 0.9)), median_after=float(np.median(after)),
            p90_after=float(np.quantile(after, 0.9)),
            stacks=tuple(sorted({f.job.recipe.stack.name for f in itertools.compress(figures, own) if f.job})),
        )  # fmt: skip
        groups = np.array([f.group if refit.groups == "model" else str(id(f.row)) for f in figures])
        yield one if refit.unseen is None else _with_left_out(one, refit.unseen[own], refit.groups, groups[own])


def own_band(unseen: Array) -> float | None:
    """The factor either way that covers 80 % of new figures; None where these are too few.

    The ceil(0.8 (n + 1))-th smallest of the errors left out: it holds a new one of the same kind with 80 % at least.

    Source: Vovk et al. 2005, conformal prediction; Barber et al. 2021 (arXiv:1905.02928) for errors left out.
    Assumes: new figures are drawn as these were.
    """
    rank = math.ceil(0.8 * (len(unseen) + 1))
    return None if rank > len(unseen) else float(math.exp(np.sort(np.abs(unseen))[rank - 1]))


def _bands(errors: Sequence[KindErrors], date: str) -> dict[str, Any]:
    """The bands that estimates then have, as intervals.json holds them; nothing where there are too few figures."""
    bands = {
        f"{one.kind}@{one.family}": {
            "low": 1 / one.interval,
            "median": 1.0,
            "high": one.interval,
            "rows": one.rows,
            **({"stacks": list(one.stacks)} if one.stacks else {}),
        }
        for one in errors
        if one.interval is not None and one.interval > 1 and one.family and one.kind.partition(".")[0] in BANDED
    }
    return {"source": f"{SOURCE}: figures left out", "date": date, "bands": bands} if bands else {}


def _with_left_out(one: KindErrors, unseen: Array, left_out: str, groups: NDArray[np.str_]) -> KindErrors:
    size = np.abs(np.expm1(unseen))
    return replace(
        one, left_out=left_out, median_left_out=float(np.median(size)), p90_left_out=float(np.quantile(size, 0.9)),
        interval=own_band(unseen), coverage_left_out=own_coverage(unseen, groups),
    )  # fmt: skip


def own_coverage(unseen: Array, groups: NDArray[np.str_]) -> float | None:
    """Share of figures within the band that the figures of all other groups set; None where these are too few.

    Source: Barber et al. 2021 (arXiv:1905.02928), the jackknife+: a figure is held against what has not seen it.
    Assumes: groups are drawn alike, and the figures of one depend on one another.
    """
    within = list[bool]()
    for name in dict.fromkeys(groups.tolist()):
        factor = own_band(unseen[groups != name])
        if factor is None:
            return None
        within += (np.abs(unseen[groups == name]) <= math.log(factor)).tolist()
    return float(np.mean(within))


def _notes(given: Measurements, fits: Sequence[Refit], skipped: Counter[str]) -> list[str]:
    notes = [note for one in given.probed for note in one.notes]
    if fits and not any(one.values for one in fits):
        notes.append(
            "no constant was moved: beyond chance, none predicts rows that it has not seen closer than what holds"
        )
    elif any(one.unseen is None for one in fits):
        notes.append("too few rows to leave some out: how well unseen cases are predicted is not known")
    if skipped:
        notes.append(f"{sum(skipped.values()):,} figures could not be predicted and were not used")
    return notes


def profile_files(
    profile: CalibrationProfile, facts: Facts, new: Sequence[Parameter], devices: dict[str, Any], bands: Any,
    engines: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, bytes]:  # fmt: skip
    """The files of the folder: those of the profile that it is based on, with new values over them.

    `engines`: constants of engines by name, with their source and date.
    """
    files = {profiles.PROFILE_FILE: _json(asdict(profile))}
    if facts.profile is not None:
        names = (ACCELERATORS.file, ALIASES.file, ERRORS_FILE, ENGINES.file)
        files |= {n: path.read_bytes() for n in names if (path := facts.profile / n).is_file()}
    below = [p for p in facts.calibration.parameters if facts.profile is not None and p.profile == facts.profile.name]
    parameters = {(p.name, p.scope): p for p in (*below, *new)}.values()
    files[PARAMETERS_FILE] = _json([{name: getattr(p, name) for name in FIELDS} for p in parameters])
    if devices:  # beside those of the profile below; "here" is the new one
        files[ACCELERATORS.file] = _laid_over(files.get(ACCELERATORS.file), list(devices.values()), "name")
        files[ALIASES.file] = _laid_over(files.get(ALIASES.file), _aliases(next(iter(devices)), facts), "alias")
    if engines:
        records = json.loads(files[ENGINES.file]) if ENGINES.file in files else {}
        for engine, own in engines.items():
            records[engine] = {"fitted": {**records.get(engine, {}).get("fitted", {}), **own}}
        files[ENGINES.file] = _json(records)
    if bands:
        old = json.loads(files[ERRORS_FILE])["bands"] if ERRORS_FILE in files else {}
        files[ERRORS_FILE] = _json({**bands, "bands": {**old, **bands["bands"]}})
    return files


def _aliases(device: str, facts: Facts) -> list[dict[str, Any]]:
    """Other names of a probe's device: also what it calls itself, unless the catalog has that."""
    own = device.removesuffix(PROBED)
    try:
        facts.resolve(own)
    except UnknownNameError:
        return [{"alias": alias, "name": device} for alias in (*NAMES_OF_DEVICE, own)]
    return [{"alias": alias, "name": device} for alias in NAMES_OF_DEVICE]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def _laid_over(below: bytes | None, rows: Sequence[dict[str, Any]], key: str) -> bytes:
    """A table with `rows` in place of those of the same key."""
    old = [] if below is None else csv.DictReader(io.StringIO(below.decode()))
    return _csv([*{str(row[key]): row for row in (*old, *rows)}.values()])


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*dict.fromkeys(name for row in rows for name in row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def free_name(name: str, *, force: bool) -> str:
    """The name of a new profile. Raises SpecError: none may be called so, or, without `force`, one already is."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"profile {name[:80]!r}: letters, digits, '.', '_' and '-' make a name, which begins with a letter or digit"
        )
    if name in profiles.profile_names() and not force:
        raise SpecError(
            f"calibration profile {name!r} is there already; --force replaces it, --name gives another name"
        )
    return name


def calibrations() -> list[CalibrationProfile]:
    """List all calibration profiles, by name.

    Raises:
        SpecError: one is damaged.

    Examples:
        >>> import flopwise
        >>> [profile.name for profile in flopwise.calibrations()]
        [...]
    """
    return [calibration_profile(name) for name in profiles.profile_names()]


def calibration_profile(name: str) -> CalibrationProfile:
    """The calibration profile of this name: its constants, errors, devices and the files it was made of.

    Args:
        name: of the profile.

    Raises:
        UnknownNameError: there is none of that name.
        SpecError: it is damaged, or of a newer version.

    Examples:
        >>> import flopwise
        >>> _ = flopwise.calibrate("examples/measured-training.csv", name="shown", force=True)
        >>> flopwise.calibration_profile("shown").files
        ('examples/measured-training.csv',)
    """
    file = profiles.profile_path(name) / profiles.PROFILE_FILE
    try:
        data = file.read_bytes()[:MOST_BYTES]
        profile = msgspec.json.decode(data, type=CalibrationProfile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise SpecError(f"{file}: cannot be read as a calibration profile ({fault})") from None
    if (profile.format, profile.version) != (FORMAT, VERSION):
        raise SpecError(
            f"{file}: format {profile.format[:40]!r} {profile.version}; this flopwise reads {FORMAT} {VERSION}"
        )
    return profile


def remove_calibration(name: str) -> Path:
    """Remove a calibration profile; returns the folder that is gone.

    Args:
        name: of the profile.

    Raises:
        UnknownNameError: there is none of that name.
        SpecError: it cannot be removed.

    Examples:
        >>> import flopwise
        >>> _ = flopwise.calibrate("examples/measured-training.csv", name="brief", force=True)
        >>> flopwise.remove_calibration("brief").name
        'brief'
    """
    folder = profiles.profile_path(name)
    try:
        shutil.rmtree(folder)
    except OSError as fault:
        raise SpecError(f"{folder}: cannot be removed ({fault.strerror or fault})") from None
    return folder
