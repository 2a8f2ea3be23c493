"""Where the figures of a training estimate come from, as one tree."""

from __future__ import annotations

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.cost.money import num_instances
from flopwise.cost.origin import COUNTED, KERNEL, estimate_of, interval, number, power_shares, price
from flopwise.ops.flops import causal_forward_flops, forward_flops
from flopwise.provenance import Figure, assumption, derived, given
from flopwise.training.estimate import TrainEstimate, job_watts
from flopwise.training.goodput import DEFAULT_RELIABILITY, checkpoint_interval_s
from flopwise.training.memory import peak_and_states
from flopwise.training.memory_figures import memory_figure
from flopwise.training.step_figures import StepFigures
from flopwise.training.table import MemoryTable
from flopwise.units import HOUR_S


def train_figure(found: TrainEstimate) -> Figure:
    """The tree of an estimate: throughput with its interval, utilisation, bounds, memory and the run."""
    tree = _Tree(found)
    figures = [*tree.throughput(), *tree.utilisation(), *tree.bounds(), memory_figure(found), *tree.run()]
    name = f"{found.job.model.name} on {found.num_gpus:,} x {found.job.cluster.accelerator.name}"
    return estimate_of(name, figures)


class _Tree(StepFigures):
    """The headline figures over the step's."""

    def throughput(self) -> list[Figure]:
        """Tokens per second, for each GPU with its interval."""
        found = self.found
        tokens = derived(
            "tokens of a step",
            number(self.job.recipe.global_batch) * number(self.job.recipe.seq_len),
            "tokens",
            "global batch x sequence length",
            self.batch,
            self.seq,
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
        batch, seq = int(recipe.global_batch), int(recipe.seq_len)
        passes = given("passes", 3.0 if recipe.lora is None else 2.0)
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
        again = given("passes again", 1.0 if self.mode == 2 else 0.0)
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
                note="selective recompute is not counted",
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
        formula = f"min({self.step.name}, micro-batches x max({', '.join(names)}))"
        lower = derived(
            "lower bound of the step", self.found.lower_bound_s, "s", formula, self.step, self.num_micro, *leaves
        )
        upper = derived(
            "upper bound of the step",
            self.found.upper_bound_s,
            "s",
            f"{KERNEL}: every line at calibrated rates, one after the other, nothing hidden",
        )
        return [lower, upper]

    def run(self) -> list[Figure]:
        """Time, GPU-hours, cost and energy of the whole run."""
        run, job = self.found.run, self.job
        if run is None:
            return []
        tokens = given("tokens", run.tokens, "tokens")
        good = self._goodput()
        time = derived("run time", run.seconds, "s", "tokens / throughput / goodput", tokens, self.rate, good)
        hours = derived("GPU-hours", run.gpu_hours, "h", f"run time / {HOUR_S:g} x GPUs", time, self.gpus)
        figures = [hours]
        paid = price(job.cluster)
        if paid is not None:
            per_node = given("GPUs a node", job.cluster.gpus_per_node)
            nodes = derived(
                "nodes",
                int(num_instances(self.found.num_gpus, job.cluster.gpus_per_node)),
                "",
                f"{COUNTED}: whole machines that hold the GPUs",
                self.gpus,
                per_node,
            )
            formula = f"run time / {HOUR_S:g} x {paid.name} x nodes x GPUs a node"
            figures.append(derived("cost", run.cost_usd, "USD", formula, time, paid, nodes, per_node))
        if run.energy_joules is not None:
            figures.append(self._energy(time, run.energy_joules))
        return figures

    def _goodput(self) -> Figure:
        found, reliability = self.found, DEFAULT_RELIABILITY
        if found.num_gpus == 1 or found.run is None:
            return assumption("goodput", 1.0, "frac", "one GPU: failures are left out")
        mtbf = reliability.mtbf_gpu_s / found.num_gpus
        states = float(peak_and_states(MemoryTable(self.job.model, self.job.recipe), self.job.layout)[1])
        write = max(states / reliability.write_bytes_per_s_per_gpu, 1e-3)
        between = derived(
            "time between failures",
            mtbf,
            "s",
            "time between failures of a GPU / GPUs",
            assumption(
                "time between failures of a GPU",
                reliability.mtbf_gpu_s,
                "s",
                "Llama 3 (arXiv:2407.21783) section 3.3.4",
            ),
            self.gpus,
        )
        writes = derived(
            "checkpoint write",
            write,
            "s",
            f"{COUNTED}: weights and states / write bandwidth of a GPU",
            assumption(
                "write bandwidth of a GPU",
                reliability.write_bytes_per_s_per_gpu,
                "B/s",
                "what parallel file systems sustain for sharded checkpoints",
            ),
        )
        every = derived(
            "checkpoint interval",
            number(checkpoint_interval_s(write, mtbf)),
            "s",
            f"sqrt(2 x {writes.name} x {between.name})",
            writes,
            between,
            source="Young 1974; Daly 2006",
        )
        restart = assumption("restart", reliability.restart_s, "s", "detection, rescheduling and warm-up")
        formula = f"1 / (1 + {writes.name} / {every.name} + ({every.name} / 2 + {restart.name}) / {between.name})"
        return derived("goodput", found.run.goodput_frac, "frac", formula, writes, every, restart, between)

    def _energy(self, time: Figure, joules: float) -> Figure:
        chip = self.job.cluster.accelerator
        limit = self.device.datasheet("tdp_w", "W")
        draw = derived(
            "draw of a GPU",
            job_watts(self.job, self.lines, self.table),
            "W",
            "power model: shares of the power limit by what the time goes to",
            limit,
            *power_shares(("compute", "memory", "communication", "idle")),
        )
        around = 0.0 if chip.kind == "cpu" else DEFAULT_POWER.host
        host = assumption("power share host", around, "", "see flopwise.cost.energy.PowerModel")
        pue = power_shares(("pue",))[0]
        formula = f"GPUs x ({draw.name} + {host.name} x {limit.name}) x {pue.name} x {time.name}"
        return derived("energy", joules, "J", formula, self.gpus, draw, host, limit, pue, time)
