"""`plan` with an order of the queue, with classes of requests, and with a cache of whole answers."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from flopwise import cli
from flopwise.api.plan import plan
from flopwise.errors import SpecError
from flopwise.search.workload import resolve

WORKLOAD: dict[str, Any] = {
    "model": "Llama-3.1-8B", "task": "serve", "traffic": {"requests_per_s": 60.0},
    "targets": {"ttft": {"p95": "1s"}},
    "constraints": {"gpus": ["h100"], "providers": ["aws", "hyperstack"], "weight_formats": ["bf16"]},
}  # fmt: skip
ANSWERS = {"response_cache": 1000, "distinct": 5000, "repeated": 0.9}


def with_parts(**parts: dict[str, Any]) -> dict[str, Any]:
    return WORKLOAD | {name: WORKLOAD.get(name, {}) | part for name, part in parts.items()}


def test_replicas_are_sized_for_what_the_cache_does_not_answer() -> None:
    """The plan of a cached service is that of its misses, and its bill is shared by all requests."""
    asked = resolve(with_parts(techniques=ANSWERS))
    assert 0.3 < asked.computed_frac < 0.6
    assert asked.requests_per_s == pytest.approx(60.0 * asked.computed_frac)
    cached, plain = plan(with_parts(techniques=ANSWERS)).plans[0], plan(WORKLOAD).plans[0]
    misses = plan(with_parts(traffic={"requests_per_s": 60.0 * asked.computed_frac})).plans[0]
    assert cached.cost_usd == misses.cost_usd < plain.cost_usd
    assert cached.unit_usd["million_requests"] == pytest.approx(
        misses.unit_usd["million_requests"] * asked.computed_frac, rel=1e-9
    )
    peaked = resolve(with_parts(traffic={"requests_per_s": 60.0, "peak": 2.0}, techniques=ANSWERS))
    assert peaked.requests_per_s == pytest.approx(120.0 * asked.computed_frac)


def test_the_bill_of_a_plan_has_the_memory_of_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """1,000 answers of 500 bytes and 4 for each token, at 1000 USD a GB and hour, for the 730 hours of a month."""
    priced = with_parts(techniques={**ANSWERS, "cache_price": 1000.0})
    best, free = (plan(asked).plans[0] for asked in (priced, with_parts(techniques=ANSWERS)))
    tokens = 256  # by default
    assert best.cost_usd == pytest.approx(free.cost_usd + 1000 * (500 + 4 * tokens) / 1e9 * 1000 * 730)
    assert cli.main([*shlex.split(best.reproduce)[1:], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    each = best.cost_usd / (60.0 * 730 * 3600)
    assert shown["usd_per_million_requests"] == pytest.approx(each * 1e6, rel=1e-6)
    assert best.figures["usd_per_million_tokens"] == pytest.approx(each / tokens * 1e6, rel=1e-6)


def test_classes_of_a_plan_are_simulated_and_its_command_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = with_parts(
        traffic={"requests_per_s": 60.0, "priorities": {0: "20%", 1: "80%"}},
        techniques={"policy": "priority", **ANSWERS},
    )
    best = plan(wanted).plans[0]
    assert best.simulated is not None
    assert [round(one["frac"], 1) for one in best.simulated.by_priority.values()] == [0.2, 0.8]
    line = shlex.split(best.reproduce)
    assert line[:2] == ["flopwise", "serve"]
    assert cli.main([*line[1:], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["under_load"]["requests_per_s"] == pytest.approx(60.0)
    assert shown["usd_per_million_requests"] == pytest.approx(best.unit_usd["million_requests"], rel=1e-6)
    assert [one["priority"] for one in shown["priorities"]] == [0, 1]


def test_shortest_first_lowers_the_median_wait_of_a_batch_and_not_its_length() -> None:
    job: dict[str, Any] = {
        **WORKLOAD, "task": "batch", "targets": {},
        "traffic": {"requests": 4000, "input_tokens": "100:3000", "output_tokens": "50:500"},
    }  # fmt: skip
    alike, shortest = (plan(job | {"techniques": {"policy": one}}).plans[0] for one in ("fcfs", "shortest"))
    assert alike.simulated is not None
    assert shortest.simulated is not None
    assert shortest.simulated.ttft_s["p50"] < 0.9 * alike.simulated.ttft_s["p50"]  # type: ignore[operator]  # there are some
    assert shortest.seconds == pytest.approx(alike.seconds, rel=0.1)


POOLED: dict[str, Any] = {
    "model": "Llama-3.1-70B", "task": "serve", "traffic": {"requests_per_s": 20.0},
    "techniques": {"prefill_gpus": 4}, "targets": {"tpot": {"p95": "40ms"}},
    "constraints": {"gpus": ["h100"], "providers": ["aws", "lambda"], "weight_formats": ["fp8"], "kv_dtype": "bf16"},
}  # fmt: skip


def test_prompts_have_machines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan says of pools what `serve` says of them, and about what its simulation finds; all GPUs are paid."""
    found = plan(POOLED)
    best = found.plans[0]
    degrees = best.layout
    each = degrees["tp"] * degrees["pp"] * degrees["dp"]
    assert degrees["prefill_gpus"] == 4
    assert 4 % each == 0
    assert best.num_gpus >= degrees["replicas"] * (each + 4)
    assert cli.main([*shlex.split(best.reproduce)[1:], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["prefill_gpus"] == degrees["replicas"] * 4
    assert best.simulated is not None
    for name in ("ttft_s", "tpot_s"):
        assert best.figures[name] == pytest.approx(shown["under_load"][name]["p95"], rel=0.03)
        assert best.figures[name] == pytest.approx(getattr(best.simulated, name)["p95"], rel=0.15)
    capacity = 20.0 / shown["under_load"]["utilisation_frac"]
    assert best.figures["requests_per_s_capacity"] == pytest.approx(capacity, rel=0.03)
    together = plan({**POOLED, "techniques": {}}).plans[0]
    assert best.figures["tpot_s"] is not None
    assert together.figures["tpot_s"] is not None
    assert "prefill_gpus" not in together.layout


def test_pools_serve_users_as_well() -> None:
    """Tokens as its simulation makes them, as fast, and prompts beside answers rather than between them."""
    users = {**POOLED, "traffic": {"requests_per_s": None, "concurrency": 96, "input_tokens": 3000}, "targets": {}}
    found, together = plan(users), plan({**users, "techniques": {}})
    best = found.plans[0]
    degrees = best.layout
    assert degrees["prefill_gpus"] == 4
    assert best.num_gpus >= degrees["replicas"] * (degrees["tp"] * degrees["pp"] * degrees["dp"] + 4)
    assert best.simulated is not None
    assert best.figures["tpot_s"] == pytest.approx(best.simulated.tpot_s["p50"], rel=0.05)
    assert best.figures["e2e_s"] == pytest.approx(best.simulated.e2e_s["p50"], rel=0.1)
    assert best.figures["tpot_s"] is not None
    assert together.plans[0].figures["tpot_s"] is not None
    assert best.figures["tpot_s"] < together.plans[0].figures["tpot_s"]


def test_replicas_with_pools_take_whole_machines() -> None:
    """Six devices a replica on machines of four: one replica takes two machines, not one and a half."""
    one = {**POOLED, "traffic": {"requests_per_s": 0.5}}
    one["constraints"] = {**POOLED["constraints"], "instances": ["gpu_4x_h100_sxm5"]}
    for best in plan(one).plans:
        each = best.layout["tp"] * best.layout["pp"] * best.layout["dp"] + 4
        assert best.num_instances == -(-best.layout["replicas"] * each // 4)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"techniques": {"policy": "priority"}}, "techniques.policy: priority needs the classes"),
        ({"techniques": {"policy": "nearest"}}, "unknown policy"),
        ({"techniques": {"response_cache": 10}}, "techniques.response_cache: needs to know how many"),
        ({"techniques": {"distinct": 10}}, "techniques.distinct: needs the number of cached answers"),
        ({"traffic": {"requests_per_s": None, "concurrency": 8}, "techniques": ANSWERS}, "needs requests at a rate"),
        ({"traffic": {"priorities": "0=100%"}}, "traffic.priorities: are served in their order"),
    ],
)
def test_what_nothing_comes_of_is_refused(parts: dict[str, Any], says: str) -> None:
    wanted = with_parts(**parts)
    traffic = {name: value for name, value in wanted["traffic"].items() if value is not None}
    with pytest.raises(SpecError, match=says):
        resolve(wanted | {"traffic": traffic})
    with pytest.raises(SpecError, match="takes the simulator"):
        resolve(with_parts(techniques={"policy": "shortest"}) | {"simulate": False})
    with pytest.raises(SpecError, match="no meaning for a encode workload"):
        resolve({**WORKLOAD, "task": "encode", "techniques": {"policy": "shortest"}})
