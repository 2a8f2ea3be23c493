"""What is known of a chip: rates, memories, links, power. Nothing here computes a time.

Units: byte, byte/s, FLOP/s (operations per second for int8 and int4), Hz, W. Rates are dense and per device; bandwidths
are decimal and, on links, one direction. What is not known is None and using it raises MissingFactError.
"""

from __future__ import annotations

import re
from dataclasses import field, fields
from functools import lru_cache
from typing import Any

from flopwise import units
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import tables
from flopwise.facts.calibration import NOT_CALIBRATED, Calibration
from flopwise.facts.tables import (
    Bytes,
    BytesPerS,
    Confidence,
    Count,
    Day,
    FactTable,
    FlopsPerS,
    Positive,
    SourcedRow,
    Watts,
    WholeBytes,
)
from flopwise.values import dataclass, replace

DTYPES = ("fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")
KINDS = ("gpu", "tpu", "npu", "soc", "cpu")
SHARED_KINDS = frozenset({"cpu", "soc"})
"""Kinds of device whose memory is the host's."""
GRADES = ("datacentre", "workstation", "consumer")
HYPOTHETICAL = "custom"
"""Vendor of devices that are described where a GPU is named."""
DESCRIBED = {"tdp_w": "power=300W", "pcie_bytes_per_s": "pcie=64GB/s", "link_bytes_per_s": "link=50GB/s"}
"""How such a description states a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as a driver or scheduler counts it: a GPU, a TPU or Trainium chip, or one CPU socket.

    For a CPU, `num_sms` counts cores, `l2_bytes` is the last-level cache and `hbm_bytes` the memory of one socket; a
    cloud instance often has a share of a socket: see `partition`.
    """

    name: str
    vendor: str
    architecture: str
    kind: str  # one of KINDS
    marketed_memory: str = ""  # as sold: "80 GB HBM3"
    hbm_bytes: WholeBytes  # as the driver reports, else as sold
    hbm_bytes_reported: bool = False  # by nvidia-smi, rocm-smi or hl-smi; False: as sold, in binary gigabytes
    hbm_bytes_per_s: BytesPerS
    source: str
    date: Day
    confidence: Confidence = "medium"
    year: int | None = None
    form_factor: str | None = None
    peak: dict[str, float] = field(default_factory=dict, hash=False, metadata={"gathered": True})  # by dtype, dense
    sparsity_x2: bool = False  # has a structured-sparsity rate of twice the dense one
    measured_bf16_flops_per_s: FlopsPerS | None = None  # the best large matmul published
    l2_bytes: Bytes | None = None
    shared_bytes_per_sm: Bytes | None = None
    register_bytes_per_sm: Bytes | None = None
    num_sms: Count | None = None
    num_cores: int | None = field(default=None, metadata={"inner": True})  # CUDA cores, stream processors
    num_tensor_cores: int | None = field(default=None, metadata={"inner": True})  # tensor cores, matrix cores
    boost_clock_hz: Positive | None = None
    compute_capability: str | None = None
    tdp_w: Watts | None = None
    node_w: Watts | None = None  # its limit as one of several in a node, where that is lower; None: as alone
    host_w: Watts | None = None  # of these, what a CPU in the same module draws while it waits; None: none is there
    made_for_w: float | None = field(default=None, metadata={"inner": True})  # its own power, where a limit is `tdp_w`
    pcie_gen: Count | None = None
    pcie_bytes_per_s: BytesPerS | None = None
    c2c_bytes_per_s: BytesPerS | None = None  # one direction, of a coherent link to the host's CPU; None: PCIe alone
    link: str | None = None  # the fast link between devices: "nvlink4", "xgmi", "ici", "none" ...
    link_bytes_per_s: BytesPerS | None = None  # one direction, all links of the device together
    max_scaleup: Count | None = None  # devices that the fast link can join
    torus_axes: Count | None = None  # of the torus that the fast links form, each with its share; None: no torus
    matrix_unit_dim: Count | None = None  # side of the systolic array that multiplies matrices; None: none
    intra_node: str | None = None  # between devices of a node, as usual: link, pcie, host; None: link, else pcie
    arm_host: bool = False  # the processors of its machines are Arm, which x86 images and wheels do not run on
    notes: str = ""
    calibration: Calibration = field(default=NOT_CALIBRATED, repr=False, hash=False, metadata={"inner": True})
    """What is known of achieved rates: the shipped calibration, with a facts folder's laid over it."""

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """The datasheet's rate between device and host memory, one direction, in bytes/s; None: not known."""
        return self.c2c_bytes_per_s or self.pcie_bytes_per_s

    def peak_flops_per_s(self, dtype: str) -> float:
        """Dense peak rate in FLOP/s for matrix products in `dtype`.

        Raises:
            SpecError: no such dtype.
            MissingFactError: the row has no rate for it: the device lacks such units, or nobody wrote the rate down.
        """
        rate = self.peak.get(dtype)
        if rate is not None:
            return rate
        if dtype not in DTYPES:
            raise SpecError(f"unknown dtype {str(dtype)[:40]!r}; allowed: {', '.join(DTYPES)}")
        known = ", ".join(self.peak) or "none"
        raise MissingFactError(
            f"{self.name}: no {dtype} rate is known (known: {known}); choose one of those, or add "
            f"{dtype}_flops_per_s for {self.name} to accelerators.csv in a facts folder (--facts DIR)"
        )

    def figure(self, field: str) -> Any:
        """The value of `field`.

        Raises: SpecError: no such field. MissingFactError: nobody wrote it down.
        """
        if field not in FIELDS:
            allowed = ", ".join(sorted(FIELDS))
            raise SpecError(f"unknown field {str(field)[:40]!r} of an accelerator; allowed: {allowed}")
        value = getattr(self, field)
        if value is None:
            where = "add it to accelerators.csv in a facts folder (--facts DIR)"
            if self.is_hypothetical:
                where = f"add {DESCRIBED.get(field, field)} to its description"
            raise MissingFactError(f"{self.name}: {field} is not known; {where}")
        return value

    @property
    def is_hypothetical(self) -> bool:
        """True if the device was described with the question."""
        return self.vendor == HYPOTHETICAL

    def partition(self, share: float, *, hbm_bytes: int | None = None) -> Accelerator:
        """The part of this device that an instance has: rates, bandwidth, caches and power times `share`.

        Memory is `hbm_bytes` where given (a virtual machine's RAM), else its share too. A partition can draw more than
        its share of bandwidth while its neighbours are idle; the share is what it is entitled to.

        Raises: SpecError: share is not in (0, 1].
        """
        if not 0 < share <= 1:
            raise SpecError(f"share of {self.name}: got {share}; allowed: above 0, up to 1")
        if share == 1 and hbm_bytes in (None, self.hbm_bytes):
            return self
        part = f"{share:.4g} of a device"
        return replace(
            self,
            hbm_bytes=hbm_bytes if hbm_bytes is not None else int(self.hbm_bytes * share),
            hbm_bytes_reported=False,
            hbm_bytes_per_s=self.hbm_bytes_per_s * share,
            peak={dtype: rate * share for dtype, rate in self.peak.items()},
            l2_bytes=None if self.l2_bytes is None else self.l2_bytes * share,
            num_sms=None if self.num_sms is None else max(1, round(self.num_sms * share)),
            num_cores=None if self.num_cores is None else round(self.num_cores * share),
            num_tensor_cores=None if self.num_tensor_cores is None else round(self.num_tensor_cores * share),
            tdp_w=None if self.tdp_w is None else self.tdp_w * share,
            node_w=None if self.node_w is None else self.node_w * share,
            host_w=None if self.host_w is None else self.host_w * share,
            notes=f"{part}; {self.notes}" if self.notes else part,
        )


FIELDS = frozenset(f.name for f in fields(Accelerator) if not f.metadata.get("inner"))
_YEAR = tables.whole(units.parse_count, "a year from 1990 to 2100", low=1990, high=2100)
_PEAKS = {f"{dtype}_flops_per_s": dtype for dtype in DTYPES}


def _with_peaks(row: tables.Row, values: dict[str, Any], known: Accelerator | None) -> None:
    """Gather the rates by dtype, and say what memory is sold as where nobody did.

    Raises: SpecError: the name cannot be told from others.
    """
    if not spelling_key(row.values["name"]):
        raise row.error("name", row.values["name"], "a name needs letters or digits other than the vendor's")
    rates = {dtype: values.pop(column) for column, dtype in _PEAKS.items() if column in values}
    peak = (known.peak if known else {}) | rates
    values["peak"] = {dtype: rate for dtype, rate in peak.items() if rate is not None}
    if isinstance(values.get("hbm_bytes"), int):
        values.setdefault("hbm_bytes_reported", False)
        values["marketed_memory"] = values.get("marketed_memory") or f"{values['hbm_bytes'] / units.GIB:.4g} GiB"


_NOISE = {"nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "intel", "apple", "google", "cloud", "aws"}
_NOISE |= {"gpu", "gpus", "graphics", "generation", "processor", "gb", "gib"}
_WORDS = re.compile(r"[a-z0-9]+")
_GIGABYTES = re.compile(r"^(\d+)gi?b?$")


@lru_cache(maxsize=1024)
def spelling_words(name: str) -> tuple[str, ...]:
    """The words of a name as spellings are compared: lower case, without vendors' words and the letters of GB."""
    parts = []
    for word in _WORDS.findall(name.lower()):
        if word.startswith("sxm"):
            parts.append("sxm")
        elif word not in _NOISE:
            parts.append(_GIGABYTES.sub(r"\1", word) if word[0].isdigit() else word)
    return tuple(parts)


def spelling_key(name: str) -> str:
    """`name` as spellings are compared: its `spelling_words` without anything between them."""
    return "".join(spelling_words(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another spelling of the canonical `name`; `note`: the assumption where it leaves the variant open."""

    alias: str
    name: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRecord(SourcedRow):
    """The grade (data centre, workstation, consumer) of accelerators whose names match the pattern `accelerators`.

    `remark`: what stands in the way of a data centre.
    """

    accelerators: str
    grade: str
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRecord:
    """Cores of one multiprocessor (AMD: compute unit): of products one at a time, and of small matrices."""

    architecture: str
    compute_capability: str  # "any" where makers give none
    cores: Count  # CUDA cores, stream processors
    tensor_cores: int  # tensor cores, matrix cores
    source: str
    date: Day
    confidence: Confidence = "medium"


ACCELERATORS = FactTable(
    file="accelerators.csv", meaning="a GPU, TPU, other accelerator or CPU socket", row=Accelerator, key=("name",),
    adapt=_with_peaks,
    readers={"kind": tables.choice(*KINDS), "year": _YEAR, **dict.fromkeys(_PEAKS, tables.reader_of("FlopsPerS"))},
)  # fmt: skip
ALIASES = FactTable(
    file="accelerator_aliases.csv", meaning="another spelling of such a name", row=Alias, key=("alias",),
    dated=("name",),
)  # fmt: skip
GRADE_RECORDS = FactTable(
    file="grades.csv",
    meaning="the market of accelerators (consumer, data centre), and what keeps them out of data centres",
    row=GradeRecord, key=("accelerators",), readers={"grade": tables.choice(*GRADES)},
)  # fmt: skip
CORE_RECORDS = FactTable(
    file="cores.csv", meaning="how many cores and tensor cores a multiprocessor of an architecture has",
    row=CoreRecord, key=("architecture", "compute_capability"),
    readers={"tensor_cores": tables.whole(units.parse_count, "a whole number, 0 or more", low=0, high=1000)},
)  # fmt: skip
