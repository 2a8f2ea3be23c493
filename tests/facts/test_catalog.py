"""Names: every common spelling finds its row, an open one says what was assumed, a wrong one gets the nearest."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flopwise
from each import each
from flopwise.errors import UnknownNameError
from flopwise.facts.accelerators import spelling_key
from flopwise.facts.catalog import load_facts

FACTS = load_facts()
DATA = Path(flopwise.__file__).parent / "data"

SPELLINGS = {
    "H100-SXM-80GB": "H100-SXM-80",
    "h100 sxm": "H100-SXM-80",
    "H100 SXM5 80GB": "H100-SXM-80",
    "NVIDIA H100 80GB HBM3": "H100-SXM-80",  # what nvidia-smi prints
    "NVIDIA H100 PCIe": "H100-PCIe-80",
    "H100-PCIe-80GB": "H100-PCIe-80",
    "H100-SXM-96GB-HBM2e-500W": "H100-SXM-96-HBM2e",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80",
    "A100-SXM-40GB": "A100-SXM-40",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16",
    "V100-PCIe-32GB": "V100-PCIe-32",
    "P100-PCIe-16GB": "P100-PCIe-16",
    "NVIDIA H200": "H200-SXM-141",
    "H200-NVL-141GB (PCIe)": "H200-NVL-141",
    "GH200-96GB": "GH200-96",
    "NVIDIA GH200 480GB": "GH200-96",
    "NVIDIA GH200 144G HBM3e": "GH200-144",
    "NVIDIA B200": "B200",
    "NVIDIA B300 SXM6 AC": "B300",
    "B200-power-limited": "B200-power-limited",
    "Tesla T4": "T4",
    "NVIDIA L40S": "L40S",
    "NVIDIA A10G": "A10G",
    "rtx4090": "RTX 4090",
    "RTX-4090": "RTX 4090",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "RTX-3080 Ti 12GB": "RTX 3080 Ti",
    "NVIDIA RTX A6000": "RTX A6000",
    "RTX A6000 48GB": "RTX A6000",
    "RTX 6000 Ada 48GB": "RTX 6000 Ada",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "RTX-PRO-6000-Server": "RTX PRO 6000 Blackwell Server",
    "GB10 (DGX Spark)": "GB10",
    "mi300x": "MI300X",
    "AMD Instinct MI300X": "MI300X",
    "AMD Radeon RX 7900 XT": "RX 7900 XT",
    "Intel Gaudi 2": "Gaudi2",
    "Arc-Pro-B60": "Arc Pro B60",
    "tpu-v5e": "TPU v5e",
    "AWS Trainium2": "Trainium2",
    "M1 Max 32-Core GPU 64GB": "Apple M1 Max",
    "Apple M4 Pro": "Apple M4 Pro",
    "xeon platinum 8480": "Xeon Platinum 8480+",
    "graviton4": "Graviton4",
    "RTX 4000 Ada 20GB": "RTX 4000 Ada",
    "RTX 5000 Ada 32GB": "RTX 5000 Ada",
    "NVIDIA RTX 5880 Ada Generation": "RTX 5880 Ada",
    "RTX-3070 8GB": "RTX 3070",
    "RTX-3080 10GB": "RTX 3080",
    "RTX-4070 Ti 12GB": "RTX 4070 Ti",
    "RTX-4080": "RTX 4080",
    "RTX-4080 16GB": "RTX 4080",
    "NVIDIA GeForce RTX 5070": "RTX 5070",
    "GTX-1080": "GTX 1080",
    "NVIDIA GeForce GTX 1070": "GTX 1070",
    "NVIDIA GeForce GTX 1050 Ti": "GTX 1050 Ti",
    "NVIDIA GeForce RTX 2070 SUPER": "RTX 2070 SUPER",
    "NVIDIA GeForce RTX 2080": "RTX 2080",
    "NVIDIA GB10": "GB10",
    "M1 (8-core GPU 16GB)": "Apple M1",
    "M1 7-Core GPU 8GB": "Apple M1 7-core",
    "M2 Ultra 76-Core GPU 192GB": "Apple M2 Ultra",
    "M3 Max 40-Core GPU 64GB": "Apple M3 Max",
    "M5 (10-core 32GB)": "Apple M5",
    "Intel Max 1550": "Intel Max 1550",
    "A100-PCIe-40GB": "A100-PCIe-40",
}


@pytest.mark.parametrize(("given_name", "name"), SPELLINGS.items())
def test_common_spellings_find_their_row(given_name: str, name: str) -> None:
    assert FACTS.accelerator(given_name).name == name


OPEN = {
    "H100": "H100-SXM-80",
    "h100": "H100-SXM-80",
    "H100-80GB": "H100-SXM-80",
    "H100-unspecified": "H100-SXM-96-HBM2e",
    "H100 (variant not in csv)": "H100-SXM-80",
    "A100": "A100-SXM-80",
    "A100 (variant not in csv)": "A100-SXM-40",
    "V100": "V100-SXM2-16",
    "H800": "H800-SXM-80",
    "Intel PVC GPU": "Intel Max 1550",
    "Radeon 840M / 860M Graphics": "Radeon 860M",
    "Intel Arc Graphics 130V/140V (integrated)": "Arc 140V",
    "Intel Alder Lake-P GT2 [Iris Xe Graphics] (integrated)": "Iris Xe 96EU",
}


@pytest.mark.parametrize(("given_name", "name"), OPEN.items())
def test_an_open_name_says_what_was_assumed(given_name: str, name: str) -> None:
    found = FACTS.resolve(given_name)
    assert found.accelerator.name == name
    assert found.ambiguous
    assert found.note
    assert "is assumed" in found.note or "whose row" in found.note


@each("name", FACTS.accelerators)
def test_a_canonical_name_is_never_open(name: str) -> None:
    for spelling in (name, name.lower(), name.replace(" ", "-"), name.replace("-", "_"), f"  {name} "):
        found = FACTS.resolve(spelling)
        assert found.accelerator.name == name
        assert not found.ambiguous


@given(
    name=st.sampled_from(sorted(FACTS.accelerators)), upper=st.booleans(), mark=st.sampled_from([" ", "-", "_", "/"])
)
def test_case_and_punctuation_do_not_matter(name: str, mark: str, *, upper: bool) -> None:
    spelling = mark.join(name.replace("-", " ").split())
    assert FACTS.accelerator(spelling.upper() if upper else spelling).name == name


@given(st.text(max_size=300))
def test_any_text_finds_a_row_or_a_short_error(text: str) -> None:
    try:
        message = FACTS.resolve(text).accelerator.name
    except UnknownNameError as fault:
        message = str(fault)
    assert len(message) < 900


def test_every_alias_points_to_a_row_and_none_repeats() -> None:
    with (DATA / "accelerator_aliases.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({spelling_key(row["alias"]) for row in rows}) == len(rows) > 100
    for row in rows:
        found = FACTS.resolve(row["alias"])
        assert found.accelerator.name == row["name"]
        assert (found.note or "") == row["note"]


@pytest.mark.parametrize(
    ("wrong", "near"), [("H1O0-SXM-80", "H100-SXM-80"), ("RTX 4091", "RTX 4090"), ("MI300Y", "MI300X"),
     ("m4 air", "Apple M4"), ("M4 MacBook Pro", "Apple M4 Max"), ("mini M4", "Apple M4 Pro")],
)  # fmt: skip
def test_a_wrong_name_gets_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        FACTS.accelerator(wrong)
    assert near in caught.value.nearest
    assert "--facts DIR" in str(caught.value)


@pytest.mark.parametrize("wrong", ["", " ", "nvidia", "GB", "x" * 10_000, "\0", "../../etc/passwd"])
def test_names_that_are_no_names(wrong: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown accelerator"):
        FACTS.accelerator(wrong)


def test_filters() -> None:
    hopper = flopwise.gpus(vendor="nvidia", architecture="hopper", min_hbm_bytes=90e9)
    assert {"H200-SXM-141", "GH200-96"} <= {chip.name for chip in hopper}
    assert all(chip.architecture == "Hopper" and chip.hbm_bytes >= 90e9 for chip in hopper)
    assert len(flopwise.gpus()) == len(FACTS.accelerators) >= 100
    with pytest.raises(UnknownNameError, match="unknown vendor 'nvidea'; nearest: NVIDIA"):
        flopwise.gpus(vendor="nvidea")


def test_facts_need_nothing_heavy() -> None:
    heavy = "{'numpy', 'yaml', 'click', 'msgspec'} & {*sys.modules}"
    code = f"import sys, flopwise.facts.catalog as c; c.load_facts(); print(sorted({heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_loading_is_cached() -> None:
    assert load_facts() is load_facts()
