"""Few constants fitted to many measurements: robust loss, shrinkage to priors, errors of groups left out.

Errors are logarithms of predicted / measured. A large one counts by its size, not its square. Each constant is drawn to
its prior, so that one that only a left-out group knows goes back there. All constants are logarithms here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flopwise.fitting.constants import Array, Constant, Values
from flopwise.values import dataclass

ELBOW = 0.10  # log error from which the loss grows linearly
PULL = 0.02  # weight of a squared distance from the prior, in spreads, against one row of weight one
STEP = 0.02  # of a logarithm, for derivatives
REACHES = (0.7, 0.25, 0.08)  # of a step, until it helps


class FitModel(ABC):
    """Errors of predictions as a function of constants."""

    constants: Sequence[Constant]
    weights: Array
    step = STEP
    reaches: Sequence[float] = REACHES

    @abstractmethod
    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every figure with the constants at `point`."""

    @abstractmethod
    def only(self, members: Sequence[int]) -> FitModel:
        """The same for some of the figures."""

    def values(self, point: Array) -> Values:
        """The constants' values at `point`."""
        return dict(zip(self.constants, np.exp(point).tolist(), strict=True))

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


def even_weights(groups: Sequence[str]) -> Array:
    """One over the square root of the rows of each row's group."""
    counts = Counter(groups)
    return np.array([1 / math.sqrt(counts[g]) for g in groups])


def loss(constants: Sequence[Constant], errors: Array, weights: Array, point: Array) -> float:
    """What a fit minimises."""
    pull = (_pull(constants) * (point - _priors(constants)) ** 2).sum()
    return float((weights * robust_losses(errors)).sum() + pull)


def robust_losses(errors: Array) -> Array:
    """What each error counts: its square, and from `ELBOW` on its size (pseudo-Huber)."""
    losses: Array = 2 * ELBOW**2 * (np.sqrt(1 + (errors / ELBOW) ** 2) - 1)
    return losses


def _priors(constants: Sequence[Constant]) -> Array:
    return np.log([c.prior for c in constants])


def _pull(constants: Sequence[Constant]) -> Array:
    return PULL / np.array([c.spread for c in constants]) ** 2


def solve(
    constants: Sequence[Constant], errors: Array, slopes: Array, weights: Array, point: Array, reach: float = math.inf
) -> Array:
    """The best point where errors are linear in the constants around `point`, no further than `reach`."""
    pull, priors = _pull(constants), _priors(constants)
    low = np.maximum(np.log([c.low for c in constants]), point - reach)
    high = np.minimum(np.log([c.high for c in constants]), point + reach)
    best = point.copy()
    for _ in range(40):
        left = errors + slopes @ (best - point)
        w = weights / np.sqrt(1.0 + (left / ELBOW) ** 2)
        new, free = best.copy(), np.ones(len(best), dtype=bool)
        for _ in range(6):  # those that run into a bound stay there
            normal = (slopes[:, free].T * w) @ slopes[:, free] + np.diag(pull[free])
            fixed = errors + slopes[:, ~free] @ (new[~free] - point[~free]) - slopes[:, free] @ point[free]
            new[free] = np.linalg.solve(normal, pull[free] * priors[free] - (slopes[:, free].T * w) @ fixed)
            out = free & ((new < low) | (new > high))
            new = np.clip(new, low, high)
            if not out.any():
                break
            free &= ~out
        if np.abs(new - best).max() < 1e-5:
            break
        best = 0.5 * best + 0.5 * new
    return best


@dataclass(frozen=True)
class Fit:
    """Where a fit ended, and the log errors of every figure there."""

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
        """Where the fit ends without each group: one step from where it ended with it."""
        model, names = self.model, np.array(groups)
        kept = {name: names != name for name in dict.fromkeys(groups)}
        return {
            name: solve(model.constants, self.errors[own], self.slopes[own], model.weights[own], self.point)
            for name, own in kept.items()
        }


def fit(
    model: FitModel, start: Array, rounds: int, least_gain: float = 1e-3, tell: Callable[[str], None] = lambda _: None
) -> Fit:
    """Gauss-Newton steps from `start` that shrink until they help, until one gains under `least_gain` of the loss."""
    point, slopes = start, model.slopes(start)
    for turn in range(rounds):
        here = model.errors(point)
        before = loss(model.constants, here, model.weights, point)
        for reach in model.reaches:
            new = solve(model.constants, here, slopes, model.weights, point, reach)
            after = loss(model.constants, model.errors(new), model.weights, new)
            if after < before:
                break
        else:
            break
        point, slopes = new, model.slopes(new)
        tell(f"  round {turn + 1}: loss {after:.4f}, {error_text(model.errors(point))}")
        if before - after < least_gain * before:
            break
    return Fit(model, point, slopes, model.errors(point))


def error_text(errors: Array) -> str:
    """Median and 90th percentile of the absolute relative error, and the signed median."""
    relative = np.expm1(errors)
    size = np.abs(relative)
    return (
        f"median {100 * np.median(size):5.1f} %, p90 {100 * np.quantile(size, 0.9):6.1f} %, "
        f"bias {100 * np.median(relative):+6.1f} %"
    )


def group_lines(groups: Mapping[str, Sequence[int]], columns: Mapping[str, Array]) -> list[str]:
    """The errors of each group, a line for each way in which they were found."""
    return [
        f"{name if index == 0 else '':62s} {len(members):4d} {label:12s} {error_text(errors[list(members)])}"
        for name, members in groups.items()
        for index, (label, errors) in enumerate(columns.items())
    ]
