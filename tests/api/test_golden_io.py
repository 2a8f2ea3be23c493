"""What training asks of storage, by hand: bytes a FLOP, bandwidth of devices and nodes, checkpoints, loading."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise.cost import storage
from flopwise.cost.spec import MachineSpec
from flopwise.storage.bandwidth import StorageAnswer

PARAMETERS = 8_030_261_248
"""Of Llama-3.1-8B, as its checkpoint has them."""
V100 = MachineSpec(gpu="v100")


def kinds() -> dict[str, dict[str, str]]:
    """Rows of storage as shipped."""
    with (Path(flopwise.__file__).parent / "data" / "storage.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def llama(**asked: Any) -> StorageAnswer:
    found = flopwise.io("Llama-3.1-8B", gpu="h100", gpus=20, seq=4096, efficiency=0.4, **asked)
    assert isinstance(found, StorageAnswer)
    return found


def test_bytes_a_flop_and_bandwidth_of_a_language_model() -> None:
    """4,096 tokens of 4 bytes; 6 FLOP for each weight in a matrix and token, 6 x 4096 x (4097 / 2) a layer's attention.

    20 devices of 989.4 TFLOP/s at 40 %, three nodes of eight.
    """
    found = llama()
    matrices = PARAMETERS - 128_256 * 4096 - 65 * 4096  # without the table of tokens and the norms
    attention = 2 * 2 * 32 * 4096 * (4096 * 4097 / 2)  # scores and values of 32 layers, width 4,096, causal
    flops = 3 * (2 * matrices * 4096 + attention)
    assert found.workload.flops_per_sample == pytest.approx(flops, rel=2e-3)
    each = 4096 * 4 / found.workload.flops_per_sample * 0.4 * found.rate.peak_flops_per_s
    assert found.rate.peak_flops_per_s == pytest.approx(989.4e12, rel=1e-3)
    assert found.bytes_per_flop == pytest.approx(4096 * 4 / found.workload.flops_per_sample)
    assert found.achieved_flops_per_s == pytest.approx(0.4 * 989.4e12, rel=1e-3)
    assert found.read_bytes_per_s_per_gpu == pytest.approx(each)
    assert found.read_bytes_per_s_per_node == pytest.approx(8 * each)
    assert found.read_bytes_per_s_total == pytest.approx(20 * each)
    assert found.num_nodes == 3
    assert llama(dataset_bytes=1e12).epoch_s == pytest.approx(1e12 / (20 * each))


def test_an_achieved_rate_that_is_given_is_taken() -> None:
    found = flopwise.io(flops_per_sample=2e12, sample_bytes=1e6, gpu="v100", gpus=4, achieved_flops_per_s=50e12)
    assert found.rate.samples_per_s == pytest.approx(25.0)
    assert found.read_bytes_per_s_per_gpu == pytest.approx(25e6)
    assert found.read_bytes_per_s_total == pytest.approx(100e6)


def test_checkpoints_are_weights_master_weights_and_two_states() -> None:
    """AdamW keeps two states of 4 bytes beside fp32 weights: 12 bytes for each parameter, once."""
    asked: dict[str, Any] = {"checkpoint_interval_s": 1200.0, "checkpoint_stall_frac": 0.1, "restore_within_s": 40.0}
    saved = llama(**asked).checkpoints
    assert saved is not None
    assert saved.nbytes == pytest.approx(12 * PARAMETERS)
    assert saved.write_bytes_per_s == pytest.approx(12 * PARAMETERS / (1200 * 0.1))
    assert saved.restore_bytes_per_s == pytest.approx(12 * PARAMETERS / 40)
    eighth = llama(optimizer="sgd").checkpoints
    assert eighth is not None
    assert eighth.nbytes < saved.nbytes


def test_checkpoints_of_a_model_of_which_no_layers_are_known() -> None:
    """4 bytes for each parameter and for each of its states; ResNet-50 has 25.56 million."""
    saved = flopwise.io("resnet50", gpu="v100", restore_within_s=1.0).checkpoints
    assert saved is not None
    assert saved.nbytes == pytest.approx(25.56e6 * (4 + 2 * 4), rel=0.01)


def test_what_storage_delivers_to_a_node() -> None:
    """Drives add up, connections add up, a client is one; each node writes a third, reads all weights of 2 bytes."""
    found = llama(storage=["nvme-gen4", "s3-connection", "efs", "lustre"], devices=4, connections=24)
    rows, by_name = kinds(), {d.name: d for d in found.deliveries}
    assert float(rows["nvme-gen4"]["read_bytes_per_s"]) == 6.8e9
    nvme, streams, efs = by_name["nvme-gen4"], by_name["s3-connection"], by_name["efs"]
    assert nvme.read_bytes_per_s == pytest.approx(4 * 6.8e9)
    assert nvme.write_bytes_per_s == pytest.approx(4 * 3.5e9)
    assert streams.read_bytes_per_s == pytest.approx(24 * float(rows["s3-connection"]["read_bytes_per_s"]))
    assert efs.read_bytes_per_s == pytest.approx(1.57e9)
    assert efs.write_bytes_per_s == pytest.approx(1.57e9)
    nbytes = 12 * PARAMETERS
    assert nvme.checkpoint_write_s == pytest.approx(nbytes / 3 / 14e9)
    assert nvme.restore_s == pytest.approx(nbytes / 3 / 27.2e9)
    assert nvme.load_s == pytest.approx(2 * PARAMETERS / 27.2e9)
    assert next(d.name for d in found.deliveries) == "nvme-gen4", "the fastest first"


def test_writes_of_all_nodes_together_are_bounded() -> None:
    """efs takes 5.4 GB/s in all: of 16 nodes each a sixteenth."""
    found = flopwise.io("Llama-3.1-8B", gpu="h100", gpus=128, seq=4096, efficiency=0.4, storage=["efs"])
    assert found.deliveries[0].write_bytes_per_s == pytest.approx(5.4e9 / 16)
    assert found.deliveries[0].checkpoint_write_s == pytest.approx(12 * PARAMETERS / 16 / (5.4e9 / 16))


def test_training_on_slow_storage_keeps_its_share_of_the_pace() -> None:
    """500 MB/s for eight devices of 125 MB/s: half; with a pinned cache of 60 % later epochs need 400 MB/s."""
    asked: dict[str, Any] = {
        "flops_per_sample": 1e12,
        "sample_bytes": 1e6,
        "gpu": "v100",
        "gpus": 8,
        "achieved_flops_per_s": 125e12,
    }
    found = flopwise.io(**asked, storage_bytes_per_s=500e6)
    assert found.read_bytes_per_s_per_node == pytest.approx(1e9)
    assert found.deliveries[0].first_epoch_frac == pytest.approx(0.5)
    assert found.deliveries[0].later_epochs_frac == pytest.approx(0.5)
    cached = flopwise.io(**asked, storage_bytes_per_s=300e6, dataset_bytes=1e12, cache_bytes=0.6e12, policy="pinned")
    assert cached.later_read_bytes_per_s_per_node == pytest.approx(0.4e9)
    assert cached.deliveries[0].first_epoch_frac == pytest.approx(0.3)
    assert cached.deliveries[0].later_epochs_frac == pytest.approx(0.75)


def test_an_interval_of_an_estimated_rate_and_none_of_a_given_one() -> None:
    found = flopwise.io("resnet50", gpu="a100", gpus=8)
    assert found.band is not None
    low, high = found.band.interval(found.read_bytes_per_s_per_gpu)
    assert found.low == pytest.approx(float(low))
    assert found.high == pytest.approx(float(high))
    assert flopwise.io("resnet50", gpu="a100", gpus=8, efficiency=0.2).low is None


def test_formulas_of_storage() -> None:
    assert storage.bytes_per_flop(1e6, 4e12) == pytest.approx(2.5e-7)
    assert storage.read_bytes_per_s(2.5e-7, 50e12) == pytest.approx(12.5e6)
    assert storage.kept_up_frac(np.array([3.0, 12.0]), 6.0) == pytest.approx([0.5, 1.0])
    assert storage.checkpoint_bytes_per_s(96e9, 1800.0, 0.05) == pytest.approx(96e9 / 90)


def test_hits_of_caches() -> None:
    """One node, new order each epoch, half of the records held: c + (1 - c) ln(1 - c); pinned: half; shards: all."""
    shared = storage.hit_frac(50.0, 100.0, 1, shuffle="global", policy="lru")
    assert shared == pytest.approx(0.5 + 0.5 * np.log(0.5))
    assert storage.hit_frac(50.0, 100.0, 4, shuffle="global", policy="pinned") == pytest.approx(0.5)
    assert storage.hit_frac(20.0, 100.0, 2, shuffle="shard", policy="pinned") == pytest.approx(0.4)
    assert storage.hit_frac(20.0, 100.0, 2, shuffle="shard", policy="lru") == pytest.approx(0.4 + 0.6 * np.log(0.6))
    assert storage.hit_frac(20.0, 100.0, 2, shuffle="none", policy="lru") == 0.0
    assert storage.hit_frac(50.0, 100.0, 2, shuffle="none", policy="lru") == 1.0
    assert storage.hit_frac(30.0, 100.0, 512, shuffle="global", policy="lru") == pytest.approx(0.3)


def test_nodes_share_what_an_account_gives() -> None:
    """Azure: 50 Gbit/s leave a storage account, whatever the number of clients; one node alone may take all of it."""
    for gpus, nodes in ((8, 1), (1024, 128)):
        found = flopwise.io("resnet50", gpu="h100", gpus=gpus, storage=("azure-blob", "s3"))
        assert found.num_nodes == nodes
        rates = {each.name: each.read_bytes_per_s for each in found.deliveries}
        assert rates["azure-blob"] == pytest.approx(6.25e9 / nodes)
        assert rates["s3"] == 8e9


def test_images_beside_the_text_are_not_in_a_sample() -> None:
    for model, seeing in (("Qwen2-VL-7B", True), ("Llama-3.1-8B", False), ("CLIP ViT-L/14", False)):
        found = flopwise.io(model, gpu="h100", efficiency=0.4)
        assert any("samples are text only" in note for note in found.assumptions) == seeing
    given = flopwise.io("Qwen2-VL-7B", gpu="h100", efficiency=0.4, sample_bytes=2e6)
    assert not any("samples are text only" in note for note in given.assumptions)
