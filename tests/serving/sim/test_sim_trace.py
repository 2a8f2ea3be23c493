"""Traces and policies: what is refused, and who goes first."""

import numpy as np
import pytest

from flopwise.errors import SpecError, UnknownNameError
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import ReplicaLimits
from flopwise.serving.sim.policies import (
    BALANCERS,
    LEAST_LOADED,
    LEAST_TOKENS,
    POLICIES,
    PREFIX_AWARE,
    ROUND_ROBIN,
    ranks,
)
from flopwise.serving.sim.setup import setup
from flopwise.serving.sim.trace import PS, trace


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (([], [], []), "without requests"),
        (([0.0, -1.0], [1, 1], [1, 1]), "arrival_s row 1"),
        (([0.0, float("nan")], [1, 1], [1, 1]), "arrival_s row 1"),
        (([1.0, 0.5], [1, 1], [1, 1]), "sort the requests"),
        (([0.0], [0], [1]), "prompt_tokens row 0"),
        (([0.0], [1], [0.5]), "output_tokens row 0"),
        (([0.0], [1], [float("inf")]), "output_tokens row 0"),
        (([0.0, 1.0], [1], [1, 1]), "prompt has 1 rows"),
        (([0.0], ["a"], [1]), "prompt_tokens: not a column"),
        (([[0.0]], [1], [1]), "2 dimensions"),
    ],
)
def test_bad_columns_are_refused_by_name_and_row(columns: tuple[list[float], ...], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        trace(*columns)


def test_seconds_become_picoseconds() -> None:
    made = trace([0.0, 1.5, 1.5], [1, 2, 3], [4, 5, 6], deadline_s=[-1, 2, 3])
    assert made.arrival_ps.tolist() == [0, 3 * PS // 2, 3 * PS // 2]
    assert made.deadline_ps.tolist() == [-1, 2 * PS, 3 * PS]
    assert made.duration_s == 1.5
    assert made.requests_per_s == pytest.approx(2 / 1.5)
    assert made.take(np.array([2, 0])).prompt.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", [0, 1, 2, 3]),
        ("priority", [1, 3, 0, 2]),
        ("shortest", [3, 2, 1, 0]),
        ("shortest-prompt", [3, 0, 2, 1]),
        ("deadline", [2, 1, 0, 3]),
    ],
)
def test_a_policy_orders_requests_and_ties_by_arrival(policy: str, order: list[int]) -> None:
    made = trace([0, 1, 2, 3], [5, 9, 8, 1], [20, 9, 1, 1], priority=[1, 0, 1, 0], deadline_s=[-1, 3, 2, -1])
    by_rank, places = ranks(made, policy)
    assert by_rank.tolist() == np.argsort(places).tolist() == order


def test_every_policy_is_a_permutation_and_wrong_names_are_told_the_right_ones() -> None:
    made = trace([0, 1, 2], [3, 3, 3], [1, 1, 1])
    for name in POLICIES:
        assert sorted(ranks(made, name)[1].tolist()) == [0, 1, 2]
    numbers = {"round-robin": ROUND_ROBIN, "least-loaded": LEAST_LOADED, "least-tokens": LEAST_TOKENS,
               "prefix-aware": PREFIX_AWARE}  # fmt: skip
    none, limits = np.zeros(2, dtype=np.int64), ReplicaLimits(max_batch=1, step_tokens=1)
    cost = StepCost(tokens_ps=np.arange(2), decode_ps=none, cached_ps=none, window_ps=none)
    assert {name: setup(made, cost, limits, balancer=name).balancer for name in BALANCERS} == numbers
    with pytest.raises(UnknownNameError, match="fcfs"):
        ranks(made, "fifo")
    with pytest.raises(UnknownNameError, match="least-loaded"):
        setup(made, cost, limits, balancer="least_load")
