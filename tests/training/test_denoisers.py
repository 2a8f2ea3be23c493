"""Denoisers of images: the speed of published runs, and devices apart by what limits them, not by their peak."""

from __future__ import annotations

import pytest

import flopwise
from flopwise.storage.bandwidth import StorageAnswer


def reads(model: str, gpu: str, batch: int) -> StorageAnswer:
    return flopwise.io(model, gpu=gpu, gpus=1, batch=batch)


def test_flux_trains_as_fast_as_published() -> None:
    """AI-Hypercomputer/maxdiffusion, docs of Flux training: 1.31 s a step of four images on the 4 chips of a v5p-8."""
    assert reads("flux", "tpu-v5p", 1).rate.samples_per_s == pytest.approx(1 / 1.31, rel=0.1)


def test_the_interval_of_a_diffusion_unet_holds_the_published_speed() -> None:
    """mosaicml/diffusion README: 290 images of 512 x 512 a second on eight A100, U-Net alone; its U-Net is as wide."""
    found = reads("SD 1.5 UNet", "a100-sxm-40", 16)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 290 / 8 * found.read_bytes <= found.high


@pytest.mark.parametrize("model", ["sdxl", "flux"])
def test_devices_lie_as_far_apart_as_their_bandwidths_and_their_peaks(model: str) -> None:
    """Norms and sums go with the bandwidth, products with the peak: the ratio lies between, and not at the peak's."""
    v100, a100, h100 = (reads(model, gpu, 8).achieved_flops_per_s for gpu in ("v100", "a100-sxm-40", "h100-sxm"))
    assert 1555 / 900 < a100 / v100 < 312 / 125 * 1.2
    assert 2.0 < h100 / a100 < 0.9 * 989 / 312


def test_a_single_image_on_a_fast_device_waits_for_the_host() -> None:
    """About 2,000 operations a pass: the time of launching them is no shorter on a faster device."""
    one, eight = (dict(reads("sdxl", "h100-sxm", batch).rate.parts) for batch in (1, 8))
    assert one["launch"] > 0
    assert eight["launch"] == 0


def test_activations_of_a_denoiser_are_counted() -> None:
    found = flopwise.memory("sdxl", task="train", gpu="h100-sxm", micro_batch=2)
    more = flopwise.memory("sdxl", task="train", gpu="h100-sxm", micro_batch=3)
    kept = [dict(answer.items)["activations"] for answer in (found, more)]
    assert kept[1] == pytest.approx(1.5 * kept[0])
    assert found.fits is not None
