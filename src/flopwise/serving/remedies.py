"""Single changes that would make a model being served need less memory, each with the bytes that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Experts, Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import BF16, BF16_CACHE, CacheFormat, WeightFormat
from flopwise.facts.software import Engine
from flopwise.ops.weights import weight_bytes
from flopwise.serving.memory import ServingLayout, serving_memory
from flopwise.serving.precision import product_path

if TYPE_CHECKING:
    from flopwise.cost.rates import Rates

LOWER_WEIGHTS = ("fp8", "awq", "nvfp4", "Q4_K_M")
_LOWER_CACHE = ("fp8", "q4_0")


def runnable_formats(model: Model, rates: Rates, facts: Facts) -> tuple[str, ...]:
    """Those of `LOWER_WEIGHTS` that a device has kernels for."""

    def runs(name: str) -> bool:
        try:
            product_path(model, facts.weight_format(name), rates)
        except MissingFactError:
            return False
        return True

    return tuple(name for name in LOWER_WEIGHTS if runs(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
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
    hbm_bytes: float | None,
    weights: WeightFormat = BF16,
    kv_dtype: CacheFormat = BF16_CACHE,
    engine: Engine,
    weight_formats: Sequence[str] = LOWER_WEIGHTS,
    **how: Any,
) -> list[Remedy]:
    """Single changes of one service that save memory: those that fit first, then by what they save.

    `weight_formats`: those to try, that the device has kernels for. Other keyword arguments: as `serving_memory`.
    """
    asked: dict[str, Any] = {
        "layout": layout, "concurrency": concurrency, "context": context, "weights": weights, "kv_dtype": kv_dtype,
        "engine": engine, "hbm_bytes": hbm_bytes, **how,
    }  # fmt: skip
    changes: list[tuple[str, dict[str, Any]]] = []
    size = weight_bytes(model, weights)
    changes += [
        (f"weights in {form.name}", {"weights": form})
        for form in map(facts.weight_format, weight_formats)
        if (form.kind == "gguf") == (engine.name == "llama.cpp") and weight_bytes(model, form) < size
    ]
    changes += [
        (f"KV cache in {form.name}", {"kv_dtype": form})
        for form in map(facts.cache_format, _LOWER_CACHE)
        if form.elem_bytes < kv_dtype.elem_bytes and (form.name == "fp8" or engine.name == "llama.cpp")
    ]
    if layout.tp < 8:
        changes.append((f"tp {2 * layout.tp}", {"layout": replace(layout, tp=2 * layout.tp)}))
    changes.append((f"pp {2 * layout.pp}", {"layout": replace(layout, pp=2 * layout.pp)}))
    if any(isinstance(i, Experts) for k in model.stacks[0].kinds for i in k.items):
        changes.append((f"ep {2 * layout.ep}", {"layout": replace(layout, ep=2 * layout.ep)}))
    if concurrency > 1:
        changes.append((f"{concurrency // 2:,} concurrent sequences", {"concurrency": concurrency // 2}))
    if context >= 2048:
        changes.append((f"a context of {context // 2:,} tokens", {"context": context // 2}))
    now = float(serving_memory(model, **asked).total_bytes)
    found: list[Remedy] = []
    for change, keys in changes:
        after = serving_memory(model, **(asked | keys))
        total = float(after.total_bytes)
        if total < now:
            fits = hbm_bytes is not None and bool(after.fits)
            found.append(Remedy(change=change, saves_bytes=now - total, total_bytes=total, fits=fits))
    return sorted(found, key=lambda r: (not r.fits, -r.saves_bytes))
