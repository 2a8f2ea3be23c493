"""Hypothetical devices, written where a GPU is named: ordinary rows, with errors that say what is allowed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import flopwise
from flopwise.cli import main
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import device_band
from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.custom import KINDS
from flopwise.fleet.read import parse_fleet, resolve_names

DEVICE = "custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB,link=50GB/s,price=1.5"


def test_a_custom_device_is_a_row_in_base_units() -> None:
    device = load_facts().accelerator(DEVICE)
    assert device.peak == {"fp16": 70e12}
    assert (device.hbm_bytes_per_s, device.hbm_bytes, device.link_bytes_per_s) == (900e9, 24_000_000_000, 50e9)
    assert device.tdp_w is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("custom:fp16=70T,memroy=24GB", "unknown key 'memroy'; allowed: " + ", ".join(KINDS)),
        ("custom:fp16=70T,memory=24GB", "needs bandwidth"),
        ("custom:memory=24GB,bandwidth=900GB/s", "a rate"),
        ("custom:fp16=70T,fp16=80T,memory=24GB,bandwidth=900GB/s", "fp16 is given twice"),
        ("custom:fp16=fast,memory=24GB,bandwidth=900GB/s", "'fast' is not a quantity"),
        ("custom:fp16=0,memory=24GB,bandwidth=900GB/s", "out of range"),
        ("custom:fp16,memory=24GB,bandwidth=900GB/s", "fp16 needs a value"),
    ],
)
def test_errors_name_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(SpecError) as error:
        load_facts().resolve(text)
    assert said in str(error.value)


def test_a_custom_device_costs_what_is_given() -> None:
    # 14 TFLOP at all of 70 TFLOP/s take 0.2 s; at $1.50 an hour that is 0.2 / 3600 * 1.5
    found = flopwise.roofline(flops=1.4e13, bytes=1e9, gpu=DEVICE, dtype="fp16", efficiency=1.0)
    assert found.seconds == pytest.approx(0.2)
    assert found.cost_usd == pytest.approx(0.2 / 3600 * 1.5)


def test_a_copy_of_a_real_device_is_as_fast_at_datasheet_rates_and_has_a_wider_band() -> None:
    real = load_facts().accelerator("RTX 3090")
    link = "" if real.pcie_bytes_per_s is None else f",pcie={real.pcie_bytes_per_s}"
    rates = ",".join(f"{dtype}={rate}" for dtype, rate in real.peak.items())
    copy = f"custom:{rates},memory={real.hbm_bytes},bandwidth={real.hbm_bytes_per_s}{link}"
    said: dict[str, Any] = {"stack": "fsdp-compile", "micro_batch": 1, "recompute": "none"}  # open ones widen both
    mine, theirs = (
        flopwise.train("gpt2", gpu=gpu, seq=1024, global_batch=8, **said).estimate for gpu in (copy, "RTX 3090")
    )
    bounds = (mine.lower_bound_s, theirs.lower_bound_s)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)
    width = [e.band.high / e.band.low for e in (mine, theirs)]
    assert width[0] > width[1]


def test_a_custom_device_is_of_a_maker_that_nobody_measured() -> None:
    """Its band is widened as other makers' are, where that is more than for a new architecture of a known one."""
    facts = load_facts()
    known = facts.calibration.measured["training"]
    measured = {"training": replace(known, family_out=2.0, maker_out=3.0)}
    for name, spread in ((DEVICE, 3.0), ("K80", 2.0)):
        device = replace(facts.accelerator(name), calibration=replace(facts.calibration, measured=measured))
        assert device_band("training.dense", cluster(device)).spread == spread


def test_plan_prices_a_custom_device_as_an_offer() -> None:
    answer = flopwise.plan(
        {
            "task": "serve", "model": "gpt2", "traffic": {"requests_per_s": 5, "input_tokens": 64, "output_tokens": 16},
            "targets": {"latency": {"p95": "2s"}}, "constraints": {"gpus": [DEVICE]},
        }
    )  # fmt: skip
    best = answer.plans[0]
    assert (best.provider, best.gpu, best.num_gpus) == ("custom", "custom device", 1)
    assert best.cost_usd == pytest.approx(1.5 * 730)


def test_two_custom_devices_need_names() -> None:
    other = DEVICE.replace("70T", "80T")
    with pytest.raises(SpecError, match="give it another name="):
        load_facts().with_custom([DEVICE, other])
    both = load_facts().with_custom([DEVICE, f"{other},name=Faster"])
    assert both.accelerators["Faster"].peak == {"fp16": 80e12}
    prices = {o.count: o.on_demand_usd_per_hour for o in both.offers if o.accelerator == "Faster"}
    assert prices == {1: 1.5, 2: 3.0, 4: 6.0, 8: 12.0}


def test_a_custom_device_without_links_is_offered_alone() -> None:
    facts = load_facts().with_custom(["custom:fp16=70T,memory=24GB,bandwidth=900GB/s,price=2"])
    assert [o.count for o in facts.offers if o.provider == "custom"] == [1]


def test_a_figure_that_a_description_lacks_is_asked_for_there() -> None:
    """The power of own machines was to be added to a table of accelerators, which has no row of the device."""
    own = {"name": "rack", "gpu": DEVICE, "gpus": 4, "count": 1, "price": "60k", "region": "home"}
    traffic = {"requests_per_s": 1, "input_tokens": 128, "output_tokens": 64}
    chat = {"name": "chat", "task": "serve", "model": "gpt2", "traffic": traffic, "purchase": ["owned"]}
    with pytest.raises(FlopwiseError, match="tdp_w is not known; add power=300W to its description"):
        flopwise.assess({"name": "f", "workloads": [chat], "own_machines": [own]})
    own["gpu"] = f"{DEVICE},power=300W"
    assert flopwise.assess({"name": "f", "workloads": [chat], "own_machines": [own]}).allocation[0].purchase == "owned"


def test_a_custom_device_is_called_hypothetical(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", DEVICE]) == 0
    assert "; hypothetical GPU." in capsys.readouterr().out


def test_a_plan_on_a_custom_device_without_a_price_says_what_is_missing() -> None:
    unpriced = DEVICE.removesuffix(",price=1.5")
    with pytest.raises(SpecError, match=r"a plan needs its price: add price=1\.5, US dollars an hour"):
        flopwise.plan("gpt2", task="serve", rate=1, input=128, output=64, gpus=[unpriced])


@pytest.mark.parametrize(
    ("gpu", "complaint"),
    [
        (DEVICE.removesuffix(",price=1.5"), r"f:4: workloads\.0\.constraints\.gpus: .*a plan needs its price"),
        (
            "custom:fp16=fast,memory=24GB",
            r"f:4: workloads\.0\.constraints\.gpus\.0: custom device: fp16: 'fast' is not",
        ),
    ],
)
def test_a_fleet_that_describes_a_custom_device_wrongly_says_where(gpu: str, complaint: str) -> None:
    """The one without a price was refused with the counts of all other offers, the other one at line 1."""
    text = f"""name: f
workloads:
  - {{name: chat, task: serve, model: gpt2, traffic: {{requests_per_s: 1, input_tokens: 128, output_tokens: 64}},
     constraints: {{gpus: ['{gpu}']}}}}
"""
    with pytest.raises(SpecError, match=complaint):
        resolve_names(parse_fleet(text, "f"), load_facts())


def test_a_fleet_may_name_a_custom_device() -> None:
    found = flopwise.assess(
        {
            "name": "hypothetical",
            "workloads": [{"name": "people", "task": "develop", "machines": {"count": 2, "gpus": [DEVICE]}}],
        },
        scenarios=0, today="2026-11-22",
    )  # fmt: skip
    assert [(a.provider, a.count, a.usd_per_hour) for a in found.allocation] == [("custom", 2, 1.5)]
    assert found.usd_per_month.total == pytest.approx(2 * 1.5 * 730)
