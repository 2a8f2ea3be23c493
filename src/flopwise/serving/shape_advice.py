"""Shape advice for decoding: one step of an engine in which each sequence gets one token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.advice import Advice, Case, Fine
from flopwise.cost.fabric import fabric
from flopwise.cost.shape_rules import findings
from flopwise.cost.shapes import Operation, blocks, kernel_names, operation, scalar
from flopwise.facts.architecture import Model, Stack
from flopwise.facts.formats import BF16, BF16_CACHE, CacheFormat, WeightFormat
from flopwise.facts.software import Engine
from flopwise.serving.iteration import Load, Runner
from flopwise.serving.memory import ServingLayout
from flopwise.serving.precision import product_path

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.ops.types import Array, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeClock:
    """Times a step of `batch` sequences with `seq` cached tokens each; a `cost.advice.Clock`."""

    model: Model
    cluster: Cluster
    weights: WeightFormat = BF16
    kv_dtype: CacheFormat = BF16_CACHE
    engine: Engine
    tp: int = 1
    batch: int = 1
    seq: int = 1
    task: str = "serve"
    flash: bool = True

    @property
    def dtype(self) -> str:
        """Precision of the products inside the layers."""
        return product_path(self.model, self.weights, self.cluster.rates).dtype

    def runner(self, model: Model | None = None) -> Runner:
        """What times the steps of a model in this format."""
        path = product_path(self.model, self.weights, self.cluster.rates)
        return Runner(
            model=model or self.model,
            rates=self.cluster.rates,
            fabric=self.cluster.fabric,
            engine=self.engine,
            dtype=path.dtype,
            weight_bits=path.weight_bits,
            kv_dtype=self.kv_dtype,
        )

    def pass_s(
        self, model: Model | None = None, *, batch: Ints | None = None, seq: int | None = None, tp: Ints | None = None
    ) -> Array:
        """Seconds of a step, messages and the engine's own time included; shape (n,)."""
        load = Load(
            decode_batch=np.atleast_1d(self.batch if batch is None else batch), decode_context=float(seq or self.seq)
        )
        split = ServingLayout(tp=np.atleast_1d(self.tp if tp is None else tp))
        return np.atleast_1d(self.runner(model).step(load, split).seconds)

    def operations(self, pass_s: float) -> tuple[Operation, ...]:
        """Every kernel of the step as a row."""
        return tuple(self._rows(self.model.stacks[0], pass_s))

    def _rows(self, part: Stack, pass_s: float) -> Iterator[Operation]:
        runner = self.runner()
        load, split = Load(decode_batch=self.batch, decode_context=float(self.seq)), ServingLayout(tp=self.tp)
        for place, layers, items in blocks(part):
            inside = place is not None
            labels = kernel_names(items, fused=True)
            for kernel in runner.kernels_of(items, load, split, inside=inside):
                name = labels.get(kernel.work.name, kernel.work.name)
                yield operation(
                    runner.rates,
                    kernel.work,
                    name=f"{place}: {name}" if place else name,
                    layers=layers,
                    forward=True,
                    dtype=kernel.dtype,
                    seconds=kernel.timing.seconds,
                    memory_bound=scalar(kernel.timing.memory_s) >= scalar(kernel.timing.compute_s),
                    pass_s=pass_s,
                    weight_bits=kernel.weight_bits,
                    kv_bytes=runner.kv_bytes,
                )


def decode_advice(clock: DecodeClock) -> tuple[Case, tuple[Advice, ...], tuple[Fine, ...]]:
    """(the case, advice by gain, what is fine) of a decoding step."""
    now_s = scalar(clock.pass_s())
    case = Case(clock, now_s, clock.operations(now_s))
    advice, fine = findings(case)
    if clock.tp > 1:
        load, split = Load(decode_batch=clock.batch, decode_context=float(clock.seq)), ServingLayout(tp=clock.tp)
        share = scalar(clock.runner().step(load, split).communication_s) / now_s
        kind, chip = clock.cluster.fabric.link_kind, clock.cluster.accelerator
        told = f"messages of tp {clock.tp} take {100 * share:.1f} % over {kind}"
        if kind != "pcie" and chip.pcie_bytes_per_s:
            plain = replace(chip, link="none", link_bytes_per_s=None, max_scaleup=None)
            slower = replace(
                clock, cluster=replace(clock.cluster, fabric=fabric(plain, gpus_per_node=max(8, clock.tp)))
            )
            told += f"; over PCIe the step would take {scalar(slower.pass_s()) / now_s:.2f} times as long"
        fine = (*fine, Fine("links", told))
    return case, advice, fine
