"""`flopwise.io`: the published bandwidths, what moves them, what storage makes of them, and the tree behind."""

from __future__ import annotations

from typing import Any

import pytest

import flopwise
from flopwise.cost.spec import MachineSpec
from flopwise.errors import FlopwiseError, MissingFactError, SpecError, UnknownNameError
from flopwise.provenance import walk
from formulas import is_arithmetic, recomputed
from named import train_answer

V100 = MachineSpec(gpu="v100")
GOLDEN: list[tuple[str, dict[str, Any], dict[str, float], float]] = [
    # Ibrahim et al., PMBS 2021 (IEEE 9652793): 35 to 50 TFLOP/s achieved on a V100, nodes of 8
    ("cosmoflow", {"achieved_flops_per_s": 1e15}, {"gpu": 65e9}, 0.03),
    ("cosmoflow", {"achieved_flops_per_s": 35e12, "gpus": 8}, {"gpu": 2.275e9, "node": 18.2e9}, 0.03),
    ("cosmoflow", {"achieved_flops_per_s": 50e12, "gpus": 8}, {"gpu": 3.25e9, "node": 26e9}, 0.03),
    ("resnet50", {"achieved_flops_per_s": 130e12}, {"gpu": 573e6}, 0.001),
    ("deepcam", {"achieved_flops_per_s": 312e12, "gpus": 8}, {"gpu": 2.8495e9, "node": 22.796e9}, 0.001),
    # Kurth et al., SC18 (arXiv:1810.01993): Tiramisu on 1,024 nodes of 6 V100
    (
        "tiramisu",
        {"gpus": 6144, "machines": MachineSpec(gpu="v100", gpus_per_node=6)},
        {"gpu": 189e6, "node": 1.14e9, "total": 1.16e12},
        0.01,
    ),
]


@pytest.mark.parametrize(("name", "asked", "expected", "tolerance"), GOLDEN, ids=str)
def test_published_bandwidths(name: str, asked: dict[str, Any], expected: dict[str, float], tolerance: float) -> None:
    found = flopwise.io(name, **{"machines": V100, **asked})
    said = {
        "gpu": found.read_bytes_per_s_per_gpu,
        "node": found.read_bytes_per_s_per_node,
        "total": found.read_bytes_per_s_total,
    }
    for key, value in expected.items():
        assert said[key] == pytest.approx(value, rel=tolerance), key


def test_the_datasheet_rate_asks_for_many_times_what_training_reads() -> None:
    """At peak with raw records, as a calculator has it, against the demand that argonne-lcf/dlio_benchmark measured."""
    ratios = []
    for name, peak, measured in (
        ("resnet50", 312e12, 105.43e6),
        ("resnet50", 130e12, 37.63e6),
        ("resnet50", 3958e12, 204.75e6),
        ("cosmoflow", 130e12, 302.19e6),
        ("cosmoflow", 312e12, 513.34e6),
        ("cosmoflow", 3958e12, 808.14e6),
    ):
        ratios.append(flopwise.io(name, gpu="h100", achieved_flops_per_s=peak).read_bytes_per_s_per_gpu / measured)
    assert min(ratios) == pytest.approx(13.05, rel=0.01)
    assert max(ratios) == pytest.approx(309.8, rel=0.01)


def test_every_kind_of_model_has_an_answer() -> None:
    for name in (
        "unet3d",
        "bert",
        "Llama-3.1-8B",
        "google/vit-base-patch16-224",
        "FLUX.1-dev transformer",
        "ResNet-18",
    ):
        found = flopwise.io(name, gpu="a100", gpus=8, seq=2048 if name.startswith("Llama") else None)
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.read_bytes_per_s_per_gpu < found.high
        assert found.read_bytes_per_s_per_gpu == pytest.approx(found.bytes_per_flop * found.achieved_flops_per_s)
        assert found.read_bytes_per_s_total == pytest.approx(8 * found.read_bytes_per_s_per_gpu)


def test_a_language_model_reads_what_its_training_estimate_uses() -> None:
    found = flopwise.io("Llama-3.1-8B", gpu="h100", gpus=8, seq=4096, batch=16)
    trained = train_answer("Llama-3.1-8B", gpu="h100", gpus=8, seq=4096, global_batch=128)
    assert found.read_bytes_per_s_total == pytest.approx(4 * trained.estimate.tokens_per_s)
    halved = flopwise.io("Llama-3.1-8B", gpu="h100", gpus=8, seq=4096, batch=16, token_bytes=2)
    assert halved.read_bytes_per_s_total == pytest.approx(found.read_bytes_per_s_total / 2)


def test_records_as_stored_and_own_figures() -> None:
    raw = flopwise.io("cosmoflow", machines=V100)
    stored = flopwise.io("cosmoflow", machines=V100, records="compressed")
    assert stored.read_bytes_per_s_per_gpu / raw.read_bytes_per_s_per_gpu == pytest.approx(2_828_486 / 16_777_216)
    own = flopwise.io(flops_per_sample=4e12, sample_bytes=56e6, gpu="v100", efficiency=0.4)
    assert own.read_bytes_per_s_per_gpu == pytest.approx(56e6 / 4e12 * 0.4 * 125e12)
    assert flopwise.io("cosmoflow", machines=V100, record_bytes=1e6).read_bytes == 1e6
    assert flopwise.io("cosmoflow", machines=V100, sample_bytes=8e6).read_bytes == 8e6


def test_one_node_is_asked_for_where_nothing_is_said() -> None:
    whole = flopwise.io("cosmoflow", gpu="v100")
    assert (whole.num_gpus, whole.num_nodes, whole.gpus_per_node) == (8, 1, 8)
    few = flopwise.io("cosmoflow", gpu="v100", gpus=3)
    assert few.read_bytes_per_s_per_node == few.read_bytes_per_s_total
    many = flopwise.io("cosmoflow", gpu="v100", gpus=20)
    assert (many.num_nodes, many.gpus_per_node) == (3, 8)


def test_storage_sets_the_pace_when_it_delivers_less() -> None:
    found = flopwise.io("cosmoflow", machines=V100, achieved_flops_per_s=35e12, storage=["nfs", "nvme"], devices=4)
    by_name = {d.name: d for d in found.deliveries}
    needed = found.read_bytes_per_s_per_node
    assert by_name["nfs-tcp"].first_epoch_frac == pytest.approx(3e9 / needed)
    assert by_name["nvme-gen4"].first_epoch_frac == 1, "four drives"
    given = flopwise.io("cosmoflow", machines=V100, storage_bytes_per_s=1e9).deliveries
    assert [d.name for d in given] == ["given"]
    assert len(flopwise.io("cosmoflow", machines=V100).deliveries) > 15


def test_an_instance_s_network_bounds_what_crosses_it() -> None:
    place = MachineSpec(instance="g4dn.xlarge")
    found = flopwise.io("resnet50", machines=place, gpus=1, storage=["nfs-rdma-400g", "page-cache"])
    network = found.cluster.offer.network_bytes_per_s if found.cluster.offer else None
    by_name = {d.name: d.read_bytes_per_s for d in found.deliveries}
    assert by_name == {"nfs-rdma-400g": network, "page-cache": 18.6e9}


def test_caches_help_later_epochs_only() -> None:
    def later(**asked: Any) -> float:
        found = flopwise.io("resnet50", gpu="a100", gpus=16, dataset_bytes=100e9, **asked)
        assert found.read_bytes_per_s_per_node == flopwise.io("resnet50", gpu="a100", gpus=16).read_bytes_per_s_per_node
        return float(found.later_read_bytes_per_s_per_node / found.read_bytes_per_s_per_node)

    assert later() == 1
    assert later(cache_bytes=100e9) == 0
    assert later(cache_bytes=50e9, policy="pinned") == pytest.approx(0.5)
    assert later(cache_bytes=50e9) == pytest.approx(1 - 0.3069, abs=1e-3)
    assert later(cache_bytes=50e9, shuffle="shard") == 0


def test_checkpoints_and_loading() -> None:
    asked: dict[str, Any] = {"checkpoint_interval_s": 1800.0, "restore_within_s": 60.0, "load_within_s": 10.0}
    found = flopwise.io("Llama-3.1-8B", gpu="h100", gpus=16, seq=4096, storage=["lustre"], **asked)
    saved = found.checkpoints
    assert saved is not None
    trained = train_answer("Llama-3.1-8B", gpu="h100", gpus=16, seq=4096, tokens=1e9).estimate.run
    assert trained is not None
    assert saved.nbytes == trained.checkpoint_bytes
    assert 12 * 8_030_261_248 <= saved.nbytes <= 14 * 8_030_261_248
    assert saved.write_bytes_per_s == pytest.approx(saved.nbytes / 90)
    assert saved.restore_bytes_per_s == pytest.approx(saved.nbytes / 60)
    [lustre] = found.deliveries
    assert lustre.checkpoint_write_s == pytest.approx(saved.nbytes / 2 / 8e9), "two nodes write half each"
    assert lustre.load_s == pytest.approx(2 * 8_030_261_248 / 11e9)


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "cosmoflow", "gpu": "v100", "dataset_bytes": 1e12, "cache_bytes": 1e11},
        {"model": "tiramisu", "gpu": "v100"},
        {"model": "cosmoflow", "gpu": "v100", "achieved_flops_per_s": 35e12},
        {"model": "resnet50", "gpu": "a100", "efficiency": 0.2},
        {"model": "Llama-3.1-8B", "gpu": "h100", "gpus": 8, "seq": 2048},
    ],
    ids=str,
)
def test_every_formula_gives_the_value_beside_it(asked: dict[str, Any]) -> None:
    found = flopwise.io(asked.pop("model"), **asked)
    figures = list(walk(found.figure()))
    values = {f.name: f.value for f in figures}
    assert values["read bandwidth per device"] == found.read_bytes_per_s_per_gpu
    assert values["read bandwidth of all"] == found.read_bytes_per_s_total
    arithmetic = [f for f in figures if is_arithmetic(f)]
    assert len(arithmetic) >= 4
    for figure in arithmetic:
        assert figure.value is not None
        assert recomputed(figure) == pytest.approx(float(figure.value), rel=1e-6), f"{figure.name} = {figure.formula}"


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ({"model": None}, SpecError, "nothing to train is given"),
        ({"model": None, "flops_per_sample": 1e12}, SpecError, "--sample-bytes"),
        ({"model": None, "flops_per_sample": -1.0, "sample_bytes": 1.0}, SpecError, "allowed: above 0"),
        ({"model": None, "flops_per_sample": float("nan"), "sample_bytes": 1.0}, SpecError, "nan is not finite"),
        ({"gpus": 0}, SpecError, "gpus: 0 is out of range; allowed: 1 to"),
        ({"batch": 0}, SpecError, "batch: 0 is out of range"),
        ({"batch": -4}, SpecError, "batch: -4 is out of range"),
        ({"precision": "fp8"}, SpecError, "allowed: fp32, tf32"),
        ({"efficiency": 1.5}, SpecError, "up to 1"),
        ({"efficiency": float("nan")}, SpecError, "efficiency: nan is not finite"),
        ({"efficiency": 0.5, "achieved_flops_per_s": 1e12}, SpecError, "an efficiency is given, too"),
        ({"achieved_flops_per_s": float("inf")}, SpecError, "achieved flops per s: inf is not finite"),
        ({"storage": ["nfss"]}, UnknownNameError, "nearest: nfs-tcp"),
        ({"storage_bytes_per_s": 0.0}, SpecError, "storage bytes per s: 0.0 is out of range"),
        ({"record_bytes": -1.0}, SpecError, "record bytes: -1.0 is out of range"),
        ({"cache_bytes": 1e9}, SpecError, "data set"),
        ({"shuffle": "often"}, SpecError, "not one of global, shard, none"),
        ({"policy": "fifo"}, SpecError, "not one of lru, pinned"),
        ({"records": "zipped"}, SpecError, "not one of raw, compressed"),
        ({"devices": 0}, SpecError, "devices"),
        ({"checkpoint_stall_frac": 2.0}, SpecError, "up to 1"),
        ({"optimizer": "adamm"}, UnknownNameError, "adamw"),
        ({"recods": "raw"}, SpecError, "recods"),
        ({"model": "tiramisu", "records": "compressed"}, MissingFactError, "--record-bytes"),
        ({"model": "tiramisu", "restore_within_s": 5.0}, SpecError, "parameters are not known"),
        ({"model": "no-such-model"}, SpecError, "no-such-model"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], kind: type[FlopwiseError], message: str) -> None:
    given = {"model": "cosmoflow", "gpu": "v100", "offline": True, **asked}
    with pytest.raises(kind, match=message):
        flopwise.io(given.pop("model"), **given)
