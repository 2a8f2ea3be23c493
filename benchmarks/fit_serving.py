"""Fit the constants of serving engines to benchmarks/truth/serving.csv; each source and each GPU is left out in turn.

python benchmarks/fit_serving.py            report errors: plain, with each source and each GPU left out
python benchmarks/fit_serving.py --write    write the values, and the errors of left-out sources and GPUs

Each is a fitted value that several engines share, or a parameter of the calibration; none belongs to a row or a source.
A row weighs one over the square root of the rows of its source and quantity. Times to a first token count where memory
holds all requests: beyond that they are waiting, which throughput decides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

import numpy as np

import fitting
from flopwise.backtests.prediction import Row
from flopwise.backtests.serving import STREAM, burst_requests, measured_quantities, predict_row, row_job
from flopwise.cost.rates import Rates, rates
from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import Facts
from flopwise.fitting.deployment import even_weights, moved_records
from flopwise.fitting.robust import Array, Constant, FitModel, error_text, fit
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.estimate import burst_rate, check, job_memory, steady_state
from flopwise.serving.iteration import Runner
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingMemory, generates
from flopwise.serving.techniques import request_work, runner
from flopwise.values import dataclass

ROUNDS = 6
BUSY = 0.8
"""Share of what a replica sustains from which a queue without end is near, and its length is anyone's guess."""
WAVES = 4
"""Requests of each user from which the steady state decides the figures of a closed loop with an end."""
TTFT_WEIGHT = 0.5
"""Of a time to the first token against another figure: two runs of the same point differ by as much again."""
SGLANG = ("sglang", "sglang-2026", "sglang-2025", "sglang-2024")
VLLM = ("vllm", "atom", "vllm-2026")
"""ATOM takes its host and its steps from vLLM (data/engines.json)."""
COLD = SGLANG
"""Engines whose published times to a first token hold the compilation of kernels by the first requests, seconds in some
runs and none in others: these times judge the fit and are no part of it."""
LABELS = {"output_tokens_per_s": "throughput", "tpot_s": "TPOT", "ttft_s": "TTFT"}

GRAPHS = (*VLLM, "vllm-2025", *SGLANG, "lmdeploy", "tgi", "tensorrt-llm")
"""Servers of today: steps captured in graphs, the host at work on the next step while the device is on this one."""
AHEAD = (*VLLM, *SGLANG, "tensorrt-llm")
"""Those of them that plan a step while the one ahead runs (`plans_ahead` of data/engines.json): the device waits for
less of what each sequence takes. vLLM's newest prepares steps on the device (pull request 44443, Model Runner V2, the
default of dense models since July 2026, and of all since 0.29)."""
GAP = 0.16e-3
"""Between captured steps that are planned ahead: 150 to 170 us (vLLM pull request 11133), no more than a minor gap
(SGLang's blog on 0.4), 580 us with what 64 sequences take (TensorRT-LLM issue 13957)."""
LAUNCH = 53e-6
"""Of an operation that no graph holds: two steps of a lone prompt, timed by vLLM itself, say 53 and 56 us
(aiconfigurator, fpm_golden_runs: Qwen3.6-35B-A3B on four B300). Times to a first token, which are too short with many
users, would lengthen it for a reason that is not its own."""
WAITING = tuple(name for name in GRAPHS if name not in AHEAD)
OLD_VLLM = ("vllm-v0", "vllm-2024", "vllm-2023")
BATCH = (*OLD_VLLM, "deepspeed-mii")
"""Python between steps, which the device waits for."""
NOW, THEN = ("llama.cpp", "mlx"), ("llama.cpp-2024",)
"""Engines of one user: kernels of their own, launched from graphs since 2025."""
EAGER = ("hf", "vllm-2023")
"""Modules of Python in eager PyTorch, operation by operation, while they decode, too."""
TRT = ("tensorrt-llm-v0", "tensorrt-llm-2023")
CAPTURED = (*GRAPHS, *OLD_VLLM, *TRT, "deepspeed-inference")
"""Steps captured in graphs, or compiled whole."""
_engine = partial(Constant, table="engines")
CONSTANTS = (
    _engine("layer_s", CAPTURED, 10e-6, 0.1e-6, 1e-4),
    _engine("layer_s", ("deepspeed-mii",), 80e-6, 1e-6, 4e-4),
    _engine("layer_s", NOW, 20e-6, 0.1e-6, 2e-4),
    _engine("layer_s", THEN, 40e-6, 0.1e-6, 2e-4),
    _engine("experts_s", ("vllm-2025", *OLD_VLLM), 50e-6, 1e-6, 4e-4, 1.0),
    _engine("experts_s", SGLANG, 30e-6, 1e-6, 4e-4, 1.0),
    _engine("experts_s", (*NOW, *THEN), 30e-6, 1e-6, 4e-4, 1.0),
    _engine("step_s", AHEAD, GAP, 0.02e-3, 5e-3),
    _engine("step_s", (*WAITING, *TRT, "deepspeed-inference"), 1e-3, 0.05e-3, 5e-3),
    _engine("step_s", BATCH, 3e-3, 0.1e-3, 1e-2),
    _engine("sequence_s", ("vllm", "atom"), 5e-6, 0.1e-6, 2e-4, 1.0),
    _engine("sequence_s", tuple(name for name in AHEAD if name not in ("vllm", "atom")), 5e-6, 0.1e-6, 2e-4, 1.0),
    _engine("sequence_s", (*BATCH, *WAITING), 30e-6, 1e-6, 4e-4, 1.0),
    _engine("request_s", (*GRAPHS, *OLD_VLLM), 10e-3, 1e-3, 0.3),
    _engine("request_s", TRT, 15e-3, 2e-3, 0.3),
    _engine("launch_s", tuple(n for n in (*GRAPHS, *BATCH) if n not in (*EAGER, *SGLANG)), LAUNCH, 5e-6, 3e-4, 0.1),
    _engine("launch_s", SGLANG, 5e-5, 5e-6, 3e-4),
    _engine("launch_s", EAGER, 7e-5, 5e-6, 3e-4),
    _engine("pointwise_traffic", (*CAPTURED, "deepspeed-mii", *NOW, *THEN), 0.71, 0.2, 2.0, 0.3),
    _engine("hidden_frac", GRAPHS, 0.5, 0.01, 1.0),
    _engine("stage_loss", (*GRAPHS, *BATCH, *TRT), 0.1, 0.01, 0.5),
    _engine("port_frac", THEN, 0.7, 0.1, 1.0),
    _engine("block_port_frac", SGLANG, 0.7, 0.1, 1.0),
    _engine("core_bytes_per_cycle", (*NOW, *THEN), 7.0, 2.0, 40.0),
    _engine("core_flops_per_s", (*NOW, *THEN), 9e11, 2e11, 4e12),
    Constant("cache_convert_flops", ("any",), 40.0, 5.0, 200.0),
    Constant("experts_s", ("amd",), 50e-6, 1e-6, 4e-4, 1.0),
    Constant("kernel_s", ("amd",), 7e-6, 1e-6, 2e-5),
    Constant("chained_frac", ("blackwell",), 0.2, 0.01, 0.7),
    Constant("chained_frac", ("hopper",), 0.2, 0.01, 0.7),
    Constant("dram_frac", ("ponte-vecchio",), 0.8, 0.05, 0.95),
)


@dataclass(frozen=True)
class PublishedLoad:
    """One published row: its measurements, and the part of its prediction that no constant moves."""

    id: str
    source: str
    mode: str
    job: ServeJob
    memory: ServingMemory
    machine: Runner
    replicas: int
    measured: Mapping[str, float]
    burst: int | None = None  # requests of one replica that are all there at the start of an offline run
    ends: Mapping[str, float] = field(default_factory=dict)  # by quantity: of the whole run, over the steady state's


def loads(rows: Iterable[Row], facts: Facts) -> list[PublishedLoad]:
    """All rows that their steady state decides; other runs with an end judge the fit.

    A closed loop with an end, of `WAVES` requests a user or more, is simulated once, under the constants of `facts`:
    what its beginning and its end make of the steady state's figures is kept while the constants move.
    """
    usable = []
    for row in rows:
        measured = measured_quantities(row)
        try:
            job, replicas = row_job(row, facts)
            check(job)
            memory, machine = job_memory(job), runner(job)
        except FlopwiseError:
            continue
        ends = job.requests is not None
        if not measured or not generates(job.model) or (ends and not _goes_on(job, replicas)):
            continue
        if job.engine.name in COLD or _waiting(job, memory, machine):
            measured.pop("ttft_s", None)
        burst = burst_requests(row, job.engine)
        load = PublishedLoad(
            row["id"], row["study"], row["mode"], replace(job, requests=None), memory, machine, replicas, measured,
            None if burst is None else math.ceil(burst / replicas),
        )  # fmt: skip
        usable.append(replace(load, ends=_ends(row, load, facts)) if ends else load)
    return [load for load in usable if load.measured]


def _goes_on(job: ServeJob, replicas: int) -> bool:
    """True for users who each send `WAVES` requests or more, one after another."""
    users = (job.concurrency or 0) * replicas
    return job.arrivals_per_s is None and users > 0 and (job.requests or 0) >= WAVES * users


def _ends(row: Row, load: PublishedLoad, facts: Facts) -> dict[str, float]:
    """Of each quantity, the simulated run's over the steady state's."""
    steady = load_quantities(load, load.machine)
    run = {p.quantity: p.predicted for p in predict_row(row, facts)}
    return {q: predicted / steady[q] for q in steady if (predicted := run.get(q)) is not None}


def _waiting(job: ServeJob, memory: ServingMemory, machine: Runner) -> bool:
    """True if requests wait for others to end: for memory, or because they come nearly as fast as can be served."""
    most, ranks = float(np.ravel(memory.max_concurrency)[0]), int(job.layout.dp)
    if job.arrivals_per_s is None:
        return bool(job.concurrency and most < job.concurrency / ranks)
    full = closed_loop(machine, job.layout, max(most, 1.0), *request_work(job))
    return job.arrivals_per_s / ranks > BUSY * float(np.ravel(full.requests_per_s)[0])


class ServingModel(FitModel):
    """Log errors of all figures as a function of the constants' logarithms; cached where no constant moved."""

    constants = CONSTANTS

    def __init__(self, published: Sequence[PublishedLoad], facts: Facts) -> None:
        """Keep the loads and their figures."""
        self.facts = facts
        self.figures = [(load, quantity) for load in published for quantity in load.measured]
        even = even_weights([f"{load.source} {quantity}" for load, quantity in self.figures])
        self.weights = even * np.array([TTFT_WEIGHT if q == "ttft_s" else 1.0 for _, q in self.figures])
        self._computed: dict[tuple[str, str], dict[str, float]] = {}

    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every figure."""
        values = self.values(point)
        engines = moved_records(self.facts.engines, "engines", values)
        table = fitting.moved_calibration(self.facts.calibration, values)
        chips: dict[str, Rates] = {}
        shared = repr(sorted((c.name, c.scopes, v) for c, v in values.items() if c.table == "calibration"))
        errors = []
        for load, quantity in self.figures:
            engine, chip = engines[load.machine.engine.name], load.job.cluster.accelerator
            if chip.name not in chips:
                chips[chip.name] = rates(chip, table)
            key = (load.id, f"{engine!r} {shared}")
            if key not in self._computed:
                own = replace(load.job, engine=engine).software
                machine = replace(load.machine, engine=own, rates=chips[chip.name])
                self._computed[key] = load_quantities(load, machine)
            predicted = self._computed[key][quantity] * load.ends.get(quantity, 1.0)
            errors.append(math.log(predicted / load.measured[quantity]))
        return np.array(errors)

    def only(self, members: Sequence[int]) -> ServingModel:
        """The same for the loads of some of the figures, which are all of theirs."""
        return ServingModel(list({self.figures[i][0].id: self.figures[i][0] for i in members}.values()), self.facts)

    def groups(self) -> dict[str, list[int]]:
        """Members of each quantity and mode, and of each engine in these."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, (load, quantity) in enumerate(self.figures):
            kind = f"{LABELS[quantity]} {load.mode}"
            size = "mixtures" if load.job.model.has_experts else "dense"
            groups[kind].append(index)
            groups[f"  {kind} {load.machine.engine.name} {size}"].append(index)
        return dict(sorted(groups.items(), key=lambda item: (item[0].strip().split()[:2], item[0])))


def load_quantities(load: PublishedLoad, machine: Runner) -> dict[str, float]:
    """The load's quantities on an engine and rates."""
    steady, waiting_s = steady_state(load.job, machine, load.memory)
    ttft, tpot, rate = (float(np.ravel(v)[0]) for v in (steady.ttft_s, steady.tpot_s, steady.output_tokens_per_s))
    if load.burst is not None:
        rate = burst_rate(load.job, machine, load.memory, load.burst) * load.job.output_tokens
        return {"ttft_s": ttft + waiting_s, "tpot_s": tpot, "output_tokens_per_s": rate * load.replicas}
    tokens = 1 / tpot if load.mode == STREAM else rate * int(load.job.layout.dp) * load.replicas
    return {"ttft_s": ttft + waiting_s, "tpot_s": tpot, "output_tokens_per_s": tokens}


def main() -> None:
    """Fit, report, write."""
    given = fitting.parser(__doc__).parse_args()
    rows, facts = fitting.published_rows("serving")
    model = ServingModel(loads(rows, facts), facts)
    point = fitting.start(model.constants, facts, fresh=given.fresh)
    print(f"{len(model.figures)} figures, {len(model.constants)} constants; start {error_text(model.errors(point))}")
    found = fit(model, point, ROUNDS, tell=print)
    fitting.show_values(found.values)
    unseen = {
        "source_out": found.left_out([load.source for load, _ in model.figures]),
        "GPU_out": found.left_out([load.job.cluster.accelerator.name for load, _ in model.figures]),
    }
    print(*fitting.group_lines(model.groups(), {"plain": found.errors, **unseen}), sep="\n")
    if given.write:
        fitting.write(found.values, "fit_serving.py", "published serving results")
        fitting.write_left_out("serving", [f"{load.id},{quantity}" for load, quantity in model.figures], unseen)


if __name__ == "__main__":
    main()
