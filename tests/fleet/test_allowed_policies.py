"""What a fleet may run on: devices, software and hosts by policy and by workload, residency, attestations."""

from __future__ import annotations

from typing import Any

import pytest
from small import assess

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.model import PlannedWorkload
from flopwise.fleet.offers import OwnOffer
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from, resolve_names

CHAT: dict[str, Any] = {
    "name": "chat", "task": "serve", "model": "Llama-3.1-8B",
    "traffic": {"requests_per_s": 1, "input_tokens": 300, "output_tokens": 60},
}  # fmt: skip
DESKS: dict[str, Any] = {"name": "desks", "task": "develop", "machines": {"memory": "16GB"}}


@pytest.fixture(scope="module")
def facts() -> Facts:
    return load_facts(None)


def planned(facts: Facts, policies: dict[str, Any], *jobs: dict[str, Any]) -> tuple[PlannedWorkload, ...]:
    platform = fleet_from({"name": "f", "policies": policies, "workloads": [*jobs]})
    return planned_workloads(*resolve_names(platform, facts))


def vendors(item: PlannedWorkload, facts: Facts) -> set[str]:
    devices = [facts.accelerators[option.offer.accelerator] for option in item.options]
    return {device.vendor for device in devices if device.kind != "cpu"}


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ({}, {"NVIDIA"}),
        ({"software": ["any"]}, {"NVIDIA", "AMD", "Google", "Intel", "AWS"}),
        ({"software": ["rocm", "cuda"]}, {"NVIDIA", "AMD"}),
        ({"gpus": ["nvidia", "mi300x"]}, {"NVIDIA", "AMD"}),
        ({"vendors": ["nvidia"]}, {"NVIDIA"}),
        ({"software": ["any"], "exclude": ["tpu", "aws", "gaudi"]}, {"NVIDIA", "AMD"}),
    ],
)
def test_policies_on_devices_hold_for_all_workloads(policies: dict[str, Any], expected: set[str], facts: Facts) -> None:
    """Planned ones, and those that people work on: nobody develops a CUDA project on a TPU by default."""
    chat, desks = planned(facts, policies, CHAT, DESKS)
    assert vendors(chat, facts) <= expected
    assert vendors(desks, facts) <= expected
    assert vendors(chat, facts) | vendors(desks, facts) == expected


def test_a_workload_s_own_software_goes_before_the_policies(facts: Facts) -> None:
    ported = {**CHAT, "name": "ported", "software": ["rocm"]}
    chat, other = planned(facts, {"software": ["cuda"]}, CHAT, ported)
    assert vendors(chat, facts) == {"NVIDIA"}
    assert vendors(other, facts) == {"AMD"}
    assert other.workload is not None
    assert other.workload.document["software"] == ["rocm"]


def test_a_misspelt_policy_is_refused_with_its_place_and_the_nearest(facts: Facts) -> None:
    with pytest.raises(SpecError, match=r"policies\.gpus\.1: unknown accelerator 'nvida'; nearest: NVIDIA"):
        planned(facts, {"gpus": ["l4", "nvida"]}, CHAT)
    with pytest.raises(SpecError, match=r"policies\.vendors\.0: unknown vendor 'amdd'; nearest: AMD"):
        planned(facts, {"vendors": ["amdd"]}, CHAT)


def test_a_listed_gpu_without_an_offer_that_is_left_is_no_reason_to_refuse(facts: Facts) -> None:
    """None of aws' B200 stands in Frankfurt: L4 and L40S do."""
    chat = {**CHAT, "constraints": {"gpus": ["l4", "l40s", "b200"]}, "residency": ["eu-central-1"]}
    [item] = planned(facts, {"providers": {"aws": 1}}, chat)
    assert {option.offer.accelerator for option in item.options} <= {"L4", "L40S"}
    assert item.options


def test_a_provider_that_the_policies_leave_out_narrows_a_constraint(facts: Facts) -> None:
    chat = {**CHAT, "constraints": {"providers": ["aws", "gcp", "azure"]}}
    [item] = planned(facts, {"providers": {"aws": 0.5, "gcp": 0.5}}, chat)
    assert {option.provider for option in item.options} == {"aws", "gcp"}


@pytest.mark.parametrize("marketplace", [False, True])
def test_data_that_may_be_in_europe_is_on_machines_that_stand_there(marketplace: bool, facts: Facts) -> None:
    """An offer of any place is not one in Frankfurt, and third parties' hosts are not attested ones."""
    chat = {**CHAT, "residency": ["eu-*", "europe-*"], "tags": ["gdpr"]}
    [item] = planned(facts, {"marketplace": marketplace}, chat)
    assert item.options
    assert all(option.region.startswith(("eu-", "europe-")) for option in item.options)
    assert not any(option.offer.marketplace for option in item.options)


def test_hosts_of_third_parties_inherit_no_attestation(facts: Facts) -> None:
    plain, attested = planned(facts, {"marketplace": True}, CHAT, {**CHAT, "tags": ["soc2"], "name": "tagged"})
    assert any(option.offer.marketplace for option in plain.options)
    assert any(option.provider == "runpod" for option in attested.options)
    assert not any(option.offer.marketplace for option in attested.options)
    [item] = planned(facts, {}, {**CHAT, "constraints": {"marketplace": True}})
    assert any(option.offer.marketplace for option in item.options)


def test_an_attestation_of_low_confidence_vouches_for_no_provider(facts: Facts) -> None:
    low = {r.provider for r in facts.rows("regions.TAGS").values() if r.tag == "gdpr" and r.confidence == "low"}
    assert low
    assert not low & facts.tags["gdpr"]


def test_the_answer_says_what_an_attestation_rests_on(facts: Facts) -> None:
    fleet = {"name": "f", "workloads": [{**CHAT, "tags": ["hipaa"], "residency": ["us-east-1"]}]}
    said = [text for text in assess(fleet_from(fleet), facts, scenarios=0).assumptions if "hipaa" in text]
    assert len(said) == 1
    assert "aws" in said[0]
    assert "medium confidence" in said[0]


def test_own_machines_need_no_word_on_their_software(facts: Facts) -> None:
    """Who owns MI300X has the software for them; what is rented beside still needs no port."""
    own = {"name": "shelf", "gpu": "MI300X", "gpus": 8, "count": 1, "price": 200_000}
    platform = fleet_from({"name": "f", "workloads": [CHAT], "own_machines": [own]})
    [item] = planned_workloads(*resolve_names(platform, facts))
    amd = [option for option in item.options if facts.accelerators[option.offer.accelerator].name == "MI300X"]
    assert amd
    assert all(isinstance(option.offer, OwnOffer) for option in amd)


def test_the_assessment_tells_what_each_workload_would_cost_after_a_port(facts: Facts) -> None:
    """Against what the plan pays for its machines; workloads that say their software have none."""
    fleet = {"name": "f", "workloads": [CHAT, {**CHAT, "name": "fixed", "software": ["cuda"]}]}
    answer = assess(fleet_from(fleet), facts, scenarios=0)
    assert {port.workload for port in answer.if_you_port} == {"chat"}
    assert {"xla", "rocm"} <= {port.software for port in answer.if_you_port}
    paid = sum(row.usd_per_month for row in answer.allocation if row.workload == "chat")
    for port in answer.if_you_port:
        assert port.saves_usd == pytest.approx(paid - port.cost_usd)
        [item] = planned(facts, {}, {**CHAT, "software": [port.software]})
        assert port.cost_usd == pytest.approx(item.options[0].usd)


def test_of_a_large_fleet_the_dearest_workloads_are_ported(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {**CHAT, "name": "busy", "traffic": {**CHAT["traffic"], "requests_per_s": 40}}
    monkeypatch.setattr("flopwise.fleet.assess.PORTED", 1)
    answer = assess(fleet_from({"name": "f", "workloads": [CHAT, busy]}), facts, scenarios=0)
    assert {port.workload for port in answer.if_you_port} == {"busy"}
    [said] = [text for text in answer.assumptions if text.startswith("ports to other software")]
    usd = {name: sum(r.usd_per_month for r in answer.allocation if r.workload == name) for name in ("chat", "busy")}
    assert f"for the 1 workloads that cost most, {100 * usd['busy'] / sum(usd.values()):.0f} %" in said


def test_a_hypothetical_device_of_the_policies_is_on_offer(facts: Facts) -> None:
    """At $2 an hour it is cheaper than any H100: its nodes are among the ways to run, and are taken."""
    custom = "custom:fp16=400TFLOP/s,bandwidth=2TB/s,memory=80GB,link=300GB/s,price=2"
    (chat,) = planned(facts, {"gpus": [custom, "h100"]}, CHAT)
    assert {"custom", "NVIDIA"} == {
        "custom" if option.offer.provider == "custom" else facts.accelerators[option.offer.accelerator].vendor
        for option in chat.options
    }
    cheapest = min(chat.options, key=lambda option: option.candidate.cost_usd)
    assert cheapest.offer.provider == "custom"
    (only,) = planned(facts, {"gpus": [custom]}, CHAT)
    assert {option.offer.provider for option in only.options} == {"custom"}


def test_a_residency_and_the_policies_regions_need_one_place_that_is_in_both(facts: Facts) -> None:
    """Machines of either Finland or Iowa are in Europe or in the US: no place of theirs is in both."""
    europe = DESKS | {"residency": ["eu-*"]}
    (both,) = planned(facts, {"regions": ["us-*"]}, europe)
    assert not both.options
    (one,) = planned(facts, {"regions": ["eu-north1/us-central1"]}, europe)
    assert {option.region for option in one.options} == {"eu-north1/us-central1"}
