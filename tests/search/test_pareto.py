import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flopwise.search.pareto import pareto_front

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


def test_what_is_not_finite_is_left_out() -> None:
    front = pareto_front(np.array([1.0, np.nan, np.inf]), np.array([2.0, 1.0, 1.0]))
    assert front.tolist() == [0]
