"""Plans that were run: they hold in fresh runs, replicas follow the traffic, and the search misses no row."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_errors import at_most, class_on, spread_on, whole_at_most

import flopwise
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.formats import BF16, BF16_CACHE
from flopwise.facts.models.catalog import load_model
from flopwise.search.answer import Listeners, Plan, RejectionLog, to_json
from flopwise.search.deployments import deployments, least_prompt_s, replica_grid
from flopwise.search.nodes import node_kinds
from flopwise.search.plan import plan
from flopwise.search.rank import Pick
from flopwise.search.replica import DEGREES, with_facts
from flopwise.search.serving_analysis import floors, ladder_step, weights_read_s
from flopwise.search.serving_option import ServingOption, serving_options
from flopwise.search.verify import Simulator, batch_traffic, drawn_requests, simulated_odds, simulated_trial
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import parse_workload, workload_from
from flopwise.serving.estimate import estimate
from flopwise.serving.sim import fleet, machine_code
from flopwise.serving.sim.engine import ENDLESS, replica
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import PS
from flopwise.serving.sim.traffic import draw_requests

FACTS = load_facts()
LLAMA = load_model("Llama-3.1-8B")
SMALL = {"gpus": ["l4", "a10g"], "providers": ["aws"], "weight_formats": ["bf16"], "kv_dtype": "bf16"}


def asked(**more: object) -> Resolved:
    base = {
        "model": "Llama-3.1-8B",
        "task": "serve",
        "traffic": {"requests_per_s": 6, "input_tokens": 500, "output_tokens": 100},
        "targets": {"ttft": {"p95": "1s"}, "tpot": {"p95": "90ms"}},
        "constraints": SMALL,
    }
    return with_facts(workload_from({**base, **more}), FACTS)


def answered(**more: object) -> Plan:
    return plan(asked(**more), FACTS)


def options(workload: Resolved) -> list[ServingOption]:
    model = load_model(workload.model)
    found = []
    for node in node_kinds(workload, FACTS, RejectionLog()):
        made = deployments(model, workload, node, BF16, BF16_CACHE)
        if made is not None and made.batch.size:
            found += serving_options(workload, model, node, made, BF16_CACHE, node.priced)
    return found


def test_the_best_plans_carry_what_the_simulator_says() -> None:
    answer = answered()
    best = answer.plans[0]
    assert best.simulated is not None
    assert answer.simulated >= 1
    assert best.simulated.ttft_s["p50"] <= best.simulated.ttft_s["p95"] <= best.simulated.ttft_s["p99"]  # type: ignore[operator]
    assert 0.9 <= (best.simulated.goodput_frac or 0) <= 1
    assert min(best.meets.values()) >= 0.8
    assert Plan.from_json(to_json(answer)) == answer
    costs = [c.cost_usd for c in answer.plans if c.simulated is not None]
    assert costs == sorted(costs)


def test_who_asked_is_told_before_the_simulator_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    real = machine_code.core

    def core(on_compile: object, *, shared: bool = True) -> object:
        told.append(on_compile)
        return real(shared=shared)

    monkeypatch.setattr(fleet, "core", core)
    plan(asked(), FACTS, Listeners(on_compile=lambda: None))
    assert told
    assert None not in told


def test_without_simulating_the_plan_is_of_estimates() -> None:
    answer = answered(simulate=False)
    assert answer.simulated == 0
    assert all(c.simulated is None and not c.note for c in answer.plans)


@pytest.mark.parametrize("first", ["2s", "3s"])
def test_verified_plans_hold_their_targets_in_fresh_runs(first: str) -> None:
    workload = asked(
        traffic={"requests_per_s": 12, "input_tokens": "lognormal:600:cv=1", "output_tokens": "50:200"},
        targets={"ttft": {"p95": first}, "tpot": {"p95": "90ms"}},
    )
    picks = []
    for option in options(workload):
        met = option.odds()
        rows = option.allowed_rows(met)
        if rows.size:
            picks.append(Pick(option, int(rows[option.score[rows].argmin()]), met))
    held = [done for pick in picks[:4] if not (done := simulated_trial(pick, Simulator(workload))).failed]
    assert held
    for done in held:
        fresh = Simulator(workload, seed=7).run(done.pick.option, done.pick.row)
        assert done.run is not None
        assert workload.ttft is not None
        assert fresh.ttft_s["p95"] == pytest.approx(done.run.ttft_s["p95"], rel=0.3)
        assert fresh.tpot_s["p95"] == pytest.approx(done.run.tpot_s["p95"], rel=0.1)
        assert fresh.ttft_s["p95"] <= workload.ttft.seconds  # type: ignore[operator]


@pytest.mark.parametrize("first", ["800ms", "900ms"])
def test_plans_whose_simulated_odds_are_too_low_get_replicas_or_are_demoted(first: str) -> None:
    """Targets that estimates hold and simulations do not with enough of a chance: no such plan is among those shown."""
    traffic = {"requests_per_s": 12, "input_tokens": "lognormal:600:cv=1", "output_tokens": "50:200"}
    targets = {"ttft": {"p95": first}, "tpot": {"p95": "90ms"}}
    answer, limit = answered(traffic=traffic, targets=targets), asked(traffic=traffic, targets=targets).ttft
    runs = [(one.meets, one.simulated.ttft_s["p95"]) for one in answer.plans if one.simulated is not None]
    assert runs
    assert limit is not None
    for met, seconds in runs:
        assert min(met.values()) >= 0.8
        assert seconds is not None
        assert seconds <= limit.seconds
    assert answer.demoted
    assert all(min(one.meets.values()) < 0.8 for one in answer.demoted)


def test_bursts_take_more_replicas_and_the_plan_says_so() -> None:
    traffic = {"requests_per_s": 6, "input_tokens": 500, "output_tokens": 100}
    calm, bursty = answered(traffic=traffic), answered(traffic={**traffic, "burstiness": 4})
    assert bursty.plans[0].cost_usd >= calm.plans[0].cost_usd
    raised = [c for c in (*bursty.plans, *bursty.demoted) if "raised" in c.note or c in bursty.demoted]
    assert raised, "gaps six times as uneven must change something"


def test_more_rate_never_takes_fewer_replicas_of_the_same_machine() -> None:
    for option_index in (0, 1):
        before: np.ndarray = np.zeros(0)
        for rate in (1, 4, 16, 64):
            workload = asked(traffic={"requests_per_s": rate, "input_tokens": 500, "output_tokens": 100})
            replicas = options(workload)[option_index].deployments.replicas
            assert not before.size or (replicas >= before).all()
            before = replicas


def test_the_search_finds_what_trying_every_row_finds() -> None:
    workload = asked(simulate=False)
    best = np.inf
    for option in options(workload):
        for row in range(option.deployments.batch.size):
            likely = option.odds()
            met = all(float(p[row]) >= workload.confidence for p in likely.values())
            each = int(option.deployments.tp[row] * option.deployments.pp[row])
            replicas = int(option.deployments.replicas[row])
            packed = option.node.count // each
            instances = -(-replicas // packed) if packed else replicas * each // option.node.count
            if met and instances * option.node.count <= workload.max_gpus:
                best = min(best, instances * option.priced.usd_per_hour * 730)
    assert plan(workload, FACTS).plans[0].cost_usd == pytest.approx(best, rel=1e-3)


def test_a_row_is_the_single_estimate() -> None:
    workload = asked(traffic={"concurrency": 64, "input_tokens": 500, "output_tokens": 100})
    option = options(workload)[0]
    for row in range(0, option.deployments.batch.size, 5):
        assert float(option.deployments.batch[row]).is_integer()
        batch, replicas = int(option.deployments.batch[row]), float(option.deployments.replicas[row])
        alone = estimate(replace(option.job(row), concurrency=batch))
        assert alone.tpot_s is not None
        assert alone.tpot_s.value == pytest.approx(float(option.deployments.tpot_s[row]), rel=1e-6)
        there = min(64 / (replicas * batch), 1.0)  # of 64 users a replica has no more than its share
        assert alone.requests_per_s * there == pytest.approx(float(option.deployments.requests_per_s[row]), rel=1e-6)


def test_floors_lie_below_every_estimate_without_clamping() -> None:
    for option in options(asked()):
        found = option.deployments
        assert (found.least_ttft_s < found.ttft_s).all()
        assert (found.least_tpot_s < found.tpot_s).all()


def test_mixtures_are_cut_by_experts_and_attention_replicas() -> None:
    workload = workload_from(
        {
            "model": "gpt-oss-120b",
            "task": "serve",
            "traffic": {"requests_per_s": 30, "input_tokens": 1000, "output_tokens": 200},
            "constraints": {"instances": ["p5.48xlarge"]},
            "simulate": False,
        }
    )
    model = load_model("gpt-oss-120b")
    node = node_kinds(workload, FACTS, RejectionLog())[0]
    grid = replica_grid(node, model, 16)
    tp, pp, ep, dp = (np.asarray(getattr(grid, name)) for name in DEGREES)
    assert {(1, 8, 8), (2, 4, 8), (8, 1, 8), (8, 1, 1)} <= set(zip(tp, dp, ep, strict=True))
    assert ((dp == 1) | (ep == tp * dp)).all()
    assert ((tp * pp * dp) <= 16).all()
    dense = replica_grid(node, load_model("Llama-3.1-8B"), 16)
    assert set(np.ravel(dense.dp)) == set(np.ravel(dense.ep)) == {1}


def test_attention_replicas_are_simulated_as_they_wait_for_each_other() -> None:
    """Eight of them on a node: a step lasts as long as the prompts that any of them reads, as `simulate` has it."""
    rate, most = 10, {"providers": ["lambda"], "instances": ["gpu_8x_b200_sxm6"]}
    traffic = {"requests_per_s": rate, "input_tokens": 4000, "output_tokens": 1000}
    found = answered(model="DeepSeek-V3", traffic=traffic, targets={}, constraints=most).plans[0]
    assert found.simulated is not None
    assert found.layout["dp"] == 8
    played = flopwise.simulate(
        "DeepSeek-V3", provider="lambda", instance="gpu_8x_b200_sxm6", dp=8, ep=8, tp=1, kv_dtype="fp8", rate=rate,
        max_batch=found.layout["max_batch"], input_tokens=4000, output_tokens=1000, requests=8000,
    )  # fmt: skip
    assert found.simulated.tpot_s["p50"] == pytest.approx(played.summary.tpot_s.p50, rel=0.05)
    assert found.simulated.tpot_s["p50"] == pytest.approx(found.figures["tpot_s"], rel=0.05)


def test_the_cache_is_searched_where_it_is_left_open() -> None:
    open_ended = {"gpus": ["h100"], "providers": ["aws"], "weight_formats": ["fp8"]}
    answer = answered(constraints=open_ended, simulate=False)
    seen = {c.layout["kv_dtype"] for c in (*answer.plans, *answer.front, *answer.fronts["tpot"])}
    assert "fp8" in seen  # for the same money the faster of the two comes first
    fixed = answered(constraints={**open_ended, "kv_dtype": "bf16"}, simulate=False)
    assert {c.layout["kv_dtype"] for c in (*fixed.plans, *fixed.front)} == {"bf16"}


def test_fronts_fall_and_hold_the_other_targets() -> None:
    answer = answered(simulate=False)
    for name, other in (("ttft", "tpot"), ("tpot", "ttft")):
        points = [(c.cost_usd, c.figures[f"{name}_s"]) for c in answer.fronts[name]]
        assert len(points) >= 2
        assert points == sorted(points)
        assert all(b[1] < a[1] for a, b in pairwise(points))  # type: ignore[operator]
        assert all(c.meets[other] >= 0.8 for c in answer.fronts[name])
        assert points[0][0] <= answer.plans[0].cost_usd + 1e-6


def test_a_relaxed_target_never_costs_more() -> None:
    answer = answered(simulate=False, targets={"ttft": {"p99": "2s"}, "tpot": {"p95": "100ms"}})
    best = answer.plans[0].cost_usd
    for row in answer.target_costs:
        assert row.cost_usd is None or row.saves_usd == pytest.approx(best - row.cost_usd)
        if row.to_s is None or row.to_s >= row.from_s:
            assert row.cost_usd is not None
            assert row.cost_usd <= best + 1e-6
    assert {("ttft", "p95"), ("ttft", "p99"), ("tpot", "p95")} == {
        (r.target, r.to_percentile) for r in answer.target_costs
    }


@pytest.mark.parametrize(
    ("targets", "percentiles"),
    [
        ({}, ("p95", "p95", "p95")),
        ({"ttft": {"p99": "2s"}}, ("p99", "p99", "p99")),
        ({"ttft": {"p50": "2s"}, "latency": {"p90": "9s"}}, ("p50", "p90", "p90")),
        ({"tpot": {"mean": "90ms"}}, ("mean", "mean", "mean")),
    ],
)
def test_a_plan_names_the_percentile_of_each_latency(targets: dict[str, Any], percentiles: tuple[str, ...]) -> None:
    """That of its own target, or the strictest of the others; the figure is the one of a target that names it."""
    answer = answered(simulate=False, targets=targets)
    assert answer.percentiles == dict(zip(("ttft", "tpot", "latency"), percentiles, strict=True))
    loose = {"ttft": "9s", "tpot": "900ms", "latency": "90s"}
    same = answered(simulate=False, targets={k: {p: loose[k]} for k, p in answer.percentiles.items()} | targets)
    best = answer.plans[0]
    alike = next(c for c in same.plans if (c.instance, c.layout) == (best.instance, best.layout))
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert alike.figures[name] == best.figures[name]


@pytest.mark.parametrize(("value", "up", "to"), [(0.03, 1, 0.05), (0.05, -1, 0.03), (1.0, 1, 1.5), (1.0, -1, 0.75)])
def test_steps_of_the_ladder(value: float, up: int, to: float) -> None:
    assert ladder_step(value, up) == pytest.approx(to)


def test_impossible_targets_name_the_floor_that_forbids_them() -> None:
    workload = asked(targets={"tpot": {"p95": "1ms"}, "ttft": {"p95": "1ms"}})
    answer = plan(workload, FACTS)
    assert not answer.plans
    by_target = {f.target: f for f in answer.floors}
    model, nodes = load_model("Llama-3.1-8B"), node_kinds(workload, FACTS, RejectionLog())
    assert by_target["tpot"].forbids
    assert by_target["tpot"].seconds >= min(weights_read_s(model, node, BF16) for node in nodes)
    assert sum(by_target["tpot"].parts.values()) == pytest.approx(by_target["tpot"].seconds)
    assert by_target["ttft"].seconds >= min(
        float(least_prompt_s(model, n, "bf16", 500, np.array([float(n.count)]))[0]) for n in nodes
    )
    # what physics allows on its own is not called forbidden
    loose = floors(asked(), model, nodes, [BF16])
    assert not any(f.forbids for f in loose)


def test_a_batch_job_is_timed_by_the_simulator() -> None:
    traffic = {"requests": 50_000, "input_tokens": 500, "output_tokens": 100}
    answer = answered(task="batch", traffic=traffic, targets={"deadline": "2h"})
    best = answer.plans[0]
    assert best.simulated is not None
    assert best.simulated.seconds == pytest.approx(best.seconds, rel=1e-6)
    assert best.seconds < 7200
    short = answered(task="batch", traffic={**traffic, "requests": 300}, targets={})
    assert short.plans[0].simulated is not None
    assert short.plans[0].simulated.requests == 300


@pytest.mark.parametrize(
    ("body", "line", "says"),
    [
        ("  requests_per_s: 3\n  burstiness: 0\n", 5, "above 0.001, up to 100"),
        ("  requests_per_s: 3\n  peak: 0.5\n", 5, "allowed: 1 or more, up to 50"),
        ("  requests_per_s: 3\n  peak: .nan\n", 5, "nan is not finite"),
        ("  concurrency: 3\n  peak: 2\n", 5, "shapes the rate of requests"),
        ("  requests_per_s: 3\n  arrivals: uniform\n  burstiness: 2\n", 6, "goes with gamma"),
        ("  trace: missing.csv\n", 4, "is no file"),
        ("  trace: missing.csv\n  input_tokens: 5\n", 5, "a trace sets how long"),
        ("  requests_per_s: 3\n  input_tokens: normal:5\n", 5, "is not known"),
        ("  requests_per_s: 3\n  input_tokens: 800:200\n", 5, "the longest is below the shortest"),
        ("  requests_per_s: 3\n  arrivals: weekly\n", 5, "'weekly'"),
    ],
)
def test_traffic_that_cannot_be_is_answered_with_its_line(body: str, line: int, says: str) -> None:
    with pytest.raises(SpecError, match=rf"w.yaml:{line}: .*{says}"):
        parse_workload("model: a\ntask: serve\ntraffic:\n" + body, "w.yaml")


def test_requests_beyond_the_model_are_refused_or_told() -> None:
    with pytest.raises(SpecError, match=r"traffic\.input_tokens: .* made for 131,072"):
        answered(traffic={"requests_per_s": 1, "input_tokens": 5_000_000})
    limits = {"gpus": ["h100"], "providers": ["aws"]}
    long = answered(
        traffic={"requests_per_s": 0.05, "input_tokens": 200_000}, targets={}, constraints=limits, simulate=True
    )
    assert any("longer than the 131,072" in a for a in long.assumptions)
    assert long.plans[0].simulated is not None
    assert long.plans[0].simulated.dropped == 0


def test_what_is_dropped_holds_no_target() -> None:
    traffic = {"requests_per_s": 1, "input_tokens": "lognormal:2000:cv=12", "output_tokens": 20}
    tail = answered(traffic=traffic, constraints={"gpus": ["h100"], "providers": ["aws"]})
    runs = [c.simulated for c in (*tail.plans, *tail.demoted) if c.simulated is not None]
    assert runs
    assert all(run.dropped > 0 for run in runs)
    assert all((run.goodput_frac or 0) < 1 for run in runs)


def test_rate_and_users_are_not_both_taken() -> None:
    with pytest.raises(SpecError, match="leave one of them out"):
        asked(traffic={"requests_per_s": 1, "concurrency": 4})


def test_a_trace_gives_rate_lengths_and_its_busiest_stretch(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("traces") / "t.csv"
    calm, busy = np.arange(6000) * 1.0, 6000 + np.arange(5000) * 0.1
    rows = [f"{t:.3f},100,50" for t in np.concatenate([calm, busy])]
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    flow = asked(traffic={"trace": str(file)})
    assert flow.requests_per_s == pytest.approx(10, rel=0.01)
    assert flow.requests_per_s is not None
    assert flow.requests_per_s / flow.peak == pytest.approx(10999 / 6499.9, rel=0.01)
    assert (flow.input_tokens, flow.output_tokens) == (100, 50)
    doubled = asked(traffic={"trace": str(file), "requests_per_s": 2 * 10999 / 6499.9})
    assert doubled.requests_per_s == pytest.approx(20, rel=0.01)
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,50\n1,x,50\n")
    with pytest.raises(SpecError, match=r"traffic\.trace: .*line 3, column prompt_tokens"):
        asked(traffic={"trace": str(file)})


def test_a_plan_reads_the_chains_of_blocks_of_a_trace(tmp_path: Path) -> None:
    """Of two prompts of 1,200 tokens the second finds the two blocks of 512 that both begin with."""
    rows = [(0, 1200, 10, [1, 2, 3]), (2000, 1200, 30, [1, 2, 4]), (4000, 600, 20, [9, 2])]
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    file = tmp_path / "chained.jsonl"
    file.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    flow = asked(traffic={"trace": str(file)})
    assert (flow.requests_per_s, flow.input_tokens, flow.output_tokens) == (0.5, 1000, 20)
    drawn = drawn_requests(flow, LLAMA, rate=0.25, lifetime_s=1.0, seed=3).trace
    whole = drawn_requests(flow, LLAMA, rate=0.5, lifetime_s=1.0).trace
    assert whole.arrival_ps.tolist() == [0, 2 * PS, 4 * PS]
    assert whole.prefix.tolist() == [2, 3, 5]
    assert whole.tree is not None
    assert whole.tree.end.tolist() == [512, 1024, 1200, 1200, 512, 600]
    assert set(drawn.prefix.tolist()) <= {2, 3, 5}
    lengths = draw_requests(batch_traffic(flow, 50))
    assert set(zip(lengths.prompt.tolist(), lengths.output.tolist(), strict=True)) == {
        (600, 20),
        (1200, 10),
        (1200, 30),
    }


def test_a_long_batch_job_takes_as_long_as_all_of_its_requests_run_one_by_one() -> None:
    """Beyond its beginning a job goes on at the pace reached there: the same as running every request."""
    workload = asked(task="batch", traffic={"requests": 9000, "input_tokens": "100:900", "output_tokens": "50:150"})
    option = options(workload)[0]
    alone = option.deployments.replicas == 1
    row = int(np.flatnonzero((option.deployments.batch >= 8) & (option.deployments.batch <= 64) & alone)[0])
    simulator = Simulator(workload)
    run = simulator.run(option, row)
    trace = draw_requests(batch_traffic(workload, 9000))
    made = replica(option.job(row), context=600, max_tokens=1050)
    whole = simulate(trace, made.cost, replace(made.limits, max_tokens=ENDLESS), samples=1)
    assert run.requests < 9000
    assert run.seconds == pytest.approx(whole.end_ps / 1e12, rel=0.01)


def test_simulated_targets_have_the_odds_of_the_measured_errors() -> None:
    """The band of each latency around its simulated percentile; what physics forbids has no odds at all.

    Of a whole request the errors of its first token and of the rest go together: the score at which both sum to 2 s.
    """
    workload = asked(targets={"ttft": {"p95": "1s"}, "tpot": {"p50": "10ms"}, "latency": {"p99": "2s"}})
    option = options(workload)[0]
    row = int(option.deployments.ttft_s.argmin())
    run = Simulator(workload).run(option, row)
    found = simulated_odds(option, row, run)
    gpu = option.node.cluster.accelerator.name
    spread = spread_on(gpu, "serving")
    first_band, band_of_rest = class_on(gpu, "serving.ttft.server"), class_on(gpu, "serving.tpot.rate.dense")
    for name, value, limit in (
        ("ttft", run.ttft_s["p95"], 1.0), ("tpot", run.tpot_s["p50"], 0.01),
    ):  # fmt: skip
        assert value is not None
        band = first_band if name == "ttft" else band_of_rest
        assert found[name] == pytest.approx(at_most(limit / value, band, spread), abs=1e-6)
        assert 0.001 < found[name] < 0.999
    first, whole = run.ttft_s["p99"], run.e2e_s["p99"]
    assert first is not None
    assert whole is not None
    parts = ((first_band, first), (band_of_rest, whole - first))
    assert found["latency"] == pytest.approx(whole_at_most(2.0, parts, spread), abs=1e-5)
    assert found["latency"] <= at_most(2.0 / first, first_band, spread)
    hopeless = asked(targets={"ttft": {"p95": "1us"}})
    assert simulated_odds(option.estimated_as(option.deployments, hopeless), row, run) == {"ttft": 0.0}


def test_first_tokens_of_a_long_batch_wait_for_all_of_it() -> None:
    """All requests are there at the start: who is in its middle waits half of it, p95 95 % of it; and a plan that
    cannot be as quick as asked is none."""
    asked: dict[str, Any] = {
        "task": "batch",
        "requests": "20k",
        "output": 1,
        "gpus": ("a100-80gb",),
        "weights": ("bf16",),
    }
    best = flopwise.plan("Llama-3.1-8B", **asked).plans[0]
    assert best.simulated is not None
    whole_s = best.simulated.seconds
    assert whole_s is not None
    for name, share in (("mean", 0.5), ("p50", 0.5), ("p95", 0.95)):
        assert best.simulated.ttft_s[name] == pytest.approx(share * whole_s, rel=0.03)
    assert best.simulated.ttft_s["mean"] == pytest.approx(best.figures["ttft_s"], rel=1e-9)
    late = flopwise.plan("Llama-3.1-8B", **asked, ttft="p95=2s")
    assert not late.plans
    assert late.misses[0].meets["ttft"] < 0.5


def test_a_network_of_samples_is_not_planned_and_the_message_says_what_answers() -> None:
    with pytest.raises(SpecError, match="ResNet-50 has no token layers to plan; `flopwise train 'ResNet-50'`"):
        flopwise.plan("resnet50", task="pretrain", samples=1e6, seq=1)
