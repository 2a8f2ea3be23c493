"""Refits against a known truth: found where rows can tell, near what was known where they cannot, never worse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flopwise.facts.catalog import Facts, load_facts
from flopwise.fitting.measured import MeasuredRow, Measurements, probed_facts
from flopwise.fitting.profile import MadeProfile, own_band, own_coverage, predicted_figures
from flopwise.fitting.refit import Refit, least_within_chance, no_worse, refits
from flopwise.training.estimate import training_band
from probed_cpu import FAMILY, cpu_probe, cpu_rows, write_rows


def probed() -> Facts:
    """The shipped facts with the probed CPU, whose profile is written."""
    given = Measurements(rows=(), probed=(probed_facts(cpu_probe()),), files=("probe.json",))
    MadeProfile.of(given, load_facts(), "cpu", "2026-11-22").write(force=True)
    return load_facts(None, "cpu")


@pytest.fixture
def facts() -> Facts:
    """The shipped facts with the probed CPU."""
    return probed()


def fitted(facts: Facts, rows: list[dict[str, str]]) -> Refit:
    figures, skipped = predicted_figures([MeasuredRow("training", row, "runs.csv") for row in rows], facts)
    assert not skipped
    [found] = refits(figures, facts)
    return found


def test_a_slower_machine_is_found_out(facts: Facts) -> None:
    found = fitted(facts, cpu_rows(facts, {"matmul_frac.bf16": 0.7, "train_host_ratio": 3.0}, count=24))
    values = {c.name: v for c, v in found.values.items()}
    assert values["matmul_frac.bf16"] == pytest.approx(0.7, rel=0.1)
    assert np.median(np.abs(found.before)) > 0.25
    assert np.median(np.abs(found.after)) < 0.03
    assert found.groups == "model"
    assert found.unseen is not None
    assert np.median(np.abs(found.after)) <= np.median(np.abs(found.unseen)) < 0.05


def test_few_rows_move_constants_less(facts: Facts) -> None:
    rows = cpu_rows(facts, {"matmul_frac.bf16": 0.7}, count=8)
    moves = []
    for count in (1, 3, 8):
        moved = [abs(math.log(v / c.prior)) for c, v in fitted(facts, rows[:count]).values.items()]
        moves.append(max(moved, default=0.0))
    assert moves[0] < moves[1] < moves[2] < abs(math.log(0.7)) * 1.05
    assert moves[0] < 0.75 * moves[2]


@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_nothing_comes_out_worse_than_it_was(facts: Facts, noise: float) -> None:
    found = fitted(facts, cpu_rows(facts, {}, count=6, noise=noise))
    before, after = (np.abs(np.expm1(errors)) for errors in (found.before, found.after))
    assert np.median(after) <= np.median(before)
    assert after.mean() <= before.mean()


def test_worse_is_worse_of_any_kind_by_median_or_mean() -> None:
    kinds, than = ["a", "a", "a", "b"], np.array([0.2, -0.2, 0.2, 0.1])
    assert no_worse(kinds, np.array([0.1, -0.1, 0.1, 0.1]), than)
    assert no_worse(kinds, than, than)
    assert not no_worse(kinds, np.array([0.0, 0.0, 0.0, 0.11]), than)  # the other kind
    assert not no_worse(kinds, np.array([0.1, 0.1, 0.9, 0.1]), than)  # the median, and yet the mean
    assert not no_worse(kinds, np.array([0.25, 0.25, 0.0, 0.1]), than)  # the mean, and yet the median


def test_what_is_right_stays(facts: Facts) -> None:
    found = fitted(facts, cpu_rows(facts, {}, count=6))
    assert found.values == {}
    assert found.unseen is not None  # nothing was fitted: each row is an unseen one
    assert np.abs(found.unseen).max() < 1e-9


def test_noise_is_not_learned(facts: Facts) -> None:
    """Runs that scatter about what is known: any constant that follows them predicts the next one worse."""
    found = fitted(facts, cpu_rows(facts, {}, count=14, noise=0.2))
    assert found.values == {}
    assert found.groups == "model"
    assert found.unseen is not None
    assert found.unseen.tolist() == found.before.tolist()


def test_what_runs_agree_on_is_learned_in_spite_of_noise(facts: Facts) -> None:
    found = fitted(facts, cpu_rows(facts, {"matmul_frac.bf16": 0.6}, count=14, noise=0.1))
    assert {c.name: v for c, v in found.values.items()}["matmul_frac.bf16"] == pytest.approx(0.6, rel=0.25)
    assert found.unseen is not None
    assert np.median(np.abs(found.unseen)) < 0.6 * np.median(np.abs(found.before))


def test_a_band_of_errors_left_out_by_hand() -> None:
    assert own_band(np.array([0.1, -0.2, 0.05])) is None  # 0.8 x 4 rounds up to more than 3 of them
    assert own_band(np.array([0.1, -0.2, 0.05, 0.3])) == pytest.approx(math.exp(0.3))  # the 4th of 4
    nine = np.array([0.01, 0.02, 0.03, 0.04, -0.05, 0.06, -0.07, 0.08, 0.09])
    assert own_band(nine) == pytest.approx(math.exp(0.08))  # the 8th of 9


def test_coverage_is_of_bands_that_have_not_seen_the_figure_by_hand() -> None:
    nine = np.array([0.01, 0.02, 0.03, 0.04, -0.05, 0.06, -0.07, 0.08, 0.09])
    # without the largest the other eight's band is their 8th, 0.08, which does not hold 0.09; without 0.08 it is 0.09,
    # which does; the own band, of the 8th of 9, would hold 8 of the 9 whatever the errors are
    assert own_coverage(nine, np.array(list("abcdefghi"))) == pytest.approx(8 / 9)
    far = np.array([0.01] * 7 + [5.0, 6.0])
    assert own_coverage(far, np.array(list("abcdefghi"))) == pytest.approx(8 / 9)
    assert own_coverage(far, np.array(list("abcdefghh"))) == pytest.approx(7 / 9), "two of one model: neither is held"
    assert own_coverage(nine[:4], np.array(list("abcd"))) is None


def test_families_and_links_that_share_nothing_are_fitted_apart() -> None:
    facts = load_facts()
    base = {"op": "gemm", "m": "512", "n": "512", "k": "512", "dtype": "bf16", "seconds": "1e-5"}
    gpus = ("A100-SXM-80GB", "H100-SXM-80", "H100-PCIe-80", "H100-SXM-80")
    rows = [MeasuredRow("kernels", {**base, "id": str(n), "gpu": gpu}, "k.csv") for n, gpu in enumerate(gpus)]
    figures, skipped = predicted_figures(rows, facts)
    assert not skipped
    assert sorted(len(found.figures) for found in refits(figures, facts)) == [1, 3]


def made(facts: Facts, tmp_path: Path, count: int) -> MadeProfile:
    rows = cpu_rows(facts, {"matmul_frac.bf16": 0.8}, count=count, noise=0.05)
    given = Measurements.from_files([write_rows(tmp_path / "runs.csv", rows)])
    return MadeProfile.of(given, facts, "learned", "2026-11-22")


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> MadeProfile:
    """A profile of twelve runs, which is not written."""
    folder = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOPWISE_CALIBRATIONS", str(folder / "profiles"))
        return made(probed(), folder, 12)


@pytest.mark.usefixtures("facts")
def test_errors_left_out_become_the_interval_of_that_device_alone(learned: MadeProfile) -> None:
    [errors] = learned.profile.errors
    assert (errors.kind, errors.family, errors.rows, errors.left_out) == ("training", FAMILY, 12, "model")
    learned.write(force=False)
    bands = load_facts(None, "learned").calibration.errors
    assert errors.interval is not None
    assert bands[f"training@{FAMILY}"].high == pytest.approx(errors.interval)
    assert bands[f"training@{FAMILY}"].rows == 12
    assert bands["training.dense"] == load_facts().calibration.errors["training.dense"]


@pytest.mark.usefixtures("facts")
def test_an_interval_of_own_runs_is_as_wide_as_measured_on_their_stack_and_wider_on_others(
    learned: MadeProfile,
) -> None:
    [errors] = learned.profile.errors
    assert errors.interval is not None
    learned.write(force=True)
    facts = load_facts(None, "learned")
    row = cpu_rows(facts, {}, count=1)[0]
    assert errors.stacks == (row["software"],)
    factors = {}
    for software in (row["software"], "axolotl"):
        [figure], _ = predicted_figures([MeasuredRow("training", row | {"software": software}, "r.csv")], facts)
        assert figure.job is not None
        factors[software] = training_band(figure.job).high
    assert factors[row["software"]] == pytest.approx(errors.interval)
    assert factors["axolotl"] > errors.interval * 1.01
    assert figure.job is not None
    chip = figure.job.cluster.accelerator
    own = chip.calibration.errors[f"training@{FAMILY}"]
    taught = replace(chip.calibration, errors={f"training@{FAMILY}": replace(own, stacks=("axolotl",))})
    cluster = replace(figure.job.cluster, accelerator=replace(chip, calibration=taught))
    assert training_band(replace(figure.job, cluster=cluster)).high == pytest.approx(errors.interval)


def test_with_few_rows_the_wide_interval_stays(facts: Facts, tmp_path: Path) -> None:
    done = made(facts, tmp_path, 3)
    assert done.profile.errors[0].interval is None
    assert "intervals.json" not in done.files
    assert any("too few rows" in note or "no constant was moved" in note for note in done.profile.notes)


def test_a_profile_on_another_has_the_devices_of_both(facts: Facts) -> None:
    probe = cpu_probe()
    other = replace(probe, devices=tuple(replace(one, name="Another CPU") for one in probe.devices))
    given = Measurements(rows=(), probed=(probed_facts(other),), files=("other.json",))
    MadeProfile.of(given, facts, "two", "2026-11-22").write(force=False)
    both, first = load_facts(None, "two"), facts.accelerator("here").name
    assert both.accelerator("here").name == "Another CPU probed"
    assert both.accelerator(first).peak == facts.accelerator(first).peak
    assert both.accelerator(first.removesuffix(" probed")).name == first


def test_a_profile_on_another_keeps_what_it_does_not_move(facts: Facts, learned: MadeProfile) -> None:
    learned.write(force=False)
    assert learned.profile.based_on == "cpu"
    above = load_facts(None, "learned")
    assert above.accelerator("here").name == facts.accelerator("here").name
    assert above.calibration.find("kernel_s", (FAMILY,)).value == 2e-6
    moved = above.calibration.find("matmul_frac.bf16", (FAMILY,))
    assert (moved.profile, moved.source) == ("learned", "flopwise calibrate")
    assert 0.7 < moved.value < 0.95


def test_the_most_cautious_choice_that_is_worse_by_chance_alone_by_hand() -> None:
    """Against the best, of losses 1, 1, 1, 1: 0, 0, 0, 0.4 more are 0.4 +- 0.4, as chance has it; 0.1 each are not."""
    best, names = np.ones(4), list("abcd")
    one, two = best + np.array([0, 0, 0, 0.4]), best + np.array([0, 0, 0.4, 0.4])
    assert least_within_chance([best + 0.1, one, best], names) == 1
    assert least_within_chance([best + 0.1, two, best], names) == 2, "0.8 +- 0.46"
    assert least_within_chance([best, best + 0.1], names) == 0
    assert least_within_chance([two, best], list("aabb")) == 0, "one group's: 0.8 +- 0.8"
