"""Plans of services whose requests are turns of sessions: by hand, in the simulator, and by their command."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise import cli
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.search.answer import Plan, read_plan
from flopwise.search.workload_file import workload_from

TRAFFIC: dict[str, Any] = {
    "requests_per_s": 0.5, "turns": 4, "think": "40s", "input_tokens": 1200, "output_tokens": 150, "tool_share": 0.25,
    "tool_pause": "4s",
}  # fmt: skip
ASKED: dict[str, Any] = {
    "model": "Llama-3.1-8B", "task": "serve", "targets": {"ttft": {"p95": "2s"}, "tpot": {"p95": "100ms"}},
    "constraints": {"gpus": ["l40s"], "providers": ["aws"], "weight_formats": ["fp8"], "kv_dtype": "bf16"},
}  # fmt: skip
MONTH_S = 730 * 3600


def planned(**more: Any) -> Plan:
    found: Plan = flopwise.plan({**ASKED, "traffic": {**TRAFFIC, **more}})
    assert found.plans
    return found


@pytest.fixture(scope="module")
def stored() -> Plan:
    return planned(kv_stores="host=20GB,nvme=200GB@5GB/s@0.08")


def test_turns_are_what_is_served() -> None:
    """Half a session a second of four turns: two requests a second of 1,200 + (1,350 + 2,700 + 4,050) / 4 tokens."""
    workload = workload_from({**ASKED, "traffic": TRAFFIC})
    assert workload.requests_per_s == pytest.approx(2.0)
    assert workload.sessions_per_s == pytest.approx(0.5)
    assert workload.input_tokens == 1200 + (1350 + 2700 + 4050) // 4
    assert workload.amounts(730.0)["session"] == pytest.approx(0.5 * MONTH_S)


def test_a_session_costs_its_share_of_machines_and_stores(stored: Plan) -> None:
    """200 GB at 8 cents a month for each replica, beside the machines; the host's memory comes with them."""
    for one in stored.plans:
        month = one.usd_per_hour * 730 + one.layout["replicas"] * 200 * 0.08
        assert one.cost_usd == pytest.approx(month, rel=1e-9)
        assert one.figures["usd_per_session"] == pytest.approx(month / (0.5 * MONTH_S), rel=1e-9)
        assert one.unit_usd["session"] == pytest.approx(month / (0.5 * MONTH_S), rel=1e-9)


def test_the_command_of_a_row_gives_its_means_and_its_cost_of_a_session(
    stored: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    best = stored.plans[0]
    assert best.simulated is not None
    assert best.simulated.sessions is not None
    words = shlex.split(best.reproduce)
    capsys.readouterr()
    cli.main([*words[1:], "--json"])
    there = json.loads(capsys.readouterr().out)
    assert there["ttft_s"] == pytest.approx(best.simulated.ttft_s["mean"], rel=1e-9)
    assert there["tpot_s"] == pytest.approx(best.simulated.tpot_s["mean"], rel=1e-9)
    assert there["requests_per_s"] == pytest.approx(2.0, rel=1e-9)
    assert there["usd_per_hour"] == pytest.approx(best.usd_per_hour, rel=1e-9)
    assert there["sessions"]["usd_per_session"] == pytest.approx(best.figures["usd_per_session"], rel=1e-9)
    for name in ("device_frac", "computed_frac", "store_fracs", "turns_per_session"):
        assert there["sessions"][name] == pytest.approx(getattr(best.simulated.sessions, name), rel=1e-9)


def test_estimates_find_what_the_simulator_finds(stored: Plan) -> None:
    """Che's approximation speaks of many sessions; here are some hundreds."""
    for one in (stored.plans[0], planned().plans[0]):
        assert one.simulated is not None
        assert one.simulated.sessions is not None
        found = 1.0 - one.simulated.sessions.computed_frac
        assert one.figures["prompt_found_frac"] == pytest.approx(found, abs=0.1)
    assert stored.plans[0].figures["prompt_found_frac"] > one.figures["prompt_found_frac"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "techniques",
    [{"shared_prefix": 600}, {"prefill_gpus": 1}, {"prefill_gpus": 2, "shared_prefix": 600}],
    ids=["shared", "pools", "both"],
)
def test_a_shared_prefix_and_pools_for_prompts_are_planned_as_they_are_served(
    techniques: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Turns of 1,200 in and 150 out, of which 600 are alike in all sessions: 37 blocks of 16 of the first prompt are
    found, and of later ones the history, without its last answer where answers are made elsewhere."""
    traffic = {**TRAFFIC, "kv_stores": "nvme=2TB@20GB/s@0.08"}
    found: Plan = flopwise.plan({**ASKED, "traffic": traffic, "techniques": techniques})
    best = found.plans[0]
    assert best.simulated is not None
    assert best.simulated.sessions is not None
    lost = 150 if "prefill_gpus" in techniques else 0
    first = 592 if "shared_prefix" in techniques else 0
    hits = first + sum(k * 1350 - lost for k in range(1, 4))
    whole = sum(1200 + k * 1350 for k in range(4))
    reused = 1.0 - best.simulated.sessions.computed_frac
    assert hits / whole - 0.05 < reused < hits / whole
    assert best.figures["prompt_found_frac"] == pytest.approx(reused, abs=0.06)
    month = best.usd_per_hour * 730 + best.layout["replicas"] * techniques.get("prefill_gpus", 1) * 2000 * 0.08
    assert best.cost_usd == pytest.approx(month, rel=1e-9), "every instance that reads prompts has a store"
    capsys.readouterr()
    cli.main([*shlex.split(best.reproduce)[1:], "--json"])
    there = json.loads(capsys.readouterr().out)
    assert there["ttft_s"] == pytest.approx(best.simulated.ttft_s["mean"], rel=1e-9)
    assert there["tpot_s"] == pytest.approx(best.simulated.tpot_s["mean"], rel=1e-9)
    assert there["sessions"]["usd_per_session"] == pytest.approx(best.figures["usd_per_session"], rel=1e-9)
    assert there["sessions"]["computed_frac"] == pytest.approx(1.0 - reused, rel=1e-9)


def test_first_prompts_are_longer_than_what_they_share() -> None:
    with pytest.raises(SpecError, match="fewer than the prompt"):
        workload_from({**ASKED, "traffic": TRAFFIC, "techniques": {"shared_prefix": 1200}})


def test_text_and_json_say_what_a_session_costs(capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "plan", "Llama-3.1-8B", "--task", "serve", "--rate", "0.5", "--turns", "4", "--think", "40s", "--input", "1200",
        "--output", "150", "--gpu", "l40s", "--provider", "aws", "--weights", "fp8", "--kv-dtype", "bf16", "--ttft",
        "p95=2s",
    ]  # fmt: skip
    cli.main([*line, "--json"])
    best = json.loads(capsys.readouterr().out)["plans"][0]
    assert best["figures"]["usd_per_session"] == pytest.approx(best["cost_usd"] / (0.5 * MONTH_S))
    cli.main(line)
    text = capsys.readouterr().out
    assert "per session" in text
    assert "TTFT of later turns" in text
    assert "simulated, with the same means and cost per session:" in text


def test_a_store_in_the_host_needs_that_memory() -> None:
    """No machine has 100 TB of it for a replica."""
    found: Plan = flopwise.plan({**ASKED, "traffic": {**TRAFFIC, "kv_stores": "host=100TB"}})
    assert not found.plans
    assert "whose host memory is" in found.verdict
    assert all(math.isfinite(one.cost_usd) for one in found.misses)
    rams = {o.instance: o.ram_bytes for o in load_facts().offers if o.provider == "aws"}
    for one in planned(kv_stores="host=60GB").plans:
        each = one.layout["tp"] * one.layout["pp"]
        inside = max(1, one.num_gpus // one.num_instances // each)
        ram = rams[one.instance]
        assert ram is None or inside * 60e9 <= ram


@pytest.mark.parametrize("load", [{"requests_per_s": 0.01}, {"requests": 20}], ids=["serve", "batch"])
def test_offloaded_weights_need_the_memory_of_the_host(load: dict[str, Any]) -> None:
    """60 % of the layers of 70.6 B in AWQ are 21 GB: no one L4 with 16 GiB beside it, but two T4 that share them."""
    found: Plan = flopwise.plan({
        "model": "Llama-3.1-70B", "task": "batch" if "requests" in load else "serve", "simulate": False,
        "traffic": {"input_tokens": 500, "output_tokens": 100, **load}, "techniques": {"offload_weights": 0.6},
        "constraints": {"gpus": ["l4", "t4"], "providers": ["aws"], "weight_formats": ["awq"]},
    })  # fmt: skip
    rams = {o.instance: o.ram_bytes for o in load_facts().offers if o.provider == "aws"}
    assert rams["g6.xlarge"] == rams["g4dn.xlarge"] == 16 * 2**30
    for one in found.plans:
        assert (rams[one.instance] or 1e15) * one.num_instances > 0.6 * 35e9, one.instance
    assert "g6.xlarge" not in {one.instance for one in found.plans if one.num_instances == 1}
    assert "g6.2xlarge" in {one.instance for one in found.plans}
    assert any("are taken to hold the weights that are kept in it" in text for text in found.assumptions)
    for instance, gpus, fits in (("g6.xlarge", 1, False), ("g6.2xlarge", 1, True), ("g6.2xlarge", 4, True)):
        alone = flopwise.serve("Llama-3.1-70B", instance=instance, gpus=gpus, tp=1, weights="awq", offload_weights=0.6)
        short = [text for text in alone.assumptions if "of offloaded weights do not fit" in text]
        assert len(short) == (not fits), (instance, gpus)


def test_a_machine_that_is_too_small_for_the_store_speaks_for_no_other(tmp_path: Path) -> None:
    """Of one H100 the cheapest has 126 GB: its equals with more are planned, and none has an infinite bill."""
    small, large = (
        flopwise.plan({
            **ASKED, "traffic": {**TRAFFIC, "kv_stores": f"host={size}"}, "targets": {},
            "constraints": {"gpus": ["h100-pcie"], "max_gpus": 1},
        })
        for size in ("100GB", "200GB")
    )  # fmt: skip
    assert all(math.isfinite(one.cost_usd) for one in (*small.plans, *large.plans))
    rams = {(o.provider, o.instance): o.ram_bytes for o in load_facts().offers}
    assert {(rams[one.provider, one.instance] or 1e15) >= 200e9 for one in large.plans} == {True}
    assert len(small.plans) > len(large.plans) > 0
    best = small.plans[0]
    assert 100e9 <= (rams[best.provider, best.instance] or 1e15) < 200e9
    file = tmp_path / "plan.json"
    file.write_text(large.to_json(), encoding="utf-8")
    assert read_plan(file).plans == large.plans


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"turns": None}, "needs the turns of sessions"),
        ({"requests_per_s": None, "concurrency": 4}, "sessions need a rate"),
        ({"requests_per_s": None}, "sessions need a rate"),
        ({"burstiness": 3}, "sessions start at random"),
        ({"tool_pause": None}, "go together"),
    ],
)
def test_what_does_not_go_with_sessions_is_refused(more: dict[str, Any], message: str) -> None:
    traffic = {name: value for name, value in {**TRAFFIC, **more}.items() if value is not None}
    with pytest.raises(SpecError, match=message):
        workload_from({**ASKED, "traffic": traffic})


def test_prefixes_and_models_that_cannot_be() -> None:
    with pytest.raises(SpecError, match="prefixes of their own"):
        workload_from({**ASKED, "traffic": TRAFFIC, "techniques": {"prefix_hit": 0.5}})
    with pytest.raises(SpecError, match="answers in one pass"):
        flopwise.plan({**ASKED, "model": "bge-m3", "traffic": {"requests_per_s": 1, "turns": 3, "input_tokens": 100}})
    with pytest.raises(SpecError, match="no meaning for a batch workload"):
        workload_from({**ASKED, "task": "batch", "traffic": {"requests": 100, "turns": 3}})
