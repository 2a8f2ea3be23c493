"""Users who ask alike begin one after the other: they are not in step, and `serve` and `simulate` agree on TPOT."""

from typing import Any

import numpy as np
import pytest
from reference import REFERENCE

from flopwise.api.serve import serve
from flopwise.api.simulate import simulate
from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.sim.engine import replica
from flopwise.serving.sim.setup import user_start_ps
from flopwise.serving.sim.simulate import simulate as run
from flopwise.serving.sim.trace import RequestTrace, trace
from named import serve_job_with

JOB = serve_job_with(
    model=load_model("Llama-3.1-8B"),
    cluster=cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8),
    input_tokens=1000,
    output_tokens=200,
)
MADE = replica(JOB, max_tokens=2000)


def alike(count: int) -> RequestTrace:
    return trace(np.zeros(count), [1000] * count, [200] * count)


@pytest.mark.parametrize("users", [2, 16, 60])
@pytest.mark.parametrize("replicas", [1, 3])
def test_they_begin_evenly_and_before_the_first_answer(users: int, replicas: int) -> None:
    asked = alike(10 * users)
    begin = user_start_ps(asked, users, replicas, MADE.cost, MADE.limits)
    gaps = np.diff(begin[:users])
    assert begin[0] == 0
    assert gaps.min() > 0
    assert np.ptp(gaps) <= 1  # rounded to picoseconds
    found = run(asked, MADE.cost, MADE.limits, users=users, replicas=replicas)
    assert begin[users - 1] < found.outcome.finish_ps.min()
    np.testing.assert_array_equal(found.outcome.arrival_ps[:users], begin[:users])
    assert begin[users - 1] > 0.5 * (1 - 1 / users) * found.outcome.finish_ps[0]  # over most of an answer


def test_lengths_that_vary_part_users_by_themselves() -> None:
    varied = trace(np.zeros(50), range(500, 550), [200] * 50)
    assert not user_start_ps(varied, 10, 1, MADE.cost, MADE.limits).any()
    assert not user_start_ps(alike(50), 1, 1, MADE.cost, MADE.limits).any()


def test_both_engines_agree_to_the_last_bit() -> None:
    fast = run(alike(60), MADE.cost, MADE.limits, users=12)
    slow = run(alike(60), MADE.cost, MADE.limits, users=12, engine=REFERENCE)
    for name, got, expected in zip(fast.outcome._fields, fast.outcome, slow.outcome, strict=True):
        np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.parametrize("users", [8, 32, 64])
@pytest.mark.parametrize(("model", "tp"), [("Llama-3.1-8B", 1), ("Llama-3.1-70B", 4)])
def test_serve_and_simulate_agree_on_a_closed_loop(model: str, tp: int, users: int) -> None:
    """Below saturation, lengths that vary by a tenth, as load generators draw them: alike, users fall in step again.

    In step, first tokens wait for one another, and answers come faster in between.
    """
    how: dict[str, Any] = {"gpu": "h100", "tp": tp}
    held = serve(model, concurrency=users, closed_form=True, **how).estimate.tpot_s
    apart = simulate(model, users=users, input_tokens="910:1138", output_tokens="228:284", **how).summary
    step = simulate(model, users=users, together=True, **how).summary
    assert held is not None
    assert apart.tpot_s.p50 == pytest.approx(held.value, rel=0.03)
    assert step.ttft_s.p50 > 2 * apart.ttft_s.p50


def test_only_users_begin_together() -> None:
    with pytest.raises(SpecError, match="needs --users"):
        simulate("Llama-3.1-8B", gpu="h100", rate=1.0, together=True)
