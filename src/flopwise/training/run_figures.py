"""Where the figures of a run come from: its steps, what surrounds them, interruptions and checkpoints."""

from __future__ import annotations

from math import isinf

from flopwise.cost.money import num_instances
from flopwise.origin import COUNTED, number, price, total
from flopwise.provenance import Figure, assumption, derived, given
from flopwise.training.estimate import job_watts
from flopwise.training.goodput import Goodput, write_rate_bytes_per_s
from flopwise.training.run import NOT_IN_VALIDATION, PASSES, Run, StepInRun, expected_largest, job_goodput, step_in_run
from flopwise.training.step_figures import StepFigures
from flopwise.units import HOUR_S

_ASSUMED = {
    "mtbf_gpu_s": "Llama 3 (arXiv:2407.21783) section 3.3.4: 419 interruptions in 54 days on 16,384 GPUs",
    "detect_s": "until a hang or a dead rank is noticed; --restart sets all three",
    "reschedule_s": "until healthy nodes run the job again",
    "warmup_s": "until steps are as fast as before: compiling, connecting, filling caches",
    "write_bytes_per_s_per_gpu": "what parallel file systems sustain for sharded checkpoints",
    "write_bytes_per_s": "of all together: the most that Alibaba Cloud CPFS, a parallel file system, takes",
    "snapshot_bytes_per_s_per_gpu": "copy to pinned host memory",
}


class RunFigures(StepFigures):
    """The figures of the whole run over those of the step."""

    def run(self) -> list[Figure]:
        """Time, goodput, GPU-hours, cost and energy of the whole run."""
        run, job = self.found.run, self.job
        if run is None:
            return []
        self.nbytes, self.good = job_goodput(job)
        self.one = step_in_run(job, self.lines)
        batch = derived(
            "tokens a step",
            job.recipe.useful_tokens,
            "tokens",
            f"global batch x {self.useful.name}",
            self.batch,
            self.useful,
        )
        steps = derived("steps", run.steps, "", "tokens / tokens a step", given("tokens", run.tokens, "tokens"), batch)
        whole, lasting = self._step_in_run(self.one), self._up_frac(self.good)
        formula = f"steps x {whole.name} / {lasting.name}"
        time = derived("run time", run.seconds, "s", formula, steps, whole, lasting)
        good = derived(
            "goodput", run.goodput_frac, "frac", f"steps x {self.step.name} / run time", steps, self.step, time
        )
        hours = derived("GPU-hours", run.gpu_hours, "h", f"run time / {HOUR_S:g} x GPUs", time, self.gpus)
        return [good, hours, *self._paid(run, time), *self._energy(run, time)]

    def _step_in_run(self, one: StepInRun) -> Figure:
        """A step with what stragglers, the loader and validation add to it."""
        asked, parts = self.job.conditions, [self.step]
        if asked.jitter_frac:
            jitter = given("jitter", asked.jitter_frac, "frac")
            largest = derived(
                "largest of all ranks",
                number(expected_largest(self.found.num_gpus)),
                "",
                f"{COUNTED}: mean of the largest of so many normal values, in standard deviations",
                self.gpus,
                source="David and Nagaraja 2003",
            )
            extra = (one.straggler_factor - 1.0) * one.step_s
            formula = f"{self.step.name} x jitter x {largest.name}"
            parts.append(derived("stragglers", extra, "s", formula, self.step, jitter, largest))
        slowed = total("step with stragglers", "s", parts) if asked.jitter_frac else self.step
        added = [slowed]
        if asked.loader_samples_per_s is not None:
            rate = given("samples a second and GPU", asked.loader_samples_per_s)
            formula = f"max(0, global batch / ({rate.name} x GPUs) - {slowed.name})"
            inputs = (self.batch, rate, self.gpus, slowed)
            added.append(derived("waiting for the data loader", one.waiting_s, "s", formula, *inputs))
        if asked.validate_every is not None:
            added.append(self._validation(one, asked.validate_every, asked.validate_batches))
        return total("step in the run", "s", added)

    def _validation(self, one: StepInRun, every: int, batches: int) -> Figure:
        once = [name for name in NOT_IN_VALIDATION if name in self.lines]
        lines = [given(n.replace("_", " "), self.lines[n], "s") for n in (*once, *PASSES)]
        less, passes = ([name.replace("_", " ") for name in each] for each in (once, PASSES))
        formula = f"({' - '.join((self.step.name, *less))}) x {passes[0]} / ({' + '.join(passes)})"
        forward = derived("validation batch", one.validation_batch_s, "s", formula, self.step, *lines)
        often, many = given("steps between validations", every), given("batches of a validation", batches)
        formula = f"{many.name} x {forward.name} / {often.name}"
        return derived("validation of a step", one.validation_s, "s", formula, many, forward, often)

    def _reliability_figure(self, field: str, name: str, unit: str) -> Figure:
        """One field of the reliability, with where it comes from."""
        value = getattr(self.job.conditions.reliability, field)
        origin = dict(self.job.conditions.origins).get(field)
        if origin is None:
            return assumption(name, value, unit, _ASSUMED.get(field, "as stated"))
        return given(name, value, unit) if origin == "given" else assumption(name, value, unit, origin)

    def _between(self, good: Goodput) -> Figure:
        """Time between interruptions of the job."""
        held = self.job.conditions.reliability
        terms, inputs = [], [self.gpus]
        if not isinf(held.mtbf_gpu_s):
            mtbf = self._reliability_figure("mtbf_gpu_s", "time between failures of a GPU", "s")
            terms.append(f"GPUs / {mtbf.name}")
            inputs.append(mtbf)
        if not isinf(held.mtbf_node_s) or held.interruptions_per_s:
            nodes = self._nodes()
            inputs.append(nodes)
            if not isinf(held.mtbf_node_s):
                mtbf = self._reliability_figure("mtbf_node_s", "time between failures of a node", "s")
                terms.append(f"{nodes.name} / {mtbf.name}")
                inputs.append(mtbf)
            if held.interruptions_per_s:
                rate = self._reliability_figure("interruptions_per_s", "spot interruptions a second", "1/s")
                terms.append(f"{nodes.name} x {rate.name}")
                inputs.append(rate)
        return derived("time between interruptions", number(good.mtbf_s), "s", f"1 / ({' + '.join(terms)})", *inputs)

    def _nodes(self) -> Figure:
        size = self.job.conditions.reliability.gpus_per_node
        return derived(
            "nodes that fail", number(num_instances(self.found.num_gpus, size)), "", f"{COUNTED}: nodes of {size}"
        )

    def _writes(self, good: Goodput) -> Figure:
        """How long a checkpoint takes to write."""
        held = self.job.conditions.reliability
        size = derived(
            "checkpoint",
            self.nbytes,
            "B",
            f"{COUNTED}: trained weights, master weights and optimizer states, once",
        )
        each = self._reliability_figure("write_bytes_per_s_per_gpu", "write bandwidth of a GPU", "B/s")
        terms, inputs = [f"GPUs x {each.name}"], [self.gpus, each]
        if isinf(held.write_bytes_per_s_per_gpu):
            terms, inputs = [], []
        if not isinf(held.write_bytes_per_s_per_node):
            node = self._reliability_figure("write_bytes_per_s_per_node", "write bandwidth of a node", "B/s")
            terms.append(f"nodes that fail x {node.name}")
            inputs += [self._nodes(), node]
        if not isinf(held.write_bytes_per_s):
            whole = self._reliability_figure("write_bytes_per_s", "write bandwidth of the cluster", "B/s")
            terms.append(whole.name)
            inputs.append(whole)
        formula = f"min({', '.join(terms)})" if len(terms) > 1 else terms[0]
        rate = number(write_rate_bytes_per_s(self.found.num_gpus, held))
        wide = derived("write bandwidth", rate, "B/s", formula, *inputs)
        return derived(
            "checkpoint write", number(good.write_s), "s", f"max({size.name} / {wide.name}, 0.001)", size, wide
        )

    def _up_frac(self, good: Goodput) -> Figure:
        """Share of the time that failures, checkpoints and missing nodes leave."""
        held = self.job.conditions.reliability
        between, writes = self._between(good), self._writes(good)
        stall, lag = writes, ""
        if held.asynchronous:
            copy = self._reliability_figure("snapshot_bytes_per_s_per_gpu", "copy bandwidth of a GPU", "B/s")
            formula = f"min(max(checkpoint / (GPUs x {copy.name}), 0.001), {writes.name})"
            stall = derived(
                "stall of a checkpoint", number(good.stall_s), "s", formula, writes.inputs[0], self.gpus, copy, writes
            )
            lag = f" + {writes.name}"
        every = self._interval(good, between, writes, stall)
        pauses = [
            self._reliability_figure("detect_s", "detection", "s"),
            self._reliability_figure("reschedule_s", "rescheduling", "s"),
            self._reliability_figure("warmup_s", "warm-up", "s"),
        ]
        formula = " + ".join(p.name for p in pauses) + f" + {writes.name}{lag}"
        restart = derived("restart", number(good.restart_s), "s", formula, *pauses, writes)
        ratio = f"exp(0 - {restart.name} / {between.name}) x {every.name} / {between.name}"
        formula = f"{ratio} / (exp(({every.name} + {stall.name}) / {between.name}) - 1)"
        inputs = [restart, between, every, stall]
        if held.repair_s:
            present = derived(
                "nodes are there", number(good.up_frac), "frac",
                f"{COUNTED}: 1 - Erlang's loss formula of {held.spares} spares",
                self._reliability_figure("repair_s", "repair of a node", "s"), between,
            )  # fmt: skip
            formula, inputs = f"{present.name} x {formula}", [present, *inputs]
        source = "Daly 2006, exact for independent failures"
        return derived("share that lasts", number(good.frac), "frac", formula, *inputs, source=source)

    def _interval(self, good: Goodput, between: Figure, writes: Figure, stall: Figure) -> Figure:
        """Work between checkpoints."""
        held, name = self.job.conditions.reliability, "checkpoint interval"
        if held.interval_s is not None:
            asked = given("interval asked for", held.interval_s, "s")
            formula = f"max({asked.name}, {writes.name})" if held.asynchronous else asked.name
            return derived(
                name, number(good.interval_s), "s", formula, asked, *((writes,) if held.asynchronous else ())
            )
        d, m = stall.name, between.name
        half = f"{d} / (2 x {m})"
        formula = f"sqrt(2 x {d} x {m}) x (1 + sqrt({half}) / 3 + {half} / 9) - {d}"
        if float(good.stall_s) >= 2.0 * float(good.mtbf_s):
            formula = m
        if held.asynchronous:
            formula = f"max({formula}, {writes.name})"
        inputs = [stall, between, *((writes,) if held.asynchronous else ())]
        return derived(name, number(good.interval_s), "s", formula, *inputs, source="Daly 2006, equation 37")

    def _paid(self, run: Run, time: Figure) -> list[Figure]:
        job = self.job
        paid = price(job.cluster)
        if paid is None:
            return []
        per_node, spares = given("GPUs a node", job.cluster.gpus_per_node), job.conditions.reliability.spares
        count = int(num_instances(self.found.num_gpus, job.cluster.gpus_per_node))
        nodes = derived("nodes", count, "", f"{COUNTED}: whole machines that hold the GPUs", self.gpus, per_node)
        spare = given("spare nodes", spares)
        formula = f"run time / {HOUR_S:g} x {paid.name} x (nodes + {spare.name}) x GPUs a node"
        return [derived("cost", run.cost_usd, "USD", formula, time, paid, nodes, spare, per_node)]

    def _energy(self, run: Run, time: Figure) -> list[Figure]:
        if run.energy_joules is None:
            return []
        draw, host, limit, pue = self.device.power(job_watts(self.job, self.lines, self.table))
        formula = f"GPUs x ({draw.name} + {host.name} x {limit.name}) x {pue.name} x {time.name}"
        return [derived("energy", run.energy_joules, "J", formula, self.gpus, draw, host, limit, pue, time)]
