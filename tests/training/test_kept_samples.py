"""What a convolutional network keeps for its backward pass: against PyTorch's own saved tensors, and by hand."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.facts.samples import ConvolutionLayer
from flopwise.training.sampled_memory import kept_sample
from named import FACTS

torch = pytest.importorskip("torch")


def _kept(module: Any, *shape: int) -> tuple[float, float]:
    """(bytes of fp32 results, bytes in other formats) that autograd keeps of a batch, the input and weights apart."""
    with torch.device("meta"):
        given = torch.zeros(shape)
    weights = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers(), given)}
    found: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage()._cdata not in weights and tensor.numel() > 10_000:
            found[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module.train()(given)
    sizes = [(t.dtype, t.numel() * t.element_size()) for t in found.values()]
    return (
        float(sum(size for dtype, size in sizes if dtype == torch.float32)),
        float(sum(size for dtype, size in sizes if dtype != torch.float32)),
    )


@pytest.mark.parametrize(("name", "depths", "kind"), [
    ("ResNet-50", [3, 4, 6, 3], "bottleneck"), ("ResNet-18", [2, 2, 2, 2], "basic"),
    ("ResNet-101", [3, 4, 23, 3], "bottleneck"),
])  # fmt: skip
def test_a_residual_network_keeps_what_pytorch_saves(name: str, depths: list[int], kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    widths = [256, 512, 1024, 2048] if kind == "bottleneck" else [64, 128, 256, 512]
    config = transformers.ResNetConfig(depths=depths, layer_type=kind, hidden_sizes=widths, num_labels=1000)
    with torch.device("meta"):
        model = transformers.ResNetForImageClassification(config)
    layers = FACTS.convolutions(name)
    assert layers is not None
    sample = kept_sample(layers)
    results, other = _kept(model, 4, 3, 224, 224)
    assert 4 * 4 * sample.elements == pytest.approx(results, rel=2e-3)
    assert 4 * sample.other_bytes == pytest.approx(other, rel=1e-9)
    assert sample.input_elements == 3 * 224 * 224
    assert sum(layer.weights for layer in layers) == pytest.approx(sum(p.numel() for p in model.parameters()), rel=5e-3)


def _layer(inputs: int, outputs: int, taps: int, positions: int, *then: str) -> ConvolutionLayer:
    return ConvolutionLayer(
        network="n", layer="l", inputs=inputs, outputs=outputs, taps=taps, positions=positions, repeats=1, then=then
    )


def test_pooling_dropout_and_joins_keep_what_pytorch_saves() -> None:
    """A small network of each kind of layer; sizes far above 10,000, so that statistics of norms are left out."""
    nn = torch.nn

    class Joined(nn.Module):  # type: ignore[name-defined,misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 16, 3, padding=1)
            self.pool, self.relu, self.drop = nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.5)
            self.second = nn.Conv2d(16, 32, 3, padding=1)
            self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
            self.third = nn.Conv2d(32, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)

        def forward(self, image: Any) -> Any:
            above = self.relu(self.first(image))
            below = torch.native_dropout(self.relu(self.second(self.pool(above))), p=0.5, train=True)[0]
            return self.norm(self.third(torch.cat([above, self.up(below)], dim=1))).sum()

    with torch.device("meta"):
        model = Joined()
    results, other = _kept(model, 8, 3, 64, 64)
    layers = [
        _layer(3, 16, 9, 4096, "relu", "pool"), _layer(16, 32, 9, 1024, "relu", "dropout"),
        _layer(32, 16, 1, 4096, "copy"), _layer(32, 8, 9, 4096, "norm"),
    ]  # fmt: skip
    sample = kept_sample(layers)
    by_hand = 16 * 4096 + 16 * 1024 + 2 * 32 * 1024 + 32 * 4096 + 8 * 4096
    assert sample.elements == by_hand == results / 4 / 8
    assert sample.other_bytes == 8 * 16 * 1024 + 32 * 1024 == other / 8
    assert sample.nbytes(2.0) == 2 * by_hand + 163_840
    assert sample.widest == 16 * 4096
