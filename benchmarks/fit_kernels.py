"""Fit rates and fixed times of kernels and messages to benchmarks/truth/kernels.csv.

python benchmarks/fit_kernels.py                     report errors of the shipped calibration
python benchmarks/fit_kernels.py --write             refit, report, write
python benchmarks/fit_kernels.py --leave-out B200    refit without a GPU, report on it alone; `all`: each in turn
python benchmarks/fit_kernels.py --leave-out all --write    the same, its errors to accuracy/kernels_left_out.csv

The loss is the sum of |log(predicted / measured)|, smoothed near zero, and of a pull of every family's value towards
the mean of all, so that a family with few rows stays near the others, and one without rows is their mean. It is made
small one constant at a time. Without a GPU only the constants that move its rows are fitted again, from those that have
seen all rows.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

import fitting
from flopwise.backtests.kernels import Predictor
from flopwise.backtests.prediction import Row
from flopwise.cost.rates import families
from flopwise.facts.calibration import Calibration
from flopwise.facts.catalog import Facts
from flopwise.fitting.kernels import ALL, CONSTANTS, FAMILIES, GROUPS
from flopwise.fitting.robust import Constant, Values

PULL = 0.02  # weight of (log value - mean log value) ** 2, per family, times the number of rows of an average family
SMOOTH = 0.03  # log error below which the loss is a square
STEPS = (1.6, 1.25, 1.1, 1.3, 1.1, 1.03)  # factors that are tried, one after the other
SHAKE = 0.25  # standard deviation of a logarithm, between descents
FAMILY_VALUES: dict[Constant, tuple[Constant, ...]] = {
    constant: own
    for group in GROUPS
    for own in (tuple(c for c in group if c.scopes != (ALL,)),)
    for constant in group
    if 0 < len(own) < len(group)
}
"""The constants of single families, by the constant that applies to all other families."""


class KernelFit:
    """Coordinate descent in log space, one constant at a time, over the rows that it moves.

    `absent`: scopes of which nothing is known, because a GPU is left out; `kept`: the places of the rows that are not.
    """

    def __init__(
        self, rows: Sequence[Row], facts: Facts, values: Values, absent: frozenset[str] = frozenset(),
        kept: Iterable[int] | None = None,
    ) -> None:  # fmt: skip
        """Predict the kept rows with `values`."""
        self.rows, self.facts, self.values, self.absent = rows, facts, dict(values), absent
        self.measured = [float(row["seconds"]) for row in rows]
        predictor = Predictor(facts, self.calibration(values))
        seconds = {i: predictor.predict(rows[i]).predicted for i in (range(len(rows)) if kept is None else kept)}
        self.predicted = {i: s for i, s in seconds.items() if s is not None}

    def calibration(self, values: Values) -> Calibration:
        """The calibration with `values`, without the absent scopes."""
        known = {(c.name, c.scopes[0]): v for c, v in values.items() if c.scopes[0] not in self.absent}
        return self.facts.calibration.without(self.absent).with_values(known)

    def predictions(self, values: Values, members: Iterable[int]) -> dict[int, float]:
        """Seconds of rows that can be predicted."""
        predictor = Predictor(self.facts, self.calibration(values))
        return {i: predictor.seconds(self.rows[i]) for i in members}

    def loss(self) -> float:
        """Loss of all rows, plus each pull once."""
        firsts = {c.name: c for c in CONSTANTS if c.scopes[0] not in self.absent and c.scopes != (ALL,)}
        return self._rows_loss(self.predicted) + sum(self._pull(c, self.values) for c in firsts.values())

    def _rows_loss(self, predicted: dict[int, float]) -> float:
        return sum(math.hypot(math.log(p / self.measured[i]), SMOOTH) for i, p in predicted.items())

    def _pull(self, constant: Constant, values: Values) -> float:
        logs = [math.log(values[c]) for c in FAMILY_VALUES.get(constant, ()) if c.scopes[0] not in self.absent]
        if not logs or constant.scopes == (ALL,):
            return 0.0
        mean = sum(logs) / len(logs)
        return PULL * len(self.rows) / len(FAMILIES) * sum((value - mean) ** 2 for value in logs)

    @cached_property
    def moved_rows(self) -> dict[Constant, list[int]]:
        """The rows that each constant moves, where the fit begins."""
        return {c: self._moved_by(c) for c in CONSTANTS if c.scopes[0] not in self.absent}

    def _moved_by(self, constant: Constant) -> list[int]:
        value = self.values[constant]
        up = self.predictions(self.values | {constant: value * 1.3 + 1e-12}, self.predicted)
        down = self.predictions(self.values | {constant: value / 1.3}, self.predicted)
        return [i for i, p in self.predicted.items() if up[i] != p or down[i] != p]

    def _try_step(self, constant: Constant, members: list[int], factor: float) -> bool:
        """True if a step by `factor` either way lowers the loss, and is taken."""
        now = self.values[constant]
        best = self._rows_loss({i: self.predicted[i] for i in members}) + self._pull(constant, self.values)
        for candidate in (now * factor, now / factor):
            bounded = min(max(candidate, constant.low), constant.high)
            if bounded == now:
                continue
            trial = self.values | {constant: bounded}
            predicted = self.predictions(trial, members)
            if self._rows_loss(predicted) + self._pull(constant, trial) < best - 1e-9:
                self.values = trial
                self.predicted |= predicted
                return True
        return False

    def descend(self, members: Mapping[Constant, list[int]]) -> None:
        """Steps of every constant that moves rows, its `members`, until few of them help, with smaller factors."""
        free = [c for c, own in members.items() if own and not (c.scopes == (ALL,) and c in FAMILY_VALUES)]
        measured = {c for c in CONSTANTS if c.scopes[0] not in self.absent and members.get(c, True)}
        for factor in STEPS:
            for _ in range(6):
                improved = [self._try_step(c, members[c], factor) for c in free]
                if sum(improved) < 0.1 * len(improved):
                    break
            self.values = with_shared_means(self.values, measured)


def with_shared_means(values: Values, measured: Collection[Constant] = CONSTANTS) -> dict[Constant, float]:
    """`values` with the geometric mean of the `measured` families for all others and for those without rows."""
    moved = dict(values)
    for constant in CONSTANTS:
        own = [c for c in FAMILY_VALUES.get(constant, ()) if c in measured]
        if own and (constant.scopes == (ALL,) or constant not in measured):
            moved[constant] = math.exp(sum(math.log(values[c]) for c in own) / len(own))
    return moved


def origin(constant: Constant, rows: str) -> str:
    """The rows that a value was fitted on, `rows`, or the values of the families."""
    families_values = FAMILY_VALUES.get(constant, ())
    if constant.scopes != (ALL,) or not families_values:
        return rows
    return f"geometric mean of: {', '.join(c.scopes[0] for c in families_values)}"


def fit_kernels(rows: Sequence[Row], facts: Facts, start: Values, descents: int = 1) -> KernelFit:
    """The best of several descents: the first from `start`, the others from the best so far, shaken (seeded)."""
    chance = random.Random(2026)  # noqa: S311 - no secret
    best = KernelFit(rows, facts, start)
    members = best.moved_rows
    best.descend(members)
    for _ in range(descents - 1):
        shaken = {
            c: min(max(value * math.exp(chance.gauss(0.0, SHAKE)), c.low), c.high) for c, value in best.values.items()
        }
        other = KernelFit(rows, facts, with_shared_means(shaken))
        other.descend(members)
        if other.loss() < best.loss():
            best.values, best.predicted = other.values, other.predicted
    return best


def without_gpu(full: KernelFit, gpu: str) -> dict[int, float]:
    """Predictions of a GPU's rows by a fit that has not seen it, nor its family unless another GPU is of it.

    `full`: the fit of all rows. What the GPU's family and link have is fitted from the other families' mean, and what
    no other row says anything of is that mean, or what is known beforehand.
    """
    rows, facts = full.rows, full.facts
    kept = {i for i in full.predicted if rows[i]["gpu"] != gpu}
    seen = {scope for name in {rows[i]["gpu"] for i in kept} for scope in _scopes(facts, name)}
    own = _scopes(facts, gpu)
    absent = frozenset(scope for scope in own if scope not in seen and scope != "pcie")
    moved = {c: places for c, places in full.moved_rows.items() if c.scopes[0] not in absent}
    affected = {c: [i for i in p if i in kept] for c, p in moved.items() if not kept.issuperset(p)}
    anew = {c for c in CONSTANTS if c.scopes[0] in own or not affected.get(c, True)}
    start = {c: c.prior if c in anew else value for c, value in full.values.items()}
    fit = KernelFit(rows, facts, with_shared_means(start, [c for c in CONSTANTS if c not in anew]), absent, kept)
    fit.descend(affected)
    return fit.predictions(fit.values, (i for i in full.predicted if i not in kept))


def _scopes(facts: Facts, gpu: str) -> tuple[str, str]:
    """The family of a GPU, and its link."""
    a = facts.accelerator(gpu)
    return families(a)[0], (a.link or "none").lower()


def main() -> None:
    """Fit, report, write."""
    options = fitting.parser(__doc__)
    options.add_argument("--descents", type=int, default=1, help="all but the first from shaken values")
    options.add_argument("--leave-out", metavar="GPU")
    given = options.parse_args()
    rows, facts = fitting.published_rows("kernels")
    begin = {c: c.prior if given.fresh else c.present_value(facts) for c in CONSTANTS}
    if given.leave_out:
        full = fit_kernels(rows, facts, begin, given.descents)
        gpus = sorted({row["gpu"] for row in rows})
        wanted = gpus if given.leave_out == "all" else [given.leave_out]
        predicted = {i: s for gpu in wanted for i, s in without_gpu(full, gpu).items()}
        if given.write and wanted == gpus:
            order = sorted(predicted)
            unseen = np.log([predicted[i] / float(rows[i]["seconds"]) for i in order])
            fitting.write_left_out("kernels", [rows[i]["id"] for i in order], {"error": unseen})
    else:
        found = KernelFit(rows, facts, begin)
        if given.write:
            found = fit_kernels(rows, facts, begin, given.descents)
            what = f"{len(rows)} published kernels and collectives"
            fitting.write(found.values, "fit_kernels.py", partial(origin, rows=what))
        predicted = found.predicted
    errors, groups = [], defaultdict(list)
    for place, (index, seconds) in enumerate(predicted.items()):
        row = rows[index]
        errors.append(np.log(seconds / float(row["seconds"])))
        for name in ("all", row["op"], row["gpu"], f"{row['op']} {row['dtype']}", f"{row['op']} {row['gpu']}",
                     row["library"], f"{row['op']} {row['library']}"):  # fmt: skip
            groups[name].append(place)
    print(*fitting.group_lines(groups, {"left out" if given.leave_out else "plain": np.array(errors)}), sep="\n")


if __name__ == "__main__":
    main()
