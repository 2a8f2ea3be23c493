"""A run against its plan: the terms add up, each is found by what was measured, and what was not is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from imported_runs import expectation, stored

from flopwise.records.explanation import TOGETHER, RunExplanation, explanation
from flopwise.records.model import Event

PLAN = {"forward": 0.3, "backward": 0.5, "optimizer": 0.1, "data_parallel": 0.1}


def terms(why: RunExplanation) -> dict[str, tuple[float, float]]:
    return {term.name: (round(term.expected_s, 6), round(term.measured_s, 6)) for term in why.terms}


def test_on_plan(tmp_path: Path) -> None:
    found = stored(tmp_path / "runs.db", {"step_s": [1.1] * 20}, gpus=8, expected=expectation(PLAN, step_s=1.0))
    why = explanation(found)
    assert why.verdict == "On plan: a step takes 1.10 s, expected 1.00 s (80 % interval: 800 ms to 1.20 s), +10 %"
    assert why.outcomes[0].place == "inside"


def test_memory_of_a_cpu_is_compared_without_what_its_process_held_before(tmp_path: Path) -> None:
    series = {
        "step_s": [1.0] * 20, "peak_memory_bytes@cpu": [6e8, 9e8], "untrained_memory_bytes@cpu": [5e8],
    }  # fmt: skip
    found = stored(tmp_path / "runs.db", series, expected=expectation(PLAN, step_s=1.0, peak_memory_bytes=4e8))
    why = explanation(found)
    outcome = next(one for one in why.outcomes if one.metric == "peak_memory_bytes")
    assert outcome.measured is not None
    assert (outcome.measured.value, outcome.place) == (4e8, "inside")
    assert any("less 477 MiB" in note for note in why.notes)


def test_waiting_for_data_is_told_apart_as_measured(tmp_path: Path) -> None:
    series = {"step_s": [1.8] * 20, "data_wait_s": [0.7] * 20}
    why = explanation(stored(tmp_path / "runs.db", series, gpus=8, expected=expectation(PLAN, step_s=1.0)))
    assert terms(why) == {"data wait": (0.0, 0.7), TOGETHER: (1.0, 1.1)}
    assert why.verdict.startswith("Slower than the plan: a step takes 1.80 s")
    assert "most of it: data wait (+70 %)" in why.verdict
    assert [cause.name for cause in why.causes] == ["data wait", TOGETHER]
    assert "flopwise io" in why.causes[0].lever
    assert any("compute and communication are one term" in note for note in why.notes)


@pytest.mark.parametrize(("mfu_frac", "opening"), [(1.07, "Cannot be as stated: MFU 107"), (0.9, "Faster than the")])
def test_a_run_that_is_faster_than_its_accelerators_is_misstated(tmp_path: Path, mfu_frac: float, opening: str) -> None:
    series = {"step_s": [0.4] * 20, "mfu_frac": [mfu_frac] * 20}
    why = explanation(stored(tmp_path / "runs.db", series, gpus=8, expected=expectation(PLAN, step_s=1.0)))
    assert why.verdict.startswith(opening)


def test_all_terms_measured_and_they_add_up(tmp_path: Path) -> None:
    series = {
        "step_s": [2.0] * 20, "data_wait_s": [0.2] * 20, "communication_s": [0.6] * 20,
        "utilization_frac@0": [0.8] * 20, "utilization_frac@1": [0.7] * 20,
    }  # fmt: skip
    plan = PLAN | {"launch": 0.05, "storage_io": 0.01}
    why = explanation(stored(tmp_path / "runs.db", series, gpus=2, expected=expectation(plan, step_s=1.06)))
    # idle 25 % of 2 s = 0.5 s, of which 0.2 s wait for data; compute is the remainder: 2 - 0.2 - 0.3 - 0.6
    assert terms(why) == {
        "data wait": (0.01, 0.2), "host": (0.05, 0.3), "communication": (0.1, 0.6), "compute": (0.9, 0.9),
    }  # fmt: skip
    assert sum(term.difference_s for term in why.terms) == pytest.approx(2.0 - 1.06)
    assert [cause.name for cause in why.causes] == ["communication", "host", "data wait"]
    assert next(t for t in why.terms if t.name == "compute").basis == "the remainder"


def test_one_accelerator_without_messages_has_compute_left(tmp_path: Path) -> None:
    plan = {"forward": 0.4, "backward": 0.6}
    why = explanation(
        stored(tmp_path / "runs.db", {"step_s": [1.5] * 20}, gpus=1, expected=expectation(plan, step_s=1.0))
    )
    assert terms(why) == {"compute": (1.0, 1.5)}
    assert why.terms[0].basis == "the remainder; data wait and host not measured, so included"


def test_busy_devices_have_no_host_term_to_speak_of(tmp_path: Path) -> None:
    series = {"step_s": [1.5] * 20, "data_wait_s": [0.0] * 20, "utilization_frac@0": [0.97] * 20}
    why = explanation(stored(tmp_path / "runs.db", series, gpus=1, expected=expectation(PLAN, step_s=1.0)))
    assert terms(why)["host"] == (0.0, 0.0)


def test_pauses_and_warm_up_are_causes_of_their_own(tmp_path: Path) -> None:
    seconds = [9.0, *[1.0] * 19, 6.0, *[1.0] * 19]
    events = [Event(1.7e9 + 21, "checkpoint", "saved", 21)]
    why = explanation(
        stored(tmp_path / "runs.db", {"step_s": seconds}, events, gpus=1, expected=expectation(PLAN, step_s=1.0))
    )
    assert [(cause.name, cause.evidence) for cause in why.causes] == [
        ("warm-up", "8.00 s outside of steps, 15.1 % of the run (1 log line)"),
        ("checkpoints", "5.00 s outside of steps, 9.4 % of the run (1 pause)"),
    ]
    assert why.verdict.startswith("On plan: a step takes 1.00 s")


def test_lowered_clocks_and_more_tensor_work_than_planned(tmp_path: Path) -> None:
    series = {
        "step_s": [2.0] * 20, "sm_clock_hz@0": [1.98e9] * 2 + [1.2e9] * 18, "tensor_active_frac@0": [0.4] * 20,
    }  # fmt: skip
    expected = expectation(PLAN, step_s=1.0, mfu_frac=0.4)
    why = explanation(stored(tmp_path / "runs.db", series, gpus=8, expected=expected))
    evidence = {cause.name: cause.evidence for cause in why.causes}
    assert evidence["clocks"] == "the median clock is 1,200 MHz, the highest 1,980 MHz"
    # the planned work takes 0.4 x 1 s of tensor time: 20 % of the 2 s that a step took
    assert evidence["more work"] == "tensor units are active 40.0 % of the time; the planned work needs 20.0 %"


def test_a_request_by_its_first_token_and_the_further_ones(tmp_path: Path) -> None:
    series = {"ttft_s": [0.3, 0.5] * 10, "e2e_s": [2.0, 2.4] * 10, "itl_s": [0.018, 0.02] * 10}
    expected = expectation({"first token": 0.2, "further tokens": 1.8}, ttft_s=0.2, e2e_s=2.0, itl_s=0.018)
    why = explanation(stored(tmp_path / "runs.db", series, task="serve", expected=expected))
    assert terms(why) == {"first token": (0.2, 0.4), "further tokens": (1.8, 1.8)}
    place = {one.metric: one.place for one in why.outcomes}
    assert place == {"e2e_s": "inside", "itl_s": "inside", "ttft_s": "worse"}
    assert why.causes[0].name == "first token"


def test_faster_than_the_plan_is_better_whichever_way_the_metric_goes(tmp_path: Path) -> None:
    series = {"step_s": [0.5] * 20, "tokens_per_s": [2000.0] * 20}
    expected = expectation(PLAN, step_s=1.0, tokens_per_s=1000.0)
    why = explanation(stored(tmp_path / "runs.db", series, gpus=8, expected=expected))
    assert {one.metric: one.place for one in why.outcomes} == {"step_s": "better", "tokens_per_s": "better"}
    assert why.verdict.startswith("Faster than the plan")


def test_a_step_of_another_batch_is_held_against_a_step_of_as_many_tokens(tmp_path: Path) -> None:
    """A quarter of the planned 1,000 tokens in 0.5 s: a quarter of the planned second, so twice what is expected."""
    series = {"step_s": [0.5] * 20, "tokens_per_s": [500.0] * 20}
    expected = expectation(PLAN, step_s=1.0, tokens_per_s=1000.0, mfu_frac=0.4)
    why = explanation(stored(tmp_path / "runs.db", series, gpus=8, expected=expected))
    assert why.verdict.startswith(
        "Slower than the plan: a step takes 500 ms, expected 250 ms (80 % interval: 200 ms to"
    )
    assert terms(why) == {TOGETHER: (0.25, 0.5)}
    outcomes = {one.metric: one for one in why.outcomes}
    assert outcomes["step_s"].difference == pytest.approx(1.0)
    assert outcomes["tokens_per_s"].difference == pytest.approx(-0.5)
    assert outcomes["mfu_frac"].difference == pytest.approx(-0.5), "half as fast at the same work a token"
    assert any("0.25 times the planned tokens" in note for note in why.notes)
    padded = series | {"tokens_per_s": [1900.0] * 20}
    same = explanation(stored(tmp_path / "same.db", padded, gpus=8, expected=expected))
    assert same.verdict.startswith("Faster than the plan: a step takes 500 ms, expected 1.00 s")
    assert not any("planned tokens" in note for note in same.notes), "5 % fewer tokens are padding"


def test_a_run_without_a_plan_or_without_figures_says_so(tmp_path: Path) -> None:
    why = explanation(stored(tmp_path / "runs.db", {"step_s": [2.0] * 20}))
    assert why.verdict.startswith("No estimate to compare it with: 2.00 s a step; give its model")
    why = explanation(stored(tmp_path / "runs.db", {"loss": [2.0]}, expected=expectation(PLAN, step_s=1.0)))
    assert why.verdict == "Cannot be judged: none of the expected figures was measured"
    why = explanation(stored(tmp_path / "runs.db", {"step_s": [1.0] * 3}, expected=expectation(PLAN, step_s=1.0)))
    assert why.verdict.endswith("Only 3 log lines: too few to be sure")


def test_tokens_a_second_follow_from_steps_and_settings(tmp_path: Path) -> None:
    found = stored(tmp_path / "runs.db", {"step_s": [2.0] * 20}, settings={"seq": 1024, "global_batch": 8})
    assert found.value("tokens_per_s") == 1024 * 8 / 2.0
    assert found.derived == ("tokens_per_s",)
