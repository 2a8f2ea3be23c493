"""Where the figures of a run come from: its steps, what surrounds them, interruptions and checkpoints."""

from __future__ import annotations

from math import isinf

from flopwise.cost.money import num_instances
from flopwise.origin import KERNEL, error_ends, number, price
from flopwise.provenance import Figure, assumption, setting, term
from flopwise.training.estimate import job_watts
from flopwise.training.goodput import write_rate_bytes_per_s
from flopwise.training.run import (
    NOT_IN_VALIDATION,
    PASSES,
    StepInRun,
    StepRun,
    job_goodput,
    step_in_run,
)
from flopwise.training.step_figures import StepFigures
from flopwise.units import HOUR_S

_RELIABILITY = {
    "mtbf_gpu_s": (
        "time between failures of a GPU", "s",
        "Llama 3 (arXiv:2407.21783) section 3.3.4: 419 interruptions in 54 days on 16,384 GPUs",
    ),
    "mtbf_node_s": ("time between failures of a node", "s", "as given"),
    "interruptions_per_s": ("spot interruptions per second", "1/s", "as given"),
    "repair_s": ("repair of a node", "s", "as given"),
    "detect_s": ("detection", "s", "until a hang or a dead rank is noticed; --restart sets all three"),
    "reschedule_s": ("rescheduling", "s", "until healthy nodes run the job again"),
    "warmup_s": ("warm-up", "s", "until steps are as fast as before: compiling, connecting, filling caches"),
    "write_bytes_per_s_per_gpu": (
        "write bandwidth per GPU", "B/s", "sustained by parallel file systems for sharded checkpoints",
    ),
    "write_bytes_per_s_per_node": ("write bandwidth per node", "B/s", "as given"),
    "write_bytes_per_s": (
        "write bandwidth of the cluster", "B/s",
        "in total: the highest write rate of Alibaba Cloud CPFS, a parallel file system",
    ),
    "snapshot_bytes_per_s_per_gpu": ("copy bandwidth per GPU", "B/s", "copy to pinned host memory"),
}  # fmt: skip
"""Fields of `Reliability`: name, unit, and why the default is what it is."""
_BETWEEN, _INTERVAL, _WRITE = "time between interruptions", "checkpoint interval", "checkpoint write"


class RunFigures(StepFigures):
    """The figures of the whole run over those of the step."""

    def run(self) -> list[Figure]:
        """Time, goodput, GPU-hours, cost and energy of the whole run."""
        run = self.estimate.run
        if run is None:
            return []
        self.reliability = self.job.conditions.reliability
        self.nbytes, self.goodput = job_goodput(self.job)
        formula = f"global batch x {self.useful.name}"
        self.add("tokens per step", self.recipe.useful_tokens, "tokens", formula)
        self.add_given("tokens", self.job.tokens, "tokens")
        self.add("steps", run.steps, "", "tokens / tokens per step")
        whole, lasting = self._step_in_run(step_in_run(self.job, self.lines)), self._up_frac()
        time = self.add("run time", run.seconds, "s", f"steps x {whole.name} / {lasting.name}")
        good = self.add("goodput", run.goodput_frac, "frac", "steps x step time / run time")
        hours = self.add("GPU-hours", run.gpu_hours, "h", f"run time / {HOUR_S:g} x GPUs")
        costs, joules = self._cost_figures(run, time), self._energy_figures(run, time)
        return [good, hours, *costs, *joules, *self._ends(run, {one.name for one in (time, *costs, *joules)})]

    def _ends(self, run: StepRun, known: set[str]) -> list[Figure]:
        """Time, cost and energy at the ends of the throughput, those of them that are known: the quicker, the less."""
        ends, figures = run.ends(self.estimate.band), list[Figure]()
        for word, ratio in zip(("high", "low"), error_ends(self.estimate.band), strict=True):
            self.add_figure(ratio)
            start = "energy of the start"
            for name, key, unit, formula in (
                ("run time", "seconds", "s", f"run time / {ratio.name}"),
                ("cost", "cost_usd", "USD", f"cost x (start + run time, {word}) / (start + run time)"),
                ("energy", "energy_joules", "J", f"{start} + (energy - {start}) / {ratio.name}"),
            ):
                value = ends[f"{key}_{word}"]
                if name in known and value is not None:
                    figures.append(self.add(f"{name}, {word}", value, unit, formula))
        return figures

    def _step_in_run(self, one: StepInRun) -> Figure:
        """A step with what the loader and validation add to it."""
        conditions, added = self.job.conditions, [self.step]
        if conditions.loader_samples_per_s is not None:
            self.add_given("samples per second and GPU", conditions.loader_samples_per_s)
            formula = f"max(0, global batch / (samples per second and GPU x GPUs) - {self.step.name})"
            added.append(self.add("waiting for the data loader", one.waiting_s, "s", formula))
        if conditions.validate_every is not None:
            added.append(self._validation(one, conditions.validate_every, conditions.validate_batches))
        return self.add_total("step in the run", "s", added)

    def _validation(self, one: StepInRun, every: int, batches: int) -> Figure:
        lines = [name for name in NOT_IN_VALIDATION if name in self.lines]
        inputs = [term(name.replace("_", " "), self.lines[name], "s", KERNEL) for name in (*lines, *PASSES)]
        less = " - ".join([self.step.name, *(name.replace("_", " ") for name in lines)])
        formula = f"({less}) x {PASSES[0]} / ({' + '.join(PASSES)})"
        self.add("validation batch", one.validation_batch_s, "s", formula, self.step, *inputs)
        self.add_given("steps between validations", every)
        self.add_given("batches per validation", batches)
        formula = "batches per validation x validation batch / steps between validations"
        return self.add("validation time per step", one.validation_s, "s", formula)

    def _reliability_figure(self, field: str) -> Figure:
        """One field of the reliability, with where it comes from."""
        value, (name, unit, why) = getattr(self.reliability, field), _RELIABILITY[field]
        origin = dict(self.job.conditions.origins).get(field, why)
        return self.add_figure(
            setting(name, value, unit) if origin == "given" else assumption(name, value, unit, origin)
        )

    def _between(self) -> Figure:
        """Time between interruptions of the job."""
        reliability, terms, inputs = self.reliability, [], [self.gpus]
        if not isinf(reliability.mtbf_gpu_s):
            inputs.append(self._reliability_figure("mtbf_gpu_s"))
            terms.append(f"GPUs / {inputs[-1].name}")
        if not isinf(reliability.mtbf_node_s) or reliability.interruptions_per_s:
            inputs.append(self._nodes())
        if not isinf(reliability.mtbf_node_s):
            inputs.append(self._reliability_figure("mtbf_node_s"))
            terms.append(f"nodes that can fail / {inputs[-1].name}")
        if reliability.interruptions_per_s:
            inputs.append(self._reliability_figure("interruptions_per_s"))
            terms.append(f"nodes that can fail x {inputs[-1].name}")
        return self.add(_BETWEEN, number(self.goodput.mtbf_s), "s", f"1 / ({' + '.join(terms)})", *inputs)

    def _nodes(self) -> Figure:
        size = self.reliability.gpus_per_node
        return self.add_count(
            "nodes that can fail", number(num_instances(self.estimate.num_gpus, size)), "", f"nodes of {size}"
        )

    def _writes(self) -> Figure:
        """Time to write a checkpoint."""
        reliability = self.reliability
        self.add_count("checkpoint", self.nbytes, "B", "trained weights, master weights and optimizer states, once")
        terms = []
        if not isinf(reliability.write_bytes_per_s_per_gpu):
            terms.append(f"GPUs x {self._reliability_figure('write_bytes_per_s_per_gpu').name}")
        if not isinf(reliability.write_bytes_per_s_per_node):
            terms.append(f"{self._nodes().name} x {self._reliability_figure('write_bytes_per_s_per_node').name}")
        if not isinf(reliability.write_bytes_per_s):
            terms.append(self._reliability_figure("write_bytes_per_s").name)
        formula = f"min({', '.join(terms)})" if len(terms) > 1 else terms[0]
        rate = number(write_rate_bytes_per_s(self.estimate.num_gpus, reliability))
        self.add("write bandwidth", rate, "B/s", formula)
        return self.add(_WRITE, number(self.goodput.write_s), "s", "max(checkpoint / write bandwidth, 0.001)")

    def _up_frac(self) -> Figure:
        """Share of the time that failures, checkpoints and missing nodes leave."""
        reliability, good = self.reliability, self.goodput
        between, writes = self._between(), self._writes()
        stall, lag = writes, ""
        if reliability.asynchronous:
            copy = self._reliability_figure("snapshot_bytes_per_s_per_gpu")
            formula, lag = f"min(max(checkpoint / (GPUs x {copy.name}), 0.001), {_WRITE})", f" + {_WRITE}"
            stall = self.add("stall of a checkpoint", number(good.stall_s), "s", formula)
        self._interval(between, writes, stall)
        pauses = [self._reliability_figure(field).name for field in ("detect_s", "reschedule_s", "warmup_s")]
        self.add("restart", number(good.restart_s), "s", f"{' + '.join(pauses)} + {_WRITE}{lag}")
        ratio = f"exp(0 - restart / {_BETWEEN}) x {_INTERVAL} / {_BETWEEN}"
        formula = f"{ratio} / (exp(({_INTERVAL} + {stall.name}) / {_BETWEEN}) - 1)"
        if reliability.repair_s:
            what = f"1 - Erlang's loss formula of {reliability.spares} spares"
            repair = self._reliability_figure("repair_s")
            self.add_count("node availability", number(good.up_frac), "frac", what, repair, between)
            formula = f"node availability x {formula}"
        source = "Daly 2006, exact for independent failures"
        return self.add("share of useful time", number(good.frac), "frac", formula, source=source)

    def _interval(self, between: Figure, writes: Figure, stall: Figure) -> Figure:
        """Work between checkpoints."""
        reliability, value = self.reliability, number(self.goodput.interval_s)
        formula, inputs, source = "given interval", [], ""
        if reliability.interval_s is not None:
            inputs.append(setting("given interval", reliability.interval_s, "s"))
        else:
            half = f"{stall.name} / (2 x {_BETWEEN})"
            root = f"sqrt(2 x {stall.name} x {_BETWEEN})"
            formula = f"{root} x (1 + sqrt({half}) / 3 + {half} / 9) - {stall.name}"
            if float(self.goodput.stall_s) >= 2.0 * float(self.goodput.mtbf_s):
                formula = _BETWEEN
            inputs, source = [stall, between], "Daly 2006, equation 37"
        if reliability.asynchronous:
            formula = f"max({formula}, {_WRITE})"
            inputs.append(writes)
        return self.add(_INTERVAL, value, "s", formula, *inputs, source=source)

    def _cost_figures(self, run: StepRun, time: Figure) -> list[Figure]:
        cluster = self.job.cluster
        paid = price(cluster)
        if paid is None:
            return []
        self.add_figure(paid)
        per_node = self.add_given("GPUs per node", cluster.gpus_per_node)
        count = int(num_instances(self.estimate.num_gpus, cluster.gpus_per_node))
        self.add_count("nodes", count, "", "whole machines that hold the GPUs", self.gpus, per_node)
        self.add_given("spare nodes", self.reliability.spares)
        assert run.cost_usd is not None
        hourly = number(paid.value) * (count + self.reliability.spares) * cluster.gpus_per_node
        what = "machine boot, image, weights, data and compilation (data/run_start.csv)"
        start, billed_s = self.add_count("start", run.start_s, "s", what), run.cost_usd / hourly * HOUR_S
        self.add_count("billed time", billed_s, "s", "start and run time, rounded as the provider bills", start, time)
        formula = f"billed time / {HOUR_S:g} x {paid.name} x (nodes + spare nodes) x GPUs per node"
        return [self.add("cost", run.cost_usd, "USD", formula)]

    def _energy_figures(self, run: StepRun, time: Figure) -> list[Figure]:
        if run.energy_joules is None:
            return []
        draw, host, limit, pue = self.device.power(job_watts(self.job, self.lines, self.table))
        what = "idle devices and hosts while machines boot, load and compile"
        start = self.add_count("energy of the start", run.start_joules, "J", what)
        formula = f"GPUs x ({draw.name} + {host.name} x {limit.name}) x {pue.name} x {time.name} + {start.name}"
        return [self.add("energy", run.energy_joules, "J", formula, self.gpus, draw, host, limit, pue, time, start)]
