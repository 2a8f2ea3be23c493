"""What one training sample is: its FLOP, the bytes fed and the bytes stored, as rows of data/samples.csv.

A row gives what the catalog of models does not: how the records of a benchmark are stored, what profilers counted, what
runs achieved. Networks of convolutions, and denoisers of images, stand in data/convolutions.csv, one line a layer.
"""

from __future__ import annotations

from typing import Literal

from flopwise import units
from flopwise.facts import tables
from flopwise.facts.tables import Bytes, Count, FactTable, SourcedRow
from flopwise.values import dataclass

OPERATIONS = (
    "norm", "relu", "add", "pool", "copy", "dropout", "group_norm", "layer_norm", "rms_norm", "silu", "gelu", "gate",
    "join", "modulate", "scale", "rope",
)  # fmt: skip
"""What may precede or follow a convolution or another product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample(SourcedRow):
    """One sample of a workload. None: not known, or as the model's own row has it."""

    name: str
    model: str  # its name in the catalog
    sample_bytes: Bytes  # as fed to the network
    batch: Count  # samples of one accelerator and step in the reference implementation
    precision: Literal["fp32", "tf32", "fp16", "bf16"]  # of the reference implementation
    sample: str  # what one sample is
    aliases: tuple[str, ...] = ()
    flops_per_sample: float | None = None  # forward and backward, as profiled
    record_bytes: Bytes | None = None  # as stored, where it is compressed
    tokens: Count | None = None  # of a text sample
    achieved_frac: float | None = None  # of the 16-bit peak, that a published run reached


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionLayer:
    """One layer: `outputs` channels from `inputs` by `taps` weights each, at `positions` places of a sample.

    Or an attention, with `keys`: of `positions` queries to so many, in heads of `head_dim`, `outputs` channels in all.
    """

    network: str
    layer: str
    inputs: int
    outputs: int
    taps: int
    positions: int
    repeats: int
    then: tuple[str, ...] = ()  # of OPERATIONS
    input_positions: int | None = None  # places of its input, said of a network's first layer; None: as many
    before: tuple[str, ...] = ()  # of OPERATIONS, on its input
    keys: int | None = None  # of an attention
    head_dim: int | None = None

    @property
    def weights(self) -> int:
        """Of all repeats, without biases and norms."""
        return 0 if self.keys is not None else self.inputs * self.outputs * self.taps * self.repeats

    @property
    def flops(self) -> int:
        """Forward, of one sample and all repeats; two for a multiplication with its addition."""
        if self.keys is not None:
            return 4 * self.positions * self.keys * self.outputs * self.repeats
        return 2 * self.weights * self.positions


def _operations(cell: str) -> tuple[str, ...]:
    operations = tuple(part for part in cell.split("+") if part)
    if wrong := [part for part in operations if part not in OPERATIONS]:
        raise ValueError(f"{wrong[0]}; allowed: {', '.join(OPERATIONS)}, joined by +")
    return operations


_whole = tables.whole(units.parse_count, "a whole number above 0")
SAMPLES = FactTable(
    file="samples.csv", meaning="one training sample of a workload: its FLOP and bytes", row=TrainingSample,
    key=("name",),
    readers={
        "flops_per_sample": tables.number(units.parse_count, "FLOP above 0"),
        "achieved_frac": tables.number(units.parse_count, "a share up to 1", high=1.0),
    },
)  # fmt: skip
CONVOLUTIONS = FactTable(
    file="convolutions.csv", meaning="a layer of a network of convolutions, or of a denoiser of images",
    row=ConvolutionLayer, key=("network", "layer"), dated=(), group=("network",),
    readers={
        "inputs": _whole, "outputs": _whole, "taps": _whole, "positions": _whole, "repeats": _whole,
        "input_positions": _whole, "then": _operations, "before": _operations, "keys": _whole, "head_dim": _whole,
    },
)  # fmt: skip
