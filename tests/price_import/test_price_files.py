"""Imported prices: three layouts, laid over the snapshot, all or nothing, and never outside their folder."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flopwise.data import DATA
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts import price_files
from flopwise.facts.catalog import load_facts
from flopwise.facts.offers import Offer, days_old
from flopwise.price_import import imports
from flopwise.price_import.age import age_notes, ages
from flopwise.price_import.imports import PriceRows

KEY = ("aws", "p5.48xlarge", "us-east-1")
GPUHUNT = "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size\n"
SKYPILOT = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
OWN = "provider,instance,region,accelerator,count,on_demand_usd_per_hour,price_date,source\n"


def offers() -> dict[tuple[str, str, str], Offer]:
    return {offer.key: offer for offer in load_facts().offers}


def imported(
    folder: Path, text: str, name: str = "aws.csv", *, skip: bool = False, provider: str | None = None
) -> PriceRows:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    table = imports.read_prices(path, load_facts(), day="2026-11-01", skip_unknown=skip, provider=provider)
    imports.write_prices("mine", table.rows)
    return table


def test_gpuhunt_rows_become_one_offer_each(tmp_path: Path) -> None:
    before = offers()
    table = imported(
        tmp_path,
        GPUHUNT + "p5.48xlarge,us-east-1,50.0,192,2048,8,H100,80,False,\n"
        "p5.48xlarge,us-east-1,15.0,192,2048,8,H100,80,True,\n"
        "p5.48xlarge,ap-south-1,60.0,192,2048,8,H100,80,False,\n"
        "p9.48xlarge,us-east-1,70.0,192,2048,8,A100,40,False,\n"
        "m1.small,us-east-1,0.01,1,1,0,,,False,\n",
    )
    after = offers()
    assert (table.layout, len(table.rows), sum(table.skipped.values())) == ("gpuhunt", 3, 1)
    held = after[KEY]
    assert (held.on_demand_usd_per_hour, held.spot_usd_per_hour, held.price_date) == (50.0, 15.0, "2026-11-01")
    assert (held.price_date_of("spot"), held.price_source_of("spot")) == ("2026-11-01", "gpuhunt file aws.csv")
    assert held.source == "gpuhunt file aws.csv"
    assert held.network_bytes_per_s == before[KEY].network_bytes_per_s, "what an import does not say stays known"
    elsewhere = after["aws", "p5.48xlarge", "ap-south-1"]
    assert (elsewhere.count, elsewhere.network_bytes_per_s) == (8, before[KEY].network_bytes_per_s)
    assert after["aws", "p9.48xlarge", "us-east-1"].accelerator == "A100-SXM-40"
    assert len(after) == len(before) + 2


def test_skypilot_zones_are_one_region_at_the_cheapest(tmp_path: Path) -> None:
    table = imported(
        tmp_path,
        SKYPILOT + "a2-highgpu-1g,A100,1.0,12.0,85.0,3.5,us-central1-a,,1.5\n"
        "a2-highgpu-1g,A100,1.0,12.0,85.0,3.6,us-central1-b,,1.2\n"
        "a2-highgpu-1g,A100,1.0,12.0,85.0,,us-central1-c,,\n"
        ",T4,1.0,,,0.35,us-central1,,0.11\n",
        "gcp/vms.csv",
    )
    held = offers()["gcp", "a2-highgpu-1g", "us-central1"]
    assert (held.on_demand_usd_per_hour, held.spot_usd_per_hour) == (3.5, 1.2)
    assert held.price_date_of("reserved_1y") == "2025-03-06", "what an import does not say keeps its own day"
    alone = "the price of an accelerator that no known machine in its zone has"
    assert dict(table.skipped) == {"no price": 1, alone: 1}


GCP = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice\n"
    "a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.46006,2.88933\n"
    "a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-b,9.46006,2.88933\n"
    "a3-highgpu-8g,208.0,1872.0,,,,us-east4,us-east4-a,9.46006,2.15966\n"
    "a3-edgegpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.46006,2.88933\n"
    "n1-standard-4,4.0,15.0,,,,us-central1,us-central1-a,0.19,0.04\n"
    "c3-standard-8,8.0,32.0,,,,us-central1,us-central1-a,0.4176,0.1\n"
    ",,,H100,8,H100,us-central1,us-central1-a,79.0,20.0\n"
    ",,,H100,8,H100,us-central1,us-central1-b,79.5,19.0\n"
    ",,,T4,1,T4,us-central1,us-central1-a,0.35,0.14\n"
    ",,,T4,4,T4,us-central1,us-central1-a,1.4,0.56\n"
    ",,,tpu-v6e-8,1,tpu-v6e-8,us-central1,us-central1-a,21.6,700.0\n"
    ",,,tpu-v3-32,1,tpu-v3-32,us-east1,us-east1-d,32.0,9.6\n"
)


def test_machines_of_skypilot_s_google_are_added_up_with_their_accelerators(tmp_path: Path) -> None:
    """The catalog prices an a3-highgpu-8g without its eight H100: it is no machine of 9.46 dollars an hour."""
    before = offers()
    table = imported(tmp_path, GCP, "gcp/vms.csv")
    after = offers()
    held = after["gcp", "a3-highgpu-8g", "us-central1"]
    assert held.on_demand_usd_per_hour == pytest.approx(9.46006 + 79.0)
    assert held.spot_usd_per_hour == pytest.approx(2.88933 + 19.0)
    assert held.on_demand_usd_per_hour == pytest.approx(before[held.key].on_demand_usd_per_hour, rel=0.01)
    assert after["gcp", "a3-highgpu-8g", "us-east4"] == before["gcp", "a3-highgpu-8g", "us-east4"]
    assert after["gcp", "n1-standard-4+1xT4", "us-central1"].on_demand_usd_per_hour == pytest.approx(0.54)
    assert after["gcp", "c3-standard-8", "us-central1"].on_demand_usd_per_hour == pytest.approx(0.4176)
    chip = after["gcp", "tpu-v6e-8", "us-central1"]
    assert chip.on_demand_usd_per_hour == pytest.approx(21.6)
    assert chip.spot_usd_per_hour == before[chip.key].spot_usd_per_hour, "700 stands for a price that is not known"
    assert dict(table.skipped) == {
        "a machine whose accelerators have no price in its zone": 1,
        "no accelerator, and no instance type that is known": 1,
        "no instance type": 1,
        "the price of an accelerator that no known machine in its zone has": 1,
    }


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("1x_A100,A100,1,12,85,1.5,us,,\n", "A100-SXM-40"),  # their A100 has 40 GB
        ("1x_A100-80GB,A100-80GB,1,12,85,1.5,us,\"{'Gpus': [{'Name': 'PCIe', 'MemoryInfo': {'SizeInMiB': 80}}]}\",\n",
         "A100-PCIe-80"),
        ("gpu_1x_h100_pcie,H100,1,26,225,3.29,us,\"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}]}\",0.0\n",
         "H100-PCIe-80"),
        ("8x_H100-MEGA,H100-MEGA,8,26,225,3.29,us,,\n", "H100-SXM-80"),
        ("vastv2-1x,A100,1,4,8,0.8,any,\"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}]}\",0.8\n", "A100-SXM-80"),
        ("1x_RTX,RTX4090,1,4,8,0.4,any,,\n", "RTX 4090"),
    ],
)  # fmt: skip
def test_accelerators_of_instances_that_are_not_known_are_recognised(tmp_path: Path, line: str, name: str) -> None:
    imported(tmp_path, SKYPILOT + line, "somebody/vms.csv", provider="somebody")
    [held] = [offer for offer in load_facts().offers if offer.provider == "somebody"]
    assert held.accelerator == name
    assert held.spot_usd_per_hour in (None, 0.8), "0 is how some catalogs say that there is no spot price"
    assert held.accelerator_share == 1.0


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
def test_files_of_other_systems_are_read(tmp_path: Path, ends: str) -> None:
    text = '"instance_name","location",price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size\n' + GOOD
    path = tmp_path / "aws.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", ends).encode())
    table = imports.read_prices(path, load_facts(), day="2026-11-01")
    assert [row["on_demand_usd_per_hour"] for row in table.rows] == [50.0]


def test_imports_at_once_leave_a_whole_file() -> None:
    """Twenty writers of one name and a reader beside them: what stands is always one of the files, whole."""
    rows = [
        [{"provider": "aws", "instance": "p5.48xlarge", "region": f"r{n}", "accelerator": "H100-SXM-80", "count": 8,
          "on_demand_usd_per_hour": usd, "price_date": "2026-10-01", "source": "s"} for n in range(200)]
        for usd in range(1, 21)
    ]  # fmt: skip
    imports.write_prices("shared", rows[0])
    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(imports.write_prices, "shared", each) for each in rows]
        while not all(writer.done() for writer in writers):
            held = [o for o in load_facts().offers if o.region.startswith("r") and o.region[1:].isdigit()]
            assert len(held) == 200
            assert len({offer.on_demand_usd_per_hour for offer in held}) == 1
    assert [writer.exception() for writer in writers] == [None] * 20
    assert [held.name for held in imports.list_prices()] == ["shared"]
    assert [path.name for path in Path(price_files.prices_folder()).iterdir()] == ["shared.csv"]


def test_gpus_attached_to_n1_are_the_offers_that_are_known(tmp_path: Path) -> None:
    imported(tmp_path, GPUHUNT + "n1-standard-4,us-central1-a,0.5,4,15,1,T4,16,False,\n", "gcp.csv")
    assert offers()["gcp", "n1-standard-4+1xT4", "us-central1"].on_demand_usd_per_hour == 0.5


def test_a_part_of_a_gpu_is_a_share(tmp_path: Path) -> None:
    imported(tmp_path, GPUHUNT + "small,x,0.5,4,15,1,A10,8,False,\n", "cheap.csv", provider="somebody")
    share = offers()["somebody", "small", "x"].accelerator_share
    assert share == pytest.approx(1 / 3, abs=0.03)


def test_our_own_table_may_say_the_key_and_a_price_alone(tmp_path: Path) -> None:
    imported(
        tmp_path, OWN + "aws,p5.48xlarge,us-east-1,,,41.28,2026-10-01,our contract\nme,box,lab,h100,8,9,2026-10-01,s\n"
    )
    after = offers()
    assert (after[KEY].on_demand_usd_per_hour, after[KEY].source) == (41.28, "our contract")
    assert after["me", "box", "lab"].accelerator == "H100-SXM-80"
    assert (after[KEY].price_date, after[KEY].price_date_of("spot")) == ("2026-10-01", "2026-08-06")


def test_a_spot_price_alone_leaves_the_day_of_the_price_on_demand(tmp_path: Path) -> None:
    head = "provider,instance,region,spot_usd_per_hour,price_date,source\n"
    imported(tmp_path, head + "aws,p5.48xlarge,us-east-1,11,2026-11-01,my log\n")
    held = offers()[KEY]
    assert (held.spot_usd_per_hour, held.price_date_of("spot"), held.price_source_of("spot")) == (
        11.0, "2026-11-01", "my log",
    )  # fmt: skip
    assert (held.on_demand_usd_per_hour, held.price_date_of("on_demand")) == (55.04, "2026-07-20")


def test_the_shipped_table_can_be_imported() -> None:
    before = offers()
    made = imports.import_prices(
        DATA / "instances.csv", load_facts(), name="own", provider=None, day=None, skip_unknown=False,
        today=dt.date(2026, 11, 21), latest=dt.date(2026, 11, 22),
    )  # fmt: skip
    assert made.skipped == {"no price": sum(offer.cheapest() is None for offer in before.values())}
    assert made.price_dates == ("2025-07-13", "2026-11-09")
    assert offers() == before


def test_the_last_import_of_an_offer_holds_and_removing_it_brings_back_the_one_before(tmp_path: Path) -> None:
    shipped = offers()[KEY].on_demand_usd_per_hour
    table = imported(tmp_path, OWN + "aws,p5.48xlarge,us-east-1,,,40,2026-10-01,s\n")
    imports.write_prices("later", [{**table.rows[0], "on_demand_usd_per_hour": 30.0}])
    mine = imports.price_file("mine")
    os.utime(mine, (1, 1))
    assert [held.name for held in imports.list_prices()] == ["mine", "later"]
    assert offers()[KEY].on_demand_usd_per_hour == 30
    imports.remove_prices("later")
    assert offers()[KEY].on_demand_usd_per_hour == 40
    imports.remove_prices("mine")
    assert offers()[KEY].on_demand_usd_per_hour == shipped
    with pytest.raises(UnknownNameError, match="There are none"):
        imports.remove_prices("mine")


def test_a_facts_folder_lies_over_imports(tmp_path: Path) -> None:
    imported(tmp_path / "in", OWN + "aws,p5.48xlarge,us-east-1,,,40,2026-10-01,s\n")
    (tmp_path / "instances.csv").write_text(OWN + "aws,p5.48xlarge,us-east-1,,,20,2026-10-02,s\n", encoding="utf-8")
    [held] = [o for o in load_facts(tmp_path).offers if o.key == KEY]
    assert held.on_demand_usd_per_hour == 20


GOOD = "p5.48xlarge,us-east-1,50,192,2048,8,H100,80,False,\n"
BROKEN = {
    GPUHUNT
    + GOOD
    + "p5.48xlarge,us-east-1,0,192,2048,8,H100,80,False,\n": "row 3, column price: got '0'; allowed: US dol",
    GPUHUNT + GOOD + "p5.48xlarge,us-east-1,-4,192,2048,8,H100,80,False,\n": "row 3, column price: got '-4'; allowed",
    GPUHUNT + GOOD + "p5.48xlarge,us-east-1,nan,192,2048,8,H100,80,False,\n": "row 3, column price: got 'nan'; allowed",
    GPUHUNT + GOOD + "p5.48xlarge,us-east-1,cheap,192,2048,8,H100,80,False,\n": "row 3, column price: got 'cheap'",
    GPUHUNT + GOOD + "x,us-east-1,4,192,2048,8,H1000X,80,False,\n": "row 3, column accelerator: got 'H1000X'; unknown",
    GPUHUNT + GOOD + "x,us-east-1,4,192,2048,8,H100,80,maybe,\n": "row 3, column spot: got 'maybe'; allowed: True",
    GPUHUNT + GOOD + "x,us-east-1,4,many,2048,8,H100,80,False,\n": "row 3, column cpu: got 'many'; that is not a "
    "number",
    GPUHUNT + GOOD + "x,,4,192,2048,8,H100,80,False,\n": "row 3, column location: got ''; it must be filled",
    GPUHUNT + GOOD + "x,us-east-1,4\n": "line 3: 3 cells under a header of 10 columns",
    GPUHUNT: "has a header and no rows",
    GPUHUNT + "m1.small,us-east-1,0.01,1,1,0,,,False,\n": "no row of it is a price of an instance",
    "instance_name,location,cost\na,b,1\n": "the nearest, gpuhunt, also needs price, gpu_count, gpu_name, spot",
    "": "is empty",
    SKYPILOT + "a,A100,1,12,85,0,us-east-1,,1\n": "row 2, column Price: got '0'; allowed: US dollars",
    SKYPILOT + "a,A100,1,12,85,1,us-east-1,,-1\n": "row 2, column SpotPrice: got '-1'; allowed: US dollars",
    OWN + "me,box,lab,h100,8,0,2026-10-01,s\n": "row 2, column on_demand_usd_per_hour: got '0'; allowed",
    OWN + "me,box,lab,h1000x,8,1,2026-10-01,s\n": "row 2, column accelerator: got 'h1000x'; unknown accelerator",
    OWN + "me,box,lab,h100,8,,2026-10-01,s\n": "has no row with a price",
    OWN + "me,box,lab,h100,8,1,2026-10-01,s\nme,box,lab,h100,8,2,2026-10-01,s\n": "row 3, column instance: got 'box'",
    OWN + "me,box,lab,,,1,2026-10-01,s\n": "a row of instances.csv needs accelerator, count",
}


@pytest.mark.parametrize(("text", "message"), BROKEN.items())
def test_a_broken_file_is_named_and_changes_nothing(tmp_path: Path, text: str, message: str) -> None:
    imported(tmp_path / "first", OWN + "aws,p5.48xlarge,us-east-1,,,40,2026-10-01,s\n")
    folder = Path(price_files.prices_folder())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SpecError) as caught:
        imported(tmp_path, text)
    assert message in str(caught.value)
    assert "aws.csv" in str(caught.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert offers()[KEY].on_demand_usd_per_hour == 40


def test_rows_of_unknown_accelerators_may_be_left_out(tmp_path: Path) -> None:
    text = GPUHUNT + GOOD + "x,us-east-1,4,192,2048,8,H1000X,80,False,\n"
    table = imported(tmp_path, text, skip=True)
    assert len(table.rows) == 1
    assert dict(table.skipped) == {"unknown accelerator H1000X": 1}


def test_a_row_that_is_no_offer_is_not_written() -> None:
    with pytest.raises(SpecError):
        imports.write_prices("bad", [{"provider": "a", "instance": "b", "region": "c", "price_date": "soon"}])
    assert list(Path(price_files.prices_folder()).iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a" * 65, "a\0b", "x\n", "é"])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    with pytest.raises(SpecError, match="name of prices"):
        imports.price_file(name)


def test_the_folder_is_where_the_environment_says(tmp_path: Path) -> None:
    assert price_files.prices_folder({"FLOPWISE_PRICES": str(tmp_path / "p")}) == str(tmp_path / "p")
    assert price_files.prices_folder({"XDG_DATA_HOME": "/data"}) == str(Path("/data/flopwise/prices"))
    home = price_files.prices_folder({})
    assert home.endswith(str(Path(".local/share/flopwise/prices")))
    assert price_files.stamps(str(tmp_path / "nowhere")) == ()


def test_a_file_broken_later_says_how_to_be_rid_of_it(tmp_path: Path) -> None:
    imported(tmp_path, OWN + "aws,p5.48xlarge,us-east-1,,,40,2026-10-01,s\n")
    imports.price_file("mine").write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"flopwise prices remove mine"):
        load_facts()
    imports.remove_prices("mine")
    assert KEY in offers()


def test_ages_are_counted_in_days() -> None:
    today = dt.date(2026, 11, 21)
    assert days_old("2026-11-20", today) == 1
    assert days_old("2026-02-31", today) == (today - dt.date(2026, 2, 28)).days
    assert days_old("2027-01-01", today) == 0
    rows = {row.provider: row for row in ages(load_facts().offers, today, 180)}
    assert rows["aws"].oldest == "2026-01-19"
    priced = [o for o in load_facts().offers if o.provider == "aws" and o.cheapest()]
    assert rows["aws"].offers == len(priced)
    assert rows["aws"].stale == sum(days_old(o.price_date, today) > 180 for o in priced if o.price_date != "undated")
    assert rows["aws"].undated == sum(
        o.price_date_of("spot" if o.on_demand_usd_per_hour is None else "on_demand") == "undated" for o in priced
    )
    notes = age_notes([("a", "2026-11-01"), ("b", "2026-01-01"), ("b", "2026-01-01"), ("c", "2025-01-01")], today)
    assert [note.split(" is ")[0] for note in notes] == ["the price of c", "the price of b"]


@pytest.mark.parametrize("text", [GPUHUNT + GOOD, SKYPILOT + "1x_A100,A100,1,12,85,1.5,us,,\n"])
def test_a_file_s_name_makes_no_provider(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match=r"'awss' is not a known name of a provider \(nearest: aws.*; give --provider"):
        imported(tmp_path, text, "awss.csv")
    assert imported(tmp_path, text, "awss.csv", provider="Aws").rows[0]["provider"] == "aws"


def test_prices_to_come_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(OWN + "aws,p5.48xlarge,us-east-1,,,40,2036-01-01,s\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"row 2, column price_date: got '2036-01-01'; .*days up to 2026-11-21"):
        imports.read_prices(path, load_facts(), day="2026-11-01", latest="2026-11-21")
    path.write_text(OWN + "aws,p5.48xlarge,us-east-1,,,40,2026-11-21,s\n", encoding="utf-8")
    assert imports.read_prices(path, load_facts(), day="2026-11-01", latest="2026-11-21").rows


@pytest.mark.parametrize(
    ("usd", "odd"),
    [(55.04, False), (55.04 / 3.99, False), (55.04 * 3.99, False), (55.04 / 4.01, True), (55.04 * 4.01, True)],
)
def test_a_price_is_odd_beyond_four_times_the_one_known(usd: float, odd: bool) -> None:
    row = {"provider": "aws", "instance": "p5.48xlarge", "region": "us-east-1", "on_demand_usd_per_hour": usd}
    told = imports.odd_prices([row, {**row, "on_demand_usd_per_hour": "unknown"}], load_facts())
    assert told == ([f"aws p5.48xlarge in us-east-1, on demand: ${usd:g} an hour, known is $55.04: is it right?"] * odd)
    elsewhere = imports.odd_prices([{**row, "region": "moon"}], load_facts())
    same = [o.on_demand_usd_per_hour for o in load_facts().offers if o.instance == "p5.48xlarge"]
    middle = statistics.median(price for price in same if price is not None)
    assert bool(elsewhere) is not (middle / 4 <= usd <= middle * 4)


def test_a_new_provider_is_remarked_on_with_those_like_it() -> None:
    row = {"provider": "awss", "instance": "x", "region": "y", "on_demand_usd_per_hour": 1.0}
    [told] = imports.odd_prices([row, row], load_facts())
    assert told.startswith("awss is a new provider; known and near: aws")
