"""Rules as Prometheus takes them: each alert fires beyond its threshold and rests at the plan; values by hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_samples import sample_deployment, sample_export
from tools import RefusedError
from validators import promtool_rules, promtool_test

from flopwise.exports.monitoring.alert_rules import busy_frac
from flopwise.exports.monitoring.signals import number_text
from flopwise.exports.monitoring.watched import watched_plan
from flopwise.training.estimate import estimate

SAMPLES = ("pretrain-spot", "lora", "serve", "serve-tgi", "serve-llamacpp", "serve-sglang", "serve-trtllm", "encode",
           "batch")  # fmt: skip


@cache
def rules(sample: str) -> Mapping[str, Mapping[str, Any]]:
    """Alerts of a sample by name; recorded quantities by theirs."""
    groups = yaml.safe_load(sample_export("prometheus", sample).files["rules.yaml"])["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    return {rule.get("alert") or rule["record"]: rule for rule in found}


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_alert_fires_beyond_its_threshold_and_rests_at_the_plan(sample: str, tmp_path: Path) -> None:
    files = sample_export("prometheus", sample).files
    promtool_rules(written(tmp_path, files) / "rules.yaml")
    tests = yaml.safe_load(files["tests.yaml"])["tests"]
    fires = {one["alertname"] for t in tests for one in t["alert_rule_test"] if one["exp_alerts"]}
    rests = {one["alertname"] for t in tests for one in t["alert_rule_test"] if not one["exp_alerts"]}
    assert fires == rests == {name for name, rule in rules(sample).items() if "alert" in rule}
    promtool_test(tmp_path / "tests.yaml")


def test_promtool_refuses_a_rule_that_is_none_and_a_test_that_does_not_hold(tmp_path: Path) -> None:
    files = dict(sample_export("prometheus", "serve").files)
    wrong = files | {"rules.yaml": files["rules.yaml"].replace("sum by", "sun by", 1)}
    with pytest.raises(RefusedError):
        promtool_rules(written(tmp_path, wrong) / "rules.yaml")
    softer = files["rules.yaml"].replace('workload=\\"chat\\"} > 0.9', 'workload=\\"chat\\"} > 9')
    assert softer != files["rules.yaml"]
    with pytest.raises(RefusedError, match="UtilisationHigh"):
        promtool_test(written(tmp_path, files | {"rules.yaml": softer}) / "tests.yaml")


@pytest.mark.parametrize("title", ["{{ x }}", "$(rm -rf /)", 'a "b"', "two\nlines", "*x", "x" * 3000])
def test_titles_are_no_templates(title: str, tmp_path: Path) -> None:
    files = sample_export("prometheus", "lora", name=title).files
    promtool_rules(written(tmp_path, files) / "rules.yaml")
    promtool_test(tmp_path / "tests.yaml")


def test_a_service_is_watched_by_its_targets_and_capacity() -> None:
    found, deployment = rules("serve"), sample_deployment("serve")
    candidate = deployment.candidate
    assert found["TimeToFirstTokenHigh"]["expr"].endswith('quantile="0.95"} > 1')
    assert found["TimePerTokenHigh"]["expr"].endswith("> 0.05")
    capacity = candidate.figures["requests_per_s_capacity"] or 0.0
    assert found["RequestRateHigh"]["expr"].endswith(f"> {number_text(0.85 * capacity)}")
    spare = 1.0 - (candidate.figures["ttft_s"] or 0.0)
    assert float(found["RequestsWaiting"]["expr"].rsplit(" ", 1)[1]) == pytest.approx(capacity * spare, rel=1e-9)
    hour = candidate.usd_per_hour
    assert found["flopwise:cost_usd_per_hour"]["expr"].endswith(f"* {number_text(hour / candidate.num_gpus)}")
    high = max(1.1 * candidate.cost_usd, candidate.cost_usd_high or 0.0) * 24 / 730
    assert float(found["CostPerDayHigh"]["expr"].rsplit(" ", 1)[1]) == pytest.approx(high, rel=1e-9)


def test_the_usual_limits_stand_where_the_plan_keeps_below_them() -> None:
    """90 % for 10 minutes and 85 % for 5: of a batching engine on its requests and its cache, of training on memory."""
    chat = rules("serve")
    assert chat["UtilisationHigh"]["expr"] == 'flopwise:load_ratio{workload="chat"} > 0.9'
    assert chat["UtilisationHigh"]["for"] == "600s"
    assert "scale up" in chat["UtilisationHigh"]["annotations"]["runbook"]
    assert chat["MemoryHigh"]["expr"] == 'flopwise:cache_ratio{workload="chat"} > 0.85'
    assert chat["MemoryHigh"]["for"] == "300s"
    assert "smaller batch" in chat["MemoryHigh"]["annotations"]["runbook"]
    assert "> 0.97" in chat["DeviceMemoryBeyondPlan"]["expr"], "vLLM takes 92 % of a device as planned"
    assert rules("encode")["UtilisationHigh"]["expr"] == 'flopwise:device_busy_ratio{workload="triage"} > 0.9'
    lora = rules("lora")
    assert "UtilisationHigh" not in lora
    assert lora["BusyWithoutProgress"]["expr"].startswith(
        'flopwise:device_busy_ratio{workload="support-assistant"} > 0.9'
    )


def test_the_memory_of_a_run_beyond_85_percent_has_its_own_limit_instead() -> None:
    found = rules("pretrain-spot")
    assert 0.85 < float(found["DeviceMemoryBeyondPlan"]["expr"].rsplit(" ", 1)[1]) < 1
    assert "MemoryHigh" not in found
    assert "instead of 85 %" in found["DeviceMemoryBeyondPlan"]["annotations"]["description"]


def test_a_run_is_watched_by_its_interval_its_mfu_and_its_checkpoints() -> None:
    deployment = sample_deployment("lora")
    assert deployment.training is not None
    result, found = estimate(deployment.training), rules("lora")
    assert result.run is not None
    low = result.low * result.num_gpus
    assert float(found["ThroughputLow"]["expr"].rsplit(" ", 1)[1]) == pytest.approx(low, rel=1e-9)
    share = float(found["MfuLow"]["expr"].rsplit(" ", 1)[1])
    assert share == pytest.approx(result.mfu_frac * low / result.tokens_per_s, rel=1e-9)
    assert float(found["TensorCoresIdle"]["expr"].rsplit(" ", 1)[1]) == pytest.approx(0.9 * share, rel=1e-9)
    each = float(found["flopwise:mfu_ratio"]["expr"].rsplit(" ", 1)[1])
    assert each * result.tokens_per_s == pytest.approx(result.mfu_frac, rel=1e-9)
    age = 2 * (result.run.checkpoint_interval_s + result.run.checkpoint_write_s)
    assert float(found["CheckpointOld"]["expr"].rsplit(" ", 1)[1]) == pytest.approx(age, rel=1e-9)


def test_the_mfu_of_a_service_is_two_flop_a_parameter_and_token() -> None:
    """70.6 B parameters on 8-bit tensor cores: 2 N a token, within what attention and the head add."""
    deployment = sample_deployment("serve")
    expr = rules("serve")["flopwise:mfu_ratio"]["expr"]
    each = float(expr.split(") * ")[1].split(" ")[0])
    available = deployment.candidate.num_gpus * deployment.accelerator.peak_flops_per_s("fp8")
    assert each * available == pytest.approx(2 * 70.55e9, rel=0.06)


def test_a_latency_is_compared_with_an_end_of_the_engines_buckets() -> None:
    """Buckets of text-embeddings-inference end at 1e-5 s x 1.5^n: 150 ms lie inside the one that ends at 168 ms."""
    found = rules("encode")["LatencyHigh"]
    assert float(found["expr"].rpartition("> ")[2]) == pytest.approx(1e-5 * 1.5**24, rel=1e-5)
    assert "the target is 150 ms, the next reported bucket 168 ms" in found["annotations"]["description"]


def test_how_busy_a_device_is_follows_from_the_requests_in_flight() -> None:
    deployment = sample_deployment("encode")
    load = 2 * deployment.candidate.seconds / deployment.replicas
    assert busy_frac(watched_plan(deployment)) == pytest.approx(1 - 2.718281828459045**-load)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.9, "0.9"), (1e9, "1000000000"), (2.5e-9, "2.5e-09"),
                                             (123456789.125, "123456789.125"), (-5, "-5")])  # fmt: skip
def test_numbers_have_no_exponent_where_that_is_readable(value: float, text: str) -> None:
    assert number_text(value) == text
