"""Names of metrics: each exporter says where it listens, each quantity once, and every row is used by a rule."""

from __future__ import annotations

import re

from flopwise.exports.monitoring.quantities import LATENCIES
from named import FACTS

MEANINGS = {
    "busy", "idle", "memory_used", "memory_free", "memory_total", "temperature", "memory_temperature",
    "temperature_limit", "memory_temperature_limit", "power", "power_limit", "energy", "clock", "xid",
    "throttle_reasons", "tensor_active", "sm_active", "memory_active", "memory_busy", "pcie_sent", "pcie_received",
    "nvlink_sent", "nvlink_received", "ecc", "io_wait", "disk_busy", "waiting", "running", "cache", "preemptions",
    "requests", "input_tokens", "output_tokens", "checkpoint_time", "itl", "queue", "prefill", "decode",
    "prompt_lengths", "output_lengths", "cached_tokens", "steps", "prefill_s", "decode_s", *LATENCIES,
}  # fmt: skip


def test_metrics_are_of_exporters_that_listen_and_mean_what_rules_ask_for() -> None:
    exporters = {exporter.name: exporter for exporter in FACTS.exporters}
    for record in FACTS.metric_records:
        assert record.exporter in exporters, record
        assert record.meaning in MEANINGS, record
        assert re.fullmatch(r"[A-Za-z_:][A-Za-z0-9_:]*", record.metric), record
        assert record.source
        assert record.date
    assert {record.exporter for record in FACTS.metric_records} == set(exporters)
    assert {record.meaning for record in FACTS.metric_records} == MEANINGS


def test_former_names_are_of_quantities_that_have_a_name_today() -> None:
    today = {(record.exporter, record.meaning): record.metric for record in FACTS.metric_records}
    for former in FACTS.former_metrics:
        assert today[former.exporter, former.meaning] != former.former, former
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", former.before_version), former


def test_ends_of_buckets_rise_and_only_histograms_have_them() -> None:
    for record in FACTS.metric_records:
        assert list(record.bounds) == sorted(set(record.bounds)), record
        assert record.kind == "histogram" or not record.bounds, record


def test_units_are_base_units() -> None:
    """A megabyte counter of 1 is 2^20 bytes; a clock in MHz; utilisation in percent."""
    dcgm = {r.meaning: r for r in FACTS.metric_records if r.exporter == "dcgm"}
    assert dcgm["memory_used"].scale == 2**20
    assert dcgm["clock"].scale == 1e6
    assert dcgm["busy"].scale == 0.01
    assert dcgm["energy"].scale == 1e-3


def test_engines_that_plans_are_for_have_metrics() -> None:
    named = {exporter.name for exporter in FACTS.exporters}
    assert {"vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp"} <= named & set(FACTS.engines)
