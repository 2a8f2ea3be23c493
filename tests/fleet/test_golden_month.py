"""A month's bill line by line, by hand: runs, services, backups, shared machines, tokens, volumes, energy, carbon."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import assess

import flopwise
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.assessment import Allotment, Assessment
from flopwise.fleet.read import fleet_from

DATA = Path(flopwise.__file__).parent / "data"
MONTH = 730.0
TUNE: dict[str, Any] = {
    "name": "tune", "task": "finetune", "model": "Llama-7B", "method": {"kind": "lora"}, "runs_per_month": 4,
    "data": {"tokens": "50M", "seq_len": 2048},
}  # fmt: skip
CHAT: dict[str, Any] = {
    "name": "chat", "task": "serve", "model": "Llama-3.1-8B", "environment": "production",
    "traffic": {"requests_per_s": 4, "input_tokens": 300, "output_tokens": 50}, "targets": {"latency": {"p95": "20s"}},
}  # fmt: skip
NIGHTLY: dict[str, Any] = {
    "name": "nightly", "task": "batch", "model": "Llama-7B", "environment": "production", "runs_per_month": 10,
    "traffic": {"requests": "20k", "input_tokens": 256, "output_tokens": 64},
}  # fmt: skip


def desks(name: str = "desks", count: int = 2, **more: Any) -> dict[str, Any]:
    job = {"name": name, "task": "develop", "environment": "production", "machines": {"count": count, "gpus": ["H100"]}}
    return job | more


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Eight H100 with aws in us-east-1, at $40 on demand, $15 on spot, $24 reserved for a year."""
    whole = load_facts()
    held = next(o for o in whole.offers if (o.instance, o.region) == ("p5.48xlarge", "us-east-1"))
    return whole.with_tables(offers=(replace(held, on_demand_usd_per_hour=40.0, spot_usd_per_hour=15.0,
                                          reserved_1y_usd_per_hour=24.0, reserved_3y_usd_per_hour=None),))  # fmt: skip


def two(facts: Facts) -> Facts:
    """gcp sells the same at $44."""
    (aws,) = facts.offers
    gcp = next(o for o in load_facts().offers if (o.instance, o.region) == ("a3-highgpu-8g", "us-central1"))
    gcp = replace(gcp, on_demand_usd_per_hour=44.0, spot_usd_per_hour=None, reserved_1y_usd_per_hour=None,
                  reserved_3y_usd_per_hour=None)  # fmt: skip
    return facts.with_tables(offers=(aws, gcp))


def answer(facts: Facts, *jobs: dict[str, Any], **policies: Any) -> Assessment:
    return assess(fleet_from({"name": "f", "workloads": list(jobs), "policies": policies}), facts, scenarios=0)


def only(found: Assessment, name: str) -> Allotment:
    (row,) = [r for r in found.allocation if r.workload == name]
    return row


def billed(hours: float, starts: int) -> float:
    """Hours that aws bills: each start by the second, at least a minute."""
    return starts * max(math.ceil(round(hours * 3600 / starts, 6)), 60) / 3600


def grid() -> dict[str, float]:
    """kg of CO2 for a kWh, and the PUE, of aws in us-east-1."""
    with (DATA / "carbon.csv").open(encoding="utf-8", newline="") as file:
        row = next(r for r in csv.DictReader(file) if (r["provider"], r["region"]) == ("aws", "us-east-1"))
    return {"kg": float(row["kg_per_kwh"]), "pue": float(row["pue"] or 1.2)}


def per_hour() -> float:
    """Interruptions an hour of a spot instance of H100 with aws: the middle of the published monthly range."""
    with (DATA / "spot.csv").open(encoding="utf-8", newline="") as file:
        row = next(r for r in csv.DictReader(file) if (r["provider"], r["accelerator"]) == ("aws", "H100-SXM-80"))
    return -math.log(1 - (float(row["least_frac"]) + float(row["most_frac"])) / 2) / (365.25 / 12 * 24)


def test_a_run_is_paid_for_its_hours_and_its_joules(facts: Facts) -> None:
    """Four runs and their starts: hours of all instances at $40, energy at the meter, kilograms by the grid.

    A start is 60 s of boot, 270 of an image, 24 of imports (hf-trainer compiles nothing), 13.5 GB of weights at
    850 MB/s, and 100 MB of ids (two bytes each of 50M tokens) at 8 GB/s.
    """
    found = answer(facts, TUNE)
    (result,), row = found.workloads, only(found, "tune")
    run_s, start_s = result.best["figures"]["run_s"]["value"], result.best["figures"]["start_s"]
    assert start_s == pytest.approx(60 + 270 + 24 + 2 * 6_738_415_616 / 850e6 + 100e6 / 8e9 / row.count)
    hours = 4 * (start_s + run_s) / 3600
    assert result.hours_per_month == pytest.approx(hours)
    assert row.hours_per_month == pytest.approx(billed(hours, 4))
    assert row.usd_per_month == pytest.approx(row.count * billed(hours, 4) * 40.0)
    assert row.usd_per_hour_effective == pytest.approx(row.usd_per_month / (row.count * hours))
    kwh = result.energy_kwh_per_month
    assert kwh is not None
    assert result.carbon_kg_per_month == pytest.approx(kwh * grid()["kg"])
    # idle in the start, then between idling and full use of the accelerators, with their hosts at half their limit
    gpu_kw = row.num_gpus * 0.7 * grid()["pue"]
    run_kwh = kwh - 4 * (0.10 + 0.50) * gpu_kw * start_s / 3600
    assert (0.10 + 0.50) * gpu_kw < run_kwh / (4 * run_s / 3600) < (0.95 + 0.50) * gpu_kw


def test_energy_of_a_month_is_that_of_its_runs_at_the_meter(facts: Facts) -> None:
    """Joules of the plan, at its overhead of 1.2, of all machines of four runs."""
    job = TUNE | {"constraints": {"min_gpus": 16}}
    found = assess_with_plans(fleet_from({"name": "f", "workloads": [job]}), facts, scenarios=0)
    joules = found.plans["tune"].plans[0].energy_joules
    assert joules is not None
    assert only(found.assessment, "tune").count == 2
    kwh = 4 * joules / 3.6e6 / 1.2 * grid()["pue"]
    assert found.assessment.workloads[0].energy_kwh_per_month == pytest.approx(kwh)


def test_twice_the_runs_cost_and_draw_twice_as_much(facts: Facts) -> None:
    once, twice = (answer(facts, TUNE | {"runs_per_month": n}) for n in (4, 8))
    assert twice.usd_per_month.total == pytest.approx(2 * once.usd_per_month.total)
    kwh = [found.workloads[0].energy_kwh_per_month or 0.0 for found in (once, twice)]
    assert kwh[1] == pytest.approx(2 * kwh[0])


def test_runs_that_do_not_fit_into_the_month_run_beside_each_other(facts: Facts) -> None:
    """Runs that keep a reserved machine busy for half a month and more; twice as many need a second machine."""
    limits = {"constraints": {"max_gpus": 8}, "environment": "production"}
    figures = answer(facts, TUNE | limits).workloads[0].best["figures"]
    seconds = figures["run_s"]["value"] + figures["start_s"]
    runs = round(0.6 * MONTH * 3600 / seconds)
    found = answer(facts, TUNE | limits | {"runs_per_month": runs}, purchase=["reserved_1y"])
    assert only(found, "tune").count == 1
    assert 0.5 * MONTH < found.workloads[0].hours_per_month < MONTH
    assert found.usd_per_month.total == pytest.approx(MONTH * 24.0)
    twice = next(question for question in found.whatif if question.name == "traffic and runs x 2")
    assert twice.usd_per_month == pytest.approx(2 * MONTH * 24.0)


def test_a_service_is_paid_while_it_is_on(facts: Facts) -> None:
    """Nine to five on 22 days against all month: hours and electricity fall together."""
    always, days = answer(facts, CHAT), answer(facts, CHAT | {"hours": {"per_day": 8, "days": 22}})
    assert only(always, "chat").usd_per_month == pytest.approx(only(always, "chat").count * MONTH * 40.0)
    assert only(days, "chat").usd_per_month == pytest.approx(only(days, "chat").count * 176 * 40.0)
    part = [found.workloads[0].energy_kwh_per_month or 0.0 for found in (days, always)]
    assert part[0] == pytest.approx(part[1] * 176 / MONTH)


def test_a_batch_on_spot_pays_for_its_restarts(facts: Facts) -> None:
    """Requests are asked again: each interruption costs the ten minutes of a restart."""
    found = answer(facts, NIGHTLY, purchase=["spot"])
    row, hours = only(found, "nightly"), found.workloads[0].hours_per_month
    longer = math.exp(600 / 3600 * per_hour())
    assert row.usd_per_month == pytest.approx(row.count * billed(hours * longer, 10) * 15.0)


def test_training_on_spot_has_its_interruptions_in_its_hours(facts: Facts) -> None:
    """One of many hours, so that a second of restarts more would be billed."""
    long = TUNE | {"runs_per_month": 1, "data": {"tokens": "50B", "seq_len": 2048}}
    found = answer(facts, long, purchase=["spot"])
    row, hours = only(found, "tune"), found.workloads[0].hours_per_month
    assert hours * per_hour() * 600 > 2, "ten minutes for each interruption are seconds"
    assert row.usd_per_month == pytest.approx(row.count * billed(hours, 1) * 15.0, rel=1e-7)


def test_two_that_share_a_reserved_machine_pay_by_their_hours(facts: Facts) -> None:
    """Mornings and evenings on one machine at $24 an hour all month: seven and three hours of ten."""
    jobs = [
        desks("morning", 1, hours={"start": "06:00", "stop": "13:00", "days": "daily"}),
        desks("evening", 1, hours={"start": "18:00", "stop": "21:00", "days": "daily"}),
    ]
    found = answer(facts, *jobs, purchase=["reserved_1y"])
    assert found.usd_per_month.total == pytest.approx(MONTH * 24.0)
    assert only(found, "morning").usd_per_month == pytest.approx(0.7 * MONTH * 24.0)
    assert only(found, "evening").usd_per_month == pytest.approx(0.3 * MONTH * 24.0)
    overlap = [desks("a", 1, hours={"start": "06:00", "stop": "13:00", "days": "daily"}),
               desks("b", 1, hours={"start": "12:00", "stop": "15:00", "days": "daily"})]  # fmt: skip
    assert answer(facts, *overlap, purchase=["reserved_1y"]).usd_per_month.total == pytest.approx(2 * MONTH * 24.0)


def test_a_backup_is_whole_machines_for_the_hours_it_is_used(facts: Facts) -> None:
    """A quarter of ten machines is three with the other provider, at $44, for 36 hours a month."""
    backup = {"share": 0.25, "hours": 36}
    found = answer(two(facts), desks(count=10, backup=True), backup=backup)
    rows = {(row.provider, row.role): row for row in found.allocation}
    assert set(rows) == {("aws", "primary"), ("gcp", "backup")}
    assert rows["aws", "primary"].usd_per_month == pytest.approx(10 * MONTH * 40.0)
    spare = rows["gcp", "backup"]
    assert (spare.count, spare.hours_per_month) == (3, 36)
    assert spare.usd_per_month == pytest.approx(3 * 36 * 44.0)


def test_a_backup_that_is_always_on_may_carry_its_part(facts: Facts) -> None:
    """Eight and two: if aws is lost, gcp has the quarter of eight that is asked for."""
    found = answer(two(facts), desks(count=10, backup=True), backup={"share": 0.25, "on": True})
    assert {row.provider: row.count for row in found.allocation} == {"aws": 8, "gcp": 2}
    assert found.usd_per_month.total == pytest.approx(MONTH * (8 * 40.0 + 2 * 44.0))
    # a training run is not split: what stands by costs all month
    job = TUNE | {"backup": True, "environment": "production", "constraints": {"min_gpus": 32}}
    run = answer(two(facts), job, backup={"share": 0.75, "on": True})
    rows = {row.role: row for row in run.allocation}
    assert (rows["primary"].count, rows["backup"].count) == (4, 3)
    assert rows["backup"].hours_per_month == MONTH


def test_the_bill_by_what_it_is_for(facts: Facts) -> None:
    """One machine, 10 TiB kept at $0.023 a GiB, 1 TiB sent at $0.09 but for 100 GiB, 2 TiB between zones at $0.02."""
    volumes = {"storage": "10TiB", "egress": "1TiB", "inter_zone": "2TiB"}
    bill = answer(facts, desks(count=1, volumes=volumes)).usd_per_month
    storage, traffic = 10 * 1024 * 0.023, (1024 - 100) * 0.09 + 2 * 1024 * 0.02
    assert bill.storage == pytest.approx(storage)
    assert bill.traffic == pytest.approx(traffic)
    assert bill.compute == pytest.approx(MONTH * 40.0)
    assert bill.total == pytest.approx(MONTH * 40.0 + storage + traffic)
    assert bill.by_purchase == pytest.approx({"on_demand": MONTH * 40.0, "storage and traffic": storage + traffic})


def test_an_api_is_paid_by_the_token(facts: Facts) -> None:
    """4 requests/s for 176 h of 300 tokens in and 50 out, at the listed price; a batch by its requests."""
    listed = next(p for p in load_facts().hosted_prices if (p.provider, p.model) == ("deepinfra", "Llama-3.1-8B"))
    limits = {"providers": ["deepinfra"]}
    job = {k: v for k, v in CHAT.items() if k != "targets"} | {"hours": {"per_day": 8, "days": 22}}
    found = answer(facts, job | {"purchase": ["api"], "constraints": limits})
    requests = 4 * 176 * 3600
    usd = requests * (300 * listed.input_usd_per_mtok + 50 * listed.output_usd_per_mtok) / 1e6
    assert only(found, "chat").usd_per_month == pytest.approx(usd)
    assert found.usd_per_month.total == pytest.approx(usd)
    (hosted,) = found.hosted
    assert hosted["output_tokens_per_month"] == pytest.approx(requests * 50)
    batch = NIGHTLY | {"model": "Llama-3.1-8B", "purchase": ["api"], "constraints": limits}
    usd = 10 * 20_000 * (256 * listed.input_usd_per_mtok + 64 * listed.output_usd_per_mtok) / 1e6
    assert answer(facts, batch).usd_per_month.total == pytest.approx(usd)


def test_a_million_tokens_of_images_are_those_of_their_tower(facts: Facts) -> None:
    """CLIP ViT-L/14 has 256 patches of 14 x 14 pixels and a class token, 20 images a second all month."""
    images = {"name": "images", "task": "encode", "model": "clip-vit-large-patch14", "environment": "production"}
    found = answer(facts, images | {"traffic": {"requests_per_s": 20}})
    millions = 20 * MONTH * 3600 * 257 / 1e6
    assert found.workloads[0].unit_usd["million_input_tokens"] == pytest.approx(found.usd_per_month.total / millions)


def test_bursty_traffic_pays_for_its_mean(facts: Facts) -> None:
    """Replicas are sized for three times the mean rate; an API is paid for the mean of 4 a second."""
    listed = next(p for p in load_facts().hosted_prices if (p.provider, p.model) == ("deepinfra", "Llama-3.1-8B"))
    job = {k: v for k, v in CHAT.items() if k != "targets"}
    job |= {"traffic": CHAT["traffic"] | {"peak": 3}, "purchase": ["api"], "constraints": {"providers": ["deepinfra"]}}
    found = answer(facts, job)
    assert found.workloads[0].targets["requests_per_s"] == {"value": 12.0, "mean": 4.0}
    usd = 4 * MONTH * 3600 * (300 * listed.input_usd_per_mtok + 50 * listed.output_usd_per_mtok) / 1e6
    assert found.usd_per_month.total == pytest.approx(usd)


def test_carbon_counts_in_the_choice_at_its_price(facts: Facts) -> None:
    """$2 a kilogram: what the bill and the weight on carbon are together is least; the bill alone is told."""
    free, weighed = answer(facts, TUNE), answer(facts, TUNE, carbon_usd_per_kg=2.0)
    assert weighed.usd_per_month.total >= free.usd_per_month.total - 1e-9

    def whole(found: Assessment) -> float:
        return found.usd_per_month.total + 2.0 * (found.workloads[0].carbon_kg_per_month or 0.0)

    assert whole(weighed) <= whole(free) * (1 + 1e-9)


def test_the_interval_of_a_run_is_that_of_its_time_after_the_start(facts: Facts) -> None:
    found = answer(facts, TUNE)
    figures, row = found.workloads[0].best["figures"], only(found, "tune")
    run, start_s = figures["run_s"], figures["start_s"]
    assert row.usd_low == pytest.approx(row.usd_per_month * (start_s + run["low"]) / (start_s + run["value"]))
    assert row.usd_high == pytest.approx(row.usd_per_month * (start_s + run["high"]) / (start_s + run["value"]))
    assert found.usd_per_month.high == pytest.approx(row.usd_high)
