"""Every time, cost and energy that is printed has its interval, and every interval says what it rests on."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import flopwise
from flopwise.cli import main

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line; its exit code, stdout and stderr."""

    def go(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        out = capsys.readouterr()
        return code, out.out, out.err

    return go


@pytest.mark.parametrize("gpu", ["mi60", "k80", "p100"])
def test_training_without_a_measured_run_says_so_in_text_and_json(run: Run, gpu: str) -> None:
    line = f"train gpt2 --gpu {gpu} --precision fp32 --seq 1024 --global-batch 8 --micro-batch 1 --tokens 1M"
    line = f"{line} --stack hf-trainer --recompute none"  # what is left open would widen each device's differently
    _, out, _ = run(line)
    assert "no measured run of this kind on this architecture" in out
    _, out, _ = run(f"{line} --json")
    found = json.loads(out)
    assert found["interval"]["architecture_rows"] == 0
    assert "no measured run of this kind on this architecture" in found["interval"]["evidence"]
    _, out, _ = run(f"{line.replace(gpu, 'a100-80gb')} --json")
    seen = json.loads(out)
    assert 0 < seen["interval"]["architecture_rows"] < seen["interval"]["rows"]
    assert found["high"] / found["low"] > seen["high"] / seen["low"]


def test_a_run_has_intervals_of_time_cost_and_energy(run: Run) -> None:
    """They go with the throughput: hours and joules of the slow end are those of the run over its share.

    The start is paid whatever the throughput.
    """
    line = "train gpt2 --gpu a100-80gb --seq 1024 --global-batch 64 --tokens 1B"
    _, out, _ = run(f"{line} --json")
    found = json.loads(out)
    each = found["tokens_per_s_per_gpu"]
    for name in ("seconds", "cost_usd", "energy_joules"):
        first = {"cost_usd": found["run"]["start_usd"], "energy_joules": found["run"]["start_joules"]}.get(name, 0.0)
        value = found["run"][name] - first
        assert found["run"][f"{name}_low"] == pytest.approx(first + value * each / found["high"])
        assert found["run"][f"{name}_high"] == pytest.approx(first + value * each / found["low"])
    _, out, _ = run(line)
    assert sum("(80 % interval: " in row for row in out.splitlines() if row.startswith(("time", "cost", "energy"))) == 3


@pytest.mark.parametrize(
    "line",
    [
        "plan gpt2 --task pretrain --tokens 10M --gpu a100-80gb --max-gpus 2",
        "plan Llama-3.1-8B --task serve --rate 2 --input 512 --output 128 --gpu l40s --max-gpus 4",
    ],
)
def test_every_plan_has_intervals(run: Run, line: str) -> None:
    _, out, _ = run(f"{line} --json")
    plans = json.loads(out)["plans"]
    assert plans
    for plan in plans:
        assert plan["evidence"]
        for name in ("seconds", "cost_usd", "energy_joules"):
            value, low, high = plan[name], plan[f"{name}_low"], plan[f"{name}_high"]
            if value is not None:
                assert low <= value <= high
        assert plan["seconds_low"] < plan["seconds_high"]
    _, out, _ = run(line)
    best = out[out.index("best plan") :].splitlines()
    shown = [row for row in best if row.startswith(("time ", "whole request p95 ", "cost ", "energy "))]
    assert len(shown) == 3
    ends = ("(80 % interval: ", "the same at both ends of the 80 % interval")
    assert all(any(text in row for text in ends) for row in shown)


def test_latencies_without_a_target_have_the_percentile_of_the_others(run: Run) -> None:
    line = "plan Llama-3.1-8B --task serve --rate 2 --input 512 --output 128 --gpu l40s --max-gpus 4 --ttft p99=2s"
    _, out, _ = run(line)
    assert "whole request p99 " in out
    assert "TPOT p99" in out
    assert "whole request p95" not in out
    assert "TPOT p95" not in out


def test_whole_requests_have_an_interval_that_says_it_is_composed(run: Run) -> None:
    line = "serve Llama-3.1-8B --gpu h100-sxm --concurrency 16"
    _, out, _ = run(line)
    assert "whole request is computed from those of TTFT and TPOT; few published runs allow a check" in out
    _, document, _ = run(f"{line} --json")
    found = json.loads(document)
    for latency, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):  # by a factor of four and more
        assert (f"the interval of {name} is wide" in out) == (found[f"{latency}_high"] > 4 * found[f"{latency}_low"])
    assert "the interval of TPOT is wide" not in out
    _, wide, _ = run(f"{line} --eager")
    assert "the interval of TTFT is wide" in wide
    rest = 255
    for end in ("low", "high"):
        whole = found[f"ttft_s_{end}"] + rest * found[f"tpot_s_{end}"]
        assert found[f"e2e_s_{end}"] == pytest.approx(whole)
    assert found["e2e_s_low"] < found["e2e_s"] < found["e2e_s_high"]


def test_simulated_whole_requests_have_an_interval_no_narrower_than_their_first_token(run: Run) -> None:
    _, out, _ = run("simulate Llama-3.1-8B --gpu l40s --rate 2 --requests 300 --json")
    found = json.loads(out)
    ttft = found["ttft_s_p50_high"] - found["ttft_s_p50_low"]
    assert found["e2e_s_p50_high"] - found["e2e_s_p50_low"] >= ttft
    assert any("the interval of TTFT is wide" in text for text in found["assumptions"])


@pytest.mark.parametrize(("rate", "most"), [(3.0, 3.0), (1000.0, None)])
def test_no_more_is_answered_than_arrives(rate: float, most: float | None) -> None:
    """In the long run; where more arrives than can be answered, the interval is that of the machine."""
    found = flopwise.serve("Llama-3.1-8B", gpu="l40s", rate=rate, input_tokens=500, output_tokens=200, gpus=1)
    requests = found.estimate.throughput
    assert requests.low <= requests.value <= requests.high <= rate
    if most is None:
        assert requests.high == pytest.approx(requests.value * requests.band.high)
    else:
        assert requests.high == pytest.approx(most)


def test_a_batch_shows_no_latency_of_requests_that_wait_for_one_another(run: Run) -> None:
    code, out, _ = run("plan Llama-3.1-8B --task batch --requests 20000 --input 300 --output 50 --gpu l4")
    assert code == 0
    assert "TPOT" in out
    assert "TTFT" not in out
    assert "whole request" not in out
