"""Few constants fitted to many measurements, against problems whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from flopwise.fitting.deployment import even_weights
from flopwise.fitting.robust import Array, Constant, FitModel, fit, loss, solve

CONSTANTS = (Constant("a", ("any",), 1.0, 0.01, 100.0, 5.0), Constant("b", ("any",), 1.0, 0.01, 100.0, 5.0))


class Product(FitModel):
    """Figures that are a ** x * b ** y, measured with noise."""

    constants = CONSTANTS

    def __init__(self, powers: Array, measured: Array) -> None:
        self.powers, self.measured, self.weights = powers, measured, np.ones(len(measured))

    def errors(self, point: Array) -> Array:
        predicted: Array = self.powers @ point - np.log(self.measured)
        return predicted

    def only(self, members: Sequence[int]) -> Product:
        return Product(self.powers[list(members)], self.measured[list(members)])


def _published(rows: int = 200, outliers: int = 0) -> Product:
    chance = np.random.default_rng(3)
    powers = chance.uniform(0.0, 2.0, (rows, 2))
    measured = np.exp(powers @ np.log([3.0, 0.5]) + 0.02 * chance.standard_normal(rows))
    measured[:outliers] *= 20.0
    return Product(powers, measured)


def _values(model: Product) -> list[float]:
    return list(fit(model, np.zeros(2), 10).values.values())


def test_constants_are_found_and_a_tenth_of_wild_rows_hardly_moves_them() -> None:
    assert _values(_published()) == pytest.approx([3.0, 0.5], rel=0.02)
    assert _values(_published(outliers=20)) == pytest.approx([3.0, 0.5], rel=0.1)


def test_a_bound_holds_and_the_others_make_up_for_it() -> None:
    model = _published()
    model.constants = (Constant("a", ("any",), 1.0, 0.01, 2.0, 5.0), CONSTANTS[1])
    low, other = _values(model)
    assert low == pytest.approx(2.0)
    assert other > 0.5


def test_what_only_a_left_out_group_knows_goes_back_to_its_prior() -> None:
    powers = np.array([[1.0, 0.0]] * 50 + [[1.0, 1.0]] * 50)
    model = Product(powers, np.exp(powers @ np.log([3.0, 0.5])))
    found = fit(model, np.zeros(2), 10)
    unseen = found.left_out(["one"] * 50 + ["two"] * 50)
    assert found.errors == pytest.approx(np.zeros(100), abs=0.01)
    assert unseen[50:] == pytest.approx(np.full(50, np.log(2.0)), abs=0.02)  # b back at 1: twice too much
    alone = solve(CONSTANTS, found.errors[:50], found.slopes[:50], np.ones(50), found.point, np.zeros((50, 0)))
    assert np.exp(alone) == pytest.approx([3.0, 1.0], rel=0.02)


def test_what_one_house_has_in_common_does_not_bend_the_constants_of_all() -> None:
    """Two houses measure y = 3^power; the third, which has the large powers, reports a third less throughout."""
    powers = np.array([[power, 0.0] for power in (0.5, 1.0, 0.5, 1.0, 1.5, 2.0) for _ in range(20)])
    houses = [house for house in "aabbcc" for _ in range(20)]
    measured = np.exp(powers @ np.log([3.0, 1.0])) * np.where(np.array(houses) == "c", 2 / 3, 1.0)
    bent, model = fit(Product(powers, measured), np.zeros(2), 20), Product(powers, measured)
    model.groupings = (houses,)
    shared = fit(model, np.zeros(2), 20)
    assert math.exp(bent.point[0]) < 2.6
    assert math.exp(shared.point[0]) == pytest.approx(3.0, rel=0.05)
    assert shared.errors[-1] > math.log(1.35) > bent.errors[-1]  # predictions leave it where it is
    assert shared.left_out(houses)[-1] == pytest.approx(math.log(1.5), abs=0.05)


def test_a_source_with_many_rows_does_not_decide_alone() -> None:
    assert even_weights(["a"] * 4 + ["b"]) == pytest.approx([0.5] * 4 + [1.0])


class Kinked(FitModel):
    """Two figures, each the greater of two lines in both constants: no step along both helps from where they cross."""

    constants = CONSTANTS
    weights = np.ones(2)

    def errors(self, point: Array) -> Array:
        a, b = point
        return np.array([max(a - 10.0 * b, 10.0 * b - a) + 0.3 * (a - 1.0), 0.2 * (a - 1.0)])

    def only(self, members: Sequence[int]) -> Kinked:
        assert list(members) == [0, 1], "both figures hang together"
        return self


def test_constants_move_one_by_one_where_no_common_step_helps() -> None:
    model, start = Kinked(), np.zeros(2)
    before = loss(model.constants, model.errors(start), model.weights, start, model.shared_errors())
    found = fit(model, start, 3)
    after = loss(model.constants, found.errors, model.weights, found.point, model.shared_errors())
    assert after < 0.9 * before
