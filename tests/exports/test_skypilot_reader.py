from __future__ import annotations

import pytest
from skypilot import GPUS, skypilot
from tools import RefusedError

from named import FACTS

pytestmark = pytest.mark.exports

TASK = """
name: train
resources:
  accelerators: H100:8
  use_spot: true
  any_of:
    - infra: aws/us-east-1
      instance_type: p5.48xlarge
    - infra: gcp
  disk_size: 512
  job_recovery: {strategy: EAGER_NEXT_REGION, max_restarts_on_errors: 3}
num_nodes: 2
envs: {STEPS: "100"}
secrets: {HF_TOKEN: null}
setup: pip list
run: torchrun train.py
"""


def test_a_task() -> None:
    skypilot(TASK)


def test_a_chain() -> None:
    skypilot(f"name: both\n---{TASK}---{TASK.replace('name: train', 'name: check')}")


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("num_nodes: 2", "nodes: 2", "did you mean"),
        ("use_spot: true", "use_spot: sometimes", "boolean"),
        ("H100:8", "H100:many", "accelerators"),
        ("infra: gcp", "infra: gpc", "does not match"),
        ("p5.48xlarge", "p5.49xlarge", "p5.49xlarge"),
        ("aws/us-east-1", "aws/us-east-9", "us-east-9"),
        ("EAGER_NEXT_REGION", "EAGER", "EAGER"),
        ("disk_size: 512", "disk_size: large", "disk_size"),
        ("run: torchrun", "run: [torchrun", "while parsing"),
        ("setup: pip list", "setup: {pip: list}", "setup"),
    ],
)
def test_tasks_that_are_refused(before: str, after: str, complaint: str) -> None:
    assert before in TASK
    with pytest.raises(RefusedError, match=complaint):
        skypilot(TASK.replace(before, after))


def test_names_of_accelerators_are_those_of_the_facts() -> None:
    assert set(GPUS) <= set(FACTS.accelerators)
