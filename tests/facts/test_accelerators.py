"""The accelerator table against figures typed by hand from datasheets, and against its own rules."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from flopwise.api.facts import gpus
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.accelerators import DTYPES, KINDS, Accelerator
from flopwise.facts.catalog import load_facts

CHIPS = load_facts().accelerators
EVERY = each("chip", CHIPS.values(), label=lambda chip: chip.name)

# name, the sheet, memory in MiB (as nvidia-smi, rocm-smi or hl-smi prints it), GB/s, W, dense TFLOP/s or TOP/s by dtype
DATASHEETS: list[tuple[str, str, int, float, float, dict[str, float]]] = [
    ("T4", "NVIDIA T4 product page", 15360, 320, 70, {"fp32": 8.1, "fp16": 65, "int8": 130, "int4": 260}),
    ("V100-SXM2-16", "NVIDIA V100 datasheet", 16160, 900, 300, {"fp64": 7.8, "fp32": 15.7, "fp16": 125}),
    ("A10", "NVIDIA A10 datasheet", 23028, 600, 150, {"fp32": 31.2, "tf32": 62.5, "bf16": 125, "int8": 250}),
    ("A100-SXM-40", "NVIDIA A100 datasheet", 40960, 1555, 400, {"fp64": 9.7, "tf32": 156, "bf16": 312, "int8": 624}),
    ("A100-SXM-80", "NVIDIA A100 datasheet", 81920, 2039, 400, {"fp64": 9.7, "tf32": 156, "bf16": 312, "int8": 624}),
    ("A100-PCIe-80", "NVIDIA A100 datasheet", 81920, 1935, 300, {"bf16": 312}),
    ("H100-SXM-80", "NVIDIA H100 datasheet", 81559, 3350, 700, {"fp64": 34, "bf16": 989.4, "fp8": 1978.9}),
    ("H100-PCIe-80", "NVIDIA H100 datasheet", 81559, 2000, 350, {"fp64": 26, "bf16": 756.5, "fp8": 1513}),
    ("H200-SXM-141", "NVIDIA H200 datasheet", 143771, 4800, 700, {"bf16": 989.4, "fp8": 1978.9}),
    ("B200", "NVIDIA DGX B200", 183359, 8000, 1000, {"bf16": 2250, "fp8": 4500, "fp4": 9000}),
    ("L4", "NVIDIA L4 datasheet", 23034, 300, 72, {"fp32": 30.3, "bf16": 121, "fp8": 242.5}),
    ("L40S", "NVIDIA L40S datasheet", 46068, 864, 350, {"fp32": 91.6, "bf16": 362.05, "fp8": 733}),
    ("RTX A6000", "NVIDIA RTX A6000 datasheet", 49140, 768, 300, {"fp32": 38.7, "bf16": 154.8}),
    ("RTX 3090", "NVIDIA GA102 whitepaper", 24576, 936, 350, {"fp32": 35.6, "bf16": 71, "int8": 284}),
    ("RTX 4090", "NVIDIA Ada whitepaper", 24564, 1008, 450, {"fp32": 82.6, "bf16": 165.2, "int8": 660.6}),
    ("RTX 4080", "NVIDIA Ada whitepaper", 16376, 716.8, 320, {"fp32": 48.7, "bf16": 97.5, "int8": 389.9}),
    ("MI300X", "AMD MI300X datasheet", 196592, 5300, 750, {"fp64": 81.7, "bf16": 1307.4, "fp8": 2614.9}),
    ("MI250X", "AMD MI250X datasheet", 131040, 3277, 560, {"fp64": 47.9, "bf16": 383, "int8": 383}),
    ("Gaudi2", "Intel Gaudi 2 white paper", 98304, 2450, 600, {"bf16": 432, "fp8": 865}),
]  # fmt: skip


@pytest.mark.parametrize("row", DATASHEETS, ids=lambda row: row[0])
def test_row_states_what_the_datasheet_states(row: tuple[str, str, int, float, float, dict[str, float]]) -> None:
    name, sheet, mib, gb_per_s, watt, peaks = row
    chip = CHIPS[name]
    assert chip.hbm_bytes == mib * 2**20, sheet
    assert chip.hbm_bytes_reported
    assert chip.hbm_bytes_per_s == pytest.approx(gb_per_s * 1e9), sheet
    assert chip.tdp_w == watt, sheet
    for dtype, rate in peaks.items():
        assert chip.peak_flops_per_s(dtype) == pytest.approx(rate * 1e12), f"{sheet}: {dtype}"


# name, dtype, and the rate that the maker states on the card's page or datasheet, as it is printed and made dense
STATED_RATES = [
    ("RTX 5080", "fp4", 1801 / 2), ("RTX 5060 Ti 8GB", "fp4", 759 / 2), ("RTX 5050", "fp4", 421 / 2),
    ("RTX 4070 Ti SUPER", "int8", 706 / 2), ("RTX 4070 SUPER", "int8", 568 / 2), ("RTX 4060 Ti 16GB", "int8", 353 / 2),
    ("RTX 4060", "int8", 242 / 2), ("RTX 2080 Ti", "fp16", 53.8), ("TITAN RTX", "fp16", 130.5), ("P40", "int8", 47),
    ("Quadro RTX 8000", "fp16", 130.5), ("RTX A2000", "fp16", 63.9 / 2), ("RTX A4500", "fp16", 189.2 / 2),
    ("RTX A5500", "fp16", 272.8 / 2), ("RTX 2000 Ada", "fp8", 191.9 / 2), ("RTX 4000 SFF Ada", "fp8", 306.8 / 2),
    ("RTX 4500 Ada", "fp8", 634 / 2), ("L20", "fp16", 119.5), ("RTX PRO 2000 Blackwell", "fp4", 545 / 2),
    ("RTX PRO 5000 Blackwell 72GB", "fp4", 2142 / 2), ("RTX PRO 6000 Blackwell Max-Q", "fp4", 3511 / 2),
    ("Jetson AGX Orin 64GB", "int8", 170 / 2), ("Jetson Orin NX 16GB", "int8", 60 / 2),
    ("Jetson Orin Nano Super", "int8", 67 / 2), ("Jetson AGX Thor", "fp4", 2070 / 2),
    ("Jetson Orin NX 16GB Super", "int8", (157 - 2 * 40) / 2),  # two DLA units of 20 at 614 MHz in each mode below
    ("RX 7800 XT", "fp16", 74.6), ("RX 9060 XT", "int8", 205), ("RX 9070", "int8", 289), ("RX 6900 XT", "fp16", 46.08),
    ("Radeon AI PRO R9700", "fp8", 383), ("MI60", "fp16", 29.5), ("Intel Max 1100", "bf16", 352),
    ("Ascend 910C", "bf16", 752),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "rate"), STATED_RATES, ids=str)
def test_multiprocessors_times_clock_give_the_rate_that_the_maker_states(name: str, dtype: str, rate: float) -> None:
    assert CHIPS[name].peak_flops_per_s(dtype) == pytest.approx(rate * 1e12, rel=0.012)


# as people write them: shops, listings, system tools, forums
OWNED = [
    ("5080", "RTX 5080"), ("rtx 5060ti 16gb", "RTX 5060 Ti"), ("RTX 5060 Ti 8GB", "RTX 5060 Ti 8GB"),
    ("4060 Ti 16GB", "RTX 4060 Ti 16GB"), ("RTX 4060 Ti 8GB", "RTX 4060 Ti"), ("RTX4080 Super", "RTX 4080 SUPER"),
    ("4070ti super", "RTX 4070 Ti SUPER"), ("RTX 3060 12 GB", "RTX 3060"), ("3090 Ti", "RTX 3090 Ti"),
    ("NVIDIA GeForce RTX 4070 Laptop GPU", "RTX 4070 Laptop"), ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
    ("Tesla P40", "P40"), ("RTX 8000", "Quadro RTX 8000"), ("NVIDIA RTX 2000 Ada Generation", "RTX 2000 Ada"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q"),
    ("RTX PRO 5000 72GB", "RTX PRO 5000 Blackwell 72GB"), ("RTX PRO 4000", "RTX PRO 4000 Blackwell"),
    ("Jetson Thor", "Jetson AGX Thor"), ("Jetson AGX Orin 32GB", "Jetson AGX Orin 32GB"), ("DGX Spark", "GB10"),
    ("Radeon AI PRO R9700", "Radeon AI PRO R9700"), ("9070xt", "RX 9070 XT"), ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
    ("AMD Ryzen AI Max+ 395", "Radeon 8060S"), ("Strix Halo", "Radeon 8060S"), ("M1 Ultra", "Apple M1 Ultra"),
    ("M2 Pro", "Apple M2 Pro"), ("Mac mini M4", "Apple M4"), ("Mac Studio M3 Ultra", "Apple M3 Ultra"),
    ("Intel Arc B580", "Arc B580"), ("Arc A770 16GB", "Arc A770"), ("Ascend 910B", "Ascend 910B3"),
    ("Ascend 910C", "Ascend 910C"), ("H20 141GB", "H20-141"), ("NVIDIA L20", "L20"), ("HGX H100", "H100-SXM-80"),
    ("v5litepod-8", "TPU v5e"), ("EPYC 9654", "EPYC 9654"), ("MI50 32GB", "MI50-32"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name"), OWNED)
def test_devices_that_people_own_are_known_as_they_are_called(given: str, name: str) -> None:
    assert load_facts().accelerator(given).name == name


# CUDA C programming guide, "technical specifications per compute capability": shared memory of a multiprocessor in KiB
SHARED_KIB = {
    "3.7": 112, "6.0": 64, "6.1": 96, "7.0": 96, "7.5": 64, "8.0": 164, "8.6": 100, "8.7": 164, "8.9": 100, "9.0": 228,
    "11.0": 228,
}  # fmt: skip


@EVERY
def test_shared_memory_and_registers_follow_the_compute_capability(chip: Accelerator) -> None:
    if chip.compute_capability not in SHARED_KIB:
        assert (
            chip.vendor != "NVIDIA" or chip.kind == "cpu" or chip.compute_capability in {"10.0", "10.3", "12.0", "12.1"}
        )
        return
    assert chip.shared_bytes_per_sm == SHARED_KIB[chip.compute_capability] * 1024
    assert chip.register_bytes_per_sm == (512 if chip.compute_capability == "3.7" else 256) * 1024


@EVERY
def test_every_row_has_provenance_and_possible_values(chip: Accelerator) -> None:
    assert chip.source
    assert chip.date >= "2026"
    assert chip.confidence in {"high", "medium", "low"}
    assert chip.kind in KINDS
    assert chip.peak
    assert set(chip.peak) <= set(DTYPES)
    assert 2**31 <= chip.hbm_bytes <= 2**41
    assert 2e10 < chip.hbm_bytes_per_s < 2e13
    assert (chip.link_bytes_per_s or 0) < chip.hbm_bytes_per_s
    assert "recalled" not in chip.source or chip.confidence == "low"


@EVERY
def test_narrower_numbers_are_not_slower(chip: Accelerator) -> None:
    for wide, narrow in (("fp64", "fp32"), ("fp32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4"), ("int8", "int4")):
        if wide in chip.peak and narrow in chip.peak:
            assert chip.peak[narrow] >= 0.999 * chip.peak[wide], (wide, narrow)


# 64 fp32 lanes a multiprocessor up to Turing and on the A100 family, else 128
@EVERY
def test_nvidia_fp32_rate_is_lanes_times_clock(chip: Accelerator) -> None:
    doubtful = {"H20", "GB300"}  # recalled, or rounded by NVIDIA to a node's sum
    if chip.vendor != "NVIDIA" or chip.num_sms is None or chip.boost_clock_hz is None or chip.name in doubtful:
        return
    if chip.kind == "cpu" or "fp32" not in chip.peak:
        return
    capability = str(chip.compute_capability)
    lanes = {"3.7": 192, "6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}.get(capability, 128)
    assert chip.peak["fp32"] == pytest.approx(2 * lanes * chip.num_sms * chip.boost_clock_hz, rel=0.03)


def test_cpus_are_accelerators_with_their_arithmetic_in_the_notes() -> None:
    cpus = gpus(kind="cpu")
    assert len(cpus) >= 8
    wide = [c for c in cpus if "AMX" in c.notes or "AVX-512" in c.notes]
    assert len(wide) >= 8
    for cpu in cpus:
        assert cpu.num_sms is not None
        assert cpu.boost_clock_hz is not None
        assert f"{cpu.num_sms} cores x {cpu.boost_clock_hz / 1e9:g} GHz" in cpu.notes
        for dtype, rate in cpu.peak.items():
            per_cycle = rate / cpu.num_sms / cpu.boost_clock_hz
            assert f"{dtype} {per_cycle:.0f}" in cpu.notes
    # Intel's AMX: a tile product of 16 x 16 x 32 bf16 multiply-adds every 16 cycles; 8 channels of DDR5-4800
    xeon = CHIPS["Xeon Platinum 8480+"]
    assert xeon.peak_flops_per_s("bf16") == pytest.approx(56 * 3.0e9 * 2 * 16 * 16 * 32 / 16)
    assert xeon.hbm_bytes_per_s == pytest.approx(307.2e9)


def test_a_rate_that_nobody_wrote_down_is_an_error_that_says_what_to_add() -> None:
    chip = CHIPS["A100-SXM-80"]
    with pytest.raises(MissingFactError, match=r"A100-SXM-80: no fp8 rate .*fp8_flops_per_s.*accelerators\.csv"):
        chip.peak_flops_per_s("fp8")
    with pytest.raises(SpecError, match="unknown dtype 'fp7'; allowed: fp64"):
        chip.peak_flops_per_s("fp7")


def test_a_field_that_nobody_wrote_down_is_an_error_that_says_what_to_add() -> None:
    assert CHIPS["H100-SXM-80"].figure("num_sms") == 132
    with pytest.raises(MissingFactError, match="TPU v2: tdp_w is not known"):
        CHIPS["TPU v2"].figure("tdp_w")
    with pytest.raises(SpecError, match="unknown field 'colour'"):
        CHIPS["TPU v2"].figure("colour")


@given(share=st.floats(0.001, 1.0), name=st.sampled_from(sorted(CHIPS)))
def test_a_share_has_its_part_of_every_rate(share: float, name: str) -> None:
    whole = CHIPS[name]
    part = whole.partition(share)
    assert part.name == whole.name
    assert math.isclose(part.hbm_bytes_per_s, share * whole.hbm_bytes_per_s)
    assert part.hbm_bytes <= whole.hbm_bytes
    for dtype in whole.peak:
        assert math.isclose(part.peak_flops_per_s(dtype), share * whole.peak_flops_per_s(dtype))
        # the balance of compute and bandwidth is the whole device's
        assert math.isclose(
            part.peak_flops_per_s(dtype) / part.hbm_bytes_per_s, whole.peak_flops_per_s(dtype) / whole.hbm_bytes_per_s
        )


def test_a_share_may_have_memory_of_its_own() -> None:
    whole = CHIPS["Xeon Platinum 8488C"]
    assert whole.partition(0.25, hbm_bytes=64 * 2**30).hbm_bytes == 64 * 2**30
    assert whole.partition(1) is whole
    for share in (0, -1, 1.01, math.nan, math.inf):
        with pytest.raises(SpecError, match="share of Xeon"):
            whole.partition(share)


def test_rows_are_inert() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CHIPS["T4"].tdp_w = 1.0  # type: ignore[misc]
    assert hash(CHIPS["T4"]) != hash(CHIPS["L4"])
