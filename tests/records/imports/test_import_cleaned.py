"""What is done to broken figures: clocks that run backwards, NaN, restarted counters, steps that fall back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flopwise.errors import SpecError, UnknownNameError
from flopwise.records.imports.imported import CleanRun, clean_run, meanings
from flopwise.records.imports.names import Meaning, meaning
from flopwise.records.imports.raw import RawRun

START = 1.7e9
NAN = float("nan")


def made(rows: list[dict[str, float]], *, gpus: int | None = 1, **given: Any) -> CleanRun:
    """A run of rows with `at` (seconds since START) and `step`, whose other values are metrics."""
    raw = RawRun(name="run", task="train")
    for row in rows:
        for name, value in row.items():
            if name not in ("at", "step"):
                raw.add(
                    name, value, START + row["at"] if "at" in row else None, int(row["step"]) if "step" in row else None
                )
    return clean_run(raw, given, gpus, START)


def values(run: CleanRun, metric: str) -> list[float]:
    return [sample.value for sample in run.samples if sample.metric == metric]


def test_step_times_are_those_between_log_lines() -> None:
    run = made([{"at": 20.0 * n, "step": 10 * n, "loss": 1.0} for n in range(4)])
    assert values(run, "step_s") == [2.0, 2.0, 2.0]
    assert any("10 steps apart" in note for note in run.notes)
    own = made([{"at": 20.0 * n, "step": n, "loss": 1.0, "perf/step_time": 3.0} for n in range(4)])
    assert values(own, "step_s") == [3.0] * 4  # what the run says itself goes before


def test_a_clock_that_falls_back_makes_no_negative_time() -> None:
    times = [0.0, 1.0, 2.0, -98.0, -97.0, -96.0]  # set back by 100 s behind the third line
    run = made([{"at": at, "step": n, "loss": 1.0} for n, at in enumerate(times)])
    assert all(value > 0 for value in values(run, "step_s"))
    assert values(run, "step_s") == [1.0, 1.0, 1.0, 1.0]
    stamps = [sample.at_s for sample in run.samples if sample.metric == "loss"]
    assert stamps == sorted(stamps)
    [event] = [event for event in run.events if event.kind == "clock"]
    assert event.step == 3
    assert "100.0 s" in event.text
    assert run.started_at_s == START  # not where the clock fell back to
    assert run.ended_at_s == START + 4.0  # the second after the jump stands where the jump was


def test_nan_losses_are_one_event_a_stretch_and_stay_samples() -> None:
    losses = [2.0, NAN, NAN, 1.5, float("inf")]
    run = made([{"at": float(n), "step": n, "loss": loss} for n, loss in enumerate(losses)])
    assert [math.isfinite(value) for value in values(run, "loss")] == [True, False, False, True, False]
    found = [(event.step, event.text) for event in run.events if event.kind == "not finite"]
    assert found == [(1, "loss is NaN"), (4, "loss is infinite")]


def test_a_counter_that_began_anew_is_counted_on() -> None:
    counts = [100.0, 200.0, 50.0, 150.0]  # the process was started again behind the second line
    run = made([{"at": float(n), "step": n, "energy_joules": count} for n, count in enumerate(counts)])
    assert values(run, "energy_joules") == [100.0, 200.0, 250.0, 350.0]
    assert any("restarted once" in note for note in run.notes)


def test_a_negative_counter_is_no_negative_progress() -> None:
    run = made([{"at": float(n), "step": n, "tokens": count} for n, count in enumerate([100.0, -5.0, 95.0])])
    assert values(run, "tokens") == [100.0, 100.0, 200.0]


def test_tokens_restored_with_a_checkpoint_are_not_counted_twice() -> None:
    rows = [(10, 1000.0), (20, 2000.0), (15, 1500.0), (20, 2000.0), (25, 2500.0)]
    run = made([{"at": float(n), "step": step, "tokens": count} for n, (step, count) in enumerate(rows)])
    assert values(run, "tokens") == [1000.0, 2000.0, 2000.0, 2000.0, 2500.0]
    [event] = [event for event in run.events if event.kind == "resumed"]
    assert event.step == 15
    assert "after step 20" in event.text


def test_steps_that_fall_back_make_no_step_time() -> None:
    rows = [(10, 0.0), (20, 10.0), (15, 300.0), (20, 305.0)]
    run = made([{"at": at, "step": step, "loss": 1.0} for step, at in rows])
    assert values(run, "step_s") == [1.0, 1.0]


def test_negative_values_of_what_cannot_be_negative_are_left_out() -> None:
    rows = [{"at": float(n), "step": n, "tokens_per_s": rate, "loss": -rate} for n, rate in enumerate([5.0, -1.0, 7.0])]
    run = made(rows)
    assert values(run, "tokens_per_s") == [5.0, 7.0]
    assert values(run, "loss") == [-5.0, 1.0, -7.0]  # a log-likelihood may be
    assert any("1 negative value was left out" in note for note in run.notes)


def test_values_without_times_stand_in_their_order_and_make_no_step_times() -> None:
    run = made([{"step": n, "loss": 3.0 - n} for n in range(5)])
    assert values(run, "loss") == [3.0, 2.0, 1.0, 0.0, -1.0]
    assert values(run, "step_s") == []
    assert any("have no time" in note for note in run.notes)


def test_units_by_name_by_factor_and_of_one_accelerator() -> None:
    row = {"at": 0.0, "step": 1, "elapsed time per iteration (ms)": 1500.0, "throughput(tps)": 100.0, "mfu(%)": 41.0}
    run = made([row], gpus=8)
    assert (values(run, "step_s"), values(run, "tokens_per_s")) == ([1.5], [800.0])
    assert values(run, "mfu_frac") == [pytest.approx(0.41)]
    with pytest.raises(SpecError, match="per accelerator"):
        made([row], gpus=None)
    mapping: dict[str, Any] = {"my step": ("step_s", 1e-3)}
    named = made([{"at": 0.0, "step": 1, "my step": 250.0}], **mapping)
    assert values(named, "step_s") == [0.25]
    with pytest.raises(UnknownNameError, match="metric"):
        made([{"at": 0.0, "step": 1, "x": 1.0}], x=("speed", None))
    with pytest.raises(SpecError, match="no metric 'y' in the file"):
        made([{"at": 0.0, "step": 1, "x": 1.0}], y=("loss", None))


def test_names_of_tools() -> None:
    expected = {
        "train/loss": "loss", "eval/loss": "eval_loss", "train_loss_step": "loss", "lm loss": "loss",
        "train/grad_norm": "grad_norm", "learning-rate": "learning_rate", "lr-AdamW": "learning_rate",
        "iteration-time": "step_s", "timing_s/step": "step_s", "train/num_input_tokens_seen": "tokens",
        "val_loss": "eval_loss", "perf/tokens_per_second": "tokens_per_s",
    }  # fmt: skip
    for name, metric in expected.items():
        found = meaning(name)
        assert found is not None, name
        assert found.metric == metric, name
    assert meaning("accuracy") is None
    assert meaning("system.gpu.3.powerWatts") == Meaning("power_w", device="3")
    both = meanings(["train/loss", "loss", "system/gpu.0.temp", "system/gpu.1.temp"], {})
    assert sorted(one.metric for one in both.values()) == ["loss", "temperature_c", "temperature_c"]


def test_a_series_of_percents_is_one_throughout() -> None:
    run = made([{"at": float(n), "step": n, "mfu": value} for n, value in enumerate([0.9, 1.2, 38.0, 40.0])])
    assert values(run, "mfu_frac") == pytest.approx([0.009, 0.012, 0.38, 0.4])
    shares = made([{"at": float(n), "step": n, "mfu": value} for n, value in enumerate([0.3, 0.4])])
    assert values(shares, "mfu_frac") == pytest.approx([0.3, 0.4])
