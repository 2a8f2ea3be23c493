"""Who goes first: requests in the order of a policy's keys."""

import numpy as np
import pytest

from flopwise.serving.sim.policies import LATEST, order


@pytest.mark.parametrize(
    "key",
    [
        [],
        [7],
        [3, 1, 2, 1, 3, 1],
        [2**16, 1, 2**16 + 1, 0, 2**32, 2**48, 1],  # digits of 16 bits that only together tell who is first
        [-3, LATEST, -(2**63), 5, -3, LATEST],  # further apart than int64 counts
    ],
)
def test_rows_are_in_the_order_of_keys_and_equal_ones_as_they_came(key: list[int]) -> None:
    np.testing.assert_array_equal(
        order(np.array(key, dtype=np.int64)), sorted(range(len(key)), key=lambda row: (key[row], row))
    )


@pytest.mark.parametrize("span", [5, 2**10, 2**20, 2**40, 2**62])
def test_many_keys_are_in_order(span: int) -> None:
    key = np.random.default_rng(span % 97).integers(-span, span, 3000)
    np.testing.assert_array_equal(order(key), np.argsort(key, kind="stable"))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.9])
def test_long_keys_that_begin_alike_are_told_apart_by_their_ends(share: float) -> None:
    """Deadlines in picoseconds: most differ in their first 32 bits, some in their last alone, some not at all."""
    rng = np.random.default_rng(5)
    key = rng.integers(0, 2**60, 4000)
    some = rng.choice(4000, int(4000 * share), replace=False)
    key[some] = key[rng.integers(0, 40, len(some))] + rng.integers(-2, 3, len(some))
    np.testing.assert_array_equal(order(key), np.argsort(key, kind="stable"))
