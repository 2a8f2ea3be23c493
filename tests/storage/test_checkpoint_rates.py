"""Checkpoints: written as often as loses least where nobody says how often, read no faster than the file system."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest

from flopwise.api.io import io
from flopwise.api.train import train

MTBF_S = 16384 * 54 * 86400 / 419  # of one GPU: 419 interruptions in 54 days on 16,384 (Llama 3, section 3.3.4)


def test_an_interval_that_nobody_gives_is_the_one_that_loses_least() -> None:
    """1,024 GPUs fail every 178,137 s and write 847 GB in 4.2 s: Young's sqrt(2 x 4.2 x 178,137), and Daly's terms."""
    saved = io("Llama-3.1-70B", gpu="h100", gpus=1024).checkpoints
    assert saved is not None
    assert saved.interval_assumed
    assert saved.interval_s is not None
    write, mtbf = saved.nbytes / 200e9, MTBF_S / 1024
    half = write / (2 * mtbf)
    assert saved.interval_s == pytest.approx(sqrt(2 * write * mtbf) * (1 + sqrt(half) / 3 + half / 9) - write)
    assert saved.interval_s == pytest.approx(1226, rel=2e-3)
    assert saved.write_bytes_per_s == pytest.approx(saved.nbytes / (0.05 * saved.interval_s))
    given = io("Llama-3.1-70B", gpu="h100", gpus=1024, checkpoint_interval_s=1800).checkpoints
    assert given is not None
    assert (given.interval_s, given.interval_assumed) == (1800, False)


@pytest.mark.parametrize(
    ("model", "gpu", "length"),
    [("Llama-3.1-70B", "64xh100", {"tokens": "100B"}), ("vit-l-16", "8xa100-80gb", {"samples": 3e8})],
)
def test_train_saves_as_often(model: str, gpu: str, length: dict[str, Any]) -> None:
    """One model of the interval: the same machines write the same bytes and fail as often."""
    saved, run = io(model, gpu=gpu).checkpoints, train(model, gpu=gpu, **length).estimate.run
    assert saved is not None
    assert run is not None
    assert saved.nbytes == pytest.approx(run.checkpoint_bytes)
    assert saved.interval_s == pytest.approx(run.checkpoint_interval_s)


def test_a_whole_cluster_reads_no_faster_than_its_file_system() -> None:
    """847 GB through the 200 GB/s of lustre-efa take 4.2 s, however many nodes read."""
    found = io("Llama-3.1-70B", gpu="h100", gpus=1024, storage=("lustre-efa",))
    assert found.checkpoints is not None
    (lustre,) = found.deliveries
    assert lustre.restore_s == pytest.approx(found.checkpoints.nbytes / 200e9)
    few = io("Llama-3.1-70B", gpu="h100", gpus=8, storage=("lustre-efa",))
    assert few.checkpoints is not None
    assert few.deliveries[0].restore_s == pytest.approx(few.checkpoints.nbytes / few.deliveries[0].read_bytes_per_s)
