"""A probe as facts: every constant by hand from round figures."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.fitting.measured import Measurements, pooled_probe, probed_facts
from flopwise.fitting.profile import MadeProfile
from flopwise.probes.file import ProbedDevice
from probed_cpu import DEVICE, FAMILY, NAME, cpu_probe, measurement


def test_a_cpu_becomes_a_device_with_what_it_reached() -> None:
    [row] = probed_facts(cpu_probe()).devices
    assert (row["name"], row["architecture"], row["kind"], row["num_sms"]) == (NAME, FAMILY, "cpu", 2)
    assert float(row["fp32_flops_per_s"]) == 100e9  # the best product
    assert float(row["bf16_flops_per_s"]) == 200e9
    assert float(row["hbm_bytes_per_s"]) == 20e9  # the largest copy: the smaller one was in a cache
    assert row["l2_bytes"] == 2**25  # the last level


def test_constants_of_a_cpu_by_hand() -> None:
    found = {p.name: p.value for p in probed_facts(cpu_probe()).parameters}
    assert {p.scope for p in probed_facts(cpu_probe()).parameters} == {FAMILY}
    # 2 x 256^3 operations at 95 instead of 100 GFLOP/s lose 17.7 us; two threads share 2 x 2 tiles of 128 x 128
    lost_s = 2 * 256**3 * (1 / 95e9 - 1 / 100e9)
    assert found["tile_fill_s"] == pytest.approx(lost_s * 2 / 4, rel=1e-3)
    assert found["pointwise_frac"] == 0.5  # 10 of 20 GB/s
    assert found["kernel_s"] == 2e-6
    # the mask lets 256 of 511 keys through on average; a CPU's kernel takes 512 keys at once and so computes all 511;
    # the backward pass (2.5 times the operations) runs at 0.8 of the rate: 35 x 511 / 256 x (1 + 3.125) / 3.5 of 100
    assert found["train_attention_frac.fa2"] == pytest.approx(0.35 * 511 / 256 * 4.125 / 3.5, rel=1e-3)
    assert found["matmul_frac.bf16"] == 1.0


def test_a_probe_says_how_much_of_its_products_the_constants_keep() -> None:
    """Of 100 and 95 GFLOP/s; 10 GFLOP/s of 16 rows, which wait for their weights, and bf16 are no such products."""
    own = probed_facts(cpu_probe())
    assert [row["m"] for row in own.own_rows] == ["2048", "256"]
    assert float(own.own_rows[0]["seconds"]) == pytest.approx(2 * 2048**3 / 100e9)
    made = MadeProfile.of(Measurements(rows=(), probed=(own,), files=("x",)), load_facts(), "x", "2026-11-27")
    [errors] = made.profile.errors
    assert (errors.kind, errors.family, errors.rows, errors.left_out) == ("kernels", FAMILY, 2, "")
    assert errors.p90_after < 0.02 < errors.median_before
    assert not any("scatter" in note for note in made.profile.notes)
    disturbed = tuple(
        replace(one, value=one.value * 0.2, best=None) if one.shape.get("m") == 256 and one.value else one
        for one in (*cpu_probe().measurements, measurement("matmul", "FLOP/s", 20e9, m=512, n=512, k=512))
    )
    busy = probed_facts(replace(cpu_probe(), measurements=disturbed))
    other = MadeProfile.of(Measurements(rows=(), probed=(busy,), files=("x",)), load_facts(), "x", "2026-11-27")
    assert other.profile.errors[0].p90_after > 0.5


def test_a_probed_cpu_has_the_power_of_cores_like_its_own(tmp_path: Path) -> None:
    """Of an EPYC 9654 360 W for 96 cores (AMD, datasheet), so 7.5 W for two; of another the median of its maker's."""
    for name, watts in (("AMD EPYC 9654 96-Core Processor", 7.5), ("AMD Turin", None)):
        file = tmp_path / f"{name.replace(' ', '-')}.json"
        replace(cpu_probe(), devices=(replace(DEVICE, name=name),)).write(file)
        made = MadeProfile.of(Measurements.from_files([file]), load_facts(), "x", "2026-11-28")
        [row] = csv.DictReader(made.files["accelerators.csv"].decode().splitlines())
        [note] = [one for one in made.profile.notes if "power is not measured" in one]
        if watts is not None:
            assert float(row["tdp_w"]) == watts
            assert "EPYC 9654" in note
        else:
            assert 2 * 2.6 < float(row["tdp_w"]) < 2 * 15.0  # between an EPYC 9965's and a Ryzen 7800X3D's cores
            assert "the median of" in note


def test_the_rate_of_weights_is_what_computing_leaves_of_few_rows() -> None:
    """16 weights of 1024 x 1024 in fp32: 64 MiB at 8 GB/s, beside 2 x 8 x 2^24 operations at 100 GFLOP/s.

    With 32 rows computing takes as long and more: these say nothing.
    """
    assert not any(p.name.startswith("packed_") for p in probed_facts(cpu_probe()).parameters)  # not measured
    nbytes, flops = 16 * 4 * 2**20, 16 * 2 * 2**20
    read = [
        measurement("weights_read", "B/s", nbytes / (nbytes / 8e9 + rows * flops / 100e9), m=rows, n=1024, k=1024,
                    weights=16)
        for rows in (1, 8)
    ]  # fmt: skip
    many = measurement("weights_read", "B/s", 4e9, m=32, n=1024, k=1024, weights=16)
    probe = replace(cpu_probe(), measurements=(*cpu_probe().measurements, *read, many))
    found = {p.name: p.value for p in probed_facts(probe).parameters}
    assert found["packed_bytes_per_s.fp32"] == pytest.approx(8e9, rel=1e-3)
    assert "packed_bytes_per_s.bf16" not in found
    # of the 17.7 us that a product of 256 x 256 x 256 loses, 32.8 us would be its weights': its tiles lose nothing
    assert found["tile_fill_s"] == 0.0


def test_several_probes_of_a_machine_count_as_their_medians(tmp_path: Path) -> None:
    """Products at 100, 90 and 40 GFLOP/s: the machine was busy once. Of another machine nothing is mixed in."""
    files = []
    for number, scale in enumerate((1.0, 0.9, 0.4)):
        slower = tuple(
            replace(one, value=one.value * scale, best=None) if one.name == "matmul" and one.value else one
            for one in cpu_probe().measurements
        )
        files.append(tmp_path / f"probe-{number}.json")
        replace(cpu_probe(), measurements=slower).write(files[-1])
    [pooled] = Measurements.from_files(files).probed
    assert float(pooled.devices[0]["fp32_flops_per_s"]) == pytest.approx(90e9)
    assert float(pooled.devices[0]["hbm_bytes_per_s"]) == 20e9
    replace(cpu_probe(), host="another").write(files[2])
    first, second = Measurements.from_files(files).probed
    assert [float(one.devices[0]["fp32_flops_per_s"]) for one in (first, second)] == pytest.approx([95e9, 100e9])


def test_a_probe_is_known_by_what_is_in_it_whatever_its_name_ends_in(tmp_path: Path) -> None:
    cpu_probe().write(tmp_path / "mine.csv")
    [probed] = Measurements.from_files([tmp_path / "mine.csv"]).probed
    assert probed.devices


def test_a_probe_without_a_product_says_that_no_device_is_made_of_it(tmp_path: Path) -> None:
    """As on a machine that others kept so busy that the time for products was over."""
    without = tuple(one for one in cpu_probe().measurements if one.name != "matmul")
    replace(cpu_probe(), measurements=without).write(tmp_path / "busy.json")
    with pytest.raises(SpecError, match=r"nothing to calibrate with: .*: no product or no copy was measured"):
        MadeProfile.of(Measurements.from_files([tmp_path / "busy.json"]), load_facts(), "busy", "2026-11-26")


def test_what_failed_in_one_probe_is_taken_from_the_others() -> None:
    sound = cpu_probe()
    failed = tuple(replace(one, value=None, failure="no memory") for one in sound.measurements)
    pooled = pooled_probe([replace(sound, measurements=failed), sound])
    assert [one.value for one in pooled.measurements] == [one.value for one in sound.measurements]
    assert all(one.failure is None for one in pooled.measurements)


def test_new_memory_is_told_from_elementwise_operations() -> None:
    """8 tensors of 32 MiB, which the system maps anew, at 4 GB/s beside 23 passes over them at 10 GB/s."""
    assert "fresh_bytes_per_s" not in {p.name for p in probed_facts(cpu_probe()).parameters}  # nothing so large
    seconds = 23 * 2**25 / 10e9 + 8 * 2**25 / 4e9
    large = measurement("elementwise_training", "B/s", 23 * 2**25 / seconds, elements=2**23, passes=23)
    probe = replace(cpu_probe(), measurements=(*cpu_probe().measurements, large))
    found = {p.name: p.value for p in probed_facts(probe).parameters}
    assert found["pointwise_frac"] == 0.5  # of the small ones alone
    assert found["fresh_bytes_per_s"] == pytest.approx(4e9, rel=1e-3)


def test_elementwise_operations_on_large_tensors_alone_say_nothing_of_new_memory() -> None:
    kept = [one for one in cpu_probe().measurements if one.name != "elementwise_training"]
    large = measurement("elementwise_training", "B/s", 5e9, elements=2**23, passes=23)
    found = {p.name: p.value for p in probed_facts(replace(cpu_probe(), measurements=(*kept, large))).parameters}
    assert found["pointwise_frac"] == 0.25
    assert "fresh_bytes_per_s" not in found


def test_a_gpu_of_the_catalog_brings_rows_and_one_of_none_a_note() -> None:
    gpu = replace(DEVICE, id="cuda:0", kind="cuda", name="NVIDIA H100", accelerator="H100-SXM-80")
    product = replace(measurement("matmul", "FLOP/s", 600e12, "bf16", m=4096, n=4096, k=8192), device="cuda:0")
    probe = replace(cpu_probe(), devices=(gpu,), measurements=(product,))
    found = probed_facts(probe)
    assert not found.devices
    assert found.rows[0].items() >= {
        "op": "gemm", "gpu": "H100-SXM-80", "m": "4096", "k": "8192", "dtype": "bf16", "seconds": "0.001",
    }.items()  # fmt: skip
    unknown = ProbedDevice(id="cuda:0", kind="cuda", name="Some GPU")
    assert "is in no catalog" in probed_facts(replace(probe, devices=(unknown,))).notes[0]


def test_a_cpu_without_products_makes_no_device() -> None:
    found = probed_facts(replace(cpu_probe(), measurements=()))
    assert (found.devices, found.parameters) == ((), ())
    assert "no product" in found.notes[0]
    assert load_facts().calibration.has("fresh_bytes_per_s", "any")  # what no probe says has a shipped value
