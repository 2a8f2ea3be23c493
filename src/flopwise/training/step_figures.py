"""Where the lines of a training step come from: the batch, kernels, messages, the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.fabric import host_link_bytes_per_s
from flopwise.cost.kernels import work_bytes
from flopwise.cost.precisions import FULL_WIDTH
from flopwise.cost.rates import precision
from flopwise.cost.sustained import ATTENTION, BACKWARD_RATE, MEMORY_POWER, PLAIN_RATES, efficient_attention
from flopwise.origin import COUNTED, KERNEL, Device, Ledger, number
from flopwise.provenance import Figure, assumption, fact, setting, term
from flopwise.training.blocks import BlockKernel, kernels_of
from flopwise.training.estimate import TrainEstimate
from flopwise.training.frozen import run_model
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.routing import expert_load
from flopwise.training.schedules import FORWARD, OTHERS, SCHEDULES, WEIGHTS, Pipe, any_of, schedule_text
from flopwise.training.stages import recomputes_all
from flopwise.training.step import (
    FRESH_MEMORY,
    HOST_BYTES_PER_S,
    WAITING,
    counts_s,
    gpus_per_host,
    hidden_beside_s,
    host_s,
    others_s,
    owned_others,
    owned_params,
)
from flopwise.training.step_table import EXPERT_IMBALANCE, block_contexts, block_list, tower_blocks
from flopwise.training.storage import LINE
from flopwise.training.stragglers import JITTER_FRAC, MEASURED_RANKS, STRAGGLERS, waiting_frac
from flopwise.training.widths import ACT_BYTES, optimizer_traffic_bytes, others_traffic_bytes, sent_grad_bytes
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.rates import Rates
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.shapes import Work

_EXCHANGES = {
    "tensor_parallel": (
        "tp", "all-gathers and reduce-scatters around each row-parallel product, less what compute hides"
    ),
    "context_parallel": (
        "cp", "keys and values sent around a ring, less what attention hides; or gathered; or heads exchanged"
    ),
    "expert_parallel": ("ep", "two all-to-alls of the routed tokens per layer and pass, less what compute hides"),
}  # fmt: skip
_RECOMPUTED = (
    "nothing is recomputed",
    "the activations that the stack discards are recomputed",
    "the whole forward pass is recomputed",
    "the forward pass of some blocks is recomputed",
)
_ONE = np.zeros(1, dtype=np.intp)


class TrainingDevice(Device):
    """A device under a training stack: `Device` with the rates that `training_rates` gives it, at a sustained clock."""

    def __init__(self, cluster: Cluster, software: TrainingStack, boosted: Rates, clock_frac: float) -> None:
        """Keep what the step was timed with."""
        super().__init__(cluster, boosted)
        self.software, self.boosted, self.clock_frac = software, boosted, clock_frac

    def clock(self) -> Figure:
        """Share of the boost clock under the kernels of a micro-batch."""
        if "clock" not in self._known:
            inputs = [self.parameter(f"train_{n}") for n in ("joules_per_flop", "idle_frac", "clock_exponent")]
            if self.chip.tdp_w is not None:
                inputs.append(self.datasheet("tdp_w", "W"))
            if self.chip.host_w is not None:
                what = "of the module's limit, for a CPU that waits"
                inputs.append(assumption(f"{self.chip.name} power of its CPU", self.chip.host_w, "W", what))
            inputs.append(self.parameter(MEMORY_POWER))
            text = f"{KERNEL}: mean power of a micro-batch's kernels, idle draw and operations, within the power limit"
            self._known["clock"] = term("sustained clock", self.clock_frac, "frac", text, *inputs)
        return self._known["clock"]

    def product_rate(self, dtype: str) -> Figure:
        """Sustained FLOP/s of matrix products in training."""
        key = f"rate {dtype}"
        if key not in self._known:
            name = f"matmul_frac.{precision(dtype).rate}"
            factors = [self.datasheet(f"peak {dtype}", "FLOP/s"), self.parameter(name), self.clock()]
            if name not in PLAIN_RATES:
                factors.append(self.parameter("train_scaled_frac"))
                if self.rates.value["train_scaled_power"] and self.chip.tdp_w is not None:
                    factors += [self.parameter("train_scaled_power"), self.datasheet("tdp_w", "W")]
            rate = self.clock_frac * self.boosted.matmul_flops_per_s(dtype)
            self._known[key] = self._achieved_rate(dtype, rate, factors)
        return self._known[key]

    def attention_rate(self, *, backward: bool, efficient: int | None = None) -> Figure:
        """Sustained FLOP/s of the stack's flash attention inside full blocks.

        `efficient`: dimension of the heads where PyTorch's memory-efficient kernel takes its place.
        """
        key = f"attention {backward} {efficient}"
        if key not in self._known:
            parameters = map(self.parameter, ATTENTION[self.software.attention_kernel])
            factors = [self.datasheet("peak bf16", "FLOP/s"), *parameters, self.clock()]
            value = self.clock_frac * self.rates.peak_flops_per_s("bf16") * self.boosted.value["attention_frac"]
            back, source = BACKWARD_RATE, "FlashAttention-2 (arXiv 2307.08691) figures 4 to 6"
            if efficient is not None:
                forward, back = efficient_attention(self.boosted, efficient)
                source = "FlashAttention-2 (arXiv 2307.08691), xlite-dev/ffpa-attn: memory-efficient attention"
                factors.append(fact("memory-efficient attention over the stack's", forward, "", source=source))
                value *= forward
            if backward:
                factors.append(fact("attention backward over forward", back, "", source=source))
                value *= back
            self._known[key] = self._achieved_rate("attention", value, factors)
        return self._known[key]

    def _achieved_rate(self, what: str, value: float, factors: list[Figure]) -> Figure:
        return term(f"achieved {what} rate", value, "FLOP/s", " x ".join(f.name for f in factors), *factors)

    def kernel(
        self, work: Work, dtype: str, seconds: float, *, weight_bits: float, kv_bytes: float, efficient: bool = False
    ) -> Figure:
        """As `Device.kernel`, attention held against the rate of its own kernel; `efficient`: as of `BlockKernel`."""
        if work.kind != "attention" or work.latent_dim is not None or dtype in FULL_WIDTH:
            return super().kernel(work, dtype, seconds, weight_bits=weight_bits, kv_bytes=kv_bytes)
        flops = term("FLOP", number(work.causal_flops), "FLOP", f"{COUNTED}: pairs that the mask lets through")
        larger = max(work.qk_dim, work.v_dim) if efficient else None
        rate = self.attention_rate(backward=work.name.endswith("/grad"), efficient=larger)
        nbytes = work_bytes(work, weight_bits=weight_bits, kv_bytes=kv_bytes)
        moved = term("bytes moved", number(nbytes), "B", COUNTED)
        return term(f"{work.name} in {dtype}", seconds, "s", KERNEL, flops, moved, rate, self.memory_rate())


class StepFigures(Ledger):
    """The figures of one estimate's step; what several share is built once."""

    def __init__(self, estimate: TrainEstimate) -> None:
        """Build the step with all its lines."""
        super().__init__()
        self.estimate, self.job = estimate, estimate.job
        self.layout, self.recipe = self.job.layout, self.job.recipe
        self.software, self.lines = self.recipe.stack, dict(estimate.breakdown)
        first = np.zeros((), dtype=np.intp)
        self.table, (mode, _, _) = estimate.table.modes(self.layout, first, first)
        self.clock_frac = number(self.table.kernels[0][0].clock_frac)
        self.device = TrainingDevice(self.job.cluster, self.software, self.table.rates, self.clock_frac)
        self.pp, self.micro_batches = int(self.layout.pp), estimate.job.micro_batches
        self.mode = int(mode)
        mean = self.table.model_parts[self.mode, :, 0] / self.pp
        self.stage = {name: float(seconds) for name, seconds in zip(self.table.lines, mean, strict=True)}
        self.gpus = self.add_given("GPUs", estimate.num_gpus)
        self.batch = self.add_given("global batch", int(self.recipe.global_batch), "sequences")
        self.seq = self.add_given("sequence length", int(self.recipe.seq_len), "tokens")
        self.dp, self.micro_batch = self._degree("dp"), self.add_given("micro-batch", int(self.layout.micro_batch))
        formula = "global batch / (dp x micro-batch)"
        self.num_micro = self.add("micro-batches", self.micro_batches, "", formula)
        self.computed, self.useful = self._lengths()
        self.kernels = self._kernels()
        self.reading = self._reading()
        shown = {name: self._line(name) for name in self.lines if name != STRAGGLERS}
        waits = self._stragglers([figure for name, figure in shown.items() if name != LINE])
        self.step = self.add_total("step time", "s", [*shown.values(), waits])

    def _degree(self, name: str) -> Figure:
        return self.add_given(name, int(getattr(self.layout, name)))

    def _software(self, name: str, value: float) -> Figure:
        row = self.software
        return self.add_figure(
            fact(name, value, "", source=f"data/stacks.json, {row.name}: {row.source}", note=row.meaning)
        )

    def _micro_batch_tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return int(self.layout.micro_batch) * number(self.table.seq_tokens[0]) / int(self.layout.cp)

    def _lengths(self) -> tuple[Figure, Figure]:
        """Tokens of a sequence as computed, and those of documents among them."""
        documents = self.recipe.documents
        if documents is None:
            return self.seq, self.seq
        mean = self.add_given("mean length of a document", documents.mean, "tokens")
        computed, useful = "computed tokens per sequence", "document tokens per sequence"
        tokens = number(self.table.seq_tokens[0])
        if documents.packing == "padded":
            what = "expected length of the longest document in a micro-batch"
            longest = self.add_count(computed, tokens, "tokens", what, mean, self.micro_batch)
            return longest, self.add(useful, documents.per_sequence, "tokens", mean.name)
        text = "best fit with the longest documents first: the filled share of a sequence"
        source = "Krell et al. 2021 (arXiv:2107.02027) section 3.1"
        whole = self.add(computed, tokens, "tokens", self.seq.name)
        return whole, self.add(useful, documents.per_sequence, "tokens", text, mean, self.seq, source=source)

    def _kernels(self) -> list[tuple[str, float, list[BlockKernel]]]:
        """(block, how often it occurs on a stage on average, its kernels) of every block."""
        split = run_model(self.job.model, self.recipe.frozen, self.recipe.stack)
        layout, table = self.layout, self.table
        model, inner = split.model, table.inner
        shape = self.recipe.shape(model, inner.micro_batch)
        context = block_contexts(
            model, self.recipe, table.rates, self.job.cluster.fabric, inner, shape,
            sequence_parallel=layout.sequence_parallel,
        )[0]  # fmt: skip
        stack = model.stacks[0]
        names = ["before the layers", *(kind.name for kind in stack.kinds), "after the layers"]
        times = [1, *map(stack.order.count, range(len(stack.kinds))), 1]
        blocks = [
            [k.at(self.clock_frac) for k in kernels_of(items, replace(context, block=block), in_layers=inside)]
            for (items, _, inside), block in zip(block_list(model), split.blocks, strict=True)
        ]
        for tower in tower_blocks(model):
            own = tower.context(model, replace(context, block=split.towers))
            names.append(tower.name)
            times.append(tower.times)
            blocks.append([k.at(self.clock_frac) for k in kernels_of(tower.items, own, in_layers=tower.in_layers)])
        return [(n, c / self.pp, b) for n, c, b in zip(names, times, blocks, strict=True) if c and b]

    def _reading(self) -> Figure | None:
        """Reading what one step needs; None where the data are there."""
        reads, per_node = self.job.reads, self.job.cluster.gpus_per_node
        if reads is None:
            return None
        each = self.add_given("bytes per token", reads.token_bytes, "B")
        formula = f"{self.batch.name} x {self.seq.name} x {each.name}"
        self.add("data read per step", reads.batch_bytes(self.recipe), "B", formula)
        if reads.date:
            name = f"{reads.storage} per node"
            rate = self.add_figure(fact(name, reads.bytes_per_s, "B/s", source=reads.origin, date=reads.date))
        else:
            rate = self.add_given("storage per node", reads.bytes_per_s, "B/s")
        self.add_count("nodes that read", reads.nodes(self.layout, per_node), "", "at most one per replica")
        read_s, formula = reads.read_s(self.recipe, self.layout, per_node), f"{rate.name} x nodes that read"
        if reads.total_bytes_per_s is not None:
            most = f"{reads.storage} in total"
            self.add_figure(fact(most, reads.total_bytes_per_s, "B/s", source=reads.origin, date=reads.date))
            formula = f"min({formula}, {most})"
        return self.add("reading a step", read_s, "s", f"data read per step / ({formula})")

    def _line(self, name: str) -> Figure:
        """One line of the step's breakdown."""
        if name in _EXCHANGES:
            return self._exchange(name)
        if name in {"forward", "backward", "recompute"}:
            one = self._recompute() if name == "recompute" else self._pass(name)
            return self._sum_of(name, f"{self.num_micro.name} x {one.name}")
        return {
            "stage_imbalance": self._uneven_stages,
            "pipeline_bubble": self._bubble,
            "pipeline_p2p": self._hops,
            "data_parallel": self._gradients,
            "optimizer": self._optimizer,
            NEWTON_SCHULZ: self._newton_schulz,
            "offload": self._offload,
            "launch": self._launch,
            EXPERT_IMBALANCE: self._imbalance,
            FRESH_MEMORY: self._fresh_memory,
            WAITING: self._waiting,
            LINE: self._storage,
        }[name]()

    def _stragglers(self, others: list[Figure]) -> Figure:
        """The wait for the slowest rank, beside the `others` of its lines."""
        jitter = self.table.jitter_frac
        usual = assumption("jitter", jitter, "frac", "Sinha et al. 2022 (arXiv:2208.11035)")
        self.add_figure(usual if jitter == JITTER_FRAC else setting("jitter", jitter, "frac"))
        largest = self.add_count(
            "largest of all ranks", float(waiting_frac(self.estimate.num_gpus, 1.0)), "",
            f"expected largest of that many normal values, beyond that of {MEASURED_RANKS}, in standard deviations",
            self.gpus, source="David and Nagaraja 2003",
        )  # fmt: skip
        alone = self.add_total("step without stragglers", "s", others)
        return self._sum_of(STRAGGLERS, f"{alone.name} x jitter x {largest.name}")

    def _sum_of(self, line: str, formula: str, *inputs: Figure, source: str = "", note: str = "") -> Figure:
        """A line of the breakdown, in seconds of the step."""
        name = line.replace("_", " ")
        return self.add(name, self.lines[line], "s", formula, *inputs, source=source, note=note)

    def _pass(self, name: str) -> Figure:
        """One micro-batch through a stage, forward or backward, on average."""
        blocks = []
        for block, count, kernels in self.kernels:
            parts = [
                self.device.kernel(
                    k.work, k.dtype, number(k.seconds), weight_bits=16.0, kv_bytes=ACT_BYTES, efficient=k.efficient
                )
                for k in kernels
                if k.forward == (name == "forward")
            ]
            if parts:
                one = self.add_total(f"{name} of one block {block}", "s", parts)
                times = self.add_count(f"blocks {block}", count, "", "blocks of a stage, on average")
                seconds, formula = count * number(one.value), f"{times.name} x {one.name}"
                blocks.append(term(f"{name} of {block}", seconds, "s", formula, times, one))
        return self.add_total(f"{name} of a micro-batch", "s", blocks)

    def _recompute(self) -> Figure:
        """The operations that recompute runs again for one micro-batch."""
        mode = self.add_given("recompute", self.layout.recompute_text)
        text = _RECOMPUTED[3 if self.layout.recomputes_some else self.mode]
        return self.add_time("recompute of a micro-batch", self.stage["recompute"], text, mode)

    def _exchange(self, name: str) -> Figure:
        """Exposed messages inside the layers."""
        degree, kind = _EXCHANGES[name]
        ranks = int(getattr(self.layout, degree))
        if ranks == 1:
            return self._sum_of(name, "0 x ranks", setting("ranks", 1), note=f"{degree} is 1: no message")
        hidden_tp = self.software.tp_hidden(sequence_parallel=self.layout.sequence_parallel)
        overlap = {"tp": hidden_tp, "ep": self.software.ep_overlap}.get(degree)
        share = () if overlap is None else (self._software(f"share hidden behind compute ({degree})", overlap),)
        nbytes = self._micro_batch_tokens() * self.table.width * ACT_BYTES
        each = f"{name.replace('_', ' ')} of a micro-batch"
        self.add_figure(self.device.message(each, self.stage[name], nbytes, ranks, kind, *share))
        hidden = self._hidden_messages() if degree == "ep" else None
        return self._sum_of(name, f"{self.num_micro.name} x {each}" + (f" - {hidden.name}" if hidden else ""))

    def _hidden_messages(self) -> Figure | None:
        """Messages of experts hidden behind passes of other micro-batches; None where none run so."""
        pipe = Pipe(self.pp, int(self.layout.interleave), self.micro_batches)
        each = float(self.table.model_beside_s[self.mode, 0]) / self.pp
        hidden = number(hidden_beside_s(self.table, np.array(0), pipe, self.layout.schedule, each))
        if not hidden:
            return None
        by_schedule = any_of(self.layout.schedule, lambda one: one.pairs) and not self.table.pairs_passes
        scheduled = schedule_text(int(self.layout.schedule), int(self.layout.interleave))
        name = scheduled if by_schedule else self.software.name
        text = f"messages that {name} overlaps with other passes, less the slowdown of those passes"
        return self.add_time("overlapped with other passes", hidden, text, self.num_micro, setting("stages", self.pp))

    def _busiest(self, *inputs: Figure) -> Figure:
        seconds = float(self.table.stage_parts[:, self.mode, 0, 0].sum())
        return self.add_time("busiest stage", seconds, "one micro-batch on the busiest stage", *inputs)

    def _uneven_stages(self) -> Figure:
        """The additional time of the busiest stage over the mean one."""
        layers = self.layout.stage_layers
        self._busiest(*((setting("layers of the stages", ", ".join(map(str, layers))),) if layers else ()))
        self.add_time("mean stage", sum(self.stage.values()), "one micro-batch, all stages / stages")
        return self._sum_of("stage_imbalance", f"{self.num_micro.name} x max(busiest stage - mean stage, 0)")

    def _bubble(self) -> Figure:
        """Stages that wait for the first and the last micro-batch."""
        stages = self.add_given("stages", self.pp)
        if self.pp == 1:
            return self._sum_of("pipeline_bubble", "0 x stages")
        table, code, chunks = self.table, int(self.layout.schedule), int(self.layout.interleave)
        whole = self.add_time("all stages", float(table.model_s[self.mode, 0]), "one micro-batch, every stage in turn")
        idle_s = max(number(whole.value) - number(self._busiest().value), 0.0)
        others = self.add(OTHERS, idle_s, "s", "max(all stages - busiest stage, 0)")
        inputs = [others, setting("interleave", chunks), stages, self.num_micro]
        row = tuple(SCHEDULES.values())[code]
        if row.splits_backward:
            weights = float(table.weight_s[0] - table.stage_weight_s[self.mode, 0, 0])
            inputs.append(self.add_time(WEIGHTS, weights, "weight gradients that fill the bubble"))
        if FORWARD in row.formula:
            at = np.array([self.mode]), _ONE, _ONE
            forward = others_s(table, at, recomputes_all(self.layout), code).forward_s
            inputs.append(self.add_time(FORWARD, number(forward), "including their part of the messages"))
        few = f"{KERNEL}: {schedule_text(code, chunks)}, fewer micro-batches than stages"
        formula = row.formula if self.micro_batches >= self.pp else few  # else the formulas of papers hold
        return self._sum_of("pipeline_bubble", formula, *inputs, source=row.source)

    def _hops(self) -> Figure:
        if self.pp == 1:
            return self._sum_of("pipeline_p2p", "0 x stages", setting("stages", 1))
        nbytes = self._micro_batch_tokens() * self.table.width * ACT_BYTES / int(self.layout.tp)
        kind = "activations forward and gradients back between stages, every micro-batch"
        if self.software.hides_hops and int(self.layout.interleave) > 1:
            kind += ", hidden behind other passes but while the pipeline fills and drains"
        seconds, gpus = self.lines["pipeline_p2p"], self.estimate.num_gpus
        return self.device.message("pipeline p2p", seconds, nbytes, gpus, kind, self.num_micro)

    def _params(self) -> Figure:
        """Trained parameters on one rank."""
        count = float(self.table.dense_params[0, 0] + self.table.expert_params[0, 0])
        what = "trained parameters of the busiest stage, split by tp and ep"
        degrees = map(self._degree, ("tp", "pp", "ep"))
        return self.add_count("trained parameters per rank", count, "", what, *degrees, source=self.job.model.source)

    def _gradients(self) -> Figure:
        """Gradients, and with ZeRO weights, across replicas."""
        layout, zero = self.layout, int(self.layout.zero)
        ranks = int(layout.dp) * int(layout.cp)
        if ranks == 1:
            return self._sum_of("data_parallel", "0 x replicas", setting("replicas", 1))
        params = self._params()
        width = self._software("bytes per gradient as sent", sent_grad_bytes(self.recipe))
        nbytes, formula = number(params.value) * number(width.value), f"{params.name} x {width.name}"
        when = {"each": "micro-batch", "round": "round of a chunk's micro-batches", "last": "step"}
        scattered, gathered = when[self.recipe.grad_syncs[self.pp > 1]] if zero >= 2 else "step", "once per step"
        if zero >= self.recipe.shards_weights_from and not self.recipe.gathers_once(self.pp):
            gathered = "twice per micro-batch" if zero == 3 else "once per micro-batch"
        kind = "one all-reduce per step"
        if zero:
            kind = f"gradients scattered once per {scattered}, weights gathered {gathered}"
        if layout.shard:
            kind += f" in groups of {int(layout.shard)} ranks, whose gradients are added up once per step"
        return self._sum_of(
            "data_parallel",
            f"message model: {kind}, less what compute hides, plus the slowdown of that compute",
            self.add("gradients per rank", nbytes, "B", formula),
            setting("ranks", ranks),
            setting("ZeRO stage", zero),
            self._software("share of compute that messages overlap", self.software.dp_overlap),
            self.device.parameter("train_contention"),
            self._software("messages per layer", self.software.layer_messages),
            *self.device.links(ranks * int(layout.tp)),
        )

    def _optimizer(self) -> Figure:
        params, layout = self._params(), self.layout
        moved = self.add_count(
            "bytes moved per parameter by the optimizer", optimizer_traffic_bytes(self.recipe), "B",
            "states read and written, gradient read, weights read and written",
            setting("optimizer", self.recipe.optimizer.name),
        )  # fmt: skip
        owned = self.add_count(
            "parameters updated per rank", number(owned_params(self.table, _ONE, _ONE, layout)), "",
            f"{params.name}, divided from ZeRO 1 on by the ranks that hold the same",
            params, setting("ZeRO stage", int(layout.zero)), setting("dp x cp", int(layout.dp) * int(layout.cp)),
            *((self._degree("ep"),) if self.table.expert_params.any() else ()),
            *((setting("shard", int(layout.shard)),) if int(layout.shard) else ()),
        )  # fmt: skip
        nbytes = f"{owned.name} x {moved.name}"
        if self.table.matrices is not None:
            others = number(owned_others(self.table, _ONE, _ONE, layout))
            self.add_count("parameters of embedding, head and norms", others, "", "all but the hidden matrices")
            width = others_traffic_bytes(self.recipe)
            what = "AdamW keeps two states, Muon one; read and written"
            self.add_count("bytes of their additional states", width, "B", what)
            nbytes = f"({nbytes} + parameters of embedding, head and norms x bytes of their additional states)"
        rate = self.add_figure(self.device.memory_rate())
        if layout.offload_optimizer:
            memory_rate = HOST_BYTES_PER_S / gpus_per_host(self.job.cluster.fabric)
            why = "memory traffic of the optimizer on the host, see flopwise.training.step"
            rate = self.add_figure(assumption("host memory, of each device", memory_rate, "B/s", why))
        return self._sum_of("optimizer", f"{nbytes} / {rate.name}")

    def _newton_schulz(self) -> Figure:
        """Muon's iterations on the hidden matrices."""
        row, matrices, layout = self.recipe.optimizer, self.table.matrices, self.layout
        assert matrices is not None
        steps = fact("iterations", row.newton_schulz_steps, "", source=f"data/optimizers.csv, {row.name}: {row.source}")
        flops = float(matrices.flops[0, 0])
        return self._sum_of(
            NEWTON_SCHULZ,
            f"{KERNEL}: a rank's share of the matrices and those that it gathers, at the sustained rate",
            self.add_count("operations on a stage's matrices", flops, "FLOP", "4 m^2 n + 2 m^3 each", steps),
            term("sustained rate", self.table.rates.matmul_flops_per_s("bf16"), "FLOP/s", f"{KERNEL}: bf16"),
            setting("ranks", int(layout.dp) * int(layout.cp)),
            setting("ZeRO stage", int(layout.zero)),
            source=row.source,
        )

    def _offload(self) -> Figure:
        why = "rate of pinned copies over the device's link to its host"
        rate = assumption("link to the host, pinned memory", host_link_bytes_per_s(self.job.cluster.rates), "B/s", why)
        if self.table.moved_bytes is None:
            text = "gradients to the host and weights back, less what backward, update and prefetching hide"
            return self._sum_of("offload", text, self._params(), rate)
        each = float(self.table.moved_bytes[self.mode, 0, 0])
        what = "memory model: all but two layers'"
        kept = self.add("activations moved per micro-batch", each, "B", what, self.micro_batch)
        states = self.layout.offload_parameters or self.layout.offload_optimizer
        text = "activations to the host and back in every micro-batch, and other transfers, less what compute hides"
        return self._sum_of("offload", text, kept, *((self._params(),) if states else ()), self.num_micro, rate)

    def _launch(self) -> Figure:
        host = self.add_time(
            "launching a micro-batch", float(host_s(self.table, self.mode, 0, 0)),
            "three launches per operation, those of the forward pass again where it is recomputed, and routing in "
            "layers with experts",
            self._software("host time per launch", self.software.launch_s),
            self._software("host time of routing per layer", self.software.routing_s),
        )  # fmt: skip
        if self.table.rates.is_host:
            ratio = self.device.parameter("train_host_ratio")
            return self._sum_of("launch", f"{self.num_micro.name} x {host.name} x {ratio.name}", ratio)
        busy = self.add_time("device time of a micro-batch", number(self._busiest().value), "all lines of a stage")
        counts = self.add_time(
            "waiting for counts of experts' tokens", float(counts_s(self.table, self.mode, 0, 0)),
            "once in the forward pass of every layer with experts, and again where it is recomputed",
            self._software("wait for counts per layer", self.software.counts_s),
        )  # fmt: skip
        return self._sum_of("launch", f"{self.num_micro.name} x (max(0, {host.name} - {busy.name}) + {counts.name})")

    def _fresh_memory(self) -> Figure:
        """The time of the system to hand out the pages of large tensors."""
        assert self.table.fresh_bytes is not None
        what = "gradients of embedding and head and the loss's tensors, those of 32 MiB and more"
        fresh = self.add(
            "newly allocated memory per micro-batch", float(self.table.fresh_bytes[0]), "B", what, self.micro_batch
        )
        rate = self.device.parameter("fresh_bytes_per_s")
        return self._sum_of(FRESH_MEMORY, f"{self.num_micro.name} x {fresh.name} / {rate.name}", rate)

    def _waiting(self) -> Figure:
        """The wait of replicas for the one with the longest documents."""
        mean = setting("mean length of a document", number(self.useful.inputs[0].value), "tokens")
        text = f"{self.num_micro.name} x one micro-batch on the busiest stage"
        busy = term("busy time", self.micro_batches * sum(self.stage.values()), "s", text)
        formula = "busy time x (the widest replica / the mean replica - 1), expected"
        return self._sum_of(WAITING, formula, busy, self.dp, self.micro_batch, mean)

    def _imbalance(self) -> Figure:
        """The additional time of the fullest rank of experts over even routing."""
        recipe, ep = self.recipe, int(self.layout.ep)
        skew = setting("load of the fullest expert over the mean", recipe.expert_skew)
        formula, inputs = (
            "ep (p + (E / ep - 1) (1 - p) / (E - 1)), p = skew / E",
            [skew, setting("ranks of experts", ep)],
        )
        if recipe.capacity_factor is not None:
            formula, inputs = (
                "the capacity factor, whether filled or not",
                [setting("capacity factor", recipe.capacity_factor)],
            )
        name, source = "load of the fullest rank over the mean", "Gale et al. 2022 (arXiv:2211.15841) section 2"
        load = number(expert_load(self.job.model, recipe, np.array([ep])))
        fullest = self.add(name, load, "", formula, *inputs, source=source)
        text = f"experts and their all-to-alls with {fullest.name}, less the same under even routing"
        one = self.add_time("imbalance of a micro-batch", self.stage[EXPERT_IMBALANCE], text, fullest)
        return self._sum_of(EXPERT_IMBALANCE, f"{self.num_micro.name} x {one.name}")

    def _storage(self) -> Figure:
        """The additional time of reading over all other lines together."""
        assert self.reading is not None
        busy = sum(seconds for name, seconds in self.lines.items() if name != LINE)
        self.add_count("all other lines", busy, "s", "sum of the other lines")
        return self._sum_of(LINE, f"max(0, {self.reading.name} - all other lines)")
