"""Two ranks that train together: one records, and a budget ends both after the same step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from read_back import Recorded

pytestmark = pytest.mark.oracle
pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import sys, time
import torch.distributed as dist
from flopwise.callbacks import record
import os
dist.init_process_group("gloo", init_method="file://" + sys.argv[2],
    rank=int(os.environ["RANK"]), world_size=2)
with record(store=sys.argv[1], budget_hours=1.0 / 3600, on_budget="checkpoint", tokens_per_step=64) as run:
    while not run.should_stop:
        time.sleep(0.004 if run.rank else 0.001)
        dist.barrier()
        run.step()
print(run.steps)
dist.destroy_process_group()
"""


def test_a_budget_ends_all_ranks_after_the_same_step_and_one_records(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "meet")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    steps = [int(one.communicate(timeout=120)[0]) for one in ranks]
    assert steps[0] == steps[1] > 10
    assert steps[0] % 10 == 0
    saved = Recorded.of(path)
    assert len(saved.store.runs()) == 1
    assert (saved.run.gpus, saved.run.status, saved.steps("step_s")[-1]) == (2, "stopped", steps[0])
