"""Results of load generators, request by request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flopwise.errors import SpecError
from flopwise.observations.requests import read_requests
from flopwise.records.imports.imported import read_file


def written(folder: Path, document: Any, name: str = "load.json") -> Path:
    """The document as a file."""
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_vllm_bench_by_hand(tmp_path: Path) -> None:
    """Second request first: it began earlier. 0.1 s and three gaps of 0.02 s: 0.16 s, 0.02 s between tokens."""
    path = written(tmp_path, {
        "start_times": [12.0, 10.0], "ttfts": [0.2, 0.1], "itls": [[0.05], [0.02, 0.02, 0.02]], "input_lens": [7, 9],
        "output_lens": [2, 4], "completed": 2,
    })  # fmt: skip
    found = read_requests(path)
    assert found.arrival_s.tolist() == [0.0, 2.0]
    assert found.prompt.tolist() == [9, 7]
    assert found.e2e_s.tolist() == pytest.approx([0.16, 0.25])
    assert found.itl_s.tolist() == pytest.approx([0.02, 0.05])


def test_failed_requests_are_counted_and_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, {
        "start_times": [1.0, 2.0, 3.0], "ttfts": [0.2, 0.0, float("nan")], "itls": [[0.05], [], []],
        "input_lens": [7, 9, 9], "output_lens": [2, 0, 1],
    })  # fmt: skip
    found = read_requests(path)
    assert (len(found), found.failed) == (1, 2)


def test_guidellm_by_hand(tmp_path: Path) -> None:
    one = {
        "request_start_time": 1.7e9, "time_to_first_token_ms": 40.0, "request_latency": 0.54, "output_tokens": 26,
        "prompt_tokens": 100, "cached_tokens": 64,
    }  # fmt: skip
    path = written(tmp_path, {"benchmarks": [{"requests": {"successful": [one], "errored": [{}]}}]})
    found = read_requests(path)
    assert (found.ttft_s[0], found.itl_s[0]) == pytest.approx((0.04, 0.02))
    assert (found.cached[0], found.failed, found.began_at_s) == (64, 1, 1.7e9)


def test_aiperf_lines_and_genai_perf(tmp_path: Path) -> None:
    line = {
        "metadata": {"request_start_ns": 2_000_000_000},
        "metrics": {
            "time_to_first_token": {"value": 50, "unit": "ms"}, "request_latency": {"value": 150, "unit": "ms"},
            "output_sequence_length": {"value": 11, "unit": "tokens"},
            "input_sequence_length": {"value": 30, "unit": "tokens"},
        },
    }  # fmt: skip
    found = read_requests(written(tmp_path, f"{json.dumps(line)}\n{json.dumps(line)}\n", "a.jsonl"))
    assert len(found) == 2
    assert found.itl_s[0] == pytest.approx(0.01)
    stamps = {"timestamp": 1_000_000_000, "response_timestamps": [1_040_000_000, 1_060_000_000, 1_080_000_000]}
    found = read_requests(written(tmp_path, {"experiments": [{"requests": [stamps, {"timestamp": 2}]}]}))
    assert (found.ttft_s[0], found.e2e_s[0], found.output[0], found.prompt[0]) == pytest.approx((0.04, 0.08, 3, 0))
    assert found.failed == 1


@pytest.mark.parametrize(
    "document", ["{", "[1, 2]", "{}", '{"benchmarks": [{"metrics": {}}]}', '{"ttfts": 3}', "\x00\x01"]
)
def test_what_holds_no_requests_is_refused(tmp_path: Path, document: str) -> None:
    with pytest.raises(SpecError, match="no single requests with times"):
        read_requests(written(tmp_path, document))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is empty"):
        read_requests(written(tmp_path, ""))
    with pytest.raises(SpecError, match="cannot be read"):
        read_requests(tmp_path / "none.json")


def test_what_is_observed_and_what_is_imported_are_the_same_requests(tmp_path: Path) -> None:
    """vLLM's own times of whole answers hold before sums of gaps; AIPerf's lines are a run, too."""
    bench = written(tmp_path, {
        "start_times": [12.0, 10.0, 11.0], "ttfts": [0.2, 0.1, 0.3], "itls": [[0.05], [0.02] * 3, []],
        "input_lens": [7, 9, 8], "output_lens": [2, 4, 1], "latencies": [0.26, 0.17, 0.0], "errors": ["", "", "no"],
        "completed": 2, "duration": 3.0, "request_throughput": 0.7,
    })  # fmt: skip
    line = {
        "metadata": {"request_start_ns": 2_000_000_000},
        "metrics": {
            "time_to_first_token": {"value": 50, "unit": "ms"}, "request_latency": {"value": 150, "unit": "ms"},
            "output_sequence_length": {"value": 11, "unit": "tokens"},
            "input_sequence_length": {"value": 30, "unit": "tokens"},
        },
    }  # fmt: skip
    lines = written(tmp_path, f"{json.dumps(line)}\n{json.dumps(line)}\n", "a.jsonl")
    for path, form in ((bench, "vllm-bench"), (lines, "genai-perf")):
        kind, _, [run] = read_file(path, "auto")
        assert kind == form
        seen = read_requests(path)
        for name in ("ttft_s", "itl_s", "e2e_s"):
            stored = sorted(point.value for point in run.series[name])
            assert stored == pytest.approx(sorted(getattr(seen, name).tolist()))
    assert read_requests(bench).e2e_s.tolist() == [0.17, 0.26]
    assert run.settings == {"output_tokens": 11, "input_tokens": 30}


def test_requests_stand_by_their_arrival(tmp_path: Path) -> None:
    starts = [5.0, 1.0, 3.0]
    path = written(tmp_path, {
        "start_times": starts, "ttfts": [0.1] * 3, "itls": [[]] * 3, "input_lens": [5, 1, 3], "output_lens": [1] * 3,
    })  # fmt: skip
    found = read_requests(path)
    assert found.prompt.tolist() == [1, 3, 5]
    assert np.isnan(found.itl_s).all()


ROWS = {"start_times": [1.0, 1.0], "ttfts": [0.2, 0.1], "itls": [[0.05], [0.02]], "input_lens": [7, 9]}
ANSWER = {
    "request_start_time": 1.0, "time_to_first_token_ms": 20.0, "request_latency": 0.1, "output_tokens": 5,
    "prompt_tokens": 9,
}  # fmt: skip


def guidellm(*strategies: dict[str, Any]) -> dict[str, Any]:
    """A file of some benchmarks."""
    return {"benchmarks": [{"config": {"strategy": s}, "requests": {"successful": [ANSWER]}} for s in strategies]}


@pytest.mark.parametrize(
    ("document", "users"),
    [
        (ROWS, None),  # nothing is said
        ({**ROWS, "max_concurrency": 4, "request_rate": "inf"}, 4),
        ({**ROWS, "max_concurrency": 4, "request_rate": 2.5}, None),  # at a rate, of which some may wait
        ({**ROWS, "max_concurrency": "inf"}, None),
        ({**ROWS, "max_concurrency": -3}, None),
        (guidellm({"type_": "concurrent", "streams": 8}), 8),
        (guidellm({"type_": "synchronous"}), 1),
        (guidellm({"type_": "poisson", "rate": 3.0}), None),
        (guidellm({"type_": "concurrent", "streams": 8}, {"type_": "concurrent", "streams": 16}), None),  # two loads
        ({"experiments": [{"experiment": {"mode": "concurrency", "value": 2}, "requests": [
            {"timestamp": 1e9, "response_timestamps": [1.2e9]}]}]}, 2),
        ({"experiments": [{"experiment": {"mode": "request_rate", "value": 2}, "requests": [
            {"timestamp": 1e9, "response_timestamps": [1.2e9]}]}]}, None),
    ],
)  # fmt: skip
def test_how_many_users_wait_is_what_the_file_says(tmp_path: Path, document: Any, users: int | None) -> None:
    assert read_requests(written(tmp_path, document)).users == users
