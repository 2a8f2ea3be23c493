"""What this machine sustains, measured on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.probes.spec import ProbeSpec

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.probes.backend import Backend
    from flopwise.probes.file import Probe, ProbedDevice


@takes(ProbeSpec, SourceSpec)
def probe(progress: Callable[[float, float, str], object] | None = None, **options: Any) -> Probe:
    """Measure this machine: through PyTorch where it is installed, else the processor through NumPy.

    An operation that fails is an entry with its reason.

    Args:
        progress: called with (seconds done, seconds in all, what comes next).
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: there is no such device, or a value cannot be.
        InfeasibleError: nothing could be measured.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.probe(quick=True, only=["launch"], device=["cpu"])
        >>> len(answer.measurements) > 0
        True
    """
    import time
    from dataclasses import replace
    from pathlib import Path

    from flopwise.probes.kinds import KINDS
    from flopwise.probes.measure import ProbeRunner

    spec, source = take(options, ProbeSpec, SourceSpec)
    begun = time.perf_counter()
    backends, machine, notes = _backends(spec)
    runner = ProbeRunner(
        spec.disk or Path.cwd(), spec.quick, progress or (lambda *_: None), notes=notes,
        loading_s=time.perf_counter() - begun,
    )  # fmt: skip
    try:
        measurements = runner.probe(backends, machine, [name for name in KINDS if not spec.only or name in spec.only])
    finally:
        for backend in (*backends, machine):
            backend.close()
    if all(one.value is None for one in measurements.measurements):
        reasons = [f"{one.name} on {one.device}: {one.failure}" for one in measurements.measurements]
        raise InfeasibleError("nothing could be measured", dict.fromkeys([*reasons, *measurements.notes]))
    return replace(measurements, devices=tuple(_with_datasheet(one, source.catalog) for one in measurements.devices))


def _backends(spec: Any) -> tuple[list[Backend], Backend, list[str]]:
    """The devices to be measured, the processor, and what is to be said of the choice. Raises SpecError."""
    from importlib import import_module

    from flopwise.probes.torch_backend import INSTALL, TorchBackend, device_names

    try:
        torch: Any = import_module("torch")
    except (ImportError, OSError):  # not installed, or without the libraries that it needs
        torch = None
    if torch is not None:
        usable = device_names(torch)
        names = spec.device or ((usable[0], "cpu") if len(usable) > 1 else ("cpu",))
        backends: list[Backend] = [TorchBackend(torch, name, spec.threads) for name in dict.fromkeys(names)]
        machine = next((one for one in backends if one.device.id == "cpu"), None)
        return backends, machine or TorchBackend(torch, "cpu", spec.threads), []
    if strange := [name for name in spec.device if name != "cpu"]:
        raise SpecError(f"device {strange[0][:40]!r}: PyTorch is not installed, and only it reaches a GPU: {INSTALL}")
    from flopwise.probes.numpy_backend import NumpyBackend

    only = NumpyBackend(spec.threads)
    return [only], only, [f"measured through NumPy, in fp32 and fp64; PyTorch measures more: {INSTALL}"]


def _catalog_spelling(name: str) -> str:
    """The name of a device as the catalog writes it: no trade marks, cores, graphics or clock."""
    import re

    name = re.sub(r"\((R|TM|r|tm)\)", "", name)
    name = re.sub(r"\s*(@.*|\d+-Core Processor.*|with Radeon.*)$", "", name)
    return " ".join(word for word in name.split() if word not in {"CPU", "Processor"})


def _with_datasheet(device: ProbedDevice, facts: Facts) -> ProbedDevice:
    """The device with the rates of its row in the catalog; of a processor, those of the cores that were used."""
    from dataclasses import replace

    try:
        chip = facts.resolve(_catalog_spelling(device.name)).accelerator
    except UnknownNameError:
        return device
    if (chip.kind == "cpu") != (device.kind == "cpu") or (device.kind == "cpu" and chip.num_sms is None):
        return device
    share = (device.cores or 1) / (chip.num_sms or 1) if device.kind == "cpu" else 1.0
    part = f", {device.cores} of its {chip.num_sms:.0f} cores" if device.kind == "cpu" else ""
    return replace(
        device, accelerator=chip.name, peak_flops_per_s={dtype: rate * share for dtype, rate in chip.peak.items()},
        memory_bytes_per_s=chip.hbm_bytes_per_s * share, peak_source=f"datasheet of {chip.name}{part} ({chip.source})",
    )  # fmt: skip
