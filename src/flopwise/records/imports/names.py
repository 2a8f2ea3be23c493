"""Names and units under which training tools log our metrics.

Source: logs of Hugging Face Trainer, Lightning, Megatron-LM, torchtitan, torchtune, Composer, and W&B's system metrics.
Users can give other names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from flopwise.records.metrics import METRICS
from flopwise.units import GIB


class Meaning(NamedTuple):
    """Our metric for a name of a file: the factor between the units, the device, and whether it is per accelerator."""

    metric: str
    scale: float = 1.0
    device: str = ""
    each_gpu: bool = False  # per accelerator, while ours is of the whole run


_NAMES: tuple[tuple[str, Meaning], ...] = (
    (r"step_s|step[-_ ]time(_s|_sec|\(s\))?|iter(ation)?[-_ ]time|time[-_/]step|time_metrics/end_to_end\(s\)",
     Meaning("step_s")),
    (r"timing_s/step|time_per_iter(ation)?|time/iteration|batch_time|seconds_per_step", Meaning("step_s")),
    (r"(step|iter(ation)?)[-_ ]time[-_]?\(?ms\)?|elapsed time per iteration \(ms\)", Meaning("step_s", 1e-3)),
    (r"data[-_ ](wait|time|loading(_time)?)(_s)?|time_metrics/data_loading\(s\)|batch-generator-time",
     Meaning("data_wait_s")),
    (r"tokens[-_ ]per[-_ ]sec(ond)?|tokens/s(ec)?|tokens_per_s|train_tokens_per_second|throughput/tokens_per_sec",
     Meaning("tokens_per_s")),
    (r"tokens[-_]per[-_]sec(ond)?[-_]per[-_](gpu|device)|throughput/device/tokens_per_sec|throughput\(tps\)|tgs",
     Meaning("tokens_per_s", each_gpu=True)),
    (r"samples[-_ ]per[-_ ]sec(ond)?|samples_per_s|train_samples_per_second|throughput/samples_per_sec",
     Meaning("samples_per_s")),
    (r"(num_)?input_tokens_seen|num_tokens|tokens([-_]seen)?|total_tokens|consumed_(train_)?tokens|n_tokens_seen",
     Meaning("tokens")),
    (r"loss|train(ing)?[-_ ]loss(_step)?|lm[-_ ]loss|train/lm[-_ ]loss|loss_metrics/global_avg_loss|loss/train",
     Meaning("loss")),
    (r"(eval|val(id(ation)?)?|test)[-_/ ](lm[-_ ])?loss|loss/(val|eval)|lm loss validation", Meaning("eval_loss")),
    (r"learning[-_ ]rate|lr|lr-\w+", Meaning("learning_rate")),
    (r"grad(ient)?s?[-_ ]norm|grad_norm/global|global_grad_norm", Meaning("grad_norm")),
    (r"loss[-_ ]scale", Meaning("loss_scale")),
    (r"mfu(_frac)?|throughput/device/mfu", Meaning("mfu_frac")),
    (r"mfu ?\(%\)|mfu_(percent|pct)", Meaning("mfu_frac", 0.01)),
    (r"memory/max_active\(gib\)|(peak|max)_(active|allocated)_memory_gib|peak_memory_alloc", Meaning(
        "peak_memory_bytes", GIB)),
    (r"memory/max_reserved\(gib\)|peak_memory_reserved|max_reserved_memory_gib", Meaning(
        "reserved_memory_bytes", GIB)),
    (r"memory/peak_allocated_mem", Meaning("peak_memory_bytes", 1e9)),
    (r"memory/peak_reserved_mem", Meaning("reserved_memory_bytes", 1e9)),
)  # fmt: skip
_SYSTEM = r"system[./]gpu\.(?P<device>\d+)\."
_DEVICES: tuple[tuple[str, Meaning], ...] = (
    (r"gpu", Meaning("utilization_frac", 0.01)), (r"memoryallocatedbytes", Meaning("used_memory_bytes")),
    (r"temp", Meaning("temperature_c")), (r"powerwatts", Meaning("power_w")),
    (r"smclock", Meaning("sm_clock_hz", 1e6)),
)  # fmt: skip
_PREFIX = r"(train(ing)?|perf(ormance)?|trainer|rank_0|global|throughput)[/_.]"
_EXACT = [(re.compile(f"({_PREFIX})?({pattern})", re.IGNORECASE), meaning) for pattern, meaning in _NAMES]
_OF_DEVICES = [(re.compile(_SYSTEM + pattern, re.IGNORECASE), meaning) for pattern, meaning in _DEVICES]


def meaning(name: str) -> Meaning | None:
    """Our metric for the name of a metric in a file; None if there is none."""
    if name in METRICS:
        return Meaning(name)
    for pattern, metric in _OF_DEVICES:
        if match := pattern.fullmatch(name):
            return metric._replace(device=match["device"])
    return next((metric for pattern, metric in _EXACT if pattern.fullmatch(name)), None)


def rank(known: Meaning) -> int:
    """Position in the table: more specific names come first."""
    return next((place for place, (_, one) in enumerate(_NAMES) if one == known), -1)
