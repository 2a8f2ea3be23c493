"""What no machine could run is refused before the first search, with the workload's line."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet import planned
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from, parse_fleet
from flopwise.search.plan import plan
from flopwise.search.workload_file import workload_from

SERVE: dict[str, Any] = {
    "task": "serve", "model": "gpt2", "traffic": {"requests_per_s": 1, "input_tokens": 900, "output_tokens": 100},
}  # fmt: skip
TUNE: dict[str, Any] = {"task": "finetune", "model": "gpt2", "data": {"tokens": "5M", "seq_len": 1024}}
LORA = {"method": {"kind": "lora"}}
BAD: list[tuple[dict[str, Any], str]] = [
    (SERVE | {"traffic": {"requests_per_s": 1, "input_tokens": 1000, "output_tokens": 25}}, "made for 1,024"),
    (SERVE | {"constraints": {"weight_formats": ["fp9"]}}, "fp9"),
    (SERVE | {"constraints": {"kv_dtype": "fp9"}}, "unknown KV cache type 'fp9'"),
    (SERVE | {"constraints": {"engine": "vlm"}}, "nearest: vllm"),
    (SERVE | {"precision": "fp3"}, "fp3"),
    (TUNE | {"data": {"tokens": "5M", "seq_len": 1025}}, "data.seq_len: a sequence of 1,025 tokens .* made for 1,024"),
    (TUNE | {"precision": "fp3"}, "precision: 'fp3' is unknown"),
    (TUNE | {"optimizer": "adamv"}, "optimizer 'adamv'; nearest: adamw"),
    (TUNE | {"constraints": {"stack": "megatrom"}}, "training stack 'megatrom'"),
    (TUNE | {"constraints": {"schedule": "2f2b"}}, "unknown schedule '2f2b'"),
    (TUNE | LORA | {"method": {"kind": "lora", "targets": ["nono"]}}, "nono"),
    (TUNE | {"method": {"freeze": "first:13"}}, "GPT-2 small has 12"),
    (TUNE | {"routing": {"expert_skew": 2}}, "has no experts"),
]  # fmt: skip


@pytest.fixture(scope="module")
def facts() -> Facts:
    return load_facts(None)


@pytest.mark.parametrize(("job", "says"), BAD)
def test_a_fleet_is_refused_before_any_search(
    job: dict[str, Any], says: str, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bad one is the last of three."""

    def run_searches(*_: object, **__: object) -> None:
        raise AssertionError("a search was started")

    monkeypatch.setattr(planned, "run_searches", run_searches)
    jobs = [SERVE | {"name": "a"}, TUNE | LORA | {"name": "b"}]
    with pytest.raises(AssertionError, match="a search was started"):
        planned_workloads(fleet_from({"name": "f", "workloads": jobs}), facts)
    with pytest.raises(SpecError, match=f"^fleet: workload bad: .*{says}"):
        planned_workloads(fleet_from({"name": "f", "workloads": [*jobs, job | {"name": "bad"}]}), facts)


@pytest.mark.parametrize(("job", "says"), BAD)
def test_plan_refuses_the_same(job: dict[str, Any], says: str, facts: Facts) -> None:
    with pytest.raises(SpecError, match=says):
        plan(workload_from(job), facts)


def test_the_line_is_that_of_the_workload(facts: Facts) -> None:
    text = "name: f\nworkloads:\n  - {name: a, task: finetune, model: gpt2, data: {tokens: 5M, seq_len: 512}}\n"
    text += "  - {name: b, task: finetune, model: gpt2, data: {tokens: 5M, seq_len: 2048}}\n"
    with pytest.raises(SpecError, match=r"^f\.yaml:4: workload b: data\.seq_len: .*shorten it to 1,024 or less"):
        planned_workloads(parse_fleet(text, "f.yaml"), facts)
