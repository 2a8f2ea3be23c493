"""What a workload may run on: names, vendors, families, software, hosts."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.errors import InfeasibleError, UnknownNameError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.search.allowed import AllowedDevices, device_names
from flopwise.search.plan import plan
from flopwise.search.spec import ConstraintsSpec
from flopwise.search.workload import resolve

SERVICE: dict[str, Any] = {
    "model": "Llama-3.1-8B", "task": "serve", "simulate": False,
    "traffic": {"requests_per_s": 2, "input_tokens": 300, "output_tokens": 60},
}  # fmt: skip


@pytest.fixture(scope="module")
def facts() -> Facts:
    return load_facts(None)


@pytest.mark.parametrize(
    ("name", "holds", "leaves_out"),
    [
        ("a100", {"A100-SXM-80", "A100-PCIe-40"}, {"A10", "A30", "A800-SXM-80"}),
        ("A100-80", {"A100-SXM-80", "A100-PCIe-80"}, {"A100-SXM-40"}),
        ("l4", {"L4"}, {"L40", "L40S"}),
        ("hopper", {"H100-SXM-80", "H20", "GH200-96"}, {"A100-SXM-80", "B200"}),
        ("Blackwell", {"B200", "B300", "RTX 5090"}, {"H100-SXM-80"}),
        ("nvidia", {"T4", "H100-SXM-80"}, {"MI300X", "Grace"}),
        ("AMD", {"MI300X"}, {"EPYC 9R14"}),
        ("gaudi", {"Gaudi2", "Gaudi3"}, {"Intel Max 1550"}),
        ("trainium", {"Trainium1", "Trainium2"}, {"Inferentia2"}),
        ("tpu", {"TPU v5e", "TPU v6e"}, {"T4"}),
    ],
)
def test_a_name_a_vendor_or_a_family_stands_for_devices(
    name: str, holds: set[str], leaves_out: set[str], facts: Facts
) -> None:
    found = device_names([name], facts)
    assert holds <= found
    assert not leaves_out & found


def test_a_misspelt_name_is_an_error_with_the_nearest(facts: Facts) -> None:
    with pytest.raises(UnknownNameError, match="unknown accelerator 'nvida'; nearest: NVIDIA"):
        device_names(["nvida"], facts)


@pytest.mark.parametrize(
    ("name", "instead"), [("cpu", "`software: cpu`"), ("GPU", "name of the vendor"), ("spot", "`purchase`")]
)
def test_a_word_that_belongs_to_another_key_names_that_key(name: str, instead: str, facts: Facts) -> None:
    with pytest.raises(UnknownNameError) as refused:
        device_names([name], facts)
    assert instead in str(refused.value)


@pytest.mark.parametrize(
    ("limits", "allowed", "forbidden"),
    [
        ({}, {"H100-SXM-80", "EPYC 9R14"}, {"MI300X": "software", "TPU v6e": "software", "Gaudi2": "software"}),
        ({"software": ["rocm"]}, {"MI300X"}, {"H100-SXM-80": "software", "EPYC 9R14": "software"}),
        ({"software": ["any"]}, {"MI300X", "TPU v6e", "Trainium2", "H100-SXM-80"}, {}),
        ({"gpus": ["mi300x", "h100"]}, {"MI300X", "H100-SXM-80"}, {"TPU v6e": "gpus", "A100-SXM-80": "gpus"}),
        ({"vendors": ["google"]}, {"TPU v6e"}, {"H100-SXM-80": "vendors"}),
        ({"exclude": ["hopper", "t4"]}, {"A100-SXM-80"}, {"H100-SXM-80": "exclude", "T4": "exclude"}),
        ({"gpus": ["nvidia"], "exclude": ["b200"]}, {"H100-SXM-80"}, {"B200": "exclude", "EPYC 9R14": "gpus"}),
    ],
)
def test_limits_on_devices(limits: dict[str, Any], allowed: set[str], forbidden: dict[str, str], facts: Facts) -> None:
    """Without a word on software what PyTorch and CUDA run on is left, and what is named."""
    devices = AllowedDevices.of(ConstraintsSpec(**limits), facts)
    assert not allowed & devices.forbidden.keys()
    assert forbidden.items() <= devices.forbidden.items()


def test_a_plan_needs_no_port_unless_its_software_says_so(facts: Facts) -> None:
    usual = plan(resolve(SERVICE), facts, alone=False)
    kinds = {facts.accelerators[c.gpu].vendor for c in usual.plans if facts.accelerators[c.gpu].kind != "cpu"}
    assert kinds == {"NVIDIA"}
    assert any(r.unit == "offers" and "software" in r.reason for r in usual.ruled_out)
    ported = plan(resolve({**SERVICE, "software": ["xla", "rocm"]}), facts, alone=False)
    assert {facts.accelerators[c.gpu].vendor for c in ported.plans} == {"Google", "AMD"}
    every = plan(resolve({**SERVICE, "software": ["any"]}), facts, alone=False)
    assert {"Google", "AMD", "NVIDIA"} <= {facts.accelerators[c.gpu].vendor for c in every.plans}


def test_hosts_of_third_parties_are_left_out_unless_asked_for(facts: Facts) -> None:
    hosts = {o.key for o in facts.offers if o.marketplace}
    assert {o.provider for o in facts.offers if o.marketplace} == {"runpod", "vast"}
    assert not any(o.marketplace for o in facts.offers if o.instance.endswith("secure"))
    usual, open_ = (
        plan(resolve({**SERVICE, "constraints": {"marketplace": wanted}}), facts, alone=False)
        for wanted in (False, True)
    )
    assert not hosts & {(c.provider, c.instance, c.region) for c in usual.plans}
    assert hosts & {(c.provider, c.instance, c.region) for c in open_.plans}
    assert open_.plans[0].cost_usd <= usual.plans[0].cost_usd


def test_who_names_an_instance_asks_for_its_host_and_software(facts: Facts) -> None:
    for instance in ("1x RTX A5000 community", "tpu-v6e-1"):
        found = plan(resolve({**SERVICE, "constraints": {"instances": [instance]}}), facts, alone=False)
        assert {c.instance for c in found.plans} == {instance}


@pytest.mark.parametrize("gpus", [["l4", "b100"], ["b100", "l4", "h800"]])
def test_a_listed_device_that_nobody_sells_is_no_reason_to_refuse(gpus: list[str], facts: Facts) -> None:
    assert not [o for o in facts.offers if o.accelerator in device_names(["b100", "h800"], facts)]
    found = plan(resolve({**SERVICE, "constraints": {"gpus": gpus}}), facts, alone=False)
    assert {c.gpu for c in found.plans} == {"L4"}
    with pytest.raises(UnknownNameError, match=r"GPU with a price.*A row of instances\.csv"):
        plan(resolve({**SERVICE, "constraints": {"gpus": ["b100"]}}), facts)


def test_no_offer_of_any_place_is_in_a_region_that_is_asked_for(facts: Facts) -> None:
    found = plan(resolve({**SERVICE, "constraints": {"regions": ["us-east-1"]}}), facts, alone=False)
    assert {c.region for c in found.plans} == {"us-east-1"}
    anywhere = plan(resolve({**SERVICE, "constraints": {"regions": ["any"]}}), facts, alone=False)
    assert {c.region for c in anywhere.plans} == {"any"}


def test_nothing_is_left_where_only_hosts_of_third_parties_are(facts: Facts) -> None:
    with pytest.raises(InfeasibleError) as raised:
        plan(resolve({**SERVICE, "constraints": {"providers": ["vast"]}}), facts)
    assert any("--marketplace" in reason for reason in raised.value.reasons)


def test_formats_are_those_that_the_engine_runs_on_the_platform(facts: Facts) -> None:
    """vLLM on TPUs has no fp8 (its table of supported hardware): the plan says so and takes 16 bits."""
    tpus = plan(resolve({**SERVICE, "software": ["xla"]}), facts, alone=False)
    assert {c.layout["weights"] for c in tpus.plans} == {"bf16"}
    assert any(r.reason == "vllm is not documented to run fp8 weights there" for r in tpus.ruled_out)


def test_retired_machines_are_left_out_unless_asked_for_or_named(facts: Facts) -> None:
    """Azure's V100 of NCv3 were retired on 2025-09-30 (Microsoft's list of retired sizes); nobody can start one."""
    retired = {o.key for o in facts.offers if o.retires_on}
    assert ("azure", "Standard_NC6s_v3", "eastus") in retired
    assert ("azure", "Standard_NC4as_T4_v3", "eastus") not in retired
    small = {**SERVICE, "constraints": {"gpus": ["v100", "t4"], "providers": ["azure", "gcp"]}}
    usual = plan(resolve(small), facts, alone=False)
    assert usual.plans
    assert not retired & {(c.provider, c.instance, c.region) for c in usual.plans}
    assert any("--include-retired" in row.reason and row.unit == "offers" for row in usual.ruled_out)
    open_ = plan(
        resolve({**small, "constraints": {**small["constraints"], "include_retired": True}}), facts, alone=False
    )
    taken = {(c.provider, c.instance, c.region) for c in open_.plans}
    assert retired & taken
    assert open_.plans[0].cost_usd <= usual.plans[0].cost_usd
    for c in open_.plans:
        assert bool(c.retires_on) == ((c.provider, c.instance, c.region) in retired)
    named = plan(resolve({**SERVICE, "constraints": {"instances": ["NC24s_v3"]}}), facts, alone=False)
    assert {c.retires_on for c in [*named.plans, *named.misses]} == {"2025-09-30"}


def test_nothing_is_left_where_only_retired_machines_are(facts: Facts) -> None:
    with pytest.raises(InfeasibleError) as raised:
        plan(resolve({**SERVICE, "constraints": {"gpus": ["p100"], "providers": ["gcp"]}}), facts)
    assert any("--include-retired" in reason for reason in raised.value.reasons)
