"""Few constants fitted to many measurements: robust loss, shrinkage to priors, errors of groups left out.

Errors are logarithms of predicted / measured. A large one counts by its size, not its square. Each constant is drawn to
its prior, so that one that only a left-out group knows goes back there. Rows of one publisher, and of one study of it,
share an error of their own (how they measure, how far they tune), which is fitted beside the constants and never used
in a prediction: what one house has in common does not bend the constants of all. Constants are logarithms here.

Source of the shared errors: Laird and Ware 1982 (Biometrics 38:963), random effects.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.catalog import Facts
from flopwise.values import dataclass

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """One number that all of `scopes` share: scopes of a calibrated parameter, or records of stacks or engines."""

    name: str
    scopes: tuple[str, ...]
    prior: float  # what is known of it without these measurements
    low: float
    high: float
    spread: float = 0.5  # how far (of a logarithm) it strays from the prior freely
    table: Literal["calibration", "stacks", "engines"] = "calibration"

    def present_value(self, facts: Facts) -> float:
        """The value in the facts, within the bounds."""
        if self.table == "calibration":
            value = facts.calibration.find(self.name, self.scopes[:1]).value
        else:
            value = float(getattr(getattr(facts, self.table)[self.scopes[0]], self.name))
        return min(max(value, self.low), self.high)


Values = Mapping[Constant, float]


ELBOW = 0.10  # log error from which the loss grows linearly
PULL = 0.02  # weight of a squared distance from the prior, in spreads, against one row of weight one
SHARED_SPREAD = 0.2  # of a logarithm: how far a group's errors stray together freely
STEP = 0.02  # of a logarithm, for derivatives
REACHES = (0.7, 0.25, 0.08)  # of a step, until it helps
SINGLE_REACH = 0.25  # of a step by one constant alone
SHORTER = (1.0, 0.35, 0.1)  # of the step that a constant alone would take, until it helps
WORTH = 1e-4  # share of the loss that such a step must promise to be tried


class FitModel(ABC):
    """Errors of predictions as a function of constants."""

    constants: Sequence[Constant]
    weights: Array
    groupings: Sequence[Sequence[str]] = ()  # labels of the figures, each label with an error that its figures share
    step = STEP
    reaches: Sequence[float] = REACHES

    @abstractmethod
    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every figure with the constants at `point`."""

    @abstractmethod
    def only(self, members: Sequence[int]) -> FitModel:
        """The model of a subset of the figures."""

    def moved_errors(self, errors: Array, point: Array, index: int) -> Array:
        """The errors at `point`, of which one constant, that at `index`, has moved since they were `errors`."""
        del errors, index
        return self.errors(point)

    def values(self, point: Array) -> Values:
        """The constants' values at `point`."""
        return dict(zip(self.constants, np.exp(point).tolist(), strict=True))

    def shared_errors(self) -> Array:
        """`indicators` of the figures that have an error in common."""
        return indicators(self.groupings, len(self.weights))

    def slopes(self, point: Array) -> Array:
        """Derivatives of the errors, one column a constant."""
        here = self.errors(point)
        columns = []
        for index, constant in enumerate(self.constants):
            step = -self.step if point[index] + self.step > math.log(constant.high) else self.step
            moved = point.copy()
            moved[index] += step
            columns.append((self.errors(moved) - here) / step)
        return np.column_stack(columns)


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """The value below which `share` of the weight lies, linear between rows."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share * weights.sum(), below, values[order]))


def indicators(groupings: Sequence[Sequence[str]], size: int) -> Array:
    """One column a label of each grouping, 1 for its figures; shape (size, labels)."""
    columns = [np.array(labels) == label for labels in groupings for label in dict.fromkeys(labels)]
    return np.array(columns, dtype=float).reshape(-1, size).T


def loss(constants: Sequence[Constant], errors: Array, weights: Array, point: Array, groups: Array) -> float:
    """The loss that a fit minimises; `groups`: `indicators` of figures whose common error is taken out."""
    pull, zero = np.full(groups.shape[1], PULL / SHARED_SPREAD**2), np.zeros(groups.shape[1])
    open_ended, no_slopes = zero + math.inf, np.empty((len(errors), 0))
    shared = _least(errors, no_slopes, groups, weights, zero, pull=pull, priors=zero, low=-open_ended, high=open_ended)
    drawn = (_pull(constants) * (point - _priors(constants)) ** 2).sum() + (pull * shared**2).sum()
    return float((weights * robust_losses(errors + groups @ shared)).sum() + drawn)


def robust_losses(errors: Array) -> Array:
    """The loss of each error: its square, and from `ELBOW` on its size (pseudo-Huber)."""
    losses: Array = 2 * ELBOW**2 * (np.sqrt(1 + (errors / ELBOW) ** 2) - 1)
    return losses


def _priors(constants: Sequence[Constant]) -> Array:
    return np.log([c.prior for c in constants])


def _pull(constants: Sequence[Constant]) -> Array:
    return PULL / np.array([c.spread for c in constants]) ** 2


def solve(
    constants: Sequence[Constant], errors: Array, slopes: Array, weights: Array, point: Array, groups: Array,
    reach: float = math.inf,
) -> Array:  # fmt: skip
    """The best point where errors are linear in the constants around `point`, no further than `reach`.

    `groups`: `indicators` of figures with an error in common, fitted at the same time.
    """
    count = groups.shape[1]
    zero, open_ended = np.zeros(count), np.full(count, math.inf)
    low = np.maximum(np.log([c.low for c in constants]), point - reach)
    high = np.minimum(np.log([c.high for c in constants]), point + reach)
    best = _least(
        errors, slopes, groups, weights, np.concatenate([point, zero]),
        pull=np.concatenate([_pull(constants), zero + PULL / SHARED_SPREAD**2]),
        priors=np.concatenate([_priors(constants), zero]),
        low=np.concatenate([low, -open_ended]), high=np.concatenate([high, open_ended]),
    )  # fmt: skip
    return best[: len(point)]


def _least(
    errors: Array, slopes: Array, groups: Array, weights: Array, point: Array, *, pull: Array, priors: Array,
    low: Array, high: Array,
) -> Array:  # fmt: skip
    """The point of least loss where errors are linear around `point`, within bounds; by reweighted least squares.

    `slopes` by the constants, then those by the errors that `groups` share: their indicators.
    """
    best, every = point.copy(), np.hstack([slopes, groups])
    for _ in range(40):
        left = errors + every @ (best - point)
        w = weights / np.sqrt(1.0 + (left / ELBOW) ** 2)
        new, free, products = best.copy(), np.ones(len(best), dtype=bool), _products(slopes, groups, w)
        for _ in range(6):  # those that run into a bound stay there
            normal = products[np.ix_(free, free)] + np.diag(pull[free])
            fixed = errors + every[:, ~free] @ (new[~free] - point[~free]) - every[:, free] @ point[free]
            new[free] = np.linalg.solve(normal, pull[free] * priors[free] - every[:, free].T @ (w * fixed))
            out = free & ((new < low) | (new > high))
            new = np.clip(new, low, high)
            if not out.any():
                break
            free &= ~out
        if not len(best) or np.abs(new - best).max() < 1e-5:
            break
        best = 0.5 * best + 0.5 * new
    return best


def _products(slopes: Array, groups: Array, weights: Array) -> Array:
    """Weighted sums of the products of any two columns of slopes and indicators.

    Indicators are mostly zeros: those of two groups meet in the figures that both have.
    """
    count, size = slopes.shape[1], groups.shape[1]
    sums = np.empty((count + size, count + size))
    sums[:count] = (slopes.T * weights) @ np.hstack([slopes, groups])
    sums[count:, :count] = sums[:count, count:].T
    row, column = groups.nonzero()
    place = [column[row.searchsorted(np.arange(len(weights))) + turn] for turn in range(len(row) // len(weights))]
    pairs = [np.bincount(a * size + b, weights, size * size) for a in place for b in place]
    sums[count:, count:] = np.sum(pairs, axis=0).reshape(size, size) if pairs else 0.0
    return sums


@dataclass(frozen=True)
class Fit:
    """The end point of a fit, with the log errors of every figure there."""

    model: FitModel
    point: Array
    slopes: Array
    errors: Array

    @property
    def values(self) -> Values:
        """The fitted values."""
        return self.model.values(self.point)

    def left_out(self, groups: Sequence[str]) -> Array:
        """Log errors of every figure under constants that have not seen its group: one step, then predicted exactly."""
        names, unseen = np.array(groups), np.zeros(len(self.errors))
        for name, point in self.points_without(groups).items():
            own = np.flatnonzero(names == name)
            unseen[own] = self.model.only(own.tolist()).errors(point)
        return unseen

    def points_without(self, groups: Sequence[str]) -> dict[str, Array]:
        """The end point without each group: one step from the end point with it."""
        model, names = self.model, np.array(groups)
        kept, shared = {name: names != name for name in dict.fromkeys(groups)}, model.shared_errors()
        points = {}
        for name, own in kept.items():
            errors, slopes, common = self.errors[own], self.slopes[own], shared[np.ix_(own, shared[own].any(axis=0))]
            points[name] = solve(model.constants, errors, slopes, model.weights[own], self.point, common)
        return points


def fit(
    model: FitModel, start: Array, rounds: int, least_gain: float = 1e-3, tell: Callable[[str], None] = lambda _: None
) -> Fit:
    """Gauss-Newton steps from `start` that shrink until they help, until one gains under `least_gain` of the loss.

    Where none helps, as at the kinks of a maximum, constants move one by one.
    """
    point, slopes, shared = start, model.slopes(start), model.shared_errors()
    for turn in range(rounds):
        here = model.errors(point)
        before = loss(model.constants, here, model.weights, point, shared)
        for reach in model.reaches:
            new = solve(model.constants, here, slopes, model.weights, point, shared, reach)
            after = loss(model.constants, model.errors(new), model.weights, new, shared)
            if after < before:
                break
        else:
            new, after = _moved_one_by_one(model, point, here, slopes, shared)
            if not after < before:
                break
        point, slopes = new, model.slopes(new)
        tell(f"  round {turn + 1}: loss {after:.4f}, {error_text(model.errors(point))}")
        if before - after < least_gain * before:
            break
    return Fit(model, point, slopes, model.errors(point))


def _moved_one_by_one(
    model: FitModel, point: Array, errors: Array, slopes: Array, shared: Array
) -> tuple[Array, float]:
    """`point` with each constant in turn where the loss is less, as far as it would go alone or less; and that loss."""
    least = loss(model.constants, errors, model.weights, point, shared)
    for index, constant in enumerate(model.constants):
        own = slopes[:, [index]]
        if not own.any():
            continue
        aim = solve([constant], errors, own, model.weights, point[[index]], shared, SINGLE_REACH)[0]
        way = np.zeros_like(point)
        way[index] = aim - point[index]
        if loss(model.constants, errors + slopes @ way, model.weights, point + way, shared) > (1.0 - WORTH) * least:
            continue
        for share in SHORTER:
            new = point + share * way
            moved = model.moved_errors(errors, new, index)
            after = loss(model.constants, moved, model.weights, new, shared)
            if after < least:
                point, errors, least = new, moved, after
                break
    return point, least


def error_text(errors: Array) -> str:
    """Median and 90th percentile of the absolute relative error, and the signed median."""
    relative = np.expm1(errors)
    size = np.abs(relative)
    return (
        f"median {100 * np.median(size):5.1f} %, p90 {100 * np.quantile(size, 0.9):6.1f} %, "
        f"bias {100 * np.median(relative):+6.1f} %"
    )
