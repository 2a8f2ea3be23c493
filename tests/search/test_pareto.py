from operator import le

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flopwise.search.rank import pareto_front

points = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=40)


@given(points)
def test_front_equals_brute_force(pairs: list[tuple[int, int]]) -> None:
    cost = np.array([float(p[0]) for p in pairs])
    seconds = np.array([float(p[1]) for p in pairs])
    front = {(cost[i], seconds[i]) for i in pareto_front(cost, seconds)}
    brute = {
        (c, s)
        for c, s in zip(cost, seconds, strict=True)
        if not any((a <= c and b <= s and (a < c or b < s)) for a, b in zip(cost, seconds, strict=True))
    }
    assert front == brute


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 4), max_size=60))
def test_front_of_four_objectives_equals_brute_force(rows: list[tuple[int, ...]]) -> None:
    columns = np.array(rows, dtype=float).reshape(-1, 4).T
    front = pareto_front(*columns)
    kept = [rows[i] for i in front]
    assert sorted(set(kept)) == kept  # the least of the first first, equals once
    assert set(kept) == {row for row in rows if not any(all(map(le, other, row)) and other != row for other in rows)}
    assert all(rows.index(rows[i]) == i for i in front)


def test_what_is_not_finite_is_left_out() -> None:
    front = pareto_front(np.array([1.0, np.nan, np.inf]), np.array([2.0, 1.0, 1.0]))
    assert front.tolist() == [0]
