"""Where the figures of a training estimate come from, as one tree."""

from __future__ import annotations

from flopwise.ops.flops import causal_forward_flops, forward_flops
from flopwise.origin import COUNTED, KERNEL, estimate_of, interval, number
from flopwise.provenance import Figure, derived, given
from flopwise.training.estimate import TrainEstimate, again_frac, counted_batch, counted_passes
from flopwise.training.memory_figures import memory_figure
from flopwise.training.run_figures import RunFigures


def train_figure(found: TrainEstimate) -> Figure:
    """The tree of an estimate: throughput with its interval, utilisation, bounds, memory and the run."""
    tree = _Tree(found)
    figures = [*tree.throughput(), *tree.utilisation(), *tree.bounds(), memory_figure(found), *tree.run()]
    name = f"{found.job.model.name} on {found.num_gpus:,} x {found.job.cluster.accelerator.name}"
    return estimate_of(name, figures)


class _Tree(RunFigures):
    """The headline figures over the step's."""

    def throughput(self) -> list[Figure]:
        """Tokens per second, for each GPU with its interval."""
        found = self.found
        tokens = derived(
            "tokens of a step",
            number(self.job.recipe.global_batch) * number(self.computed.value),
            "tokens",
            f"global batch x {self.computed.name}",
            self.batch,
            self.computed,
        )
        rate = derived("throughput", found.tokens_per_s, "tokens/s", "tokens of a step / step time", tokens, self.step)
        each = derived(
            "throughput per GPU", found.tokens_per_s_per_gpu, "tokens/s", "throughput / GPUs", rate, self.gpus
        )
        self.rate = rate
        return [each, *interval("throughput per GPU", each, found.band, found.low, found.high)]

    def utilisation(self) -> list[Figure]:
        """MFU in both conventions, and HFU."""
        recipe, found = self.job.recipe, self.found
        batch, seq = counted_batch(self.job)
        passes = given("passes", counted_passes(self.job))
        causal = derived(
            "causal forward FLOP",
            number(causal_forward_flops(self.job.model, batch, seq)),
            "FLOP",
            f"{COUNTED}: what masks and windows let through",
        )
        whole = derived(
            "full forward FLOP",
            number(forward_flops(self.job.model, batch, seq)),
            "FLOP",
            f"{COUNTED}: attention in full",
        )
        peak = self.device.datasheet(f"peak {recipe.precision}", "FLOP/s")
        below = f"({self.step.name} x GPUs x {peak.name})"
        again = derived(
            "passes again",
            again_frac(self.table, self.job.layout),
            "",
            f"{COUNTED}: of a forward pass, what recompute runs again",
            given("recompute", self.job.layout.recompute_text),
        )
        held = (self.step, self.gpus, peak)
        return [
            derived("MFU", found.mfu_frac, "frac", f"passes x causal forward FLOP / {below}", passes, causal, *held),
            derived(
                "MFU, attention in full",
                found.mfu_full_attention_frac,
                "frac",
                f"passes x full forward FLOP / {below}",
                passes,
                whole,
                *held,
            ),
            derived(
                "HFU",
                found.hfu_frac,
                "frac",
                f"(passes + passes again) x causal forward FLOP / {below}",
                passes,
                again,
                causal,
                *held,
            ),
        ]

    def bounds(self) -> list[Figure]:
        """The step at datasheet rates, and with nothing hidden."""
        floor = [float(v) for v in self.table.floor_s[:, 0, 0]]
        names = ("compute at peak", "memory at datasheet bandwidth", "links at datasheet bandwidth")
        leaves = [
            derived(n, v, "s", f"{COUNTED}: work of a micro-batch / datasheet rate")
            for n, v in zip(names, floor, strict=True)
        ]
        floor_text = f"micro-batches x max({', '.join(names)})"
        if self.reading is not None:
            leaves.append(self.reading)
            floor_text = f"max({self.reading.name}, {floor_text})"
        name = "lower bound of the step"
        lower = derived(name, self.found.lower_bound_s, "s", floor_text, self.num_micro, *leaves)
        upper = derived(
            "upper bound of the step",
            self.found.upper_bound_s,
            "s",
            f"{KERNEL}: every line at calibrated rates, one after the other, nothing hidden",
        )
        return [lower, upper]
