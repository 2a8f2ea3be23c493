"""Where the lines of a training step come from: the batch, kernels, messages, the optimizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flopwise.cost.fabric import pcie_bytes_per_s
from flopwise.ops.shapes import Split
from flopwise.origin import COUNTED, KERNEL, Device, number, total
from flopwise.provenance import Figure, derived, fact, given
from flopwise.training.block_lines import EXPERT_IMBALANCE, block_list
from flopwise.training.blocks import BlockContext, BlockKernel, kernels_of
from flopwise.training.estimate import TrainEstimate, single_table
from flopwise.training.frozen import split_model
from flopwise.training.muon import NEWTON_SCHULZ
from flopwise.training.offload import HOST_BYTES_PER_S, gpus_per_host
from flopwise.training.rate_figures import TrainingDevice
from flopwise.training.routing import expert_load
from flopwise.training.schedules import FORWARD, OTHERS, SCHEDULES, WEIGHTS, Pipe, schedule_text
from flopwise.training.stages import mode_index
from flopwise.training.state_bytes import ACT_BYTES, optimizer_traffic_bytes, others_traffic_bytes, sent_grad_bytes
from flopwise.training.step import WAITING, StepTable, hidden_beside_s, others_s, owned_others, owned_params
from flopwise.training.storage import LINE
from flopwise.training.towers import tower_blocks, tower_context


class StepFigures:
    """The figures of one estimate's step; what several share is built once."""

    def __init__(self, found: TrainEstimate) -> None:
        """Build the step with all its lines."""
        self.found, self.job = found, found.job
        self.software = self.job.recipe.stack
        self.table: StepTable = single_table(self.job, self.software)
        self.device: Device = TrainingDevice(self.job.cluster, self.software, self.table.rates)
        layout, recipe = self.job.layout, self.job.recipe
        self.lines = dict(found.breakdown)
        self.gpus = given("GPUs", found.num_gpus)
        self.batch = given("global batch", int(recipe.global_batch), "sequences")
        self.seq = given("sequence length", int(recipe.seq_len), "tokens")
        self.dp, self.micro_batch = given("dp", int(layout.dp)), given("micro-batch", int(layout.micro_batch))
        self.num_micro = derived(
            "micro-batches",
            number(recipe.global_batch) / (int(layout.dp) * int(layout.micro_batch)),
            "",
            "global batch / (dp x micro-batch)",
            self.batch,
            self.dp,
            self.micro_batch,
        )
        self.mode = int(mode_index(layout, self.table.partials))
        mean = self.table.model_parts[self.mode, :, 0] / int(layout.pp)
        self.stage = {n: float(v) for n, v in zip(self.table.lines, mean, strict=True)}
        self.busiest_s = float(self.table.stage_parts[:, self.mode, 0, 0].sum())
        self.computed, self.useful = self._lengths()
        self.kernels = self._kernels()
        self.reading = self._reading()
        self.step = total("step time", "s", [self._line(name) for name, _ in found.breakdown])

    def _context(self) -> BlockContext:
        layout, recipe = self.job.layout, self.job.recipe
        one = [np.array([int(v)]) for v in (layout.tp, layout.cp, layout.ep, layout.micro_batch)]
        return BlockContext(
            recipe=recipe,
            software=self.software,
            rates=self.table.rates,
            fabric=self.job.cluster.fabric,
            shape=recipe.shape(self.job.model, one[3]),
            split=Split(
                tp=one[0],
                cp=one[1],
                ep=one[2],
                sequence_parallel=layout.sequence_parallel,
                expert_load=np.minimum(expert_load(self.job.model, recipe, one[2]), 1.0),
            ),
        )

    def _kernels(self) -> list[tuple[str, float, list[BlockKernel]]]:
        """(block, how often it occurs on a stage on average, its kernels) of every block."""
        split, context = split_model(self.job.model, self.job.recipe.frozen), self._context()
        model = split.model
        kinds = model.stacks[0].kinds
        names = ["before the layers", *(kind.name for kind in kinds), "after the layers"]
        blocks = [
            list(kernels_of(items, replace(context, block=block), in_layers=inside))
            for (items, _, inside), block in zip(block_list(model), split.blocks, strict=True)
        ]
        towers = list(tower_blocks(model))
        for block in towers:
            names.append(block.name)
            own = tower_context(model, block.stack, replace(context, block=split.towers))
            blocks.append(list(kernels_of(block.items, own, in_layers=block.in_layers)))
        order, stages = model.stacks[0].order, int(self.job.layout.pp)
        times = [1, *(order.count(kind) for kind in range(len(kinds))), 1, *(tower.times for tower in towers)]
        return [(n, c / stages, b) for n, c, b in zip(names, times, blocks, strict=True) if c and b]

    def _line(self, name: str) -> Figure:
        """One line of the step's breakdown."""
        if name in {"forward", "backward", "recompute"}:
            one = self._pass(name)
            return derived(name, self.lines[name], "s", f"{self.num_micro.name} x {one.name}", self.num_micro, one)
        lines = {
            "stage_imbalance": self._uneven_stages,
            "pipeline_bubble": self._bubble,
            "pipeline_p2p": self._hops,
            "data_parallel": self._gradients,
            "optimizer": self._optimizer,
            NEWTON_SCHULZ: self._newton_schulz,
            "offload": self._offload,
            "launch": self._launch,
            EXPERT_IMBALANCE: self._imbalance,
            WAITING: self._waiting,
            LINE: self._storage,
        }
        return lines[name]() if name in lines else self._exchange(name)

    def _storage(self) -> Figure:
        """What reading takes longer than all other lines together."""
        read = self.reading
        assert read is not None
        busy = sum(seconds for name, seconds in self.lines.items() if name != LINE)
        rest = derived("all other lines", busy, "s", f"{COUNTED}: the lines beside this one")
        name = LINE.replace("_", " ")
        return derived(name, self.lines[LINE], "s", f"max(0, {read.name} - {rest.name})", read, rest)

    def _reading(self) -> Figure | None:
        """Reading what one step needs; None where the data are there."""
        reads, recipe, layout = self.job.reads, self.job.recipe, self.job.layout
        if reads is None:
            return None
        each = given("bytes of a token", reads.token_bytes, "B")
        formula = f"{self.batch.name} x {self.seq.name} x {each.name}"
        batch = derived("records of a step", reads.batch_bytes(recipe), "B", formula, self.batch, self.seq, each)
        if reads.date:
            rate = fact(f"{reads.storage} per node", reads.bytes_per_s, "B/s", source=reads.origin, date=reads.date)
        else:
            rate = given("storage per node", reads.bytes_per_s, "B/s")
        per_node = self.job.cluster.gpus_per_node
        nodes = derived("nodes that read", reads.nodes(layout, per_node), "", f"{COUNTED}: no more than replicas")
        read_s = reads.read_s(recipe, layout, per_node)
        return derived(
            "reading a step", read_s, "s", f"{batch.name} / ({rate.name} x {nodes.name})", batch, rate, nodes
        )

    def _pass(self, name: str) -> Figure:
        """One micro-batch through a stage in one direction, on average."""
        if name == "recompute":
            return self._recompute_figure()
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
            times = derived(f"blocks {block}", count, "", f"{COUNTED}: blocks of a stage, on average")
            blocks.append(
                derived(f"{name} of {block}", count * number(one.value), "s", f"{times.name} x {one.name}", times, one)
            )
        return total(f"{name} of a micro-batch", "s", blocks)

    def _recompute_figure(self) -> Figure:
        """What recompute runs again for one micro-batch."""
        said = (
            "nothing is computed again",
            "what the stack gives up is computed again",
            "the whole forward pass is computed again",
        )
        layout = self.job.layout
        some = "the forward pass of some blocks is computed again"
        return derived(
            "recompute of a micro-batch",
            self.stage["recompute"],
            "s",
            f"{KERNEL}: {said[self.mode] if self.mode < len(said) else some}",
            given("recompute", layout.recompute_text),
        )

    def _exchange(self, name: str) -> Figure:
        """Exposed messages inside the layers."""
        layout, width = self.job.layout, self.table.width
        degree = {"tensor_parallel": "tp", "context_parallel": "cp", "expert_parallel": "ep"}[name]
        ranks, words = int(getattr(layout, degree)), name.replace("_", " ")
        if ranks == 1:
            return derived(
                words, self.lines[name], "s", "0 x ranks", given("ranks", 1), note=f"{degree} is 1: no message"
            )
        tokens = int(layout.micro_batch) * number(self.table.seq_tokens[0]) / int(layout.cp)
        overlap = {"tp": self.software.tp_overlap, "ep": self.software.ep_overlap}.get(degree)
        kind = {
            "tp": "all-gathers and reduce-scatters around each row-parallel product, less what compute hides",
            "cp": "keys and values passed round the ring, less what attention hides",
            "ep": "two all-to-alls of the routed tokens a layer and pass, less what compute hides",
        }[degree]
        hidden = () if overlap is None else (self._software(f"share hidden behind compute ({degree})", overlap),)
        nbytes = tokens * width * ACT_BYTES
        one = self.device.message(f"{words} of a micro-batch", self.stage[name], nbytes, ranks, kind, *hidden)
        formula, beside = f"{self.num_micro.name} x {one.name}", self._hidden_messages() if degree == "ep" else None
        if beside is None:
            return derived(words, self.lines[name], "s", formula, self.num_micro, one)
        return derived(words, self.lines[name], "s", f"{formula} - {beside.name}", self.num_micro, one, beside)

    def _hidden_messages(self) -> Figure | None:
        """What passes of other micro-batches hide of experts' messages; None where none run so."""
        layout = self.job.layout
        pipe = Pipe(int(layout.pp), int(layout.interleave), number(self.num_micro.value))
        each = float(self.table.model_beside_s[self.mode, 0]) / int(layout.pp)
        hidden = number(hidden_beside_s(layout.schedule, pipe, each))
        if not hidden:
            return None
        name = schedule_text(int(layout.schedule), int(layout.interleave))
        formula = (
            f"{KERNEL}: what {name} hides behind other passes, while they run side by side, less what it slows them"
        )
        return derived(
            "hidden beside other passes", hidden, "s", formula, self.num_micro, given("stages", int(layout.pp))
        )

    def _software(self, name: str, value: float) -> Figure:
        row = self.software
        return fact(name, value, "", source=f"data/stacks.json, {row.name}: {row.source}", note=row.meaning)

    def _uneven_stages(self) -> Figure:
        """What the busiest stage takes longer than the mean one."""
        layers = self.job.layout.stage_layers
        held = () if not layers else (given("layers of the stages", ", ".join(map(str, layers))),)
        busiest = derived(
            "busiest stage", self.busiest_s, "s", f"{KERNEL}: one micro-batch on the busiest stage", *held
        )
        mean = derived("mean stage", sum(self.stage.values()), "s", f"{KERNEL}: one micro-batch, all stages / stages")
        formula = f"{self.num_micro.name} x max({busiest.name} - {mean.name}, 0)"
        return derived("stage imbalance", self.lines["stage_imbalance"], "s", formula, self.num_micro, busiest, mean)

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
        busiest = derived("busiest stage", self.busiest_s, "s", f"{KERNEL}: one micro-batch on the busiest stage")
        layout = self.job.layout
        code, chunks = int(layout.schedule), int(layout.interleave)
        others = derived(
            OTHERS,
            max(number(whole.value) - number(busiest.value), 0.0),
            "s",
            f"max({whole.name} - {busiest.name}, 0)",
            whole,
            busiest,
        )
        held = [others, given("interleave", chunks), given("stages", pp), self.num_micro]
        row = tuple(SCHEDULES.values())[code]
        if row.splits_backward:
            weights = float(self.table.weight_s[0] - self.table.stage_weight_s[self.mode, 0, 0])
            held.append(derived(WEIGHTS, weights, "s", f"{KERNEL}: what fills the bubble"))
        if FORWARD in row.formula:
            first = np.zeros(1, dtype=np.intp)
            forward = others_s(self.table, np.array([self.mode]), first, first, code).forward_s
            seconds = number(np.ravel(forward)[0])
            held.append(derived(FORWARD, seconds, "s", f"{KERNEL}: with their part of the messages"))
        plenty = number(self.num_micro.value) >= pp  # the formulas of papers hold
        formula = row.formula if plenty else f"{KERNEL}: {schedule_text(code, chunks)}, fewer micro-batches than stages"
        return derived("pipeline bubble", self.lines["pipeline_bubble"], "s", formula, *held, source=row.source)

    def _hops(self) -> Figure:
        layout = self.job.layout
        if int(layout.pp) == 1:
            return derived("pipeline p2p", 0.0, "s", "0 x stages", given("stages", 1))
        tokens = int(layout.micro_batch) * number(self.table.seq_tokens[0]) / int(layout.cp)
        nbytes = tokens * self.table.width * ACT_BYTES / int(layout.tp)
        return self.device.message(
            "pipeline p2p",
            self.lines["pipeline_p2p"],
            nbytes,
            self.found.num_gpus,
            "activations forward and gradients back between stages, every micro-batch",
            self.num_micro,
        )

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
        width = self._software("bytes of a gradient as sent", sent_grad_bytes(self.job.recipe, self.software))
        size = derived(
            "gradients on a rank",
            number(params.value) * number(width.value),
            "B",
            f"{params.name} x {width.name}",
            params,
            width,
        )
        zero = int(layout.zero)
        kind = {0: "one all-reduce a step", 3: "weights gathered twice and gradients scattered once a micro-batch"}.get(
            zero, "gradients scattered and weights gathered once a step"
        )
        if layout.shard:
            kind += f" in groups of {int(layout.shard)} ranks, whose gradients are added up once a step"
        hidden = self._software("share of compute that messages hide behind", self.software.dp_overlap)
        slowed = self.device.parameter("train_contention")
        pieces = self._software("messages for a layer", self.software.layer_messages)
        held = (
            size,
            given("ranks", ranks),
            given("ZeRO stage", zero),
            hidden,
            slowed,
            pieces,
            *self.device.links(ranks * int(layout.tp)),
        )
        return derived(
            "data parallel",
            self.lines["data_parallel"],
            "s",
            f"message model: {kind}, less what compute hides, more what that slows",
            *held,
        )

    def _optimizer(self) -> Figure:
        params, layout = self._params(), self.job.layout
        moved = derived(
            "bytes an optimizer step moves a parameter",
            optimizer_traffic_bytes(self.job.recipe, self.software),
            "B",
            f"{COUNTED}: states read and written, gradient read, weights read and written",
            given("optimizer", self.job.recipe.optimizer.name),
        )
        first = np.zeros(1, dtype=np.intp)
        owned = derived(
            "parameters that a rank updates",
            number(owned_params(self.table, first, first, layout)),
            "",
            f"{COUNTED}: {params.name}, from ZeRO 1 on over the ranks that hold the same",
            params,
            given("ZeRO stage", int(layout.zero)),
            given("dp x cp", int(layout.dp) * int(layout.cp)),
            *((given("ep", int(layout.ep)),) if self.table.expert_params.any() else ()),
            *((given("shard", int(layout.shard)),) if int(layout.shard) else ()),
        )
        if layout.offload_optimizer:
            memory_rate = HOST_BYTES_PER_S / gpus_per_host(self.job.cluster.fabric)
            rate = given("host memory, of each device", memory_rate, "B/s")
        else:
            rate = self.device.memory_rate()
        bytes_moved, others = f"{owned.name} x {moved.name}", self._other_states()
        if others:
            bytes_moved = f"({bytes_moved} + {others[0].name} x {others[1].name})"
        formula = f"{bytes_moved} / {rate.name}"
        return derived("optimizer", self.lines["optimizer"], "s", formula, owned, moved, *others, rate)

    def _other_states(self) -> tuple[Figure, ...]:
        """Parameters of embedding, head and norms, and bytes moved for their further states; empty where none are."""
        if self.table.matrices is None:
            return ()
        first = np.zeros(1, dtype=np.intp)
        held = number(np.ravel(owned_others(self.table, first, first, self.job.layout))[0])
        return (
            derived("of them in embedding, head and norms", held, "", f"{COUNTED}: what is no hidden matrix"),
            derived(
                "bytes of their further states",
                others_traffic_bytes(self.job.recipe, self.software),
                "B",
                f"{COUNTED}: AdamW keeps two states, Muon one; read and written",
            ),
        )

    def _newton_schulz(self) -> Figure:
        """Muon's iterations on the hidden matrices."""
        row, matrices = self.job.recipe.optimizer, self.table.matrices
        assert matrices is not None
        whole = float(matrices.flops[0, 0])
        steps = fact("iterations", row.newton_schulz_steps, "", source=f"data/optimizers.csv, {row.name}: {row.source}")
        work = derived("operations on a stage's matrices", whole, "FLOP", f"{COUNTED}: 4 m^2 n + 2 m^3 each", steps)
        rate = derived("sustained rate", self.table.rates.matmul_flops_per_s("bf16"), "FLOP/s", f"{KERNEL}: bf16")
        layout = self.job.layout
        ranks = given("ranks", int(layout.dp) * int(layout.cp)), given("ZeRO stage", int(layout.zero))
        formula = f"{KERNEL}: a rank's share of the matrices, what of them it gathers, all at the sustained rate"
        return derived("newton schulz", self.lines[NEWTON_SCHULZ], "s", formula, work, rate, *ranks, source=row.source)

    def _offload(self) -> Figure:
        rate = given("PCIe, pinned memory", pcie_bytes_per_s(self.job.cluster.rates), "B/s")
        formula = "gradients down and weights up, less what backward, update and prefetching hide"
        if self.table.moved_bytes is None:
            return derived("offload", self.lines["offload"], "s", formula, self._params(), rate)
        each = float(self.table.moved_bytes[self.mode, 0, 0])
        kept = derived(
            "activations that a micro-batch moves", each, "B", "memory model: all but two layers'", self.micro_batch
        )
        formula = "activations down and back in every micro-batch, and what else moves, less what compute hides"
        held = (self._params(),) if self.job.layout.offload_parameters or self.job.layout.offload_optimizer else ()
        return derived("offload", self.lines["offload"], "s", formula, kept, *held, self.num_micro, rate)

    def _launch(self) -> Figure:
        host = derived(
            "launching a micro-batch",
            float(self.table.host_s[0, 0]),
            "s",
            f"{KERNEL}: three launches an operation, and routing in layers with experts",
            self._software("host time of one launch", self.software.launch_s),
            self._software("host time of routing a layer", self.software.routing_s),
        )
        busy = derived("device time of a micro-batch", self.busiest_s, "s", f"{KERNEL}: all lines of a stage")
        formula = f"{self.num_micro.name} x max(0, {host.name} - {busy.name})"
        return derived("launch", self.lines["launch"], "s", formula, self.num_micro, host, busy)

    def _lengths(self) -> tuple[Figure, Figure]:
        """Tokens of a sequence as computed, and those of documents among them."""
        recipe = self.job.recipe
        found = recipe.documents
        if found is None:
            return self.seq, self.seq
        mean = given("mean length of a document", found.mean, "tokens")
        padded = found.packing == "padded"
        computed = derived(
            "tokens of a sequence as computed",
            number(self.table.seq_tokens[0]),
            "tokens",
            f"{COUNTED}: the longest of a micro-batch, expected" if padded else "sequence length",
            *((mean, self.micro_batch) if padded else (self.seq,)),
        )
        useful = derived(
            "tokens of documents in a sequence",
            found.per_sequence,
            "tokens",
            mean.name if padded else "best fit of the longest document first, the share of a sequence that is filled",
            mean,
            *(() if padded else (self.seq,)),
            source="" if padded else "Krell et al. 2021 (arXiv:2107.02027) section 3.1",
        )
        return computed, useful

    def _waiting(self) -> Figure:
        """What replicas wait for the one with the longest documents."""
        dp = self.dp
        mean = given("mean length of a document", number(self.useful.inputs[0].value), "tokens")
        formula = "busy time x (the widest replica / the mean replica - 1), expected"
        busy = derived(
            "busy time",
            number(self.num_micro.value) * sum(self.stage.values()),
            "s",
            f"{self.num_micro.name} x one micro-batch on the busiest stage",
        )
        return derived(WAITING.replace("_", " "), self.lines[WAITING], "s", formula, busy, dp, self.micro_batch, mean)

    def _imbalance(self) -> Figure:
        """What the fullest rank of experts takes longer than even routing would."""
        recipe, ep = self.job.recipe, int(self.job.layout.ep)
        skew = given("load of the fullest expert over the mean", recipe.expert_skew)
        formula, held = "ep (p + (E / ep - 1) (1 - p) / (E - 1)), p = skew / E", [skew, given("ranks of experts", ep)]
        if recipe.capacity_factor is not None:
            formula, held = "the capacity, filled up or not", [given("capacity factor", recipe.capacity_factor)]
        load = number(expert_load(self.job.model, recipe, np.array([ep])))
        name = "load of the fullest rank over the mean"
        fullest = derived(name, load, "", formula, *held, source="Gale et al. 2022 (arXiv:2211.15841) section 2")
        one = derived(
            "imbalance of a micro-batch",
            self.stage[EXPERT_IMBALANCE],
            "s",
            f"{KERNEL}: experts and their all-to-alls with {fullest.name}, less the same evenly routed",
            fullest,
        )
        formula = f"{self.num_micro.name} x {one.name}"
        return derived("expert imbalance", self.lines[EXPERT_IMBALANCE], "s", formula, self.num_micro, one)
