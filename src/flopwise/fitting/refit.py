"""Constants of devices refitted to a user's own measurements: the few that these can decide, near what was known.

Every candidate is a parameter of the calibration, in the scope of the family of a device that was measured. It moves
where the rows say more of it than is known beforehand, and only as far as predicts rows that are left out closer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from flopwise.backtests.kinds import KINDS
from flopwise.backtests.prediction import Prediction
from flopwise.cost.rates import Rates, families, rates
from flopwise.errors import MissingFactError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.calibration import Calibration, Parameter
from flopwise.facts.catalog import Facts
from flopwise.facts.tables import Lazy
from flopwise.fitting import kernels
from flopwise.fitting.measured import MeasuredRow
from flopwise.fitting.robust import PULL, Array, Constant, Fit, FitModel, fit, robust_losses, solve
from flopwise.training.estimate import single_parts, single_table
from flopwise.training.job import TrainJob
from flopwise.values import dataclass, replace

ROW_WEIGHT = 0.5
"""Of a row against what is known beforehand: one row that is 30 % off moves a constant about two thirds of the way."""
ROUNDS = 8
FARTHEST = 100.0
"""A constant goes no further down than to this part of what it was."""
STEPS_BACK = (1.0, 0.7, 0.5, 0.3, 0.1)
"""Of the way to the fitted values, tried in turn until no kind of measurement is worse than before."""
FIRMNESS = (1, 4, 16, 64)
"""How firmly constants may be held where they were, in multiples of `PULL`; not to move them is one more choice."""
PARTS = 20
"""Parts of rows that name no model; one is left out at a time."""
GROUPS_LEAST = 4
"""Models, or rows, from which on errors of those left out are told."""
Advance = Callable[[float, float | None], None]
"""Told how many rounds are done, of how many at most."""
Bounds = tuple[float, float, float]  # low, high, spread of the logarithm
MOVING = ("kernels", "training", "serving", "gpu-hours")
"""Kinds of measurement that constants of devices move; bytes follow from the software alone."""
HOST: Mapping[str, Bounds] = {
    "matmul_frac.bf16": (0.05, 1.5, 0.3), "tile_fill_s": (1e-9, 1e-4, 1.0), "dram_frac": (0.1, 2.0, 0.3),
    "pointwise_frac": (0.02, 4.0, 0.5), "kernel_s": (1e-7, 1e-4, 0.7), "attention_frac": (0.02, 1.5, 0.5),
    "train_attention_frac.fa2": (0.02, 1.5, 0.5), "train_host_ratio": (0.02, 20.0, 1.0),
    "fresh_bytes_per_s": (1e8, 1e11, 0.7),
    "train_permute_passes.exchange": (0.5, 100.0, 0.7), "decode_s": (1e-7, 1e-4, 0.7), "decode_frac": (0.1, 1.0, 0.5),
}  # fmt: skip
"""Of a CPU, whose rates are measured ones: caches carry elementwise operations beyond what memory does."""
TRAINING: Mapping[str, Bounds] = {
    "train_attention_frac.fa2": (0.05, 0.9, 0.5), "train_attention_frac.cudnn": (0.05, 0.9, 0.5),
    "train_joules_per_flop": (0.1e-12, 6e-12, 0.3), "train_contention": (0.01, 1.0, 0.5),
    "train_grouped_frac.split": (0.1, 1.0, 0.5), "train_permute_passes.exchange": (1.0, 40.0, 0.5),
}  # fmt: skip
DEVICE = {c.name: (c.low, c.high, c.spread) for c in kernels.CONSTANTS if not c.name.startswith(("wrapper", "host_"))}
DEVICE |= {"matmul_frac.fp32": (0.2, 1.0, 0.3)}
"""Of other devices: the bounds that fits to published measurements keep, which have no products in fp32."""


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """One figure of a row that can be predicted."""

    row: MeasuredRow
    quantity: str
    measured: float
    family: str  # of its device
    band: str  # class of its errors
    group: str  # what is left out together: a model, or one of `PARTS`
    job: TrainJob | None = None  # of a training run, built once


class RowModel(FitModel):
    """Log errors of all figures as a function of the constants' logarithms."""

    def __init__(
        self, figures: Sequence[MeasuredFigure], facts: Facts, constants: Sequence[Constant],
        parameters: Sequence[Parameter] | None = None,
    ) -> None:  # fmt: skip
        """Predict nothing yet; `parameters`: those of the constants, where they are known."""
        self.figures, self.facts, self.constants = figures, facts, constants
        self.weights = np.full(len(figures), ROW_WEIGHT)
        self.parameters = [_present(c, facts) for c in constants] if parameters is None else parameters
        self._computed: dict[bytes, Array] = {}

    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every figure."""
        key = _place(point)
        if key not in self._computed:
            self._computed[key] = figure_errors(self.figures, self._moved_facts(point))
        return self._computed[key]

    def _moved_facts(self, point: Array) -> Facts:
        """The facts with the constants at `point`, each in its own scope."""
        values = zip(self.parameters, self.values(point).values(), strict=True)
        return with_parameters(self.facts, [replace(parameter, value=value) for parameter, value in values])

    @property
    def kinds(self) -> list[str]:
        """The class of errors and the family of each figure, none of which may get worse."""
        return [f"{figure.band} {figure.family}" for figure in self.figures]

    def only(self, members: Sequence[int]) -> RowModel:
        """The same for some of the figures."""
        return RowModel([self.figures[i] for i in members], self.facts, self.constants, self.parameters)

    def slopes(self, point: Array) -> Array:
        """Derivatives of the errors; a constant of one family moves no row of another."""
        here, columns, moved = self.errors(point), list[Array](), self._moved_facts(point)
        for index, constant in enumerate(self.constants):
            own = [i for i, figure in enumerate(self.figures) if _moves(constant, figure)]
            column = np.zeros(len(here))
            if own:
                figures, at = [self.figures[i] for i in own], point[index : index + 1]
                alone = RowModel(figures, moved, (constant,), self.parameters[index : index + 1])
                alone._computed[_place(at)] = here[own]
                column[own] = FitModel.slopes(alone, at)[:, 0]
            columns.append(column)
        return np.column_stack(columns) if columns else np.zeros((len(here), 0))


def _place(point: Array) -> bytes:
    """`point` as a key."""
    return np.round(point, 9).tobytes()


def _moves(constant: Constant, figure: MeasuredFigure) -> bool:
    return constant.scopes[0] == figure.family or constant.name.startswith("link_")


def figure_errors(figures: Sequence[MeasuredFigure], facts: Facts) -> Array:
    """log(predicted / measured) of figures; a row that is no longer predicted is an error of our own."""
    predict = {kind: KINDS[kind].predictor(facts) for kind in {f.row.kind for f in figures}}
    predictions: dict[int, Sequence[Prediction]] = {}
    chips: dict[str, Rates] = {}
    errors = []
    for figure in figures:
        if figure.job is not None:
            errors.append(math.log(_tokens_per_s(figure.job, facts, chips) / figure.measured))
            continue
        key = id(figure.row)
        if key not in predictions:
            predictions[key] = predict[figure.row.kind](figure.row.row)
        one = next(p for p in predictions[key] if p.quantity == figure.quantity)
        assert one.predicted is not None, one.skipped
        errors.append(math.log(one.predicted / figure.measured))
    return np.array(errors)


def _tokens_per_s(job: TrainJob, facts: Facts, chips: dict[str, Rates]) -> float:
    """Tokens a second and device of a run, at the rates that its device has in these facts; each resolved once."""
    chip, recipe = job.cluster.accelerator, job.recipe
    if chip.name not in chips:
        chips[chip.name] = rates(chip, facts.calibration)
    moved = replace(job, cluster=replace(job.cluster, rates=chips[chip.name]))
    step_s = sum(single_parts(single_table(moved), job.layout).values())
    return float(recipe.global_batch * recipe.seq_len / step_s / int(job.layout.num_gpus))


def family_of(chip: Accelerator) -> str:
    """The nearest scope of a device's constants."""
    return families(chip)[0]


def with_parameters(facts: Facts, above: Sequence[Parameter]) -> Facts:
    """The facts with parameters laid over those that there are."""
    table: Calibration = facts.calibration.overlay(above)
    known = facts.accelerators
    chips = Lazy(known, lambda name: replace(known[name], calibration=table))
    return facts.with_tables(calibration=table, accelerators=chips)


def _present(constant: Constant, facts: Facts) -> Parameter:
    """The parameter that a constant starts from, as one of its own scope."""
    scope = constant.scopes[0]
    chip = next((c for c in facts.accelerators.values() if family_of(c) == scope), None)
    chain = (scope, "any") if chip is None else _chain(chip)
    return replace(facts.calibration.find(constant.name, chain), scope=scope)


def _chain(chip: Accelerator) -> tuple[str, ...]:
    return families(chip)


def candidates(facts: Facts, figures: Sequence[MeasuredFigure]) -> list[Constant]:
    """The constants that may move: known ones of the measured devices' families that are above 0."""
    chips = {f.family: facts.accelerator(f.row.row["gpu"]) for f in figures if f.family}
    subsets = []
    for family, chip in chips.items():
        for name, (low, high, spread) in (HOST if chip.kind == "cpu" else {**DEVICE, **TRAINING}).items():
            link = (chip.link or "none").lower()
            scopes = (link, "any") if name.startswith("link_") else _chain(chip)
            try:
                value = facts.calibration.find(name, scopes).value
            except MissingFactError:
                continue
            if value > 0:
                scope = scopes[0] if name.startswith("link_") else family
                subsets.append(
                    Constant(name, (scope,), value, max(min(low, value), value / FARTHEST), max(high, value), spread)
                )
    return list(dict.fromkeys(subsets))


def decidable(model: RowModel, start: Array) -> list[Constant]:
    """The candidates on which the rows carry at least as much information as the prior."""
    slopes = model.slopes(start)
    information = (model.weights[:, None] * slopes**2).sum(axis=0)
    known = PULL / np.array([c.spread for c in model.constants]) ** 2
    return [c for c, enough in zip(model.constants, information >= known, strict=True) if enough]


@dataclass(frozen=True, slots=True)
class Refit:
    """The result of a refit: values of the moved constants, and log errors before, after, and of figures left out."""

    figures: Sequence[MeasuredFigure]
    values: Mapping[Constant, float]
    rows: Mapping[Constant, int]  # figures that each constant moves
    before: Array
    after: Array
    unseen: Array | None  # under constants that have not seen the figure's group; None with too few groups
    groups: str  # what was left out at a time


def refits(figures: Sequence[MeasuredFigure], facts: Facts, advance: Advance | None = None) -> Iterator[Refit]:
    """Fit the constants that the figures determine, in groups that share none; no kind of measurement gets worse."""
    for own in _independent(figures, facts):
        yield _refit(own, facts, advance)


def _refit(figures: Sequence[MeasuredFigure], facts: Facts, advance: Advance | None) -> Refit:
    before = figure_errors(figures, facts)
    untouched = Refit(
        figures, {}, {}, before, before, before, "row"
    )  # nothing is fitted: every figure is an unseen one
    constants = candidates(facts, figures)
    if not constants:
        return untouched
    free = decidable(RowModel(figures, facts, constants), np.log([c.prior for c in constants]))
    if not free:
        return untouched
    model = RowModel(figures, facts, free)
    start = np.log([c.prior for c in free])
    turns = itertools.count(1)
    loosest = fit(model, start, ROUNDS, tell=lambda _: None if advance is None else advance(next(turns), ROUNDS))
    best, unseen, left_out = _supported_refit(loosest, figures, before)
    if best is None:
        return Refit(figures, {}, {}, before, before, before, left_out)
    point = _kept_where_no_better(model, start, _never_worse(model, start, best.point, before))
    moved = np.abs(point - start) > 1e-4
    if not moved.any():
        return untouched
    touched = (np.abs(best.slopes) > 1e-3).sum(axis=0)
    values = {c: float(math.exp(p)) for c, p, did in zip(free, point, moved, strict=True) if did}
    rows = {c: int(n) for c, n, did in zip(free, touched, moved, strict=True) if did}
    return Refit(figures, values, rows, before, model.errors(point), unseen, left_out)


def no_worse(kinds: Sequence[str], errors: Array, than: Array) -> bool:
    """True if no kind of figure has larger errors, by median and by mean."""
    names = np.array(kinds)
    return all(
        measure(np.abs(np.expm1(errors[names == kind]))) <= measure(np.abs(np.expm1(than[names == kind])))
        for kind in dict.fromkeys(kinds)
        for measure in (np.median, np.mean)
    )


def _never_worse(model: RowModel, start: Array, point: Array, before: Array) -> Array:
    """As much of the way to `point` as makes no kind's errors larger; `start` where nothing does."""
    for share in STEPS_BACK:
        there = start + share * (point - start)
        if no_worse(model.kinds, model.errors(there), before):
            return there
    return start


def _kept_where_no_better(model: RowModel, start: Array, point: Array) -> Array:
    """`point` with each constant back at its start, the least moved first, where errors are no larger so."""
    point = point.copy()
    for index in np.argsort(np.abs(point - start), kind="stable"):
        trial = point.copy()
        trial[index] = start[index]
        if no_worse(model.kinds, model.errors(trial), model.errors(point)):
            point = trial
    return point


def _supported_refit(
    loosest: Fit, figures: Sequence[MeasuredFigure], before: Array
) -> tuple[Fit | None, Array | None, str]:  # fmt: skip
    """The fit that holds constants firmest and predicts figures left out as closely as the best one, but by chance.

    None where not to move them does; with the errors of figures left out, and what was left out: every model, or every
    row where there are few models. With too few of both nothing can be left out, and the loosest fit is all there is.
    """
    groups = [f.group for f in figures], [str(id(f.row)) for f in figures]
    for names, what in zip(groups, ("model", "row"), strict=True):
        if len(set(names)) >= GROUPS_LEAST:
            fits = [_firmer(loosest, firmness) for firmness in reversed(FIRMNESS)]
            unseen = [before, *(one.left_out(names) for one in fits)]
            chosen = least_within_chance([robust_losses(errors) for errors in unseen], names)
            return (None, *fits)[chosen], unseen[chosen], what
    return loosest, None, ""


def _firmer(loose: Fit, firmness: float) -> Fit:
    """The fit with priors that hold so many times as firmly: one step from where it ended."""
    model = loose.model
    assert isinstance(model, RowModel)
    constants = [replace(c, spread=c.spread / math.sqrt(firmness)) for c in model.constants]
    firm = RowModel(model.figures, model.facts, constants, model.parameters)
    point = solve(constants, loose.errors, loose.slopes, firm.weights, loose.point, firm.shared_errors())
    return Fit(firm, point, loose.slopes, firm.errors(point))


def _independent(figures: Sequence[MeasuredFigure], facts: Facts) -> list[list[MeasuredFigure]]:
    """The figures in groups that share no constant: by the families of their devices and the links of these."""
    groups: list[tuple[set[str], list[MeasuredFigure]]] = []
    for figure in figures:
        scopes, members = {figure.family}, [figure]
        if figure.family:
            scopes |= {facts.accelerator(figure.row.row["gpu"]).link or "none"} - {"none"}
        apart = []
        for group in groups:
            if group[0] & scopes:
                scopes, members = scopes | group[0], [*group[1], *members]
            else:
                apart.append(group)
        groups = [*apart, (scopes, members)]
    return [members for _, members in groups]


def least_within_chance(losses: Sequence[Array], groups: Sequence[str]) -> int:
    """Number of the first of some choices, the most cautious first, of which none is better by more than chance.

    `losses`: of every figure under each choice that has not seen its group. Chance: the standard error of the
    difference to the best choice's, by groups.

    Source: the one-standard-error rule (Breiman et al. 1984, section 3.4.3; Hastie et al. 2009, section 7.10).
    """
    names = np.array(groups)
    by_group = np.array([[own[names == name].sum() for name in dict.fromkeys(groups)] for own in losses])
    worse = by_group - by_group[by_group.sum(axis=1).argmin()]
    chance = worse.std(axis=1, ddof=1) * math.sqrt(worse.shape[1])
    return int(np.argmax(worse.sum(axis=1) <= chance))
