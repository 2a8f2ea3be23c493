"""Where the rates of a training step come from: datasheet, kernels alone, and what is left of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.kernels import work_bytes
from flopwise.cost.rates import precision
from flopwise.cost.sustained import ATTENTION, BACKWARD_RATE, FULL_RATE, clock_frac
from flopwise.origin import COUNTED, KERNEL, Device, number
from flopwise.provenance import Figure, derived, fact

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.rates import Rates
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.shapes import Work


class TrainingDevice(Device):
    """A device under a training stack: `Device` with the rates that `training_rates` gives it."""

    def __init__(self, cluster: Cluster, software: TrainingStack, sustained: Rates) -> None:
        """Keep what the step was timed with."""
        super().__init__(cluster)
        self.software, self.sustained = software, sustained

    def clock(self) -> Figure:
        """Share of the boost clock under matrix products."""
        if "clock" not in self._known:
            held = [self.parameter(f"train_{n}") for n in ("joules_per_flop", "idle_frac", "clock_exponent")]
            if self.chip.tdp_w is not None:
                held.append(self.datasheet("tdp_w", "W"))
            said = f"{KERNEL}: power limit less idle draw over the draw of the matrix units at full rate, to a power"
            self._known["clock"] = derived("sustained clock", clock_frac(self.rates), "frac", said, *held)
        return self._known["clock"]

    def product_rate(self, dtype: str) -> Figure:
        """Sustained FLOP/s of matrix products in training."""
        key = f"rate {dtype}"
        if key not in self._known:
            name = f"matmul_frac.{precision(dtype).rate}"
            held = [self.datasheet(f"peak {dtype}", "FLOP/s"), self.parameter(name), self.clock()]
            if name != FULL_RATE:
                held.append(self.parameter("train_scaled_frac"))
            self._known[key] = self._achieved_rate(dtype, self.sustained.matmul_flops_per_s(dtype), held)
        return self._known[key]

    def attention_rate(self, *, backward: bool) -> Figure:
        """Sustained FLOP/s of the stack's flash attention inside full blocks."""
        key = f"attention {backward}"
        if key not in self._known:
            held = [
                self.datasheet("peak bf16", "FLOP/s"),
                *(self.parameter(name) for name in ATTENTION[self.software.attention_kernel]),
                self.clock(),
            ]
            value = self.rates.peak_flops_per_s("bf16") * self.sustained.value["attention_frac"]
            if backward:
                source = "FlashAttention-2 (arXiv 2307.08691) figures 4 to 6"
                held.append(fact("attention backward over forward", BACKWARD_RATE, "", source=source))
                value *= BACKWARD_RATE
            self._known[key] = self._achieved_rate("attention", value, held)
        return self._known[key]

    def _achieved_rate(self, what: str, value: float, held: list[Figure]) -> Figure:
        return derived(f"achieved {what} rate", value, "FLOP/s", " x ".join(f.name for f in held), *held)

    def kernel(self, work: Work, dtype: str, seconds: float, *, weight_bits: float, kv_bytes: float) -> Figure:
        """As `Device.kernel`, attention held against the rate of its own kernel."""
        if work.kind != "attention" or work.latent_dim is not None or dtype == "fp32":
            return super().kernel(work, dtype, seconds, weight_bits=weight_bits, kv_bytes=kv_bytes)
        flops = derived("FLOP", number(work.causal_flops), "FLOP", f"{COUNTED}: pairs that the mask lets through")
        rate = self.attention_rate(backward=work.name.endswith("/grad"))
        nbytes = work_bytes(work, weight_bits=weight_bits, kv_bytes=kv_bytes)
        moved = derived("bytes moved", number(nbytes), "B", COUNTED)
        return derived(f"{work.name} in {dtype}", seconds, "s", KERNEL, flops, moved, rate, self.memory_rate())
