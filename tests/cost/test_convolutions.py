"""Convolutional networks as matrix products: counted as the catalog counts them, never above the roofline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flopwise.cost.convolutions import FUSED_PASSES, JOINED_PASSES, convolution_step_s, usable_precision
from flopwise.cost.rates import Rates, rates
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.facts.samples import ConvolutionLayer
from named import FACTS

DENOISERS = ("SD 1.5 UNet", "SDXL base UNet", "FLUX.1-dev transformer")
NETWORKS = (
    "ResNet-18", "ResNet-50", "ResNet-101", "CosmoFlow (MLPerf HPC)", "U-Net 3D (MLPerf KiTS19)", *DENOISERS,
)  # fmt: skip


def _rates(name: str) -> Rates:
    return rates(load_facts().accelerator(name))


def _layers(name: str) -> tuple[ConvolutionLayer, ...]:
    found = FACTS.convolutions(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_count_the_operations_of_the_model(name: str) -> None:
    published = load_model(name, offline=True).published
    assert published is not None
    assert sum(layer.flops for layer in _layers(name)) == published.forward_flops_per_sample


@pytest.mark.parametrize("name", [*NETWORKS[:4], *DENOISERS])
def test_layers_have_the_weights_of_the_model(name: str) -> None:
    published = load_model(name, offline=True).published
    assert published is not None
    assert published.parameters is not None
    weights = sum(layer.weights for layer in _layers(name))
    assert 0 <= 1 - weights / published.parameters < 0.005, "the rest are biases and norms"


@pytest.mark.parametrize("gpu", ["V100-SXM2-16", "A100-SXM-80", "H100-SXM-80"])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_faster_than_the_roofline_and_larger_batches_no_slower_a_sample(name: str, gpu: str) -> None:
    device, batches = _rates(gpu), np.array([1, 2, 8, 64])
    for precision in ("fp32", "tf32", "fp16"):
        dtype = usable_precision(device, precision)
        seconds = np.asarray(convolution_step_s(device, _layers(name), batches, precision).seconds)
        flops = 2.9 * sum(layer.flops for layer in _layers(name)) * batches  # the first layer lacks one product
        assert (seconds > flops / device.peak_flops_per_s(dtype)).all()
        assert (np.diff(seconds / batches) <= 1e-12).all()
        assert (np.diff(seconds) > 0).all()


def test_attention_is_counted_as_its_two_products() -> None:
    """1,024 queries to 77 keys in 20 heads of 64: scores and what they weigh, 2 x 2 x 1,024 x 77 x 1,280."""
    layer = ConvolutionLayer(
        network="one", layer="cross", inputs=1280, outputs=1280, taps=1, positions=1024, repeats=3, keys=77, head_dim=64
    )
    assert layer.flops == 3 * 4 * 1024 * 77 * 1280
    assert layer.weights == 0
    device = _rates("A100-SXM-80")
    wide = replace(layer, keys=4096, positions=4096, repeats=1)
    seconds = float(convolution_step_s(device, [wide], 8, "bf16").convolutions_s)
    least = (1 + 2.5) * 8 * wide.flops / device.peak_flops_per_s("bf16")  # the backward pass makes scores again
    assert least < seconds < 4 * least


def test_a_host_that_launches_slower_than_the_device_runs_sets_the_step() -> None:
    """Three launches of each of four operations, 45 us apiece; a large batch hides them."""
    device = _rates("H100-SXM-80")
    layer = ConvolutionLayer(
        network="one", layer="block", inputs=64, outputs=64, taps=1, positions=64, repeats=1, before=("group_norm",),
        then=("silu", "add"),
    )  # fmt: skip
    small, large = (convolution_step_s(device, [layer], batch, "bf16", 45e-6) for batch in (1, 200_000))
    busy = float(small.convolutions_s + small.pointwise_s)
    assert float(small.launch_s) + busy == pytest.approx(3 * 4 * 45e-6)
    assert float(large.launch_s) == 0.0


def test_what_precedes_a_product_moves_its_input() -> None:
    """GroupNorm 8 and SiLU 5 passes over the 320 channels that go in, GEGLU 8.5 over the 2,560 that come out."""
    device, size = _rates("A100-SXM-80"), 16 * 4096
    layer = ConvolutionLayer(
        network="one", layer="wide", inputs=320, outputs=2560, taps=1, positions=4096, repeats=1,
        before=("group_norm", "silu"), then=("gate",),
    )  # fmt: skip
    moved = float(convolution_step_s(device, [layer], 16, "bf16").pointwise_s)
    stream = device.read_bytes_per_s * device.value["pointwise_frac"]
    assert moved == pytest.approx((13 * 320 + 8.5 * 2560) * size * 2 / stream, rel=0.02)


def test_columns_are_rows_and_parts_sum() -> None:
    device, layers = _rates("A100-SXM-80"), _layers("ResNet-50")
    column = np.asarray(convolution_step_s(device, layers, np.array([3, 50]), "tf32").seconds)
    for index, batch in enumerate((3, 50)):
        parts = convolution_step_s(device, layers, batch, "tf32")
        assert float(parts.seconds) == pytest.approx(column[index])
        assert float(parts.seconds) == pytest.approx(sum(float(part) for part in parts))


def test_tf32_runs_in_fp32_where_there_is_none() -> None:
    assert usable_precision(_rates("V100-SXM2-16"), "tf32") == "fp32"
    assert usable_precision(_rates("A100-SXM-80"), "tf32") == "tf32"
    assert usable_precision(_rates("TPU v4"), "tf32") == "bf16"
    assert usable_precision(_rates("V100-SXM2-16"), "bf16") == "fp16"
    with pytest.raises(SpecError, match="allowed: fp32, tf32, fp16, bf16"):
        usable_precision(_rates("A100-SXM-80"), "fp8")


def test_rows_of_samples_name_models_and_stored_records_are_smaller() -> None:
    assert {"cosmoflow", "deepcam", "resnet50", "unet3d", "tiramisu", "bert"} <= FACTS.samples.keys()
    for row in FACTS.samples.values():
        model = load_model(row.model, offline=True)
        assert model.name == row.model
        assert row.record_bytes is None or row.record_bytes <= row.sample_bytes
        assert bool(model.stacks) == (row.tokens is not None)
    assert FACTS.sample("Cosmo-Flow") is FACTS.sample("cosmoflow")
    assert FACTS.sample("") is None


def test_what_follows_a_norm_in_16_bits_runs_with_it() -> None:
    """ResNet's block, by hand: norm 8 passes over the output, ReLU none, the sum 2; in TF32 8, 5 and 4."""
    device = _rates("A100-SXM-80")
    layer = ConvolutionLayer(
        network="one", layer="block", inputs=64, outputs=256, taps=1, positions=3136, then=("norm", "add", "relu"),
        repeats=1,
    )  # fmt: skip
    output = 32 * 3136 * 256
    stream = device.read_bytes_per_s * device.value["pointwise_frac"]
    for precision, passes, nbytes in (("fp16", 8 + 2, 2), ("tf32", 8 + 4 + 5, 4)):
        parts = convolution_step_s(device, [layer], 32, precision)
        assert float(parts.pointwise_s) == pytest.approx(passes * output * nbytes / stream, rel=0.05)
    bare = convolution_step_s(device, [replace(layer, then=("relu",))], 32, "fp16")
    assert float(bare.pointwise_s) == pytest.approx(5 * output * 2 / stream, rel=0.05)


def test_norms_in_the_kernels_of_convolutions_move_half() -> None:
    """By hand: a norm 4 passes over the output, ReLU none, a sum 4; nothing is joined in 32 bits or without a norm."""
    device = _rates("H100-SXM-80")
    layer = ConvolutionLayer(
        network="one", layer="block", inputs=64, outputs=256, taps=1, positions=3136, then=("norm", "relu"), repeats=1
    )
    output, stream = 32 * 3136 * 256, device.read_bytes_per_s * device.value["pointwise_frac"]
    for then, passes in ((("norm", "relu"), 4), (("norm", "add", "relu"), 4 + 4)):
        moved = convolution_step_s(
            device, [replace(layer, then=then)], 32, "fp16", norm_passes=JOINED_PASSES
        ).pointwise_s
        assert float(moved) == pytest.approx(passes * output * 2 / stream, rel=0.05)
    for one, precision in ((layer, "tf32"), (replace(layer, then=("relu",)), "fp16")):
        ways = FUSED_PASSES, JOINED_PASSES
        plain, joined = (convolution_step_s(device, [one], 32, precision, norm_passes=way).seconds for way in ways)
        assert float(plain) == float(joined)


@pytest.mark.parametrize(("gpu", "low", "high"), [("V100-SXM2-16", 35e12, 50e12), ("A100-SXM-80", 70e12, 160e12)])
def test_cosmoflow_reaches_what_its_source_measured(gpu: str, low: float, high: float) -> None:
    """Ibrahim et al. 2021: 35 to 50 TFLOP/s on a V100 in mixed precision, one sample a step."""
    sample = FACTS.sample("cosmoflow")
    assert sample is not None
    assert sample.precision == "fp16"
    step = convolution_step_s(_rates(gpu), _layers("CosmoFlow (MLPerf HPC)"), 1, "fp16")
    assert low < float(sample.flops_per_sample or 0) / float(step.seconds) < high
