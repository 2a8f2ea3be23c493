"""What a team runs on today is judged on exactly those machines, priced as an invoice does, and led to the proposal."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.formats import BF16
from flopwise.fleet.assess import recommended_fleet
from flopwise.fleet.check import Check, CheckedWorkload, check
from flopwise.fleet.existing import plan_on
from flopwise.fleet.read import fleet_from, load_fleet
from flopwise.search.answer import RejectionLog
from flopwise.search.deployments import Deployments, deployments
from flopwise.search.nodes import node_kinds
from flopwise.search.plan import plan
from flopwise.search.replica import with_facts
from flopwise.search.workload_file import workload_from

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, DESKS, TODAY, TUNE, catalog

POLICIES = {"purchase": ["on_demand", "spot", "reserved_1y"], "budget_per_month": "$100k"}
STREAM = CHAT | {"name": "stream", "constraints": {"weight_formats": ["fp16", "int8"]}, "volumes": {}}
STREAM |= {"traffic": {"requests_per_s": 100, "input_tokens": 128, "output_tokens": 64}}
NIGHTLY = {"hours": {"start": "22:00", "stop": "06:00", "days": "daily"}}


def fleet(*jobs: dict[str, Any], **policies: Any) -> dict[str, Any]:
    """A fleet of a few workloads."""
    return {
        "name": "have", "workloads": list(jobs), "policies": POLICIES | policies,
        "environments": {"development": {"per_day": 8, "days": 22}},
    }  # fmt: skip


@cache
def answer() -> Check:
    """One set-up of each kind."""
    jobs = (
        CHAT | {"existing": [{"instance": "G6E.xlarge", "count": 4, "weights": "bf16"}]},
        STREAM | {"existing": [{"instance": "g4dn.2xlarge", "count": 3}, {"instance": "n1-standard-8 + T4"}]},
        TUNE | {"existing": [{"instance": "g5.12xlarge", "hours": 176}]},
        DESKS | {"existing": [{"instance": "n1-standard-4+T4", "count": 2, "hours": 730}]},
        TUNE | {"name": "unsaid"},
    )
    return check(fleet_from(fleet(*jobs)), catalog())


def row(name: str) -> CheckedWorkload:
    return next(w for w in answer().workloads if w.name == name)


def judged(job: dict[str, Any], existing: list[dict[str, Any]], **policies: Any) -> CheckedWorkload:
    found = check(fleet_from(fleet(job | {"existing": existing}, **policies)), catalog())
    return found.workloads[0]


def test_a_month_costs_what_the_invoice_says() -> None:
    """Hours x price by hand; N1 with T4 around the clock has 30 % off, an August 2026 price of $0.539999."""
    price = {
        o.instance: o.on_demand_usd_per_hour or 0.0
        for o in catalog().offers
        if o.region in {"us-east-1", "us-central1"}
    }
    chat, desks, tune = row("chat"), row("desks"), row("tune")
    assert [m.instance for m in chat.machines] == ["g6e.xlarge"]
    assert chat.machines[0].usd_per_month == pytest.approx(4 * 730 * price["g6e.xlarge"])
    assert chat.usd_per_month - chat.machines[0].usd_per_month == pytest.approx(23.0, rel=0.1), "1 TB in S3"
    assert desks.usd_per_month == pytest.approx(2 * 0.539999 * 730 * 0.7, rel=1e-4)
    assert tune.usd_per_month == pytest.approx(176 * price["g5.12xlarge"])
    assert answer().usd_per_month == pytest.approx(sum(w.usd_per_month for w in answer().workloads))
    assert answer().without == ["unsaid"]


def test_the_changes_lead_from_the_bill_of_today_to_the_proposal() -> None:
    bill, parts = answer().usd_per_month, 0.0
    for w in answer().workloads:
        usd = w.usd_per_month
        for change in w.changes:
            usd -= change.saves_usd_per_month
            bill -= change.saves_usd_per_month
            parts += change.difference_frac or 0.0
            assert usd == pytest.approx(change.usd_per_month), (w.name, change.what)
            assert bill == pytest.approx(change.fleet_usd_per_month), (w.name, change.what)
        assert w.proposed_usd_per_month == pytest.approx(usd), w.name
    assert parts == pytest.approx(1.0)
    assert bill == pytest.approx(answer().proposed_usd_per_month)
    assert answer().proposed_usd_per_month == pytest.approx(
        sum(w.proposed_usd_per_month or 0.0 for w in answer().workloads)
    )


def test_the_proposal_is_what_an_assessment_of_the_same_fleet_takes() -> None:
    job = CHAT | {"existing": [{"instance": "g6e.xlarge", "count": 4}]}
    found, made = judged(CHAT, job["existing"]), recommended_fleet(fleet_from(fleet(job)), catalog(), lambda *_: None)
    assert found.proposed_usd_per_month == pytest.approx(made.cost.by_workload["chat"])


def test_idle_is_what_nothing_needs() -> None:
    """Four L40S for what two hold with a chance of 80 %; 176 paid hours of runs that take a few; desks on at night."""
    chat, desks, tune = row("chat"), row("desks"), row("tune")
    price = chat.machines[0].usd_per_hour
    assert chat.idle_usd_per_month == pytest.approx(2 * 730 * price)
    assert chat.idle == "2 x g6e.xlarge instead of 4"
    run = tune.machines[0].figures
    needed = 4 * (run["run_s"] + run["start_s"]) / 3600  # type: ignore[operator]  # of a run they are known
    assert tune.machines[0].work_hours_per_month == pytest.approx(needed)
    assert tune.idle_usd_per_month == pytest.approx((176 - needed) * tune.machines[0].usd_per_hour, rel=1e-3)
    assert desks.idle_usd_per_month == pytest.approx(desks.usd_per_month - 2 * 176 * 0.539999)


def test_busy_is_of_the_hours_that_are_paid() -> None:
    """A service around the clock: what arrives over what it sustains; a run: its hours of the 176 that are paid."""
    (chat,), (tune,) = row("chat").machines, row("tune").machines
    assert chat.busy_frac == chat.figures["busy_frac"]
    assert tune.busy_frac == pytest.approx(tune.work_hours_per_month / 176)
    assert row("desks").machines[0].busy_frac is None


def test_busy_of_users_in_flight_is_their_part_of_those_that_the_machines_hold() -> None:
    """Twice the machines hold twice the users; the replicas of both are always at work."""
    traffic = {"concurrency": 60, "input_tokens": 256, "output_tokens": 64}
    chat = {"name": "chat", "task": "serve", "model": "gpt2", "traffic": traffic}
    busy = []
    for count in (1, 2):
        fleet = {"name": "f", "workloads": [chat | {"existing": [{"instance": "g4dn.xlarge", "count": count}]}]}
        (machines,) = check(fleet_from(fleet), catalog(), today=TODAY).workloads[0].machines
        assert machines.figures["busy_frac"] == 1.0
        busy.append(machines.busy_frac or 0.0)
    assert 0 < busy[0] < 0.9
    assert busy[1] == pytest.approx(busy[0] / 2)


def test_one_machine_more_is_never_less_likely_to_hold_and_an_overload_never_holds() -> None:
    workload = workload_from({k: CHAT[k] for k in ("model", "task", "traffic", "targets")} | {"task": "serve"})
    busy = workload_from(dict(workload.document) | {"traffic": {**CHAT["traffic"], "requests_per_s": 100}})
    offer = next(o for o in catalog().offers if o.instance == "g6e.xlarge")
    odds = []
    for count in (1, 2, 3, 4):
        (candidate,) = plan_on(busy, catalog(), offer, count).plans
        odds.append(candidate.meets["latency"])
        capacity = candidate.figures["requests_per_s_capacity"] or 0.0
        assert candidate.num_instances == count
        assert capacity >= 100 or odds[-1] == 0.0
    assert odds == sorted(odds)
    assert odds[0] == 0.0 < odds[-1]


def on_machines(instance: str, count: int, rate: float) -> Deployments:
    """Every deployment of a model on so many machines, at so many requests a second."""
    offer = next(o for o in catalog().offers if o.instance == instance)
    facts = catalog().with_tables(offers=(offer,))
    traffic = {"requests_per_s": rate, "input_tokens": 256, "output_tokens": 16}
    workload = with_facts(workload_from({"model": "Llama-7B", "task": "serve", "traffic": traffic}), facts)
    workload = replace(workload, instances=count, max_gpus=count * offer.count)
    (node,) = node_kinds(workload, facts, RejectionLog())
    found = deployments(facts.model("Llama-7B"), workload, node, BF16, facts.cache_format("bf16"))
    assert found is not None
    return found


def test_machines_hold_as_many_replicas_as_their_devices_do() -> None:
    """Three of four devices each: 12, 6 or 3 replicas of 1, 2 or 4 devices; one of 8, on two of the three."""
    found = on_machines("g5.12xlarge", 3, 5.0)
    each = found.tp * found.pp * found.dp
    assert set(each) >= {1, 2, 4, 8}
    by_hand = {1: 12, 2: 6, 4: 3, 8: 1}
    assert all(
        replicas == by_hand[gpus] for gpus, replicas in zip(each, found.replicas, strict=True) if gpus in by_hand
    )


def test_who_cannot_keep_up_makes_others_wait_for_ever() -> None:
    """Where more arrive than all replicas answer there is no first token in the long run; else there is."""
    found = on_machines("g5.12xlarge", 3, 40.0)
    behind = found.requests_per_s * found.replicas <= 40.0
    assert behind.any()
    assert not behind.all()
    for seconds in (found.ttft_s, found.tpot_s, found.e2e_s):
        assert np.isinf(seconds[behind]).all()
        assert np.isfinite(seconds[~behind]).all()


def test_on_as_many_machines_as_a_plan_takes_the_odds_are_the_plans() -> None:
    workload = workload_from({k: CHAT[k] for k in ("model", "task", "traffic", "targets")})
    offer = next(o for o in catalog().offers if o.instance == "g6e.xlarge")
    best = plan(workload, catalog().with_tables(offers=(offer,)), alone=False).plans[0]
    (candidate,) = plan_on(workload, catalog(), offer, best.num_instances).plans
    assert candidate.meets["latency"] >= best.meets["latency"] - 1e-9
    assert (candidate.figures["e2e_s"] or 0.0) <= (best.figures["e2e_s"] or 0.0) * 1.01


def test_machines_of_several_kinds_share_the_traffic_by_what_they_can_answer() -> None:
    parts = row("stream").machines
    assert sum(m.share for m in parts) == pytest.approx(1.0)
    capacity = [m.figures["requests_per_s_capacity"] or 0.0 for m in parts]
    assert parts[0].share / parts[1].share == pytest.approx(capacity[0] / capacity[1], rel=0.02)
    assert parts[0].busy_frac == pytest.approx(parts[1].busy_frac, rel=0.02)


def test_what_does_not_hold_says_by_how_much() -> None:
    stream = row("stream")
    assert (stream.fits, stream.holds, stream.meets) == (True, False, {"latency": 0.0})
    assert any("of 75 requests/s" in text for text in stream.reasons)
    assert not answer().holds
    assert (row("chat").holds, row("desks").holds) == (True, True)
    small = judged(TUNE | {"method": {"kind": "full"}}, [{"instance": "g4dn.xlarge"}])
    assert (small.fits, small.holds) == (False, False)
    assert "does not fit in memory" in small.reasons[0]
    short = judged(TUNE, [{"instance": "g5.12xlarge", "hours": 1}])
    assert (short.fits, short.holds) == (True, False)
    assert "too long for its time in the 1 h a month" in short.reasons[0]
    part_time = judged(CHAT, [{"instance": "g6e.xlarge", "hours": 200}])
    assert any("200 of the 730 hours" in text for text in part_time.reasons)


def test_the_reason_that_decides_comes_first() -> None:
    whole = load_facts(None)
    facts = catalog().with_tables(offers=(*catalog().offers, *whole.offers_for(instance="p3.2xlarge")))
    large = CHAT | {"model": "Llama-3.1-8B", "existing": [{"instance": "p3.2xlarge"}]}
    named = CHAT | {"name": "named", "existing": [{"instance": "p3.2xlarge", "weights": "fp8"}]}
    reasons = [row.reasons for row in check(fleet_from(fleet(large, named)), facts).workloads]
    openings = [[text.split(": ")[1] for text in texts] for texts in reasons]
    fp8 = "vllm is not documented to run fp8 weights there"
    assert openings == [["does not fit in memory", fp8], [fp8]]


def test_policies_hold_for_what_is_there_too() -> None:
    where = judged(CHAT | {"residency": ["eu-*"]}, [{"instance": "g6e.xlarge", "region": "us-east-1"}])
    assert any("its data may not be in that region" in text for text in where.reasons)
    here = judged(CHAT | {"residency": ["eu-*"]}, [{"instance": "g5.xlarge", "count": 2}])
    assert here.machines[0].region.startswith("eu-"), "of several regions the one that is allowed"
    spot = judged(CHAT, [{"instance": "g2-standard-4", "count": 4, "purchase": "spot", "price": 0.3}])
    assert any("on spot, and it may not" in text for text in spot.reasons)
    alone = judged(CHAT | {"backup": True}, [{"instance": "g6e.xlarge"}])
    assert any("second provider" in text for text in alone.reasons)
    job = CHAT | {"existing": [{"instance": "g4dn.xlarge", "count": 3}]}
    rules = {"budget_per_month": "$1k", "quotas": [{"instance": "g4dn*", "most": 2}]}
    broken = check(fleet_from(fleet(job, **rules)), catalog())
    assert not broken.holds
    assert [text.split(":")[0] for text in broken.reasons][-1] == "the quota of 2 x g4dn*"
    assert broken.verdict.endswith("; the fleet as a whole violates a policy: " + broken.reasons[0] + ".")
    assert "violates" not in answer().verdict


def test_a_price_of_ones_own_is_what_is_paid() -> None:
    found = judged(CHAT, [{"instance": "n1-standard-4+T4", "count": 3, "hours": 700, "price": 0.4}])
    assert found.machines[0].usd_per_month == pytest.approx(3 * 700 * 0.4), "no discount on top of it"
    assert found.machines[0].price_source == "the fleet file"


def test_a_set_up_is_judged_where_no_proposal_is_possible() -> None:
    job = CHAT | {"existing": [{"instance": "g6e.xlarge"}], "constraints": {"max_usd_per_hour": 0.01}}
    found = check(fleet_from(fleet(job)), catalog())
    assert found.workloads[0].holds
    assert found.proposed_usd_per_month is None


def test_a_table_says_it_as_well_as_the_file(tmp_path: Path) -> None:
    table = tmp_path / "have.csv"
    table.write_text(
        "name, instance, count, hours\nchat, G6E.xlarge, 2, 730\nchat, NC4as_T4_v3, 1,\n", encoding="utf-8"
    )
    found = fleet_from(fleet(CHAT | {"existing": [{"instance": "g5.xlarge"}]}), existing=table)
    assert [(m.instance, m.count, m.hours) for m in found.jobs[0].spec.existing] == [
        ("G6E.xlarge", 2, 730.0), ("NC4as_T4_v3", 1, None),
    ]  # fmt: skip
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "name: f\nexisting: have.csv\nworkloads:\n  - {name: chat, task: serve, model: gpt2, traffic: "
        "{requests_per_s: 1}}\n",
        encoding="utf-8",
    )
    assert load_fleet(file).jobs[0].spec.existing == found.jobs[0].spec.existing


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name,instance,cuont\nchat,g6e.xlarge,1\n", "have.csv:1: column 'cuont' is unknown; allowed: name, instance"),
        ("name,count\nchat,1\n", "have.csv:1: column 'instance' is missing"),
        ("name,instance\nchta,g6e.xlarge\n", "have.csv:2: unknown workload 'chta'; nearest: chat"),
        ("name,instance,count\nchat,g6e.xlarge,0\n", "have.csv:2: count: 0 is out of range"),
        ("name,instance\nchat,g6e.xlarge,1\n", "have.csv:2: has more cells"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "have.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        fleet_from(fleet(CHAT), existing=tmp_path / "have.csv")
    assert complaint in str(caught.value)


def test_machines_that_policies_forbid_are_idle_beyond_those_that_targets_need() -> None:
    """That a region is not among the policies' does not make four machines needed where one is enough."""
    job = CHAT | {"existing": [{"instance": "g6e.xlarge", "count": 4, "weights": "bf16", "region": "us-east-1"}]}
    forbidden, allowed = (
        check(fleet_from(fleet(job, regions=[region])), catalog()) for region in ("eu-central-1", "us-east-1")
    )
    assert (forbidden.workloads[0].holds, allowed.workloads[0].holds) == (False, True)
    assert forbidden.idle_usd_per_month == allowed.idle_usd_per_month > 0
    assert forbidden.workloads[0].idle == allowed.workloads[0].idle
    assert "0 of 1 set-ups meet their targets and policies" in forbidden.verdict


def test_machines_to_work_on_beyond_those_requested_are_idle_whatever_their_kinds() -> None:
    """Two are requested, four of two kinds there are: the two dearest are not needed."""
    have = [{"instance": "g4dn.xlarge", "count": 3}, {"instance": "g5.xlarge", "count": 1}]
    found = judged(DESKS | {"machines": {"count": 2, "memory": "14GB"}}, have)
    t4, a10g = (machines.usd_per_month / machines.count for machines in found.machines)
    assert a10g > t4
    assert found.holds
    assert found.idle_usd_per_month == pytest.approx(t4 + a10g)
    assert found.idle == "2 machines requested: without 1 x g5.xlarge and 1 x g4dn.xlarge"
    assert found.usd_per_month - sum(c.saves_usd_per_month for c in found.changes) == pytest.approx(
        found.proposed_usd_per_month
    )


def test_a_service_on_two_kinds_of_machines_idles_what_one_kind_could_do_without() -> None:
    """5 requests/s of gpt2 fit on one T4: the other kind is idle, unless it is the backup in a second provider."""
    traffic = {"requests_per_s": 5, "input_tokens": 100, "output_tokens": 50}
    job = STREAM | {"model": "gpt2", "traffic": traffic, "constraints": {}}
    have = [{"instance": "g6e.xlarge", "count": 2}, {"instance": "n1-standard-4+T4", "count": 1}]
    found = judged(job, have)
    l40s, _ = found.machines
    assert found.holds
    assert found.idle_usd_per_month == pytest.approx(l40s.usd_per_month)
    assert found.idle == "1 x n1-standard-4+1xT4 instead of 2 x g6e.xlarge and 1 x n1-standard-4+1xT4"
    assert next(change.what for change in found.changes) == "count"
    assert judged(job | {"backup": True}, have).idle_usd_per_month == 0


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("chat,g6x.xlarge,", "have.csv:3: unknown instance 'g6x.xlarge'; nearest: g6"),
        ("chat,g6.xlarge,gcp", "have.csv:3: g6.xlarge is not known of gcp"),
    ],
)
def test_a_machine_of_a_table_that_is_not_known_is_refused_with_the_table_s_line(
    tmp_path: Path, row: str, complaint: str
) -> None:
    """Not with the line of the machines that the file has for the workload, which the table replaces."""
    (tmp_path / "have.csv").write_text(f"name,instance,provider\nchat,g6.xlarge,aws\n{row}\n", encoding="utf-8")
    read = fleet_from(fleet(CHAT | {"existing": [{"instance": "g5.xlarge"}]}), existing=tmp_path / "have.csv")
    with pytest.raises(SpecError) as caught:
        check(read, load_facts(None))
    assert str(caught.value).startswith(f"{tmp_path / complaint}")


def test_a_table_that_cannot_be_read_is_asked_for_as_csv(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"have\.csv: cannot be read .*; give the path of a CSV file$"):
        fleet_from(fleet(CHAT), existing=tmp_path / "have.csv")


@pytest.mark.parametrize(
    ("existing", "complaint"),
    [
        ({"instance": "g6x.xlarge"}, "workloads.0.existing.0: unknown instance 'g6x.xlarge'; nearest: g6"),
        ({"instance": "g6.xlarge", "provider": "gcp"}, "g6.xlarge is not known of gcp; known: aws us-east-1, aws "),
        ({"instance": "Standard_NC6s_v3", "purchase": "reserved_3y"}, "no reserved 3y price of azure"),
    ],
)
def test_machines_that_are_not_known_are_refused(existing: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(fleet_from(fleet(CHAT | {"existing": [existing]})), load_facts(None))
    assert complaint in str(caught.value)
