"""A folder of the user's own facts: laid over the shipped ones, checked cell by cell, and safe to get wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from flopwise.cost.fabric import fabric
from flopwise.cost.rates import rates
from flopwise.errors import FlopwiseError, MissingFactError, SpecError
from flopwise.facts.catalog import FACTS_VARIABLE, load_facts

EXAMPLE = Path(__file__).parents[2] / "examples" / "private-facts"

CHIP = "name,vendor,architecture,kind,hbm_bytes,hbm_bytes_per_s,bf16_flops_per_s,source,date\n"
OFFER = "provider,instance,region,accelerator,count,on_demand_usd_per_hour,price_date,source\n"


def _write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_the_example_folder_adds_and_overrides() -> None:
    shipped, facts = load_facts(), load_facts(EXAMPLE)
    npu = facts.accelerator("npu1")
    assert npu.name == "Lab NPU 1"
    assert npu.hbm_bytes == 96 * 2**30
    assert npu.hbm_bytes_per_s == 3.2e12
    assert npu.peak_flops_per_s("bf16") == 600e12
    with pytest.raises(MissingFactError, match="Lab NPU 1: no int8 rate"):
        npu.peak_flops_per_s("int8")
    assert facts.accelerator("our-h100") == shipped.accelerator("H100-SXM-80")

    (own,) = facts.offers_for(provider="onprem", accelerator="npu1")
    assert (own.count, own.network_bytes_per_s, own.on_demand_usd_per_hour) == (8, 50e9, 9.0)
    (mine,) = facts.offers_for(provider="aws", instance="p5.48xlarge", region="us-east-1")
    (theirs,) = shipped.offers_for(provider="aws", instance="p5.48xlarge", region="us-east-1")
    assert (mine.on_demand_usd_per_hour, theirs.on_demand_usd_per_hour) == (41.28, 55.04)
    assert mine.source == "private pricing addendum"
    assert mine.accelerator == theirs.accelerator
    assert mine.spot_usd_per_hour == theirs.spot_usd_per_hour  # the file has no such column
    assert mine.vcpus == theirs.vcpus  # the file has the column and leaves it empty

    assert len(facts.accelerators) == len(shipped.accelerators) + 1
    assert len(facts.offers) == len(shipped.offers) + 2
    assert facts.folder == EXAMPLE
    assert shipped.folder is None


def test_unknown_takes_a_fact_back(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "accelerators.csv",
        "name,tdp_w,bf16_flops_per_s,fp64_flops_per_s,source,date\nT4,unknown,,unknown,s,2026-01-01\n",
    )
    _write(tmp_path, "instances.csv", OFFER + "aws,g4dn.xlarge,us-east-1,,,Unknown,2026-01-01,s\n")
    facts = load_facts(tmp_path)
    assert facts.accelerators["T4"].tdp_w is None
    shipped = load_facts().accelerators["T4"].peak
    assert facts.accelerators["T4"].peak == {dtype: rate for dtype, rate in shipped.items() if dtype != "fp64"}
    (offer,) = facts.offers_for(instance="g4dn.xlarge", region="us-east-1")
    assert offer.on_demand_usd_per_hour is None
    assert offer.reserved_1y_usd_per_hour is not None


def test_a_column_that_the_file_lacks_keeps_what_is_shipped(tmp_path: Path) -> None:
    _write(
        tmp_path, "accelerators.csv", "name,tdp_w,fp4_flops_per_s,source,date\nH100-SXM-80,500,,our cap,2026-11-01\n"
    )
    capped, shipped = load_facts(tmp_path).accelerators["H100-SXM-80"], load_facts().accelerators["H100-SXM-80"]
    assert capped.tdp_w == 500
    assert capped.peak == shipped.peak
    assert capped.hbm_bytes == shipped.hbm_bytes
    assert capped.hbm_bytes_reported
    assert capped.source == "our cap"


@pytest.mark.parametrize(("power", "watts"), [("700", 700.0), ("700W", 700.0), ("0.7kW", 700.0)])
@pytest.mark.parametrize("rate", ["989.4e12", "989.4T", "989.4TFLOP/s"])
def test_rates_and_power_have_their_units(rate: str, power: str, watts: float, tmp_path: Path) -> None:
    row = f"X1,V,A,npu,1GiB,1e11,{rate},s,2026-01-01,{power}\n"
    _write(tmp_path, "accelerators.csv", CHIP.replace("date\n", "date,tdp_w\n") + row)
    chip = load_facts(tmp_path).accelerator("X1")
    assert chip.peak["bf16"] == pytest.approx(989.4e12, rel=1e-12)
    assert chip.tdp_w == watts


def test_the_environment_names_a_folder_and_an_argument_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FACTS_VARIABLE, str(EXAMPLE))
    assert load_facts().folder == EXAMPLE
    _write(tmp_path, "models.jsonl", "")
    assert load_facts(tmp_path).folder == tmp_path
    monkeypatch.setenv(FACTS_VARIABLE, "")
    assert load_facts().folder is None


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    row = "X1,V,A,npu,1GiB,1e11,{},s,2026-01-01\n"
    _write(tmp_path, "accelerators.csv", CHIP + row.format("1T"))
    assert load_facts(tmp_path).accelerator("X1").peak["bf16"] == 1e12
    assert load_facts(tmp_path) is load_facts(tmp_path)
    _write(tmp_path, "accelerators.csv", CHIP + row.format("22T"))
    assert load_facts(tmp_path).accelerator("X1").peak["bf16"] == 22e12


def test_a_table_as_spreadsheets_write_it(tmp_path: Path) -> None:
    row = 'X1,"V, Inc.",A,NPU,80 GiB,"1,000 GB/s",1T,s,2026-01-01'
    text = "\ufeff" + CHIP.replace(",", " , ").replace("\n", "\r\n") + row + "\r\n\r\n,,,,,,,,\r\n"
    (tmp_path / "accelerators.csv").write_bytes(text.encode())
    chip = load_facts(tmp_path).accelerator("x1")
    assert (chip.vendor, chip.kind, chip.hbm_bytes, chip.hbm_bytes_per_s) == ("V, Inc.", "npu", 80 * 2**30, 1e12)


def test_an_open_name_in_an_offer_is_noted(tmp_path: Path) -> None:
    _write(tmp_path, "instances.csv", OFFER + "me,box,here,h100,8,10,2026-01-01,s\n")
    (offer,) = load_facts(tmp_path).offers_for(provider="me")
    assert offer.accelerator == "H100-SXM-80"
    assert "the SXM is assumed" in offer.notes


WRONG_CHIPS = {
    "X1,V,A,npu,1GiB,unknown,1T,s,2026-01-01": "row 2, column hbm_bytes_per_s: got ''; a row of accelerators.csv needs",
    "X1,V,A,npu,1GiB,1e11,1T,unknown,2026-01-01": "row 2, column source: got 'unknown'; it must be filled",
    "T4,V,A,npu,unknown,1e11,1T,s,2026-01-01": "row 2, column hbm_bytes: got ''; a row of accelerators.csv needs",
    "X1,V,A,npu,0,1e11,1T,s,2026-01-01": "row 2, column hbm_bytes: got '0'; allowed: whole bytes above 0",
    "X1,V,A,npu,-1,1e11,1T,s,2026-01-01": "row 2, column hbm_bytes: got '-1'; allowed: whole bytes",
    "X1,V,A,npu,nan,1e11,1T,s,2026-01-01": "row 2, column hbm_bytes: got 'nan'; allowed: whole bytes",
    "X1,V,A,npu,1e99,1e11,1T,s,2026-01-01": "row 2, column hbm_bytes: got '1e99'; allowed: whole bytes",
    "X1,V,A,npu,80 parsecs,1e11,1T,s,2026-01-01": "row 2, column hbm_bytes: got '80 parsecs'; allowed: b, kb",
    "X1,V,A,npu,,1e11,1T,s,2026-01-01": "row 2, column hbm_bytes: got ''; a row of accelerators.csv needs",
    "X1,V,A,npu,1GiB,inf,1T,s,2026-01-01": "row 2, column hbm_bytes_per_s: got 'inf'; allowed: bytes per second",
    "X1,V,A,npu,1GiB,fast,1T,s,2026-01-01": "row 2, column hbm_bytes_per_s: got 'fast'; 'fast' is not a quantity",
    "X1,V,A,npu,1GiB,1e11,-5T,s,2026-01-01": "row 2, column bf16_flops_per_s: got '-5T'; allowed: operations",
    "X1,V,A,npu,1GiB,1e11,NaN,s,2026-01-01": "row 2, column bf16_flops_per_s: got 'NaN'; allowed: operations",
    "X1,V,A,fpga,1GiB,1e11,1T,s,2026-01-01": "row 2, column kind: got 'fpga'; allowed: gpu, tpu, npu, soc, cpu",
    "X1,V,A,npu,1GiB,1e11,1T,,2026-01-01": "row 2, column source: got ''; it must be filled",
    "X1,V,A,npu,1GiB,1e11,1T,s,": "row 2, column date: got ''; it must be filled",
    "X1,V,A,npu,1GiB,1e11,1T,s,yesterday": "row 2, column date: got 'yesterday'; allowed: a day as YYYY-MM-DD",
    "X1,V,A,npu,1GiB,1e11,1T,s,2026-13-01": "row 2, column date: got '2026-13-01'; allowed: a day",
    ",V,A,npu,1GiB,1e11,1T,s,2026-01-01": "row 2, column name: got ''; it must be filled",
    "NVIDIA GPU,V,A,npu,1GiB,1e11,1T,s,2026-01-01": "row 2, column name: got 'NVIDIA GPU'; a name needs letters",
    "X1,V,A,npu,1GiB,1e11,1T,s": r"row 2: has 8 cells; the header has 9",
    "X1,V,A,npu,1GiB,1e11,1T,s,2026-01-01,extra": r"row 2: has 10 cells; the header has 9",
    'X1,"V,A,npu,1GiB,1e11,1T,s,2026-01-01': "row 2: not readable as CSV",
    "X1,V,A,npu,1GiB,1e11,1T,s,2026-01-01\nX1,V,A,npu,2GiB,1e11,1T,s,2026-01-01": "row 3, column name: got 'X1'",
    "H100 SXM 80,V,A,npu,1GiB,1e11,1T,s,2026-01-01": "'H100-SXM-80' and 'H100 SXM 80' have the same spelling",
}


@pytest.mark.parametrize(("row", "message"), WRONG_CHIPS.items())
def test_a_wrong_accelerator_names_file_row_and_column(tmp_path: Path, row: str, message: str) -> None:
    _write(tmp_path, "accelerators.csv", CHIP + row + "\n")
    with pytest.raises(SpecError) as caught:
        load_facts(tmp_path)
    assert message in str(caught.value)
    assert "accelerators.csv" in str(caught.value) or "have the same spelling" in message


WRONG_OFFERS = {
    "me,box,here,H100-SXM-8,8,10,2026-01-01,s": "column accelerator: got 'H100-SXM-8'; unknown accelerator",
    "me,box,here,,8,10,2026-01-01,s": "column accelerator: got ''; a row of instances.csv needs accelerator",
    "me,box,here,T4,0,10,2026-01-01,s": "column count: got '0'; allowed: a whole number",
    "me,box,here,T4,1.5,10,2026-01-01,s": "column count: got '1.5'; allowed: a whole number",
    "me,box,here,T4,1,0,2026-01-01,s": "column on_demand_usd_per_hour: got '0'; allowed: US dollars",
    "me,box,here,T4,1,-3,2026-01-01,s": "column on_demand_usd_per_hour: got '-3'; allowed: US dollars",
    "me,box,here,T4,1,free,2026-01-01,s": "column on_demand_usd_per_hour: got 'free'",
    "me,box,,T4,1,3,2026-01-01,s": "column region: got ''; it must be filled",
    "me,box,here,T4,1,3,01/02/2026,s": "column price_date: got '01/02/2026'; allowed: a day",
    "me,box,here,T4,1,3,2026-01-01,s\nme,box,here,T4,1,4,2026-01-01,s": "row 3, column region: got 'here'; me, box",
}  # fmt: skip


@pytest.mark.parametrize(("row", "message"), WRONG_OFFERS.items())
def test_a_wrong_offer_names_file_row_and_column(tmp_path: Path, row: str, message: str) -> None:
    _write(tmp_path, "instances.csv", OFFER + row + "\n")
    with pytest.raises(SpecError) as caught:
        load_facts(tmp_path)
    assert message in str(caught.value)
    assert f"{tmp_path}/instances.csv, row" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("accelerators.csv", b"", "is empty; the first row names the columns"),
        ("accelerators.csv", b"\n\n", "is empty"),
        ("accelerators.csv", b"\x00\x01\x02PNG", "is a binary file"),
        ("accelerators.csv", b"name,source,date\nX\xff,s,2026-01-01\n", "row 2: is not UTF-8 text"),
        ("accelerators.csv", "näme,source".encode("latin-1"), "row 1: is not UTF-8 text"),
        ("accelerators.csv", b"name,source\nX,s\n", "missing column date; every file needs name, source, date"),
        ("accelerators.csv", b"name,source,date,hbm_byte\n", "row 1: unknown column 'hbm_byte'; nearest: hbm_bytes"),
        ("accelerators.csv", b"name,source,date,name\n", "row 1: column name appears twice"),
        ("accelerators.csv", b"{}", "row 1: unknown column '{}'"),
        ("instances.csv", b"provider,instance,region\na,b,c\n", "missing column price_date, source"),
        ("accelerator_aliases.csv", b"alias,name\nx,Nothing\n", "row 2, column name: got 'Nothing'"),
        ("accelerator_aliases.csv", b"alias,name\n--,T4\n", "row 2, column alias: got '--'"),
        ("accelerator_aliases.csv", b"alias,name\nL4,T4\n", "column alias: got 'L4'; that is the name of L4"),
        (
            "accelerator_aliases.csv",
            b"alias,name\nfoo,T4\nF-O-O,L4\n",
            "row 3, column alias: got 'F-O-O'; it appears twice",
        ),
    ],
)
def test_a_file_that_is_no_table(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_facts(tmp_path)
    assert message in str(caught.value)
    assert f"{tmp_path}/{name}" in str(caught.value)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has none of the files accelerators\.csv"):
        load_facts(tmp_path)
    with pytest.raises(SpecError, match="does not exist; a facts folder holds any of accelerators"):
        load_facts(tmp_path / "absent")
    with pytest.raises(SpecError, match="facts folder"):
        load_facts("a\0b")
    with pytest.raises(SpecError, match="facts folder"):
        load_facts("x" * 5000)


def test_a_file_too_large_for_a_table_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "instances.csv").open("wb") as file:
        file.truncate(20_000_001)
    with pytest.raises(SpecError, match="is too large"):
        load_facts(tmp_path)


def test_damaged_files_give_one_clear_error_or_load(tmp_path: Path) -> None:
    whole = (EXAMPLE / "instances.csv").read_bytes()
    chips = (EXAMPLE / "accelerators.csv").read_bytes()
    rng = random.Random(7)  # noqa: S311 - damage, not secrets
    refused = wordy = 0
    for _ in range(150):
        damaged = bytearray(whole[: rng.randrange(1, len(whole))])
        for _ in range(rng.randrange(4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        (tmp_path / "accelerators.csv").write_bytes(chips)
        (tmp_path / "instances.csv").write_bytes(bytes(damaged))
        try:
            load_facts(tmp_path)
        except FlopwiseError as fault:
            refused += 1
            message = str(fault)
            wordy += "\n" in message or len(message) > 600
    assert refused > 20
    assert wordy == 0


def test_a_folders_calibration_stands_in_for_the_shipped_one(tmp_path: Path) -> None:
    shipped = load_facts().accelerators["H100-SXM-80"]
    entry = (
        '{{"name": "{}", "scope": "{}", "value": {}, "unit": "fraction", "meaning": "m", "fitted_on": "ours",'
        ' "source": "probe", "date": "2026-11-01"}}'
    )
    own = tmp_path / "calibration"
    own.mkdir()
    _write(
        own, "ours.json", f"[{entry.format('dram_frac', 'hopper', 0.5)}, {entry.format('link_frac', 'nvlink4', 0.25)}]"
    )
    ours = load_facts(tmp_path).accelerators["H100-SXM-80"]
    assert rates(ours).value["dram_frac"] == 0.5
    assert rates(ours).value["matmul_frac.bf16"] == rates(shipped).value["matmul_frac.bf16"]
    assert fabric(ours, gpus_per_node=8).levels[0].frac == 0.25
    assert rates(shipped).value["dram_frac"] != 0.5  # nobody else's figures change
    assert "calibration" not in repr(ours)

    _write(own, "ours.json", f"[{entry.format('dram_frac', 'hopper', 0.25)}]")
    assert rates(load_facts(tmp_path).accelerators["H100-SXM-80"]).value["dram_frac"] == 0.25
    _write(own, "ours.json", "{}")
    with pytest.raises(SpecError, match=r"ours\.json: a list of parameters"):
        load_facts(tmp_path)
