"""What one training sample is: its FLOP, the bytes fed and the bytes stored, as rows of data/samples.csv.

A row gives what the catalog of models does not: how the records of a benchmark are stored, what profilers counted, what
runs achieved. Networks whose layers are convolutions stand in data/convolutions.csv, one line a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from flopwise import units
from flopwise.data import DATA
from flopwise.errors import fold
from flopwise.facts import tables

OPERATIONS = ("norm", "relu", "add", "pool", "copy", "dropout")
"""What may follow a convolution."""
_SAMPLE_COLUMNS: dict[str, tables.Reader] = {
    "name": tables.text,
    "aliases": tables.text,
    "model": tables.text,
    "flops_per_sample": tables.number(units.parse_count, "FLOP above 0"),
    "sample_bytes": tables.size_bytes,
    "record_bytes": tables.size_bytes,
    "tokens": tables.count,
    "batch": tables.count,
    "precision": tables.choice("fp32", "tf32", "fp16", "bf16"),
    "achieved_frac": tables.number(units.parse_count, "a share up to 1", high=1.0),
    "sample": tables.text,
    "source": tables.text,
    "date": tables.date,
    "confidence": tables.confidence,
    "notes": tables.text,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of a workload. None: not known, or as the model's own row has it."""

    name: str
    model: str  # its name in the catalog
    sample_bytes: float  # as fed to the network
    batch: int  # samples of one accelerator and step in the reference implementation
    precision: str  # of the reference implementation
    sample: str  # what one sample is
    source: str
    date: str
    confidence: str
    aliases: str = ""
    flops_per_sample: float | None = None  # forward and backward, as profiled
    record_bytes: float | None = None  # as stored, where it is compressed
    tokens: int | None = None  # of a text sample
    achieved_frac: float | None = None  # of the 16-bit peak, that a published run reached
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One layer: `outputs` channels from `inputs` by `taps` weights each, at `positions` places of a sample."""

    network: str
    layer: str
    inputs: int
    outputs: int
    taps: int
    positions: int
    repeats: int
    then: tuple[str, ...]  # of OPERATIONS

    @property
    def flops(self) -> int:
        """Forward, of one sample and all repeats; two for a multiplication with its addition."""
        return 2 * self.inputs * self.outputs * self.taps * self.positions * self.repeats


@cache
def samples() -> Mapping[str, Sample]:
    """All samples by name."""
    rows = tables.read_table(DATA / "samples.csv", _SAMPLE_COLUMNS, keys=("name", "model", "sample_bytes", "source"))
    return {row.values["name"]: Sample(**row.values) for row in rows}


def sample(name: str) -> Sample | None:
    """The sample of that name in any spelling; None where there is none."""
    key = fold(name)
    for row in samples().values():
        if key and key in {fold(spelling) for spelling in (row.name, *row.aliases.split(";"))}:
            return row
    return None


def sample_of_model(name: str) -> Sample | None:
    """The sample of the workload that trains this model of the catalog."""
    return next((row for row in samples().values() if row.model == name), None)


def _operations(cell: str) -> tuple[str, ...]:
    found = tuple(part for part in cell.split("+") if part)
    if wrong := [part for part in found if part not in OPERATIONS]:
        raise ValueError(f"{wrong[0]}; allowed: {', '.join(OPERATIONS)}, joined by +")
    return found


@cache
def _networks() -> Mapping[str, tuple[Convolution, ...]]:
    sizes = ("inputs", "outputs", "taps", "positions", "repeats")
    whole = tables.whole(units.parse_count, "a whole number above 0")
    columns = {"network": tables.text, "layer": tables.text, "then": _operations} | dict.fromkeys(sizes, whole)
    found: dict[str, list[Convolution]] = {}
    for row in tables.read_table(DATA / "convolutions.csv", columns, keys=("network", "layer", *sizes)):
        values = {"then": (), **row.values}
        found.setdefault(values["network"], []).append(Convolution(**values))
    return {name: tuple(layers) for name, layers in found.items()}


def convolutions(model: str) -> tuple[Convolution, ...] | None:
    """The layers of that model of the catalog, in the order in which they run; None where they are not written down."""
    return _networks().get(model)
