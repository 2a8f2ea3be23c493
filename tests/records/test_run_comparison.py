"""Runs against each other: what differs in settings, and which differences chance does not make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from imported_runs import expectation, stored

from flopwise.records.comparison import Contrast, comparison


def contrasts(*found: object) -> dict[str, Contrast]:
    return {one.metric: one for one in comparison(found).contrasts}  # type: ignore[arg-type]


def noisy(mean: float, seed: int, spread: float = 0.05) -> list[float]:
    return list(np.random.default_rng(seed).normal(mean, spread, 100))


def test_settings_that_differ(tmp_path: Path) -> None:
    first = stored(
        tmp_path / "a.db", {"loss": [1.0]}, gpus=8, settings={"zero": 1, "seq": 4096}, software={"torch": "2.9"}
    )
    second = stored(tmp_path / "a.db", {"loss": [1.0]}, gpus=8, settings={"zero": 3}, software={"torch": "2.10"})
    assert comparison([first, second]).settings == {
        "zero": ("1", "3"), "seq": ("4096", "-"), "torch version": ("2.9", "2.10"),
    }  # fmt: skip


def test_a_difference_within_the_noise_and_one_beyond(tmp_path: Path) -> None:
    first = stored(tmp_path / "a.db", {"step_s": noisy(1.0, 1), "tokens_per_s": noisy(100.0, 2, 5.0)})
    same = stored(tmp_path / "a.db", {"step_s": noisy(1.0, 3), "tokens_per_s": noisy(100.0, 4, 5.0)})
    slower = stored(tmp_path / "a.db", {"step_s": noisy(1.2, 5), "tokens_per_s": noisy(120.0, 6, 5.0)})
    found = contrasts(first, same, slower)
    assert found["step_s"].sure == (None, False, True)
    assert found["step_s"].against[2] == pytest.approx(0.2, abs=0.03)
    assert found["step_s"].better == (None, None, False)
    assert found["tokens_per_s"].better == (None, None, True)


def test_against_the_plan_and_without_noise(tmp_path: Path) -> None:
    plan = expectation({}, step_s=1.0)
    first = stored(tmp_path / "a.db", {"step_s": [1.1] * 10, "peak_memory_bytes@0": [5e9]}, expected=plan)
    second = stored(tmp_path / "a.db", {"step_s": [2.2] * 10, "peak_memory_bytes@0": [6e9, 7e9], "loss": [1.0]})
    found = contrasts(first, second)
    assert list(found["step_s"].planned) == [pytest.approx(0.1), None]
    assert list(found["peak_memory_bytes"].against) == [0.0, pytest.approx(0.4)]
    assert found["peak_memory_bytes"].sure == (None, None)  # one value has no noise that is known
    assert found["loss"].against == (None, None)
    assert found["step_s"].sure == (None, True)
