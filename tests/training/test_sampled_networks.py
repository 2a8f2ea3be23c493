"""Training of networks that are known by their samples: steps, memory and runs by hand, and published throughput."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise.cli import main
from flopwise.cost.convolutions import convolution_step_s
from flopwise.cost.rates import rates
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.samples import ConvolutionLayer
from flopwise.training.sampled_answer import SampledTrainAnswer
from flopwise.training.sampled_memory import kept_sample
from named import FACTS

RESNET_50 = 25_557_032
"""Parameters of ResNet-50."""


def trained(model: str, **asked: Any) -> SampledTrainAnswer:
    """The answer of `train`, which is of a network that is known by its samples."""
    found: Any = flopwise.train(model, **asked)
    assert isinstance(found, SampledTrainAnswer)
    return found


@pytest.mark.parametrize(("gpu", "published", "near"), [
    ("A100-SXM-80", 2470.0, 0.10), ("V100-SXM2-16", 1200.0, 0.20), ("8xA100-SXM-80", 16621.0, 0.20),
    ("8xV100-SXM2-16", 8322.0, 0.20), ("V100-SXM2-32", 1156.0, 0.20),
])  # fmt: skip
def test_resnet_50_trains_as_fast_as_published(gpu: str, published: float, near: float) -> None:
    """NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5, pytorch-21.03, mixed precision: DGX A100 and DGX-1.

    None of these figures has made a constant.
    """
    found = trained("resnet50", gpu=gpu).estimate
    gpus = found.job.num_gpus
    assert found.rate.precision == "fp16"
    assert found.low * gpus < published < found.high * gpus
    assert found.samples_per_s == pytest.approx(published, rel=near)
    assert found.lower_bound_s < found.job.global_batch / published < found.upper_bound_s


@pytest.mark.parametrize(
    ("gpu", "record"), [("H100-SXM-80", 6900.0), ("A100-SXM-80", 2750.0), ("V100-SXM2-16", 1400.0)]
)
def test_resnet_50_of_records_joins_its_norms_with_convolutions(gpu: str, record: float) -> None:
    """MLPerf Training: about 6,900 images/s of an H100, in MXNet 2,750 of an A100 and 1,400 of a V100."""
    plain, joined = (trained("resnet50", gpu=gpu, **stack).estimate for stack in ({}, {"stack": "nemo"}))
    assert joined.samples_per_s == pytest.approx(record, rel=0.15)
    assert joined.low < record < joined.high
    assert plain.samples_per_s < joined.samples_per_s
    [note] = [one for one in plain.assumptions if "norms are kernels of their own, as fsdp-eager" in one]
    assert note.endswith("times as fast (train --stack nemo)")
    faster = float(note.partition("make a step ")[2].split()[0])
    assert faster == pytest.approx(
        joined.samples_per_s / plain.samples_per_s, rel=0.01
    )  # but for the optimizer's update
    assert not any("kernels of their own" in one for one in joined.assumptions)


@pytest.mark.parametrize(("gpu", "batch", "published"), [
    ("RTX 8000", 448, 651.0), ("V100-SXM2-16", 256, 833.0), ("RTX 3090", 448, 905.0), ("A10", 448, 638.0),
    ("A100-PCIe-40", 640, 1396.0), ("A100-PCIe-80", 1280, 1527.0), ("A100-SXM-80", 1280, 1582.0),
    ("RTX 6000 Ada", 928, 1146.0), ("RTX A6000", 928, 916.0), ("RTX 4090", 448, 1301.0),
    ("H100-PCIe-80", 1280, 1866.0), ("H100-SXM-80", 1280, 2705.0),
])  # fmt: skip
def test_channels_first_cost_what_lambda_measured(gpu: str, batch: int, published: float) -> None:
    """lambdal/deeplearning-benchmark, pytorch-train-throughput-fp16.csv (2023): DeepLearningExamples' ResNet-50 under
    AMP without its option for channels last, on synthetic data; H100 SXM: the middle of 2,616 and 2,794.

    None of these figures has made a constant; each lies between kernels that take channels first and turned operands.
    """
    found = trained("resnet50", gpu=gpu, micro_batch=batch).estimate
    [note] = [one for one in found.assumptions if one.startswith("channels come last; ")]
    least, _, most = note.partition("a step takes ")[2].removesuffix(" times as long").partition(" to ")
    assert found.samples_per_s / float(most) < published < 1.05 * found.samples_per_s / float(least)


def test_turned_operands_are_six_passes_each() -> None:
    """By hand: a product of 64 to 256 channels at 100 positions in 16 bits turns 2 x 100 x 320 bytes six times."""
    layer = ConvolutionLayer(
        network="", layer="", inputs=64, outputs=256, taps=1, positions=100, repeats=1, then=("norm", "relu")
    )
    own, batch = rates(FACTS.accelerator("A100-SXM-80")), np.array(1e6)
    norms: tuple[dict[str, Any], ...] = ({}, {"norm_passes": {}}, {"norm_passes": {}, "transposed": True})
    last, first, turned = (convolution_step_s(own, [layer, layer], batch, "fp16", **ways) for ways in norms)
    per_byte = float(turned.pointwise_s - first.pointwise_s) / (2 * 6 * 2 * 100 * 320 * 1e6)
    assert per_byte == pytest.approx(1 / own.read_bytes_per_s, rel=0.02)
    assert float(first.pointwise_s - last.pointwise_s) / (2 * 5 * 2 * 100 * 256 * 1e6) == pytest.approx(
        per_byte, rel=0.02
    )
    assert last.convolutions_s == first.convolutions_s == turned.convolutions_s


def test_a_step_is_its_layers_twice_an_update_and_messages() -> None:
    """Two passes of 128 images, one update of 25.6 M weights; a quarter of a gradient of 102 MB is a bucket."""
    asked = {"gpu": "A100-SXM-80", "gpus": 16, "global_batch": 16 * 256, "micro_batch": 128}
    found = trained("resnet50", **asked, network=1e8, optimizer="sgd-momentum").estimate
    layers = FACTS.convolutions("ResNet-50")
    assert layers is not None
    device = rates(FACTS.accelerator("A100-SXM-80"))
    once = convolution_step_s(device, layers, 128, "fp16")
    passes = 2 * float(once.convolutions_s + once.pointwise_s)
    parts = dict(found.breakdown)
    assert parts["forward"] == pytest.approx(passes / 3, rel=1e-9)
    assert parts["backward"] == pytest.approx(2 * passes / 3, rel=1e-9)
    stream = device.read_bytes_per_s * device.value["pointwise_frac"]
    assert parts["optimizer"] == pytest.approx(5 * 4 * RESNET_50 / stream + device.value["kernel_s"], rel=0.02)
    # two nodes of eight: an eighth of the gradients crosses 0.1 GB/s of each GPU, half of it there, half of it back
    crossing = 4 * RESNET_50 / 8 / 1e8
    assert crossing - parts["backward"] / 2 < parts["data_parallel"] < 1.5 * crossing
    assert found.step_s == pytest.approx(sum(parts.values()))
    assert found.samples_per_s == pytest.approx(16 * 256 / found.step_s)
    fast = trained("resnet50", **asked).estimate
    assert fast.efficiency_frac > 0.95 > found.efficiency_frac


def test_memory_is_states_and_what_layers_keep() -> None:
    """SGD with momentum: 12 bytes a parameter and 2 of the copy in 16 bits; 21.7 M values an image of two bytes."""
    found = trained("resnet50", gpu="A100-SXM-80", micro_batch=64, optimizer="sgd-momentum")
    assert found.memory is not None
    items = dict(found.memory.items)
    assert items["weights"] == items["gradients"] == items["optimizer states"] == 4.0 * RESNET_50
    assert items["weights in 16 bits"] == 2.0 * RESNET_50
    layers = FACTS.convolutions("ResNet-50")
    assert layers is not None
    sample = kept_sample(layers)
    assert items["activations"] == 64 * (2 * sample.elements + 8 * 64 * 56 * 56)
    assert items["samples"] == 64 * 3 * 224 * 224 * (4 + 2)
    assert items["gradients of activations"] == 2 * 64 * 64 * 112 * 112 * 2
    allocated = sum(items.values()) - items["allocator, driver context and communicators"]
    stack = FACTS.stack("fsdp-eager")
    assert found.memory.per_gpu_bytes == pytest.approx(
        allocated * (1 + stack.fragmentation_frac) + stack.context_bytes
    )  # fmt: skip
    plain = trained("resnet50", gpu="A100-SXM-80", micro_batch=64, precision="fp32").memory
    assert plain is not None
    assert dict(plain.items)["optimizer states"] == 8.0 * RESNET_50
    assert "weights in 16 bits" not in dict(plain.items)
    assert dict(plain.items)["activations"] == 64 * (4 * sample.elements + 8 * 64 * 56 * 56)
    alone = flopwise.memory("resnet50", task="train", gpu="A100-SXM-80", micro_batch=64, optimizer="sgd-momentum")
    assert alone.per_gpu_bytes == found.memory.per_gpu_bytes


def test_the_memory_of_a_replica_is_that_of_its_part_of_the_global_batch() -> None:
    asked: dict[str, Any] = {"task": "train", "gpu": "A100-SXM-80"}
    one = flopwise.memory("resnet50", **asked, micro_batch=64).per_gpu_bytes
    assert flopwise.memory("resnet50", **asked, dp=8, global_batch=512).per_gpu_bytes == one
    assert flopwise.memory("resnet50", task="train", gpu="8xA100-SXM-80", global_batch=512).per_gpu_bytes == one
    with pytest.raises(SpecError, match="does not divide over 8 devices"):
        flopwise.memory("resnet50", **asked, dp=8, global_batch=100)
    with pytest.raises(SpecError, match="a replica on each of the 4 devices"):
        flopwise.memory("resnet50", task="train", gpu="4xA100-SXM-80", dp=8, micro_batch=8)


def test_batches_go_as_far_as_memory_and_what_does_not_fit_says_what_would() -> None:
    small = trained("resnet50", gpu="RTX 2080")
    assert small.fits
    assert small.estimate.job.recipe.batch < 256
    assert any("the most that fits of the reference's 256" in text for text in small.assumptions)
    large = trained("resnet50", gpu="T4", micro_batch=512)
    assert large.fits is False
    assert "It would fit with a batch of 256 on each device" in large.verdict
    added = trained("resnet50", gpu="RTX 2080", global_batch=512).estimate.job
    assert added.global_batch == 512
    assert added.micro_steps > 1


def test_a_run_takes_its_steps_and_costs_its_hours() -> None:
    """1,281,167 images, 90 times, at 2,048 a step: 56,301 steps."""
    found = trained("resnet50", gpu="8xA100-SXM-80", samples=1_281_167, epochs=90, price=2.0)
    run = found.estimate.run
    assert run is not None
    assert run.steps == pytest.approx(1_281_167 * 90 / 2048)
    assert run.seconds == pytest.approx(run.steps * found.estimate.step_s, rel=1e-3)
    assert run.cost_usd == pytest.approx(8 * 2.0 * (run.seconds + run.start_s) / 3600, rel=1e-6)
    assert run.checkpoint_bytes == 12.0 * RESNET_50, "weights and the two states of Adam"
    assert found.unit_usd["epoch"] == pytest.approx((run.cost_usd or 0.0) / 90)
    ends = found.run_ends()
    assert (ends["seconds_low"] or 0.0) < run.seconds < (ends["seconds_high"] or 0.0)


@pytest.mark.parametrize(("model", "layers"), [
    ("unet3d", True), ("cosmoflow", True), ("deepcam", False), ("tiramisu", False), ("sdxl", True), ("flux", True),
])  # fmt: skip
def test_what_io_knows_trains(model: str, layers: bool) -> None:
    found, reads = trained(model, gpu="A100-SXM-80"), flopwise.io(model, gpu="A100-SXM-80", gpus=1)
    assert (found.estimate.rate.origin == "layers") == layers
    assert found.estimate.samples_per_s == pytest.approx(reads.rate.samples_per_s, rel=0.02)
    assert found.estimate.low < found.estimate.samples_per_s_per_gpu < found.estimate.high
    if not layers:
        assert found.fits is not True, "activations are not known"


def test_memory_divides_the_global_batch_as_training_does() -> None:
    """2,048 samples on 4 devices: 512 each, in one pass, in two of 256, or in eight of 64."""

    def batch(**asked: Any) -> str:
        found = flopwise.memory("resnet50", task="train", gpu="4xA100-SXM-80", global_batch=2048, **asked)
        return dict(found.settings)["batch"]

    assert batch() == "512 on each device"
    assert batch(grad_accum=2) == "256 on each device, gradients of 2 passes added up"
    assert batch(micro_batch=64) == "64 on each device, gradients of 8 passes added up"
    assert batch(micro_batch=64, grad_accum=8) == batch(micro_batch=64)
    trained_so = trained("resnet50", gpu="4xA100-SXM-80", global_batch=2048, micro_batch=64)
    assert dict(trained_so.settings)["batch"] == batch(micro_batch=64)
    with pytest.raises(SpecError, match="2,048 is not the 1,024 of 4 devices x 4 passes x micro-batch 64"):
        batch(micro_batch=64, grad_accum=4)
    with pytest.raises(SpecError, match="60 does not divide the 512 samples"):
        batch(micro_batch=60)
    with pytest.raises(SpecError, match="does not divide over 4 devices and 3 passes"):
        batch(grad_accum=3)


def test_options_of_tokens_are_refused_by_name() -> None:
    for asked in ({"seq": 512}, {"tp": 2, "gpus": 2}, {"lora": 8}, {"zero": 3}, {"tokens": 1e9}):
        with pytest.raises(SpecError, match="only for models with token layers; resnet50 is trained on whole samples"):
            flopwise.train("resnet50", gpu="h100", **asked)
    with pytest.raises(SpecError, match="`flopwise io` estimates"):
        flopwise.train("resnet50", gpu="h100", storage="s3")
    with pytest.raises(SpecError, match="does not divide over 8"):
        flopwise.train("resnet50", gpu="8xh100", global_batch=100)
    with pytest.raises(SpecError, match="give its length"):
        flopwise.train("resnet50", gpu="8xh100", mtbf="2h")
    with pytest.raises(SpecError, match="shorter than the 2,048 of one step"):
        flopwise.train("resnet50", gpu="8xh100", samples=1000)
    with pytest.raises(MissingFactError, match="its parameters are not known"):
        flopwise.memory("tiramisu", task="train", gpu="h100")
    with pytest.raises(SpecError, match="only models with token layers can be explained"):
        flopwise.explain("train", "resnet50", gpu="h100")


@pytest.mark.parametrize(("words", "code", "said"), [
    (["train", "resnet50", "--gpu", "8xv100", "--samples", "1.28M", "--epochs", "90"], 0, "The run: 115 M samples"),
    (["train", "flux", "--gpu", "h100"], 1, "WARNING: this does not fit the memory"),
    (["train", "sdxl", "--gpu", "8xh100"], 0, "bound by host"),
    (["train", "deepcam", "--gpu", "a100"], 0, "77.54 GiB: whether it fits is not known"),
    (["memory", "deepcam", "--task", "train", "--gpu", "a100"], 0, "77.54 GiB: whether it fits is not known"),
    (["train", "sdxl", "--gpu", "h100", "--micro-batch", "2", "--explain"], 0, "samples per second"),
    (["memory", "resnet50", "--task", "train", "--gpu", "v100"], 0, "Fits 1 x V100-SXM2-16"),
    (["train", "resnet50", "--gpu", "h100", "--explain"], 0, "samples per second"),
])  # fmt: skip
def test_the_command_line_shows_them(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    shown = "".join(capsys.readouterr())
    assert said in shown
    assert "e+0" not in shown


def test_the_document_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "resnet50", "--gpu", "a100-80gb", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples_per_s"] == pytest.approx(found["global_batch"] / found["step_s"])
    assert sum(part["seconds"] for part in found["breakdown"]) == pytest.approx(found["step_s"])
    assert found["memory"]["fits"] is found["fits"] is True


def test_an_update_moves_the_states_that_an_optimizer_has() -> None:
    """Bytes a parameter: 12 of weight and gradient, and each state twice; two states of 8 bits are 2.03 bytes."""
    device = rates(FACTS.accelerator("A100-SXM-80"))
    stream = device.read_bytes_per_s * device.value["pointwise_frac"]
    for optimizer, each in (("sgd", 0.0), ("adamw-8bit", 2.03125), ("adafactor-momentum", 4.01), ("adamw", 8.0)):
        found = trained("resnet50", gpu="A100-SXM-80", micro_batch=64, optimizer=optimizer).estimate
        moved = RESNET_50 * (12 + 2 * each)
        update_s = dict(found.breakdown)["optimizer"]
        assert update_s == pytest.approx(moved / stream + device.value["kernel_s"], rel=0.02)
    with pytest.raises(SpecError, match="muon"):
        flopwise.train("resnet50", gpu="A100-SXM-80", optimizer="muon")


def test_formats_are_refused_with_and_without_a_device() -> None:
    devices: tuple[dict[str, Any], ...] = ({}, {"gpu": "A100-SXM-80"})
    for device in devices:
        with pytest.raises(SpecError, match="precision 'fp8' of convolutions; allowed: fp32, tf32"):
            flopwise.memory("resnet50", task="train", precision="fp8", **device)
    wide, narrow = (
        flopwise.memory("resnet50", task="train", micro_batch=8, precision=p).items for p in ("fp32", "bf16")
    )
    assert dict(narrow)["activations"] < dict(wide)["activations"]


def test_memory_notes_what_an_ambiguous_name_was_read_as() -> None:
    notes = trained("resnet50", gpu="a100").assumptions
    (which,) = (note for note in notes if "40" in note and "80" in note)
    assert which in flopwise.memory("resnet50", gpu="a100", task="train").assumptions


def test_what_does_not_fit_names_one_batch_and_narrower_products() -> None:
    """The largest half that fits, not the next as well."""
    found = trained("resnet50", gpu="V100-SXM2-16", micro_batch=256, precision="fp32").memory
    assert found is not None
    batches = [one for one in found.remedies if one.change.startswith("a batch of ")]
    assert len(batches) == 1 < len(found.remedies)
    assert batches[0].fits
    (half,) = (int(word.replace(",", "")) for word in batches[0].change.split() if word.replace(",", "").isdigit())
    twice = trained("resnet50", gpu="V100-SXM2-16", micro_batch=2 * half, precision="fp32")
    assert twice.fits is False


DLIO = [
    ("resnet50", "a100-80gb", "tf32", 400, 919.5), ("resnet50", "h100", "tf32", 400, 1785.7),
    ("unet3d", "a100-80gb", "tf32", 7, 11.006), ("unet3d", "h100", "tf32", 7, 21.67),
    ("unet3d", "v100", "fp32", 4, 2.940), ("cosmoflow", "a100-80gb", "tf32", 1, 181.5),
    ("cosmoflow", "h100", "tf32", 1, 285.7), ("resnet50", "v100", "fp32", 64, 328.2),
]  # fmt: skip
"""Samples a second of a device by the computation times of argonne-lcf/dlio_benchmark's workloads."""


@pytest.mark.parametrize(("network", "gpu", "precision", "batch", "measured"), DLIO)
def test_networks_train_in_the_precision_of_their_reference(
    network: str, gpu: str, precision: str, batch: int, measured: float
) -> None:
    found = trained(network, gpu=gpu, precision=precision, micro_batch=batch).estimate
    assert found.rate.precision == precision
    assert found.low < measured < found.high
    assert found.samples_per_s == pytest.approx(measured, rel=0.25)


def test_resnet_50_in_tf32_is_as_fast_as_published() -> None:
    """NVIDIA DeepLearningExamples, PyTorch ResNet-50 v1.5, DGX A100: 938 images/s of one GPU in TF32."""
    found = trained("resnet50", gpu="A100-SXM-80", precision="tf32", micro_batch=256).estimate
    assert found.samples_per_s == pytest.approx(938.0, rel=0.05)


@pytest.mark.parametrize("network", ["resnet50", "unet3d", "cosmoflow", "deepcam", "tiramisu", "SDXL", "FLUX.1-dev"])
def test_tf32_lies_between_fp32_and_16_bits(network: str) -> None:
    """On an A100: eight times the products of fp32, half of those of 16 bits, as many bytes as fp32."""
    batch = 32 if network == "resnet50" else 1  # one image alone waits for the host
    rate = {
        precision: trained(network, gpu="a100-80gb", precision=precision, micro_batch=batch).estimate.samples_per_s
        for precision in ("fp32", "tf32", "bf16")
    }
    assert rate["fp32"] < rate["tf32"] < rate["bf16"]
    assert rate["tf32"] < 8.01 * rate["fp32"]
    if network == "tiramisu":  # of unknown size
        return
    needs = [
        dict(flopwise.memory(network, task="train", micro_batch=1, precision=one).items) for one in ("fp32", "tf32")
    ]
    assert needs[0] == needs[1]


def test_a_device_without_tf32_says_so() -> None:
    found, plain = (trained("unet3d", gpu="v100", precision=p, micro_batch=4) for p in ("tf32", "fp32"))
    assert "V100-SXM2-16 has no tf32 units: trained in fp32" in found.assumptions
    assert found.estimate.samples_per_s == plain.estimate.samples_per_s
    assert not any("no tf32 units" in note for note in plain.assumptions)
