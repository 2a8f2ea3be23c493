"""Checkpoints: written as often as loses least where nobody says how often, read no faster than the file system."""

from __future__ import annotations

import pytest

from flopwise.api.io import io
from flopwise.storage.bandwidth import balanced_interval_s

MTBF_S = 16384 * 54 * 86400 / 419  # of one GPU: 419 interruptions in 54 days on 16,384 (Llama 3, section 3.3.4)


def test_an_interval_that_nobody_gives_balances_failures_and_writing() -> None:
    """1,024 GPUs fail every 178,137 s; at 5 % of the time for writing, failures lose 5 % at 17,814 s between saves."""
    assert balanced_interval_s(0.05, MTBF_S / 1024) == pytest.approx(17_814, rel=1e-3)
    found = io("Llama-3.1-70B", gpu="h100", gpus=1024)
    saved = found.checkpoints
    assert saved is not None
    assert saved.interval_assumed
    assert saved.interval_s == pytest.approx(17_814, rel=1e-3)
    assert saved.write_bytes_per_s == pytest.approx(saved.nbytes / (0.05 * 17_814), rel=1e-3)
    given = io("Llama-3.1-70B", gpu="h100", gpus=1024, checkpoint_interval_s=1800).checkpoints
    assert given is not None
    assert (given.interval_s, given.interval_assumed) == (1800, False)


def test_a_whole_cluster_reads_no_faster_than_its_file_system() -> None:
    """847 GB through the 200 GB/s of lustre-efa take 4.2 s, however many nodes read."""
    found = io("Llama-3.1-70B", gpu="h100", gpus=1024, storage=("lustre-efa",))
    assert found.checkpoints is not None
    (lustre,) = found.deliveries
    assert lustre.restore_s == pytest.approx(found.checkpoints.nbytes / 200e9)
    few = io("Llama-3.1-70B", gpu="h100", gpus=8, storage=("lustre-efa",))
    assert few.checkpoints is not None
    assert few.deliveries[0].restore_s == pytest.approx(few.checkpoints.nbytes / few.deliveries[0].read_bytes_per_s)
