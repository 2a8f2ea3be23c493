"""What a calibration is made of: probe files, CSV files as `flopwise backtest` reads them, recorded runs.

A probe becomes the row of a CPU that no catalog has with its constants, and kernel rows of a GPU that one has.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flopwise.backtests.columns import our_columns
from flopwise.backtests.kinds import KINDS, MeasurementKind
from flopwise.backtests.prediction import Row, number
from flopwise.backtests.run import printed_rows
from flopwise.cost.kernels import HOST_KEYS, touched_keys
from flopwise.cost.sustained import BACKWARD_RATE
from flopwise.errors import SpecError
from flopwise.facts.accelerators import DTYPES
from flopwise.facts.calibration import Parameter
from flopwise.facts.rows import csv_text
from flopwise.files import read_at_most
from flopwise.observations.observation import OBSERVATION_FILE
from flopwise.probes.backend import ELEMENT_BYTES
from flopwise.probes.file import FIGURES, Measurement, Probe, ProbedDevice
from flopwise.probes.kinds.elementwise import WRITTEN
from flopwise.training.step_table import MAPPED_BYTES
from flopwise.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One row of a CSV file, or one operation of a probe, in our columns."""

    kind: str
    row: Row
    source: str  # the file


ORDER = ("kernels", "training", "serving", "memory", "gpu-hours", "io", "weights")
"""Kinds of CSV files, in the order in which one is tried: the first whose columns are there, measured ones too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The measurements given: rows to predict, and probes of devices that no catalog has."""

    rows: tuple[MeasuredRow, ...]
    probed: tuple[ProbedFacts, ...]
    files: tuple[str, ...]

    @classmethod
    def without_deployment(cls, files: Sequence[Path], options: Sequence[str]) -> Measurements:
        """As `from_files`, where no model is named that a deployment serves; `options` are those that need one.

        Raises: SpecError: there are such options, or a file is an observation of a service.
        """
        if options:
            raise SpecError(f"{', '.join(sorted(options))}: need the model that the deployment serves")
        if seen := next((p for p in files if p.is_dir() or p.name == OBSERVATION_FILE), None):
            raise SpecError(
                f"{seen} is an observation of a service: give its model (--model) and its accelerator (--gpu)"
            )
        return cls.from_files(files)

    @classmethod
    def from_files(cls, files: Sequence[Path]) -> Measurements:
        """Read every file; a name without an ending that is no file is that of a recorded run.

        Raises:
            SpecError: one is broken, or neither a probe nor a measurement file; no file is given.
            UnknownNameError: no such run.
        """
        if not files:
            raise SpecError(
                "no measurements are given; name a probe's file, or a CSV file as `flopwise backtest` reads it"
            )
        rows: list[MeasuredRow] = []
        probes = defaultdict[tuple[object, ...], list[tuple[str, Probe]]](list)
        for file in files:
            if not file.suffix and not file.exists():
                rows += _recorded_rows(str(file))
            elif file.suffix.lower() == ".json" or _is_json(file):
                probe = Probe.from_file(file)
                machine = (probe.host, probe.backend, *((one.id, one.name, one.threads) for one in probe.devices))
                probes[machine].append((str(file), probe))
            else:
                kind, own = _csv_rows(file)
                rows += (MeasuredRow(kind.name, row, str(file)) for row in own)
        probed: list[ProbedFacts] = []
        for same in probes.values():
            probe_facts = probed_facts(pooled_probe([probe for _, probe in same]))
            probed.append(probe_facts)
            rows += (MeasuredRow("kernels", row, ", ".join(name for name, _ in same)) for row in probe_facts.rows)
        return Measurements(rows=tuple(rows), probed=tuple(probed), files=tuple(map(str, files)))


def _is_json(file: Path) -> bool:
    """True if a file has one JSON document, whatever its name ends in: that is how probes are written."""
    try:
        return read_at_most(file, 64).lstrip().startswith(b"{")
    except OSError:
        return False


def pooled_probe(probes: Sequence[Probe]) -> Probe:
    """Probes of one machine at different times as one: medians of what several of them measured.

    Assumes: the machine drifts by minutes, and a median keeps out what disturbed one of them.
    """
    if len(probes) == 1:
        return probes[0]
    every = defaultdict[tuple[object, ...], list[Measurement]](list)
    for one in (one for probe in probes for one in probe.measurements):
        every[one.name, one.device, one.dtype, tuple(sorted(one.shape.items())), one.work].append(one)
    pooled = []
    for same in every.values():
        sound = [one for one in same if one.value is not None]
        names = [name for name in FIGURES if sound and all(getattr(one, name) is not None for one in sound)]
        middle = {name: statistics.median(getattr(one, name) for one in sound) for name in names}
        pooled.append(replace((sound or same)[0], **middle))
    seconds, notes = sum(probe.seconds for probe in probes), dict.fromkeys(n for probe in probes for n in probe.notes)
    return replace(probes[-1], measurements=tuple(pooled), seconds=seconds, notes=tuple(notes))


def _csv_rows(file: Path) -> tuple[MeasurementKind, list[Row]]:
    csv_text(file, header_only=True)  # what is no text is told as such
    for name in ORDER:
        kind = KINDS[name]
        try:
            printed = printed_rows(kind, file)
        except SpecError as fault:
            if "column" in str(fault):
                continue
            raise
        rows = [our_columns(name, row) for row in printed]
        if any(number(row, column) for row in rows for column in kind.measured):
            return kind, rows
    kinds = "; ".join(f"{name}: {', '.join((*KINDS[name].needed, KINDS[name].measured[0]))}" for name in ORDER)
    raise SpecError(f"{file}: its columns are those of no kind of measurement ({kinds})")


def _recorded_rows(key: str) -> list[MeasuredRow]:
    """Rows of a run of the store: of its steady steps or requests, and of its memory.

    Raises: UnknownNameError: no such run. SpecError: too little of it is known; says what.
    """
    from flopwise.records.measured import run_figures  # noqa: PLC0415 - a database's libraries, for recorded runs alone
    from flopwise.records.rows import COLUMNS, rows_of  # noqa: PLC0415 - same
    from flopwise.records.store import open_store  # noqa: PLC0415 - same

    store = open_store(create=False)
    figures = run_figures(store, store.run(key))
    made = [rows_of([figures], kind) for kind in COLUMNS]
    rows = [MeasuredRow(one.kind, row, f"run {key}") for one in made for row in one.rows]
    if not rows:
        raise SpecError(next(why for one in made for why in one.missing if "a run of" not in why))
    return rows


SOURCE = "flopwise probe"
TILE = 128.0 * 128.0
"""Elements of the output tile that `tile_fill_s` is told of."""
BACKWARD = 2.5
"""Operations of flash attention's backward pass over those of its forward pass: five products, not two."""
SMALL = 512**3
"""Multiplications up to which a product counts as small."""
NARROW = 128
"""A product narrower than a tile waits for its weights: it says nothing of what a tile loses."""
PROBED = " probed"
ALIASES = ("here", "this machine")
"""What the device of a profile is called besides its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedFacts:
    """The facts of a probe: rows of accelerators.csv, constants of new devices, kernel rows of known ones, notes."""

    devices: tuple[dict[str, Any], ...] = ()
    parameters: tuple[Parameter, ...] = ()
    rows: tuple[Row, ...] = ()
    own_rows: tuple[Row, ...] = ()  # products of new devices, whose constants are made of them
    notes: tuple[str, ...] = ()


def probed_facts(probe: Probe) -> ProbedFacts:
    """A CPU becomes a device of its own; a GPU of the catalog brings rows to fit its family's constants to."""
    devices, parameters = list[dict[str, Any]](), list[Parameter]()
    rows, own_rows, notes = list[Row](), list[Row](), list[str]()
    for device in probe.devices:
        if device.kind == "cpu":
            figures = _cpu_figures(probe, device)
            if figures is None:
                notes.append(f"{device.name}: no product or no copy was measured: no device is made of it")
                continue
            devices.append(_device_row(probe, device, figures))
            parameters += _cpu_parameters(probe, device, figures)
            own_rows += _own_rows(probe, device)
        elif device.accelerator is None:
            notes.append(f"{device.name} is in no catalog: add a row to accelerators.csv in a facts folder (--facts)")
        else:
            rows += _kernel_rows(probe, device, device.accelerator)
    return ProbedFacts(
        devices=tuple(devices), parameters=tuple(parameters), rows=tuple(rows), own_rows=tuple(own_rows),
        notes=tuple(notes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """Rates of single operations on a CPU: each the best of its repetitions, which keeps other processes out."""

    peak: float  # FLOP/s of the best fp32 product
    streamed: float  # B/s read and written by the largest copy
    fill_s: float  # that a small product loses, a tile
    passed: float | None  # B/s of elementwise operations with their backward pass, in memory that was used before
    fresh: float | None  # B/s at which the system hands out new memory, and takes it back
    attention: float | None  # FLOP/s of attention with its backward pass, as the formulas count it
    operation_s: float | None  # fixed time of one
    packed: Mapping[str, float]  # B/s at which few rows read weights, by their format


def _best_value(one: Measurement, value: float) -> float:
    return value if one.best is None else one.best


def _cpu_figures(probe: Probe, device: ProbedDevice) -> _Figures | None:
    products = [(one.shape, _best_value(one, v)) for one, v in probe.values("matmul", device.id, "fp32")]
    copies = [(one.shape.get("bytes", 0), _best_value(one, v)) for one, v in probe.values("memory_copy", device.id)]
    if not products or not copies:
        return None
    peak, threads = max(rate for _, rate in products), _threads(device)
    packed = {dtype: rate for dtype in ("fp32", "bf16") if (rate := _packed_rate(probe, device, dtype))}
    packing = 4.0 / packed["fp32"] if "fp32" in packed else 0.0
    small = [
        max(2.0 * m * n * k * (1 / rate - 1 / peak) - n * k * packing, 0.0) * threads * TILE / (m * n)
        for shape, rate in products
        for m, n, k in [(shape["m"], shape["n"], shape["k"])]
        if m * n * k <= SMALL and min(m, n, k) >= NARROW
    ]
    passed, fresh = _elementwise(probe, device)
    attended = [
        _best_value(one, v) * _formula_ratio(one.shape)
        for one, v in probe.values("attention_training", device.id, "fp32")
    ]
    fixed = [_best_value(one, v) for one, v in probe.values("launch_autograd", device.id)]
    return _Figures(
        peak=peak, streamed=max(copies)[1], fill_s=statistics.median(small) if small else 0.0,
        passed=passed, fresh=fresh,
        attention=statistics.geometric_mean(attended) if attended else None, operation_s=min(fixed, default=None),
        packed=packed,
    )  # fmt: skip


def _packed_rate(probe: Probe, device: ProbedDevice, dtype: str) -> float | None:
    """B/s at which products of few rows read weights, beside computing at the best product's rate, where measured.

    Where computing takes more than half of the time, it says little of reading.
    """
    peak = max((_best_value(one, v) for one, v in probe.values("matmul", device.id, dtype)), default=math.inf)
    rates = list[float]()
    for one, value in probe.values("weights_read", device.id, dtype):
        elements = one.shape["n"] * one.shape["k"] * one.shape["weights"]
        nbytes, computing_s = ELEMENT_BYTES[dtype] * elements, 2.0 * one.shape["m"] * elements / peak
        seconds = nbytes / _best_value(one, value)
        if computing_s < seconds / 2:
            rates.append(nbytes / (seconds - computing_s))
    return statistics.geometric_mean(rates) if rates else None


def _elementwise(probe: Probe, device: ProbedDevice) -> tuple[float | None, float | None]:
    """B/s of elementwise operations with their backward pass on memory used before; and of new memory besides.

    Tensors from `MAPPED_BYTES` on are mapped anew each time: what they take beyond the rate of the smaller ones is the
    system's, for as many tensors as the operations write.

    Source: glibc, mallopt(3); the operations of `flopwise.probes.kinds.elementwise`.
    """
    measured = [
        (4.0 * one.shape["elements"], 4.0 * one.shape["elements"] * one.shape["passes"], _best_value(one, v))
        for one, v in probe.values("elementwise_training", device.id, "fp32")
    ]
    used = [rate for nbytes, _, rate in measured if nbytes < MAPPED_BYTES]
    if not used:
        return (statistics.geometric_mean(rate for _, _, rate in measured) if measured else None), None
    passed = statistics.geometric_mean(used)
    beyond = [
        WRITTEN * nbytes / (moved / rate - moved / passed)
        for nbytes, moved, rate in measured
        if nbytes >= MAPPED_BYTES and rate < passed
    ]
    return passed, statistics.geometric_mean(beyond) if beyond else None


def _formula_ratio(shape: Mapping[str, int]) -> float:
    """Operations as the formulas count them over those that the mask lets through.

    They add half a block of keys on the diagonal and run the backward pass at `BACKWARD_RATE` of the forward one's.
    """
    keys = (shape["seq"] + 1) / 2
    computed = float(touched_keys(keys, shape["seq"], HOST_KEYS))
    return computed / keys * (1 + BACKWARD / BACKWARD_RATE) / (1 + BACKWARD)


def _threads(device: ProbedDevice) -> int:
    return device.threads or device.cores or 1


def device_name(device: ProbedDevice) -> str:
    """The name of a profile's device, unlike that of the catalog row with datasheet rates."""
    return f"{device.name}{PROBED}"


def _scope(device: ProbedDevice) -> str:
    letters = "".join(c if c.isalnum() else " " for c in device.name.lower())
    return "-".join(f"{letters} probed {_threads(device)} threads".split())


def _device_row(probe: Probe, device: ProbedDevice, figures: _Figures) -> dict[str, Any]:
    """The row of accelerators.csv: achieved rates in the place of a datasheet's."""
    rates = {dtype: [_best_value(one, v) for one, v in probe.values("matmul", device.id, dtype)] for dtype in DTYPES}
    ram = device.memory_bytes or 0
    cache = max(device.cache_bytes.values(), default=None)
    return {
        "name": device_name(device), "vendor": device.name.split()[0], "architecture": _scope(device), "kind": "cpu",
        "marketed_memory": f"{ram / 2**30:.0f} GiB RAM", "hbm_bytes": ram, "hbm_bytes_reported": "true",
        "hbm_bytes_per_s": f"{figures.streamed:.4g}",
        **{f"{dtype}_flops_per_s": f"{max(values):.4g}" if values else "" for dtype, values in rates.items()},
        "l2_bytes": cache or "", "num_sms": _threads(device), "source": SOURCE, "date": probe.date[:10],
        "confidence": "medium",
        "notes": f"measured with {_threads(device)} threads by {probe.backend}; rates are achieved ones",
    }  # fmt: skip


def _cpu_parameters(probe: Probe, device: ProbedDevice, figures: _Figures) -> Iterator[Parameter]:
    """The constants that go with the row: shares of what is achieved already, so mostly 1 and 0; measured ones."""
    share, frac, seconds = "fraction of peak", "fraction", "s"
    counted = {
        "matmul_frac.bf16": (1.0, share, "The peak of the row is itself the best product."),
        "tile_knee": (0.0, "FLOP a byte", "No cost of small tiles beyond the next."),
        "tile_fill_s": (max(figures.fill_s, 0.0), seconds, "Time that a small product loses, an output tile."),
        "wave_tail": (0.0, frac, "Threads share the last round."),
        "overlap_loss": (0.0, frac, "Prefetching hides the shorter of computing and moving."),
        "overlap_loss.attention": (0.0, frac, "As overlap_loss."),
        "misaligned_frac": (1.0, frac, "Vector code does not mind."),
        "dram_frac": (1.0, share, "The bandwidth of the row is itself a streaming copy."),
        "attention_tail": (0.0, frac, "As wave_tail."),
        "attention_block_s": (0.0, seconds, "Contained in the rate of attention."),
        "train_grouped_frac.split": (1.0, frac, "An expert's product is a small one: tile_fill_s."),
        "train_permute_passes.exchange": (2.0, "passes", "Read and written once on either side: counted."),
        "train_contention": (0.0, frac, "No messages."),
    }
    for dtype, rate in figures.packed.items():
        counted[f"packed_bytes_per_s.{dtype}"] = (rate, "B/s", "Weights read by products of few rows, none in a cache.")
    if figures.passed is not None:
        meaning = "Norms and activations with their backward pass over a copy."
        counted["pointwise_frac"] = (figures.passed / figures.streamed, frac, meaning)
    if figures.fresh is not None:
        counted["fresh_bytes_per_s"] = (figures.fresh, "B/s", "What the system hands out anew, and takes back.")
    if figures.attention is not None:
        for name in ("attention_frac", "train_attention_frac.fa2"):
            counted[name] = (figures.attention / figures.peak, share, "Flash attention, forward and backward.")
    if figures.operation_s is not None:
        for name in ("kernel_s", "attention_s", "grouped_s"):
            counted[name] = (figures.operation_s, seconds, "Fixed time of one operation.")
    origin = {"fitted_on": f"{device.name}, single operations", "source": SOURCE, "date": probe.date[:10]}
    for name, (value, unit, meaning) in counted.items():
        rounded = float(f"{value:.4g}")
        yield Parameter(name=name, scope=_scope(device), value=rounded, unit=unit, meaning=meaning, **origin)


def _own_rows(probe: Probe, device: ProbedDevice) -> Iterator[Row]:
    """The products of a CPU that its rate and its cost of small tiles are made of, as rows of a kernels file."""
    for place, one in enumerate(probe.measurements):
        shape = one.shape
        if (one.name, one.device, one.dtype) != ("matmul", device.id, "fp32") or min(shape.values()) < NARROW:
            continue
        if one.value is not None:
            flops = 2.0 * shape["m"] * shape["n"] * shape["k"]
            yield {
                "id": f"{device.id}/{place}", "op": "gemm", "gpu": device_name(device), "dtype": "fp32",
                "seconds": repr(flops / _best_value(one, one.value)), **{name: str(n) for name, n in shape.items()},
            }  # fmt: skip


def _kernel_rows(probe: Probe, device: ProbedDevice, gpu: str) -> Iterator[Row]:
    """Single operations of a device of the catalog as rows of a kernels file."""
    for place, one in enumerate(probe.measurements):
        if one.device != device.id or one.seconds is None or one.value is None:
            continue
        base = {"id": f"{device.id}/{place}", "gpu": gpu, "dtype": one.dtype or "", "seconds": repr(one.seconds)}
        shape = {name: str(value) for name, value in one.shape.items()}
        heads = {"num_heads": shape.get("heads", ""), "num_kv_heads": shape.get("kv_heads", "")}
        heads |= {
            "head_dim": shape.get("dim", ""),
            "batch": shape.get("batch", ""),
            "context_len": shape.get("seq", ""),
        }
        if one.name == "matmul":
            yield {**base, "op": "gemm", "m": shape["m"], "n": shape["n"], "k": shape["k"]}
        elif one.name == "attention_prefill" and one.dtype in ("bf16", "fp16"):
            yield {**base, "op": "attention_prefill", "query_len": shape["seq"], **heads}
        elif one.name == "attention_decode" and one.dtype in ("bf16", "fp16"):
            yield {**base, "op": "attention_decode", **heads}
        elif one.name == "memory_copy" and one.shape.get("bytes", 0) >= 2**28:
            yield {**base, "op": "elementwise", "moved_bytes": shape["bytes"]}
