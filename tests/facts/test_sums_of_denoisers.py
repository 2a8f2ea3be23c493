"""Transformers that denoise: parameters and work of a call, summed from the sizes in their configurations.

The same sums give what diffusers counts for FLUX.1-dev and SD3-medium, and the parameters that publishers state.
"""

from __future__ import annotations

import pytest

from flopwise.facts.models.catalog import load_model


class Sums:
    """Parameters, and floating-point operations of one call: two for a multiplication with its addition."""

    def __init__(self) -> None:
        self.parameters = self.flops = 0

    def linear(self, inputs: int, outputs: int, tokens: int, times: int = 1, *, bias: bool = True) -> None:
        self.parameters += (inputs * outputs + bias * outputs) * times
        self.flops += 2 * inputs * outputs * tokens * times

    def attend(self, queries: int, keys: int, width: int, times: int = 1) -> None:
        self.flops += 4 * queries * keys * width * times

    def weights(self, number: int, times: int = 1) -> None:
        self.parameters += number * times

    def embed(self, inputs: int, width: int, tokens: int = 1, *, bias: bool = True) -> None:
        """Two linear layers: of a time, of guidance, of pooled text, of a caption."""
        self.linear(inputs, width, tokens, bias=bias)
        self.linear(width, width, tokens, bias=bias)

    def feed(self, width: int, hidden: int, tokens: int, times: int) -> None:
        self.linear(width, hidden, tokens, times)
        self.linear(hidden, width, tokens, times)


def stable_diffusion_3(width: int, layers: int, *, normed: bool = True, dual: int = 0) -> Sums:
    """1,024 x 1,024 pixels, 333 text tokens; the first `dual` layers attend twice to the image (3.5 medium)."""
    s, image, text = Sums(), 4096, 333
    s.linear(64, width, image)
    s.embed(256, width)
    s.embed(2048, width)
    s.linear(4096, width, text)
    for layer in range(layers):
        last, twice = layer == layers - 1, layer < dual
        s.linear(width, (9 if twice else 6) * width, 1)
        s.linear(width, (2 if last else 6) * width, 1)
        s.linear(width, width, image, 8 if twice else 4)
        s.linear(width, width, text, 3 if last else 4)
        s.attend(image + text, image + text, width)
        s.attend(image, image, width, int(twice))
        s.feed(width, 4 * width, image, 1)
        s.feed(width, 4 * width, text, 0 if last else 1)
        s.weights(64, (6 if twice else 4) if normed else 0)
    s.linear(width, 2 * width, 1)
    s.linear(width, 64, image)
    return s


def double_blocks(s: Sums, width: int, blocks: int, image: int, text: int) -> None:
    """Streams of image and text, of weights of their own, that attend together."""
    s.linear(width, 6 * width, 1, 2 * blocks)
    for tokens in (image, text):
        s.linear(width, width, tokens, 4 * blocks)
        s.feed(width, 4 * width, tokens, blocks)
    s.attend(image + text, image + text, width, blocks)
    s.weights(128, 4 * blocks)


def flux(double: int, single: int, image: int, text: int, *, refined: bool = False) -> Sums:
    """FLUX.1, and HunyuanVideo with two layers that refine its text."""
    s, width, tokens = Sums(), 3072, image + text
    s.linear(64, width, image)
    for inputs in (256, 256, 768):
        s.embed(inputs, width)
    s.linear(4096, width, text)
    if refined:
        s.embed(4096, width)
        s.embed(256, width)
        s.weights(4 * width, 2)
        s.linear(width, width, text, 8)
        s.attend(text, text, width, 2)
        s.feed(width, 4 * width, text, 2)
        s.linear(width, 2 * width, 1, 2)
    double_blocks(s, width, double, image, text)
    s.linear(width, 3 * width, 1, single)
    s.linear(width, 7 * width, tokens, single)
    s.linear(5 * width, width, tokens, single)
    s.attend(tokens, tokens, width, single)
    s.weights(128, 2 * single)
    s.linear(width, 2 * width, 1)
    s.linear(width, 64, image)
    return s


def flux_2(width: int, double: int, single: int, joint: int, *, guided: bool) -> Sums:
    """FLUX.2: no biases, gated feed-forward blocks three times as wide, one modulation for all layers."""
    s, image, text = Sums(), 4096, 512
    tokens = image + text
    s.linear(128, width, image, bias=False)
    s.linear(joint, width, text, bias=False)
    for _ in range(1 + guided):
        s.embed(256, width, bias=False)
    s.linear(width, 15 * width, 1, bias=False)
    for part in (image, text):
        s.linear(width, width, part, 4 * double, bias=False)
        s.linear(width, 6 * width, part, double, bias=False)
        s.linear(3 * width, width, part, double, bias=False)
    s.linear(width, 9 * width, tokens, single, bias=False)
    s.linear(4 * width, width, tokens, single, bias=False)
    s.attend(tokens, tokens, width, double + single)
    s.weights(128, 4 * double + 2 * single)
    s.linear(width, 2 * width, 1, bias=False)
    s.linear(width, 128, image, bias=False)
    return s


def qwen_image() -> Sums:
    s, width, image, text = Sums(), 3072, 4096, 512
    s.linear(64, width, image)
    s.weights(3584)
    s.linear(3584, width, text)
    s.embed(256, width)
    double_blocks(s, width, 60, image, text)
    s.linear(width, 2 * width, 1)
    s.linear(width, 64, image)
    return s


def z_image() -> Sums:
    """30 layers over image and text, after two of each alone; those of the text have no modulation."""
    s, width, image, text = Sums(), 3840, 4096, 512
    s.linear(64, width, image)
    s.weights(2560)
    s.linear(2560, width, text)
    s.linear(256, 1024, 1)
    s.linear(1024, 256, 1)
    for tokens, layers, modulated in ((image, 2, True), (text, 2, False), (image + text, 30, True)):
        s.linear(width, width, tokens, 4 * layers, bias=False)
        s.linear(width, 3 * 10240, tokens, layers, bias=False)  # 8/3 of the width: gate, up and down are as large
        s.attend(tokens, tokens, width, layers)
        s.weights(2 * 128 + 4 * width, layers)
        s.linear(256, 4 * width, 1, layers if modulated else 0)
    s.weights(2 * width)
    s.linear(256, width, 1)
    s.linear(width, 64, image)
    return s


def crossed(
    width: int, hidden: int, layers: int, tokens: int, text: int, patch: int, norms: int, out: int = 0
) -> Sums:  # fmt: skip
    """Attention over the image or video, then to the text: PixArt, Wan, LTX. `norms`: their weights, in widths."""
    s = Sums()
    s.linear(patch, width, tokens)
    s.embed(4096, width, text)
    s.embed(256, width)
    s.linear(width, 6 * width, 1)
    s.linear(width, width, tokens, 6 * layers)
    s.linear(width, width, text, 2 * layers)
    s.attend(tokens, tokens + text, width, layers)
    s.feed(width, hidden, tokens, layers)
    s.weights((norms + 6) * width, layers)
    s.weights(2 * width)
    s.linear(width, out or patch, tokens)
    return s


def cogvideox() -> Sums:
    s, width, video, text = Sums(), 3072, 17550, 226
    s.linear(64, width, video)
    s.linear(4096, width, text)
    s.linear(width, 512, 1)
    s.linear(512, 512, 1)
    s.linear(512, 6 * width, 1, 84)
    s.linear(width, width, video + text, 168)
    s.attend(video + text, video + text, width, 42)
    s.feed(width, 4 * width, video + text, 42)
    s.weights(4 * width + 4 * 64, 42)
    s.weights(4 * width)
    s.linear(512, 2 * width, 1)
    s.linear(width, 64, video)
    return s


DENOISERS = [
    ("FLUX.1-dev transformer", flux(19, 38, 4096, 512), 11_901_408_320),  # as diffusers counts
    ("SD3-medium MMDiT", stable_diffusion_3(1536, 24, normed=False), 2_028_328_000),  # the same
    ("SD3.5-large MMDiT", stable_diffusion_3(2432, 38), 8.1e9),
    ("SD3.5-medium MMDiT-X", stable_diffusion_3(1536, 24, dual=13), 2.47e9 - 384 * 384 * 1536),  # without its positions
    ("FLUX.2-dev transformer", flux_2(6144, 8, 48, 15360, guided=True), 32e9),
    ("FLUX.2-klein-4B transformer", flux_2(3072, 5, 20, 7680, guided=False), 3.9e9),
    ("FLUX.2-klein-9B transformer", flux_2(4096, 8, 24, 12288, guided=False), 9.1e9),
    ("Qwen-Image transformer", qwen_image(), 20.4e9),
    ("Z-Image transformer", z_image(), 6.15e9),
    ("PixArt-Sigma transformer", crossed(1152, 4608, 28, 4096, 300, 16, 0, out=32), 610_856_096),
    ("Wan2.1-14B transformer", crossed(5120, 13824, 40, 32760, 512, 64, 6), 14.3e9),
    ("Wan2.1-1.3B transformer", crossed(1536, 8960, 30, 32760, 512, 64, 6), 1.42e9),
    ("Wan2.2-TI2V-5B transformer", crossed(3072, 14336, 30, 27280, 512, 192, 6), 5e9),
    ("CogVideoX-5B transformer", cogvideox(), 5.57e9),
    ("LTX-Video-2B transformer", crossed(2048, 8192, 28, 6144, 128, 128, 4), 1.92e9),
    ("HunyuanVideo transformer", flux(20, 40, 118800, 256, refined=True), 12.8e9),
]


@pytest.mark.parametrize(("name", "sums", "published"), DENOISERS, ids=[name for name, *_ in DENOISERS])
def test_a_denoiser_has_the_sums_of_its_layers(name: str, sums: Sums, published: float) -> None:
    figures = load_model(name).published
    assert figures is not None
    assert figures.parameters == sums.parameters
    assert figures.forward_flops_per_sample == sums.flops
    assert figures.training_flops_per_sample == 3 * sums.flops
    assert sums.parameters == pytest.approx(published, rel=0.01)
