"""Sessions, the stores of their caches, and chained traces, by hand; the core itself is held against the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flopwise.api.serve import serve
from flopwise.api.simulate import autoscale, simulate
from flopwise.cost.rates import rates
from flopwise.errors import FlopwiseError, SpecError
from flopwise.serving.answer import ServeAnswer
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import BlockStore, ReplicaLimits
from flopwise.serving.sim.prefixes import Prefixes
from flopwise.serving.sim.simulate import simulate as run
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.stores import KvStore
from flopwise.serving.sim.trace import read_chained_trace, trace
from flopwise.serving.sim.traffic import draw_requests
from named import FACTS

_COUNTS = np.arange(2000, dtype=np.int64)
PLAIN_COST = StepCost(
    tokens_ps=_COUNTS * 10**6, decode_ps=_COUNTS * 0, cached_ps=_COUNTS * 0, window_ps=_COUNTS * 0, request_ps=7
)
"""A microsecond a token, and nothing else."""

HOW: dict[str, Any] = {"gpu": "l4", "rate": 0.2, "turns": 4, "input_tokens": 100, "output_tokens": 50, "requests": 10}


def test_a_turn_sends_all_before_it_again() -> None:
    """A system prompt of 20; turns of 100 in and 50 out: prompts of 120, 270, 420."""
    asked = draw_requests(Traffic(
        rate=1.0, turns=3, input_tokens=100, output_tokens=50, requests=4, prefixes=1, prefix_tokens=20,
        think_s=10.0,
    ))  # fmt: skip
    assert asked.prompt.tolist() == [120, 270, 420] * 4
    assert asked.session.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert (asked.pause_ps.reshape(4, 3)[:, 0] == -1).all()


def test_pauses_are_those_of_people_and_tools() -> None:
    """Exponential: means 10 s and 1 s for 30 % of the turns, 0.7 x 10 + 0.3 x 1 = 7.3 s in all."""
    asked = draw_requests(Traffic(
        rate=50.0, turns=11, input_tokens=10, output_tokens=5, requests=4000, think_s=10.0, tool_share=0.3,
        tool_pause=1.0,
    ))  # fmt: skip
    pauses = asked.pause_ps[asked.pause_ps >= 0] / 1e12
    assert len(pauses) == 40_000
    assert pauses.mean() == pytest.approx(7.3, rel=0.03)
    assert np.mean(pauses > 5.0) == pytest.approx(0.7 * np.exp(-0.5) + 0.3 * np.exp(-5.0), rel=0.03)


def test_the_second_turn_computes_what_is_new_and_comes_a_pause_after_the_answer() -> None:
    """64 + 17 tokens leave 80 in the cache (the last is not computed): 5 blocks of 16; 100 more are 181 - 80 = 101."""
    asked = trace([0.0, 0.0], [64, 181], [17, 3], session=[0, 0], pause_s=[-1.0, 2.0])
    found = run(asked, PLAIN_COST, ReplicaLimits(max_batch=4, step_tokens=512, prefix_cache=True))
    assert found.totals.prompt_tokens.tolist() == [64 + 101]
    assert found.totals.reused_tokens.tolist() == [80]
    assert found.outcome.arrival_ps[1] - found.outcome.finish_ps[0] == 2 * 10**12


def test_what_was_evicted_comes_back_from_its_store_as_fast_as_the_link() -> None:
    """10 blocks on the device. Session 0 leaves 5; session 1 needs 8 of 10, so 3 of the 5 would do, but nodes go whole:
    the answer's (1 block: 80 = 64 + 16) and the prompt's ((64 - 1) // 16 = 3, then 5 - 3 = 2 by the answer)."""
    asked = trace([0.0, 0.0, 1.0], [64, 100, 120], [17, 3, 3], session=[0, 0, 1], pause_s=[-1.0, 3.0, -1.0])
    each_ps, wait_ps = 10**10, 10**9
    limits = ReplicaLimits(max_batch=4, step_tokens=512, num_blocks=10, prefix_cache=True)
    bare = run(asked, PLAIN_COST, limits)
    kept = run(
        asked, PLAIN_COST, ReplicaLimits(max_batch=4, step_tokens=512, num_blocks=10, prefix_cache=True,
                                         stores=(BlockStore(blocks=100, block_ps=each_ps, latency_ps=wait_ps),)),
    )  # fmt: skip
    assert kept.fetched_tokens.tolist() == [80]
    late = (kept.outcome.start_ps - kept.outcome.arrival_ps)[1]
    assert late == 5 * each_ps + wait_ps + PLAIN_COST.request_ps
    assert bare.totals.prompt_tokens.sum() - kept.totals.prompt_tokens.sum() == 80


def test_shorter_prefixes_of_a_name_are_the_beginning_of_its_longer_ones() -> None:
    """Blocks of 16: 40 tokens are 2, 100 are 6; a prompt of 33 may share 2, as its last token is computed."""
    asked = trace([0.0] * 4, [200, 200, 33, 9], [1] * 4, prefix=[5, 5, 5, -1], prefix_tokens=[40, 100, 100, 0])
    found = Prefixes.of(asked, 16)
    assert (found.tree.parent.tolist(), found.tree.end.tolist()) == ([-1, 0], [2, 6])
    assert found.prompt.tolist() == [0, 1, 0, -1]


def test_chains_of_blocks_are_a_tree(tmp_path: Path) -> None:
    rows = [(0, 1500, 10, [1, 2, 3]), (500, 1100, 5, [1, 2, 4]), (400, 600, 5, [9, 2])]
    path = tmp_path / "trace.jsonl"
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    found = read_chained_trace(path)
    assert found.arrival_ps.tolist() == [0, 400 * 10**9, 500 * 10**9]
    assert found.tree is not None
    assert found.tree.parent.tolist() == [-1, 0, 1, 1, -1, 4]
    assert found.tree.end.tolist() == [512, 1024, 1500, 1100, 512, 600]
    assert found.prefix.tolist() == [2, 5, 3]
    done = simulate("Llama-3.1-8B", gpu="h100", trace=path)
    assert done.simulated.reused_tokens == 1024  # of the third, whose first two blocks the first left
    assert done.sessions is not None
    assert done.sessions.device_frac == pytest.approx(1024 / 3200)


@pytest.mark.parametrize("line", ["{}", "[1]", "x", json.dumps({"timestamp": 1, "input_length": "x"})])
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(SpecError, match="line 1"):
        read_chained_trace(path)


def test_a_store_is_blocks_and_the_time_of_one() -> None:
    """2 MB a block: 1 TB are 500,000, at 4 GB/s 0.5 ms each; over two schedulers half, each at half the rate."""
    store = KvStore(name="nvme", capacity_bytes=1e12, bytes_per_s=4e9, usd_per_gb_month=0.08)
    assert store.block_store(2e6, 1) == BlockStore(blocks=500_000, block_ps=500_000_000)
    assert store.block_store(2e6, 2) == BlockStore(blocks=250_000, block_ps=1_000_000_000)
    assert store.usd(730 * 3600.0) == pytest.approx(80.0)


def test_stores_are_read_as_written() -> None:
    device = rates(FACTS.accelerator("H100-SXM-80"))
    host, nvme, far = KvStore.parse_list("host=200GB, nvme=4TB, far=1PB@10GB/s@0.02", device, 2, FACTS)
    assert host.capacity_bytes == 200e9
    assert 2 * 40e9 < host.bytes_per_s < 2 * 64e9  # two links of PCIe 5
    assert nvme.bytes_per_s == FACTS.storage("nvme").read_bytes_per_s
    assert (far.bytes_per_s, far.usd_per_gb_month) == (10e9, 0.02)


@pytest.mark.parametrize(
    "text", ["", "host", "host=0GB", "host=1GB@1GB/s@x", "cloud9=1TB", "host=1GB@2@3@4", "host=x", "host=1GB,host=2GB"]
)
def test_stores_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(FlopwiseError):
        simulate("Llama-3.1-8B", kv_stores=text, **HOW)


def test_a_session_costs_its_share_of_machines_and_stores() -> None:
    found = simulate("Llama-3.1-8B", kv_stores="host=10GB@@100", price=2.0, **HOW)
    report = found.sessions
    assert report is not None
    assert (report.sessions, report.ended, report.turns_per_session) == (10, 10, 4.0)
    hours = found.simulated.paid_s / 3600
    assert report.stores_usd == pytest.approx(10 * 100 * hours / 730)
    assert report.usd_per_session == pytest.approx((2.0 * hours + report.stores_usd) / 10)
    assert report.device_frac + sum(report.store_fracs.values()) + report.computed_frac == pytest.approx(1.0)
    cost = found.cost_usd or 0.0
    assert cost == pytest.approx(2.0 * hours + report.stores_usd)
    assert found.usd_per_million_output_tokens == pytest.approx(cost / (40 * 50) * 1e6, rel=0.05)


def test_tokens_of_a_service_with_stores_pay_for_them() -> None:
    """2 USD an hour of the machine and 10 GB x 100 USD / 730 h of its store: sessions and tokens carry all of it."""
    asked = {name: value for name, value in HOW.items() if name != "requests"}
    found = serve("Llama-3.1-8B", kv_stores="host=10GB@@100", think="10s", price=2.0, **asked)
    job, per_s = found.estimate.job, found.estimate.requests_per_s
    hourly = 2.0 + 10 * 100 / 730
    assert found.sessions is not None
    assert found.sessions.stores_usd_per_hour == pytest.approx(10 * 100 / 730)
    assert found.sessions.usd_per_session == pytest.approx(hourly / (per_s / 4 * 3600), rel=1e-6)
    paid = (found.estimate.usd_per_million_input_tokens or 0.0) * job.input_tokens
    paid += (found.estimate.usd_per_million_output_tokens or 0.0) * job.output_tokens
    assert paid * per_s * 3600 / 1e6 == pytest.approx(hourly, rel=1e-6)
    assert (found.usd_per_million_requests or 0.0) * per_s * 3600 / 1e6 == pytest.approx(hourly, rel=1e-6)


def test_what_goes_with_sessions_and_what_does_not() -> None:
    for wrong in (
        {"turns": None, "tool_share": 0.5, "tool_pause": 1.0},
        {"tool_share": 0.5},
        {"rate": None, "users": 3},
    ):
        with pytest.raises(SpecError, match=r"turns|tool"):
            simulate("Llama-3.1-8B", **HOW | wrong)
    with pytest.raises(SpecError, match="share a prefix"):
        simulate("Llama-3.1-8B", kv_stores="host=1GB", **HOW | {"turns": None})
    with pytest.raises(SpecError, match="--turns"):
        autoscale("Llama-3.1-8B", **HOW)


# ---- sessions in `serve`


def _served(**options: Any) -> ServeAnswer:
    how: dict[str, Any] = {"gpu": "h100", "input": 512, "output": 128, "rate": 0.2, "turns": 4, "think": "20s"}
    return serve("Llama-3.1-8B", **(how | options))


def test_serve_counts_what_sessions_compute_anew() -> None:
    """Four turns: prompts of 512, 1,152, 1,792 and 2,432 tokens, of which all but the last 512 are in the cache, but
    for the last block of 16: the last token of an answer was never read. A session costs what the machine does in the
    five seconds until the next one comes."""
    found = _served()
    assert found.sessions is not None
    assert found.sessions.turns_per_session == 4
    assert found.sessions.computed_frac == pytest.approx((4 * 512 + 3 * 16) / (512 + 1152 + 1792 + 2432), rel=1e-6)
    assert found.estimate.job.input_tokens == (512 + 1152 + 1792 + 2432) // 4
    assert found.estimate.requests_per_s == pytest.approx(0.8, rel=0.2)
    hourly = found.estimate.usd_per_hour
    assert hourly is not None
    per_session = hourly / (found.estimate.requests_per_s / 4 * 3600)
    assert found.sessions.usd_per_session == pytest.approx(per_session)
    assert found.document()["sessions"]["usd_per_session"] == found.sessions.usd_per_session


def test_serve_and_simulate_say_the_same_of_sessions() -> None:
    run = simulate("Llama-3.1-8B", gpu="h100", input=512, output=128, rate=0.2, turns=4, think="20s", duration=2000)
    found = _served()
    assert run.sessions is not None
    assert found.sessions is not None
    assert found.sessions.device_frac == pytest.approx(run.sessions.device_frac, abs=0.02)
    assert found.estimate.ttft_s.value == pytest.approx(run.summary.ttft_s.p50, rel=0.15)  # the mean of a near spread
    plain = serve("Llama-3.1-8B", gpu="h100", input=1472, output=128, rate=0.8)
    assert found.estimate.ttft_s.value < plain.estimate.ttft_s.value  # which reads all of every prompt


def test_stores_keep_what_the_device_evicts() -> None:
    """A hundred sessions under way hold more than an L4 has beside the weights: the host's memory keeps them."""
    crowd: dict[str, Any] = {"gpu": "l4", "weights": "fp8", "rate": 0.25, "think": "2min", "input": 1500, "output": 100}
    alone, kept = _served(**crowd), _served(**crowd, kv_stores="host=500GB")
    assert alone.sessions is not None
    assert kept.sessions is not None
    assert kept.sessions.store_fracs["host"] > 0.1
    assert kept.sessions.computed_frac < alone.sessions.computed_frac - 0.1


def test_sessions_that_come_too_fast_are_refused_a_speed_and_odd_words_are_named() -> None:
    late = _served(rate=40)
    assert not late.keeps_up
    assert "Too slow: " in late.verdict
    for options, message in (
        ({"rate": None}, "sessions need a rate"),
        ({"rate": None, "concurrency": 4}, "sessions need a rate"),
        ({"turns": None}, "needs the turns of sessions .*; N users who pause T between single requests .*--rate"),
        ({"turns": None, "think": 0, "kv_stores": "host=1GB"}, "needs the turns of sessions"),
    ):
        with pytest.raises(SpecError, match=message):
            _served(**options)
    with pytest.raises(SpecError, match="answers in one pass"):
        serve("bge-m3", gpu="l4", input=256, rate=1, turns=3)


@pytest.mark.parametrize(("rate", "hourly"), [("1/h", 1.0), ("3/min", 180.0)])
def test_replicas_that_keep_up_answer_the_turns_of_all_sessions(rate: str, hourly: float) -> None:
    """Of 1 USD an hour a session costs its part, however many chance has brought into the run."""
    found = serve("Llama-3.1-8B", gpu="h100", price=1.0, turns=2, rate=rate, input_tokens=100, output_tokens=20)
    assert found.under_load is None
    assert found.estimate.requests_per_s == pytest.approx(2 * hourly / 3600, rel=1e-12)
    assert found.sessions is not None
    assert found.sessions.usd_per_session == pytest.approx(1 / hourly, rel=1e-12)


def test_sessions_less_than_once_a_day_are_refused_by_their_rate() -> None:
    with pytest.raises(SpecError, match="less than once a day"):
        serve("Llama-3.1-8B", gpu="h100", turns=2, rate=1e-9)


def test_the_verdict_has_no_further_tokens_where_an_answer_is_one_and_no_nothing_in_flight() -> None:
    alone = serve("Llama-3.1-8B", gpu="h100", input_tokens=100, output_tokens=1, concurrency=4).verdict
    assert "one every" not in alone
    assert "TPOT" not in serve("Llama-3.1-8B", gpu="h100", input_tokens=100, output_tokens=1, rate=2.0).verdict
    seldom = serve("Llama-3.1-8B", gpu="h100", turns=2, rate="1/h", input_tokens=100, output_tokens=20).verdict
    assert ", with 0 in flight" not in seldom
    assert "one every" in seldom


def test_a_store_that_is_slower_than_computing_is_named() -> None:
    """131,072 bytes a token: 655 us from 200 MB/s; 16 GFLOP, some 0.2 ms on an L4; 5 us over PCIe 4."""
    said = simulate("Llama-3.1-8B", kv_stores="host=20GB,s3=1TB@200MB/s", **HOW).assumptions
    served = serve("Llama-3.1-8B", gpu="h100", rate=0.2, turns=4, think_s=10, kv_stores="s3=1TB@200MB/s").assumptions
    for notes in (said, served):
        slow = [note.split() for note in notes if "to bring a cached token" in note]
        assert [words[1] for words in slow] == ["s3"]
        assert float(slow[0][3]) == pytest.approx(131_072 / 200, rel=0.05)
