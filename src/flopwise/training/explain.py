"""Where the figures of a training estimate come from, as trees."""

from __future__ import annotations

import numpy as np

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.cost.money import num_instances
from flopwise.cost.origin import COUNTED, KERNEL, Device, estimate_of, interval, number, power_shares, price, total
from flopwise.facts.software import stack
from flopwise.ops.flops import causal_forward_flops, forward_flops
from flopwise.ops.work import Shape, Split
from flopwise.provenance import Figure, assumption, derived, fact, given
from flopwise.training.blocks import ACT_BYTES, BlockContext, Kernel, kernels_of
from flopwise.training.estimate import TrainEstimate, job_watts, single_table
from flopwise.training.goodput import DEFAULT_RELIABILITY, checkpoint_interval_s
from flopwise.training.memory_figures import memory_figure
from flopwise.training.stages import stage_sums
from flopwise.training.step import (
    DTYPE_BYTES,
    STAGE_PARTS,
    StepTable,
    block_list,
    optimizer_traffic_bytes,
    resident_grad_dtype,
)
from flopwise.units import HOUR_S


def train_figure(found: TrainEstimate) -> Figure:
    """The tree of an estimate: throughput with its interval, utilisation, bounds, memory and the run."""
    tree = _Tree(found)
    figures = [*tree.throughput(), *tree.utilisation(), *tree.bounds(), memory_figure(found), *tree.run()]
    name = f"{found.job.model.name} on {found.num_gpus:,} x {found.job.cluster.accelerator.name}"
    return estimate_of(name, figures)


class _Tree:
    """The figures of one estimate; what several trees share is built once."""

    def __init__(self, found: TrainEstimate) -> None:
        self.found, self.job = found, found.job
        self.device = Device(self.job.cluster)
        self.software = stack(self.job.recipe.stack)
        self.table: StepTable = single_table(self.job, self.software)
        layout, recipe = self.job.layout, self.job.recipe
        self.lines = dict(found.breakdown)
        self.gpus = given("GPUs", found.num_gpus)
        self.batch = given("global batch", int(recipe.global_batch), "sequences")
        self.seq = given("sequence length", int(recipe.seq_len), "tokens")
        self.dp, self.micro_batch = given("dp", int(layout.dp)), given("micro-batch", int(layout.micro_batch))
        self.num_micro = derived(
            "micro-batches", number(recipe.global_batch) / (int(layout.dp) * int(layout.micro_batch)), "",
            "global batch / (dp x micro-batch)", self.batch, self.dp, self.micro_batch,
        )  # fmt: skip
        self.mode = int(layout.recompute)
        self.stage = {n: float(v) for n, v in zip(STAGE_PARTS, self.table.stage_parts[:, self.mode, 0, 0], strict=True)}
        self.kernels = self._kernels()
        self.step = total("step time", "s", [self._line(name) for name, _ in found.breakdown])

    def _context(self) -> BlockContext:
        layout, recipe = self.job.layout, self.job.recipe
        one = [np.array([int(v)]) for v in (layout.tp, layout.cp, layout.ep, layout.micro_batch)]
        return BlockContext(
            recipe=recipe,
            software=self.software,
            rates=self.job.cluster.rates,
            fabric=self.job.cluster.fabric,
            shape=Shape(batch=one[3], query=recipe.seq_len, context=recipe.seq_len, encoder=recipe.seq_len),
            split=Split(tp=one[0], cp=one[1], ep=one[2], sequence_parallel=layout.sequence_parallel),
        )

    def _kernels(self) -> list[tuple[str, float, list[Kernel]]]:
        """(block, how often it occurs on the busiest stage, its kernels) of every block on that stage."""
        model, context = self.job.model, self._context()
        kinds = model.stacks[0].kinds
        names = ["before the layers", *(kind.name for kind in kinds), "after the layers"]
        blocks = [list(kernels_of(items, context, in_layers=inside)) for items, _, inside in block_list(model)]
        forward = [sum(number(k.seconds) for k in block if k.forward) for block in blocks]
        sums = stage_sums(model.stacks[0].order, len(kinds), self.table.degrees)
        rows = [
            [float(first), *map(float, counts), float(last)]
            for counts, first, last in zip(sums.counts[0], sums.has_first[0], sums.has_last[0], strict=True)
        ]
        target = self.stage["forward"]
        counts = min(rows, key=lambda row: abs(sum(c * f for c, f in zip(row, forward, strict=True)) - target))
        return [(n, c, b) for n, c, b in zip(names, counts, blocks, strict=True) if c and b]

    def _line(self, name: str) -> Figure:
        """One line of the step's breakdown."""
        words, seconds = name.replace("_", " "), self.lines[name]
        match name:
            case "forward" | "backward" | "recompute":
                one = self._pass(name)
                return derived(words, seconds, "s", f"{self.num_micro.name} x {one.name}", self.num_micro, one)
            case "tensor_parallel" | "context_parallel" | "expert_parallel":
                return self._exchange(name)
            case "pipeline_bubble":
                return self._bubble()
            case "pipeline_p2p":
                return self._hops()
            case "data_parallel":
                return self._gradients()
            case "optimizer":
                return self._optimizer()
            case _:
                return self._launch()

    def _pass(self, name: str) -> Figure:
        """One micro-batch through the busiest stage in one direction."""
        if name == "recompute":
            return self._again()
        blocks = []
        for block, count, kernels in self.kernels:
            parts = [
                self.device.kernel(k.work, k.dtype, number(k.seconds), weight_bits=16.0, kv_bytes=ACT_BYTES)
                for k in kernels
                if k.forward == (name == "forward")
            ]
            if not parts:
                continue
            one = total(f"{name} of one block {block}", "s", parts)
            times = derived(f"blocks {block}", count, "", f"{COUNTED}: blocks on the busiest stage")
            blocks.append(
                derived(f"{name} of {block}", count * number(one.value), "s", f"{times.name} x {one.name}", times, one)
            )
        return total(f"{name} of a micro-batch", "s", blocks)

    def _again(self) -> Figure:
        """What recompute runs again for one micro-batch."""
        said = ("nothing is computed again", "attention is computed again", "the whole forward pass is computed again")
        return derived(
            "recompute of a micro-batch", self.stage["recompute"], "s", f"{KERNEL}: {said[self.mode]}",
            given("recompute", ("none", "selective", "full")[self.mode]),
        )  # fmt: skip

    def _exchange(self, name: str) -> Figure:
        """Exposed messages inside the layers."""
        layout, width = self.job.layout, self.table.width
        degree = {"tensor_parallel": "tp", "context_parallel": "cp", "expert_parallel": "ep"}[name]
        ranks, words = int(getattr(layout, degree)), name.replace("_", " ")
        if ranks == 1:
            return derived(
                words, self.lines[name], "s", "0 x ranks", given("ranks", 1), note=f"{degree} is 1: no message"
            )
        tokens = int(layout.micro_batch) * number(self.job.recipe.seq_len) / int(layout.cp)
        overlap = {"tp": self.software.tp_overlap, "ep": self.software.ep_overlap}.get(degree)
        kind = {
            "tp": "all-gathers and reduce-scatters around each row-parallel product, less what compute hides",
            "cp": "keys and values passed round the ring, less what attention hides",
            "ep": "two all-to-alls of the routed tokens a layer and pass, less what compute hides",
        }[degree]
        hidden = () if overlap is None else (self._software(f"share hidden behind compute ({degree})", overlap),)
        nbytes = tokens * width * ACT_BYTES
        one = self.device.message(f"{words} of a micro-batch", self.stage[name], nbytes, ranks, kind, *hidden)
        return derived(words, self.lines[name], "s", f"{self.num_micro.name} x {one.name}", self.num_micro, one)

    def _software(self, name: str, value: float) -> Figure:
        row = self.software
        return fact(name, value, "", source=f"data/stacks.csv, {row.name}: {row.source}", note=row.meaning)

    def _bubble(self) -> Figure:
        """Stages that wait for the first and the last micro-batch."""
        pp = int(self.job.layout.pp)
        if pp == 1:
            return derived("pipeline bubble", 0.0, "s", "0 x stages", given("stages", 1))
        whole = derived(
            "all stages",
            float(self.table.model_s[self.mode, 0]),
            "s",
            f"{KERNEL}: one micro-batch, every stage in turn",
        )
        busiest = derived(
            "busiest stage", sum(self.stage.values()), "s", f"{KERNEL}: one micro-batch on the busiest stage"
        )
        turns = given("interleave", int(self.job.layout.interleave))
        formula = "max(all stages - busiest stage, 0) / interleave"
        return derived("pipeline bubble", self.lines["pipeline_bubble"], "s", formula, whole, busiest, turns,
                       source="Narayanan et al. 2021 (arXiv:2104.04473) section 2.2")  # fmt: skip

    def _hops(self) -> Figure:
        layout = self.job.layout
        if int(layout.pp) == 1:
            return derived("pipeline p2p", 0.0, "s", "0 x stages", given("stages", 1))
        tokens = int(layout.micro_batch) * number(self.job.recipe.seq_len) / int(layout.cp)
        nbytes = tokens * self.table.width * ACT_BYTES / int(layout.tp)
        return self.device.message(
            "pipeline p2p", self.lines["pipeline_p2p"], nbytes, self.found.num_gpus,
            "activations forward and gradients back between stages, every micro-batch", self.num_micro,
        )  # fmt: skip

    def _params(self) -> Figure:
        """Trained parameters on one rank."""
        count = float(self.table.dense_params[0, 0] + self.table.expert_params[0, 0])
        layout = self.job.layout
        shape = (given("tp", int(layout.tp)), given("pp", int(layout.pp)), given("ep", int(layout.ep)))
        formula = f"{COUNTED}: trained parameters of the busiest stage, cut by tp and ep"
        return derived("trained parameters on a rank", count, "", formula, *shape, source=self.job.model.source)

    def _gradients(self) -> Figure:
        """Gradients, and with ZeRO weights, across replicas."""
        layout = self.job.layout
        ranks = int(layout.dp) * int(layout.cp)
        if ranks == 1:
            return derived("data parallel", self.lines["data_parallel"], "s", "0 x replicas", given("replicas", 1))
        params = self._params()
        dtype = resident_grad_dtype(self.job.recipe, self.software)
        width = self._software(f"bytes of a gradient ({dtype})", DTYPE_BYTES[dtype])
        size = derived(
            "gradients on a rank",
            number(params.value) * DTYPE_BYTES[dtype],
            "B",
            f"{params.name} x {width.name}",
            params,
            width,
        )
        zero = int(layout.zero)
        kind = {0: "one all-reduce a step", 3: "weights gathered twice and gradients scattered once a micro-batch"}.get(
            zero, "gradients scattered and weights gathered once a step"
        )
        hidden = self._software("share of compute that messages hide behind", self.software.dp_overlap)
        held = (
            size,
            given("ranks", ranks),
            given("ZeRO stage", zero),
            hidden,
            *self.device.links(ranks * int(layout.tp)),
        )
        return derived(
            "data parallel", self.lines["data_parallel"], "s", f"message model: {kind}, less what compute hides", *held
        )

    def _optimizer(self) -> Figure:
        params, layout = self._params(), self.job.layout
        moved = derived(
            "bytes an optimizer step moves a parameter", optimizer_traffic_bytes(self.job.recipe, self.software), "B",
            f"{COUNTED}: states read and written, gradient read, weights read and written",
            given("optimizer", self.job.recipe.optimizer),
        )  # fmt: skip
        share = given("shards", int(layout.dp) * int(layout.cp) if int(layout.zero) > 0 else 1)
        rate = self.device.memory_rate()
        formula = f"{params.name} / {share.name} x {moved.name} / {rate.name}"
        return derived("optimizer", self.lines["optimizer"], "s", formula, params, share, moved, rate)

    def _launch(self) -> Figure:
        host = derived(
            "launching a micro-batch", float(self.table.host_s[0, 0]), "s", f"{KERNEL}: three launches an operation",
            self._software("host time of one launch", self.software.launch_s),
        )  # fmt: skip
        busy = derived("device time of a micro-batch", sum(self.stage.values()), "s", f"{KERNEL}: all lines of a stage")
        formula = f"{self.num_micro.name} x max(0, {host.name} - {busy.name})"
        return derived("launch", self.lines["launch"], "s", formula, self.num_micro, host, busy)

    def throughput(self) -> list[Figure]:
        """Tokens per second, for each GPU with its interval."""
        found = self.found
        tokens = derived(
            "tokens of a step", number(self.job.recipe.global_batch) * number(self.job.recipe.seq_len), "tokens",
            "global batch x sequence length", self.batch, self.seq,
        )  # fmt: skip
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
        causal = derived("causal forward FLOP", number(causal_forward_flops(self.job.model, batch, seq)), "FLOP",
                         f"{COUNTED}: what masks and windows let through")  # fmt: skip
        whole = derived("full forward FLOP", number(forward_flops(self.job.model, batch, seq)), "FLOP",
                        f"{COUNTED}: attention in full")  # fmt: skip
        peak = self.device.datasheet(f"peak {recipe.precision}", "FLOP/s")
        below = f"({self.step.name} x GPUs x {peak.name})"
        again = given("passes again", 1.0 if self.mode == 2 else 0.0)
        held = (self.step, self.gpus, peak)
        return [
            derived("MFU", found.mfu_frac, "frac", f"passes x causal forward FLOP / {below}", passes, causal, *held),
            derived("MFU, attention in full", found.mfu_full_attention_frac, "frac",
                    f"passes x full forward FLOP / {below}", passes, whole, *held),
            derived("HFU", found.hfu_frac, "frac", f"(passes + passes again) x causal forward FLOP / {below}", passes,
                    again, causal, *held, note="selective recompute is not counted"),
        ]  # fmt: skip

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
        upper = derived("upper bound of the step", self.found.upper_bound_s, "s",
                        f"{KERNEL}: every line at calibrated rates, one after the other, nothing hidden")  # fmt: skip
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
            nodes = derived("nodes", int(num_instances(self.found.num_gpus, job.cluster.gpus_per_node)), "",
                            f"{COUNTED}: whole machines that hold the GPUs", self.gpus, per_node)  # fmt: skip
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
        items = found.memory.items
        states = sum(number(items.get(k, 0.0)) for k in ("weights", "master weights", "optimizer states"))
        write = max(states / reliability.write_bytes_per_s_per_gpu, 1e-3)
        between = derived("time between failures", mtbf, "s", "time between failures of a GPU / GPUs",
                          assumption("time between failures of a GPU", reliability.mtbf_gpu_s, "s",
                                     "Llama 3 (arXiv:2407.21783) section 3.3.4"), self.gpus)  # fmt: skip
        writes = derived("checkpoint write", write, "s", f"{COUNTED}: weights and states / write bandwidth of a GPU",
                         assumption("write bandwidth of a GPU", reliability.write_bytes_per_s_per_gpu, "B/s",
                                    "what parallel file systems sustain for sharded checkpoints"))  # fmt: skip
        every = derived("checkpoint interval", number(checkpoint_interval_s(write, mtbf)), "s",
                        f"sqrt(2 x {writes.name} x {between.name})", writes, between,
                        source="Young 1974; Daly 2006")  # fmt: skip
        restart = assumption("restart", reliability.restart_s, "s", "detection, rescheduling and warm-up")
        formula = f"1 / (1 + {writes.name} / {every.name} + ({every.name} / 2 + {restart.name}) / {between.name})"
        return derived("goodput", found.run.goodput_frac, "frac", formula, writes, every, restart, between)

    def _energy(self, time: Figure, joules: float) -> Figure:
        chip = self.job.cluster.accelerator
        limit = self.device.datasheet("tdp_w", "W")
        draw = derived("draw of a GPU", job_watts(self.job, self.lines, self.table), "W",
                       "power model: shares of the power limit by what the time goes to", limit,
                       *power_shares(("compute", "memory", "communication", "idle")))  # fmt: skip
        around = 0.0 if chip.kind == "cpu" else DEFAULT_POWER.host
        host = assumption("power share host", around, "", "see flopwise.cost.energy.PowerModel")
        pue = power_shares(("pue",))[0]
        formula = f"GPUs x ({draw.name} + {host.name} x {limit.name}) x {pue.name} x {time.name}"
        return derived("energy", joules, "J", formula, self.gpus, draw, host, limit, pue, time)
