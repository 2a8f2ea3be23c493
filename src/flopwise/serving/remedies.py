"""Single changes that would make a model being served need less memory, each with the bytes that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.cost.fabric import fabric
from flopwise.cost.rates import Rates, rates
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.formats import BF16, BF16_CACHE, CacheFormat, WeightFormat
from flopwise.ops.weights import weight_bytes
from flopwise.serving.estimate import check_layout
from flopwise.serving.memory import ServingLayout, serving_memory
from flopwise.serving.precision import product_path

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.software import Engine

LOWER_WEIGHTS = ("fp8", "awq", "nvfp4", "Q4_K_M")
_LOWER_CACHE = ("fp8", "q4_0")
MOST_TP = 8
"""Degree beyond which tensor parallelism is no remedy."""


def runnable_formats(
    model: Model, engine: Engine, achieved: Rates | None, formats: Sequence[WeightFormat]
) -> tuple[WeightFormat, ...]:
    """Those of `formats` that the engine is documented to run and the device has kernels for.

    Files of llama.cpp are for engines of one's own machine. `achieved`: rates of the device; None: any.
    """

    def runs(form: WeightFormat) -> bool:
        if not engine.runs(form) or (form.kind == "gguf") > engine.local:
            return False
        try:
            return achieved is None or bool(product_path(model, form, achieved))
        except MissingFactError:
            return False

    return tuple(filter(runs, formats))


def allows(model: Model, layout: ServingLayout) -> bool:
    """Whether heads, experts and layers of a model allow a layout."""
    try:
        check_layout(model, layout)
    except SpecError:
        return False
    return True


def _joins(device: Accelerator) -> bool:
    """Whether a link or PCIe is known that joins such devices."""
    try:
        return bool(fabric(device, gpus_per_node=2))
    except MissingFactError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRemedy:
    """One change of a service: what to do, what it saves on the fullest GPU, what is left, and whether that fits."""

    change: str
    saves_bytes: float
    total_bytes: float
    fits: bool


def serving_remedies(
    model: Model,
    layout: ServingLayout,
    facts: Facts,
    *,
    concurrency: int,
    context: int,
    device: Accelerator | None,
    weights: WeightFormat = BF16,
    kv_dtype: CacheFormat = BF16_CACHE,
    engine: Engine,
    **how: Any,
) -> list[ServingRemedy]:
    """Single changes of one service that save memory: those that fit first, then by what they save.

    `device` None: any, and nothing is known to fit. Other keyword arguments: as `serving_memory`.
    """
    asked: dict[str, Any] = {
        "layout": layout, "concurrency": concurrency, "context": context, "weights": weights, "kv_dtype": kv_dtype,
        "engine": engine, **how,
    }  # fmt: skip
    if device is not None:
        asked |= {"hbm_bytes": device.hbm_bytes, "device_kind": device.kind}
    changes: list[tuple[str, dict[str, Any]]] = []
    size = weight_bytes(model, weights)
    lower = tuple(map(facts.weight_format, LOWER_WEIGHTS))
    changes += [
        (f"weights in {form.name}", {"weights": form})
        for form in runnable_formats(model, engine, None if device is None else rates(device), lower)
        if weight_bytes(model, form) < size
    ]
    changes += [
        (f"KV cache in {form.name}", {"kv_dtype": form})
        for form in map(facts.cache_format, _LOWER_CACHE)
        if form.elem_bytes < kv_dtype.elem_bytes and (form.name == "fp8" or engine.name.startswith("llama.cpp"))
    ]
    wider = {"tp": replace(layout, tp=2 * layout.tp), "pp": replace(layout, pp=2 * layout.pp)}
    changes += [
        (f"{axis} {getattr(more, axis)}", {"layout": more})
        for axis, more in wider.items()
        if more.tp <= max(MOST_TP, layout.tp) and allows(model, more) and (device is None or _joins(device))
    ]
    if concurrency > 1:
        changes.append((f"{concurrency // 2:,} concurrent sequences", {"concurrency": concurrency // 2}))
    if context >= 2048:
        changes.append((f"a context of {context // 2:,} tokens", {"context": context // 2}))
    now = float(serving_memory(model, **asked).total_bytes)
    found: list[ServingRemedy] = []
    for change, keys in changes:
        after = serving_memory(model, **(asked | keys))
        total = float(after.total_bytes)
        if total < now:
            fits = device is not None and bool(after.fits)
            found.append(ServingRemedy(change=change, saves_bytes=now - total, total_bytes=total, fits=fits))
    return sorted(found, key=lambda r: (not r.fits, -r.saves_bytes))
