"""Series as dcgm-exporter, node_exporter, vLLM and a run's progress send them, for each bound and for a healthy run.

Levels are those that public descriptions give of an H100 under such work: the DCGM User Guide on profiling metrics (0.8
of SM activity is needed for good use; tensor activity stays well below 1 in real training), utilisation of 100 % while
collectives spin, memory activity of decoding, dips at checkpoints and evaluation, a slow start. Noise is seeded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MIB = 2**20
GPUS = 2
PEAK_TOKENS_PER_S = 20_000.0


@dataclass(frozen=True)
class Level:
    """What one GPU, its host and the job show while they are in one state; `spread`: of the noise, relative."""

    util: float = 99.0
    sm: float = 0.90
    tensor: float = 0.50
    dram: float = 0.40
    copy: float = 38.0
    power: float = 630.0
    temp: float = 64.0
    clock: float = 1755.0
    bits: int = 0
    pcie: float = 2e9
    nvlink: float = 90e9
    used_gib: float = 62.0
    cpu: float = 0.18
    iowait: float = 0.004
    disk: float = 0.03
    tokens: float = PEAK_TOKENS_PER_S
    engine: dict[str, float] = field(default_factory=dict)


TRAINING = Level()
START = Level(util=4, sm=0.02, tensor=0.0, dram=0.01, copy=1, power=120, temp=38, nvlink=0, used_gib=12, cpu=0.5,
              disk=0.5, iowait=0.05, tokens=0)  # fmt: skip
CHECKPOINT = Level(util=8, sm=0.03, tensor=0.0, dram=0.05, copy=5, power=170, temp=52, nvlink=0, pcie=12e9, disk=0.95,
                   iowait=0.12, tokens=0)  # fmt: skip
EVALUATION = Level(tensor=0.42, power=540, nvlink=20e9, tokens=0)
SERVING = {"running": 48, "waiting": 0, "cache": 0.55, "preempted": 0.0, "rate": 5.0}
BOUNDS: dict[str, Callable[[float], Level]] = {
    "compute": lambda _: TRAINING,
    "memory bandwidth": lambda _: Level(sm=0.86, tensor=0.11, dram=0.74, copy=76, power=430, nvlink=30e9,
                                        engine=SERVING),
    "communication": lambda _: Level(util=100, sm=0.72, tensor=0.17, dram=0.24, copy=21, power=330, nvlink=320e9,
                                     tokens=7_000),
    "data loading": lambda t: (  # batches come in bursts: the queue of the loader empties every half minute
        Level(tensor=0.45, disk=0.96, iowait=0.24, tokens=15_000) if t % 30 < 13
        else Level(util=0, sm=0.0, tensor=0.0, dram=0.01, copy=1, power=130, nvlink=0, disk=0.97, iowait=0.3, tokens=0)
    ),
    "host": lambda _: Level(util=46, sm=0.21, tensor=0.09, dram=0.12, copy=11, power=240, nvlink=9e9, cpu=0.97,
                            tokens=5_000),
    "throttling": lambda _: Level(tensor=0.31, dram=0.24, copy=24, power=410, temp=89, clock=1110, bits=64,
                                  tokens=11_000),
    "memory pressure": lambda _: Level(sm=0.8, tensor=0.2, dram=0.52, copy=50, power=440, used_gib=74, nvlink=30e9,
                                       engine={"running": 40, "waiting": 57, "cache": 0.996, "preempted": 0.6,
                                               "rate": 2.0}),
}  # fmt: skip
"""Level at each second, for every bound."""


def healthy(second: float) -> Level:
    """An hour of training at plan: a slow start, a checkpoint every quarter of an hour, an evaluation in between."""
    if second < 150:
        return START
    if second % 900 < 45:
        return CHECKPOINT
    if second % 1200 < 30:
        return EVALUATION
    return TRAINING


PROFILING = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE",
             "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_NVLINK_TX_BYTES",
             "DCGM_FI_PROF_NVLINK_RX_BYTES")  # fmt: skip
BESIDE_DEFAULT = (*PROFILING, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
"""What dcgm-exporter does not send by its default counters."""


class Player:
    """The counters of one job as time goes on."""

    def __init__(self, level: Callable[[float], Level], workload: str, *, default_counters: bool = False) -> None:
        self._level, self._workload, self._default = level, workload, default_counters
        self._random = random.Random(workload)  # noqa: S311 - noise of a test
        self._totals: dict[str, float] = {}
        self.gone: set[int] = set()

    def samples(self, second: float, step_s: float) -> Iterator[tuple[str, str, float]]:
        """(metric, labels, value) `step_s` after the ones before."""
        now = self._level(second)
        for gpu in set(range(GPUS)) - self.gone:
            labels = (
                f'gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="{self._workload}-node",'
                f'workload="{self._workload}"'
            ).replace(" -", "-")
            for name, value in self._device(now):
                if not (self._default and name in BESIDE_DEFAULT):
                    yield name, labels, value
        own = f'instance="node:9100",workload="{self._workload}"'
        for cpu in range(4):
            for mode, share in (("idle", 1 - now.cpu - now.iowait), ("iowait", now.iowait), ("user", now.cpu)):
                yield self._counter(
                    "node_cpu_seconds_total", f'{own},cpu="{cpu}",mode="{mode}"', self._noisy(share, 0.03) * step_s
                )
        yield self._counter("node_disk_io_time_seconds_total", f'{own},device="nvme0n1"', now.disk * step_s)
        if now.engine:
            yield from self._engine(now, step_s)
        else:
            tokens = self._noisy(now.tokens, 0.02) * step_s
            yield self._counter("flopwise_run_tokens_total", f'workload="{self._workload}"', tokens)

    def _noisy(self, value: float, spread: float) -> float:
        return max(0.0, value * (1 + self._random.gauss(0, spread)))

    def _device(self, now: Level) -> Iterator[tuple[str, float]]:
        whole = 81_559.0  # MiB
        used = now.used_gib * 1024
        yield "DCGM_FI_DEV_GPU_UTIL", min(100.0, round(self._noisy(now.util, 0.01)))
        yield "DCGM_FI_DEV_MEM_COPY_UTIL", min(100.0, round(self._noisy(now.copy, 0.05)))
        yield "DCGM_FI_DEV_FB_USED", used
        yield "DCGM_FI_DEV_FB_FREE", whole - used
        yield "DCGM_FI_DEV_GPU_TEMP", round(self._noisy(now.temp, 0.01))
        yield "DCGM_FI_DEV_POWER_USAGE", min(700.0, self._noisy(now.power, 0.04))
        yield "DCGM_FI_DEV_SM_CLOCK", round(self._noisy(now.clock, 0.02))
        yield "DCGM_FI_DEV_XID_ERRORS", 0.0
        yield "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", float(now.bits)
        for name, value in zip(PROFILING, (now.sm, now.tensor, now.dram), strict=False):
            yield name, min(1.0, self._noisy(value, 0.04))
        for name, value in zip(PROFILING[3:], (now.pcie, now.pcie, now.nvlink, now.nvlink), strict=True):
            yield name, self._noisy(value / 2, 0.1)

    def _counter(self, name: str, labels: str, more: float) -> tuple[str, str, float]:
        total = self._totals[f"{name}{labels}"] = self._totals.get(f"{name}{labels}", 1000.0) + max(0.0, more)
        return name, labels, total

    def _engine(self, now: Level, step_s: float) -> Iterator[tuple[str, str, float]]:
        labels, engine = f'model_name="m",workload="{self._workload}"', now.engine
        yield "vllm:num_requests_running", labels, round(self._noisy(engine["running"], 0.05))
        yield "vllm:num_requests_waiting", labels, round(self._noisy(engine["waiting"], 0.1))
        yield "vllm:kv_cache_usage_perc", labels, min(1.0, self._noisy(engine["cache"], 0.002))
        for name, rate in (
            ("vllm:num_preemptions_total", engine["preempted"]), ("vllm:request_success_total", engine["rate"]),
            ("vllm:prompt_tokens_total", 900 * engine["rate"]), ("vllm:generation_tokens_total", 250 * engine["rate"]),
        ):  # fmt: skip
            yield self._counter(name, labels, self._noisy(rate, 0.05) * step_s)
        for end, share in (("0.25", 0.5), ("0.5", 0.9), ("1.0", 0.98), ("+Inf", 1.0)):
            yield self._counter("vllm:time_to_first_token_seconds_bucket", f'{labels},le="{end}"',
                                share * engine["rate"] * step_s)  # fmt: skip


def page(player: Player, second: float, step_s: float) -> str:
    """As an exporter sends it."""
    return "".join(f"{name}{{{labels}}} {value!r}\n" for name, labels, value in player.samples(second, step_s))


def openmetrics(players: list[Player], begin_s: float, seconds: int, step_s: int) -> str:
    """Recorded series with their times, as promtool makes blocks of: the samples of a metric one after the other."""
    rows: dict[str, list[str]] = {}
    for second in range(0, seconds + 1, step_s):
        for player in players:
            for name, labels, value in player.samples(second, step_s):
                at_s = math.floor(begin_s) + second
                rows.setdefault(f"{name}{{{labels}}}", []).append(f"{value!r} {at_s}\n")
    series: dict[str, list[str]] = {}
    for key, lines in rows.items():
        series.setdefault(key.partition("{")[0], []).extend(f"{key} {line}" for line in lines)
    return "".join(f"# TYPE {name} unknown\n{''.join(lines)}" for name, lines in series.items()) + "# EOF\n"
