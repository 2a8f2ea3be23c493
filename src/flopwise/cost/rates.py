"""Achieved rates of one accelerator: datasheet figures times calibrated fractions, resolved once.

The calibration knows families of architectures. A device whose family has no measurements gets its relatives', its
vendor's or the general value, and `Rates.assumptions` says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.precisions import PRECISIONS, SIXTEEN_BIT, Precision
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.accelerators import SHARED_KINDS
from flopwise.facts.calibration import Calibration
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.ops.types import Floats


NVIDIA_FAMILIES: dict[str, str] = {
    "6.0": "gp100", "7.0": "volta", "7.5": "turing", "8.0": "ampere", "8.6": "ampere-rtx", "8.9": "ada",
    "9.0": "hopper", "10.0": "blackwell", "10.3": "blackwell-ultra", "12.0": "blackwell-rtx", "12.1": "blackwell-rtx",
}  # fmt: skip
HALVED = {"ampere-rtx": "ampere-rtx-half", "ada": "ada-half", "blackwell-rtx": "blackwell-rtx-half"}
"""Of a family: its variant with half the matrix units' rate when they add up in fp32, which NVIDIA takes from GeForce
cards (NVIDIA's whitepapers of GA102, Ada and RTX Blackwell, appendices), and an L40, L20 and A10G have, too."""
HALF_RATE = 750.0
"""16-bit operations of a core in a cycle below which its matrix units are halved: 512, where whole ones have 1,024."""
VARIANTS: dict[str, str] = {
    "blackwell-ultra": "blackwell",
    "hopper-h20": "hopper",
    **{half: whole for whole, half in HALVED.items()},
}
"""Families that are another but for a part: Blackwell Ultra doubles the exponentials, which hold attention back; an H20
has matrix units of a quarter of the rate and those of `HALVED` of half, which the rest of a core holds back less
(`_slowed_fracs`)."""
SLOWED: dict[str, tuple[str, float]] = {"hopper": ("hopper-h20", 4e12)}
"""Of a family: its variant with slowed matrix units, and the 16-bit rate of a core below which a device is one. An H20
has 1.9 TFLOP/s a core, other Hoppers 6.3 to 7.5 (NVIDIA's datasheets)."""
UNPACKING = ("unpack_frac", "grouped_unpack_frac")
"""Parameters: shares of the rate of products that are left where weights are unpacked on the way."""
HALF, HALVED_FORMATS = 0.5, ("matmul_frac.fp8", *UNPACKING)
"""Of `HALVED`: the rate of the matrix units over that of whole ones, and the parameters of products at that rate beside
the 16-bit ones, which were measured: floats of eight bits add up in fp32, integers and floats of four do not."""
FP32_FRAC = "matmul_frac.fp32"
"""Parameter: the share of the peak that products on vector units reach."""
WHOLE_CORE = {"hopper-h20": 7.5e12}
"""Of a variant with slowed matrix units: the 16-bit rate of a core of the devices whose products were measured, an H100
and an H200 SXM (989 TFLOP/s, 132 cores)."""
RELATIVES: dict[str, tuple[str, ...]] = {
    "blackwell-ultra": ("blackwell",),
    "hopper-h20": ("hopper",),
    "volta": ("ampere",),
    "turing": ("ampere-rtx", "blackwell-rtx"),
    "ampere-rtx": ("blackwell-rtx",),
    "ada": ("blackwell-rtx",),
    "ampere-rtx-half": ("ampere-rtx", "blackwell-rtx"),
    "ada-half": ("ada", "blackwell-rtx"),
    "blackwell-rtx-half": ("blackwell-rtx",),
    "cdna4": ("cdna3",),
}
"""Families without measurements of their own and those that resemble them: HBM or GDDR memory, then nearest in time."""


USUAL_HEAD = 128
"""Dimension of a head at which attention's rates are measured."""
CLOCK_HZ = 2e9
CYCLES = ("tile_fill_s", "attention_block_s", "decode_block_s", "latent_block_s")
"""Parameters that are cycles of a core: their seconds are those of a core at `CLOCK_HZ`, others' by their clock."""
KNOWN_CLOCKS = ("NVIDIA",)
"""Vendors whose devices were seen to take as many cycles, not as many seconds, for what depends on nothing else."""
FEW_CORES = ("tpu", "npu")
"""Devices of a few large cores, whose compiled programs load one tile while they compute another."""
LAUNCHES_EACH = ("Huawei",)
"""Makers of such devices whose software launches one operation after another, or captured graphs of them, as a GPU's
does (torch_npu; vLLM Ascend, graph mode guide: ACLGraph is capture and replay)."""
OF_ENGINES = frozenset({
    "served_dram_frac", "library_dram_frac", "port_reads", "chained_frac", "experts_s", "byte_dot_cycles",
    "dot_core_flops_per_s", "expert_rows", "block_frac.triton", "block_frac.cutlass", "served_host_ratio",
})  # fmt: skip
"""Parameters of what some engines, or their kernels, do on some devices, by definition nothing elsewhere."""
OF_ALL = frozenset({"softmax_cycles", "memory_power_frac"})
"""Parameters that hold on all devices but those of a row, and those that count under a power limit alone: where there
is none, nothing is said of what stands in."""
MEASURED_WATTS, MEASURED_POWER = "measured_w_per_flop", "measured_power"
"""Parameter: power limit over peak rate of the device whose products were measured; and what `rates` makes of it."""
OF_TRAINING = "train_"
"""Parameters of `cost.sustained`, about which an estimate of serving has nothing to say."""
SAME_FORMULA = frozenset({"fp8_splits_k", "port_reads", MEASURED_POWER})
"""Figures that change no kernel's formula by being 0: a share of two ways, and what goes into rates before kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The sustained rates of an accelerator: FLOP/s, bytes/s, fixed times in seconds, fractions of peaks.

    Source: the accelerator's datasheet and data/calibration. Assumes: large kernels at sustained clocks.
    """

    name: str
    num_sms: float
    peak: Mapping[str, float]
    hbm_bytes_per_s: float
    l2_bytes: float
    value: Mapping[str, float] = field(repr=False)
    assumptions: tuple[str, ...] = ()
    tdp_w: float | None = None  # without what a CPU in the same module draws
    made_for_w: float | None = None  # the power of the device, as `tdp_w`, where `tdp_w` is a limit below it
    clock_hz: float | None = None  # of the cores, boosted
    vendor: str = ""
    host_link_bytes_per_s: float | None = None  # between device and host, one direction
    is_host: bool = False  # a CPU: it launches what it computes, one after the other
    compiles: bool = False  # runs compiled graphs alone, whose elementwise operations are fused, whatever the software
    matrix_unit_dim: int | None = None  # side of the systolic array that multiplies matrices
    _key: tuple[object, ...] = field(default=(), init=False, repr=False, compare=False)
    products: dict[tuple[object, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What `cost.kernels` has made of the figures for products in some format."""

    @property
    def form(self) -> tuple[object, ...]:
        """Key that is equal for devices with the same formulas: which figures they have, and which of these are 0.

        Those of `SAME_FORMULA` count as alike.
        """
        figures = (
            frozenset((name, name in SAME_FORMULA or bool(value)) for name, value in each.items())
            for each in (self.peak, self.value)
        )
        return (self.is_host, self.compiles, self.matrix_unit_dim, bool(self.l2_bytes), *figures)

    @property
    def key(self) -> tuple[object, ...]:
        """Key that is equal for devices with the same rates, whatever their memory."""
        if not self._key:
            columns = (getattr(self, each.name) for each in fields(self) if each.compare)
            key = tuple(frozenset(value.items()) if isinstance(value, Mapping) else value for value in columns)
            object.__setattr__(self, "_key", key)
        return self._key

    def peak_dtype(self, dtype: str) -> str:
        """The format whose datasheet rate a `PRECISIONS` entry runs at: fp16 for bf16 on a device without it.

        Raises:
            SpecError: no such precision.
        """
        kind = precision(dtype).peak
        if kind in SIXTEEN_BIT:
            return next((k for k in (kind, *SIXTEEN_BIT, "fp32") if k in self.peak), kind)
        return kind

    def substitution_note(self, dtype: str) -> str | None:
        """Note on the precision that replaces a 16-bit one without units on the device; None if none is replaced."""
        other = self.peak_dtype(dtype) if dtype in SIXTEEN_BIT else dtype
        return None if other == dtype else f"{self.name} has no {dtype} units: products run in {other}, at its rate"

    def peak_flops_per_s(self, dtype: str) -> float:
        """Datasheet rate of a `PRECISIONS` entry.

        Raises:
            SpecError: no such precision.
            MissingFactError: this accelerator has no such rate.
        """
        kind = self.peak_dtype(dtype)
        if kind not in self.peak:
            raise MissingFactError(
                f"{self.name}: no {kind} rate is known (asked for {dtype}); known: {', '.join(self.peak)}"
            )
        return self.peak[kind]

    def matmul_flops_per_s(self, dtype: str) -> float:
        """Sustained rate inside full tiles."""
        return self.peak_flops_per_s(dtype) * self.value[f"matmul_frac.{precision(dtype).rate}"]

    @property
    def read_bytes_per_s(self) -> float:
        """Sustained DRAM bandwidth of a large streaming read."""
        return self.hbm_bytes_per_s * self.value["dram_frac"]


def together(several: Sequence[Rates], place: NDArray[np.intp]) -> Rates:
    """Devices of one `form` as one whose figures are columns: `place` says which device's stands where, in its shape.

    Figures that are the same on all stay numbers, but for the number of cores; one device alone stays as it is, and a
    figure that one of them lacks is left out.

    Source: the formulas of `cost.kernels` go element by element. Assumes: nobody asks it for a single number.
    """
    first = several[0]
    if all(one is first or one.key == first.key for one in several):
        return first

    def columns(each: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        names = [name for name in each[0] if all(name in one for one in each)]
        table = np.array([[one[name] for name in names] for one in each], dtype=float)
        alike = (table == table[0]).all(axis=0).tolist()
        return {
            name: each[0][name] if same else table[:, number][place]
            for number, (name, same) in enumerate(zip(names, alike, strict=True))
        }

    cores: Any = np.array([one.num_sms for one in several])[place]
    own = columns([{"l2_bytes": one.l2_bytes, "hbm_bytes_per_s": one.hbm_bytes_per_s} for one in several])
    return replace(
        first, num_sms=cores, peak=columns([one.peak for one in several]),
        value=columns([one.value for one in several]), **own,
    )  # fmt: skip


def is_zero(figure: Floats) -> bool:
    """True if a figure of `Rates` is 0; figures of several devices are 0 on all of them or on none.

    Source: `Rates.form`. Assumes: as there.
    """
    return not isinstance(figure, np.ndarray) and not figure


def precision(dtype: str) -> Precision:
    """The entry of `PRECISIONS`.

    Source: PRECISIONS, as the formats are specified. Assumes: scales are stored beside their blocks.

    Raises:
        SpecError: no such precision.
    """
    try:
        return PRECISIONS[dtype]
    except KeyError:
        raise SpecError(f"precision {dtype!r} is unknown; allowed: {', '.join(PRECISIONS)}") from None


def families(chip: Accelerator) -> tuple[str, ...]:
    """Calibration scopes of a device, nearest first: family, relatives, vendor, kind of device, `any`.

    Source: NVIDIA's compute capabilities; `SLOWED`; `HALVED`; the kinships of `RELATIVES`. Assumes: a family's devices
    reach like shares.
    """
    vendor = chip.vendor.lower()
    if vendor == "nvidia" and chip.kind == "gpu":
        family = NVIDIA_FAMILIES.get(str(chip.compute_capability or ""), chip.architecture.lower())
        slowed, least = SLOWED.get(family, ("", 0.0))
        if chip.num_sms and 0.0 < _sixteen_bit_peak(chip) < least * chip.num_sms:
            family = slowed
        if 0.0 < _core_flops_per_cycle(chip) < HALF_RATE:
            family = HALVED.get(family, family)
    else:
        family = chip.architecture.lower().replace(" ", "-")
    vendors = () if chip.kind in SHARED_KINDS else (vendor,)  # a vendor's CPUs tell nothing of its GPUs
    return tuple(dict.fromkeys((family, *RELATIVES.get(family, ()), *vendors, chip.kind, "any")))


LENT = (" not measured for ", "; the value for ", " stands in")
"""Parts of the sentence about a measurement that replaces a missing one."""


def lent(scope: str, scopes: Sequence[str]) -> bool:
    """True if a value of `scope` was measured on other hardware than the first of `scopes`.

    Source: `VARIANTS`. Assumes: a variant is its family wherever nothing says otherwise.
    """
    return scope not in (scopes[0], VARIANTS.get(scopes[0]))


def resolve_parameters(
    calibration: Calibration, names: Iterable[str], scopes: Sequence[str], who: str
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Values of `names` along `scopes`, and a sentence for each scope that had to stand in for the first.

    Another says which are from a profile of the user's measurements.

    Source: the calibration's rows. Assumes: the nearest scope with a measurement stands in for those without.
    """
    values: dict[str, float] = {}
    borrowed: dict[str, list[str]] = {}
    measured: dict[str, list[str]] = {}
    for name in names:
        parameter = calibration.find(name, scopes)
        values[name] = parameter.value
        if parameter.profile:
            measured.setdefault(parameter.profile, []).append(name)
        nothing = name in OF_ALL or (parameter.scope == "any" and name in OF_ENGINES)
        differs = calibration.scopes[name] != ("any",) and not nothing  # else one value for all
        if differs and lent(parameter.scope, scopes) and not name.startswith(OF_TRAINING):
            borrowed.setdefault(parameter.scope, []).append(name)
    return values, (
        *(
            f"{who}: {', '.join(what)}{LENT[0]}{scopes[0]}{LENT[1]}{scope!r}{LENT[2]}"
            for scope, what in borrowed.items()
        ),
        *(f"{who}: {', '.join(what)} as calibration profile {name!r} has them" for name, what in measured.items()),
    )


def rates(accelerator: Accelerator, calibration: Calibration | None = None) -> Rates:
    """The achieved rates of `accelerator` under `calibration` (its own by default).

    Source: data/calibration. Assumes: what `Rates.assumptions` lists.

    Raises:
        MissingFactError: the calibration lacks a parameter altogether.
    """
    table = calibration or accelerator.calibration
    scopes = families(accelerator)
    names = table.names("link_", "wrapper_", "host_", MEASURED_WATTS)
    value, assumptions = resolve_parameters(table, names, scopes, accelerator.name)
    value |= _slowed_fracs(accelerator, table, scopes)
    value[MEASURED_POWER] = _measured_power(table, scopes)
    if accelerator.boost_clock_hz:
        value |= {name: value[name] * CLOCK_HZ / accelerator.boost_clock_hz for name in CYCLES if name in value}
    value["core_slowness"] = _core_slowness(accelerator)
    value["softmax_frac"] = value["softmax_cycles"] * _core_flops_per_cycle(accelerator) / (4.0 * USUAL_HEAD)
    cores = None if accelerator.kind in FEW_CORES else accelerator.num_sms
    if not cores:
        value |= dict.fromkeys((name for name in CYCLES if name in value), 0.0)  # they would follow one another on one
        assumptions += (f"{accelerator.name}: its cores are not known, so no wave quantisation is counted",)
    return Rates(
        name=accelerator.name, num_sms=float(cores or 1), peak=dict(accelerator.peak),
        hbm_bytes_per_s=float(accelerator.hbm_bytes_per_s), l2_bytes=float(accelerator.l2_bytes or 0), value=value,
        assumptions=assumptions, tdp_w=_own_w(accelerator, accelerator.tdp_w),
        made_for_w=_own_w(accelerator, accelerator.made_for_w),
        clock_hz=accelerator.boost_clock_hz, vendor=accelerator.vendor,
        host_link_bytes_per_s=accelerator.host_link_bytes_per_s,
        is_host=accelerator.kind == "cpu",
        compiles=accelerator.kind in FEW_CORES and accelerator.vendor not in LAUNCHES_EACH,
        matrix_unit_dim=accelerator.matrix_unit_dim,
    )  # fmt: skip


def _slowed_fracs(accelerator: Accelerator, table: Calibration, scopes: Sequence[str]) -> dict[str, float]:
    """Shares of the peak that products reach on slowed matrix units, where only those on whole ones were measured.

    What else of a core holds products back (loads, scales, sums of blocks) takes as long as on a whole core, so that it
    takes a smaller share of a longer time. Vector units are not slowed: halved families have their family's share.

    Source: H20, vLLM pull request 49932: 8,192 x 24,576 x 7,168 in fp8 with blocks at 0.95 of the peak (cuBLAS), 0.94
    (DeepGEMM, CUTLASS) and 0.86 (Triton), by this formula 0.86; in 16 bits at 0.96, by this formula 0.95.
    Assumes: products of all formats are held back for as long as 16-bit products would be at the same share.
    """
    family, *others = scopes
    fracs: dict[str, float] = {}
    if family in HALVED.values():
        slowness, slowed = HALF, HALVED_FORMATS
        if not table.has(FP32_FRAC, family):  # else 16-bit products of a nearer scope would stand in
            fracs[FP32_FRAC] = table.find(FP32_FRAC, others).value
    elif family in WHOLE_CORE and accelerator.num_sms:
        slowness = _sixteen_bit_peak(accelerator) / (accelerator.num_sms * WHOLE_CORE[family])
        slowed = ("matmul_frac.", *UNPACKING)
    else:
        return fracs
    for name in table.names():
        if name.startswith(slowed) and (share := table.find(name, scopes)).scope != family:
            fracs[name] = 1.0 / (1.0 + (1.0 / share.value - 1.0) * slowness)
    return fracs


def _measured_power(table: Calibration, scopes: Sequence[str]) -> float:
    """Power of the matrix units at their peak rate over the limit less the idle draw, where products were measured.

    0 where the rate of products is that of devices under a limit of their own, or of the device itself.

    Source: `MEASURED_WATTS`; energy and idle draw as in `flopwise.cost.sustained.full_rate_power`. Assumes: as there.
    """
    products = table.find("matmul_frac.bf16", scopes)
    watts = 0.0 if products.profile else table.find(MEASURED_WATTS, (products.scope, "any")).value
    if not watts:
        return 0.0
    there = (products.scope, *scopes)
    joules, idle = (table.find(name, there).value for name in ("train_joules_per_flop", "train_idle_frac"))
    return joules / (watts * (1.0 - idle))


def _core_slowness(accelerator: Accelerator) -> float:
    """Seconds of what takes a core so many cycles, over those of a core at `CLOCK_HZ`; 1 where clocks say nothing.

    Source: benchmarks/truth/serving.csv, llama.cpp with one user: beyond what it reads, a layer of gpt-oss-20b takes
    235,000 to 280,000 cycles on V100, A100, H100, H200 and B300, whose clocks are 1.38 to 1.98 GHz; so do Gemma 4
    26B-A4B (137,000 to 167,000) and Qwen3.6-35B-A3B (217,000 to 300,000, RTX 4090 at 2.52 GHz among them).
    Assumes: the boost clock; other vendors' cores are alike, whatever their clocks.
    """
    known = accelerator.vendor in KNOWN_CLOCKS and accelerator.kind == "gpu" and accelerator.boost_clock_hz
    return CLOCK_HZ / float(accelerator.boost_clock_hz or CLOCK_HZ) if known else 1.0


def _core_flops_per_cycle(accelerator: Accelerator) -> float:
    """16-bit operations of a GPU's core in a cycle; 0 where its cores or their clock are not known."""
    if accelerator.kind != "gpu" or not accelerator.num_sms or not accelerator.boost_clock_hz:
        return 0.0
    return _sixteen_bit_peak(accelerator) / (accelerator.num_sms * accelerator.boost_clock_hz)


def _sixteen_bit_peak(accelerator: Accelerator) -> float:
    return next((accelerator.peak[d] for d in SIXTEEN_BIT if d in accelerator.peak), 0.0)


def _own_w(accelerator: Accelerator, watts: float | None) -> float | None:
    """The power that the limit of its module leaves to the device."""
    return None if watts is None else watts - (accelerator.host_w or 0.0)
