"""What `fit_training.py` may move: each constant with where it starts, how far it may go, and who shares it."""

from __future__ import annotations

from flopwise.facts.catalog import load_facts
from robust_fit import Knob

STACKS = load_facts().stacks


def _stacks(*, fused: bool) -> tuple[str, ...]:
    return tuple(n for n, row in STACKS.items() if (row.activations == "fused") == fused)


def _kernel(name: str) -> tuple[str, ...]:
    return tuple(n for n, row in STACKS.items() if row.attention_kernel == name)


OLD = ("megatron-2021", "megatron-deepspeed")
FUSED = tuple(n for n in _stacks(fused=True) if n != "unsloth")
EAGER = (*_stacks(fused=False), "unsloth")
ENGINE, TORCH = _kernel("cudnn"), (*_kernel("fa1"), *_kernel("fa2"))
OVERLAPPED = tuple(n for n, row in STACKS.items() if row.dp_overlap > 0)

KNOBS = (
    Knob("train_joules_per_flop", ("ampere",), 0.95e-12, 0.3e-12, 3e-12, 0.3, column=False),
    Knob("train_joules_per_flop", ("hopper",), 0.75e-12, 0.2e-12, 3e-12, 0.3, column=False),
    Knob("train_joules_per_flop", ("blackwell",), 0.55e-12, 0.1e-12, 3e-12, 0.3, column=False),
    Knob("train_joules_per_flop", ("any",), 0.75e-12, 0.2e-12, 6e-12, 0.5, column=False),
    Knob("train_clock_exponent", ("any",), 0.5, 0.33, 1.0, 0.3, column=False),
    Knob("train_scaled_frac", ("any",), 0.9, 0.5, 1.0, 0.3, column=False),
    # FlashAttention-2 (arXiv 2307.08691) abstract and section 4.1: 1.3 to 2.5 times the Triton version of the first;
    # stacks of 2023 ran either
    Knob("train_attention_first", ("any",), 0.75, 0.3, 1.0, 0.3, column=False),
    Knob("train_attention_frac.fa2", ("ampere",), 0.5, 0.1, 0.9, column=False),
    Knob("train_attention_frac.fa2", ("hopper",), 0.33, 0.08, 0.9, column=False),
    # made of Ampere's instructions, it does as many operations a second on Blackwell as on Hopper
    Knob("train_attention_frac.fa2", ("blackwell",), 0.33 * 989 / 2250, 0.05, 0.9, column=False),
    Knob("train_attention_frac.fa2", ("any",), 0.3, 0.05, 0.9, column=False),
    Knob("train_attention_frac.cudnn", ("hopper",), 0.5, 0.1, 0.9, column=False),
    Knob("train_attention_frac.cudnn", ("blackwell",), 0.4, 0.1, 0.9, column=False),
    # exponentials come twice as fast: what is left of the limit is the matrix units'
    Knob("train_attention_frac.cudnn", ("blackwell-ultra",), 0.5, 0.1, 0.9, column=False),
    Knob("train_grouped_frac.split", ("any",), 0.7, 0.2, 1.0, column=False),
    Knob("train_grouped_frac.fused", ("any",), 0.8, 0.2, 1.0, column=False),
    Knob("train_grouped_passes.split", ("any",), 8.0, 1.0, 40.0, column=False),
    Knob("train_grouped_passes.fused", ("any",), 4.0, 1.0, 40.0, column=False),
    Knob("train_contention", ("any",), 0.2, 0.01, 1.0, column=False),
    Knob("pointwise_traffic", FUSED, 0.8, 0.3, 3.0),
    Knob("pointwise_traffic", EAGER, 1.6, 0.6, 4.0),
    Knob("cast_passes", ENGINE, 0.5, 0.02, 4.0),
    Knob("cast_passes", tuple(n for n in TORCH if n in FUSED), 0.5, 0.02, 4.0),
    Knob("cast_passes", tuple(n for n in TORCH if n in EAGER), 1.0, 0.02, 4.0),
    Knob(
        "tp_overlap",
        ("megatron-te", "megatron-2026", "nanotron", "fast-llm", "xla", "in-house", "hai-llm"),
        0.5,
        0.02,
        0.95,
    ),
    Knob("tp_overlap", ("fsdp-compile-async-tp",), 0.5, 0.02, 0.95),
    Knob("ep_overlap", ("megatron-te", "in-house", "hai-llm"), 0.3, 0.02, 0.95),
    Knob("ep_overlap", ("megatron-2026",), 0.5, 0.02, 0.95),
    Knob("routing_s", tuple(STACKS), 5e-3, 5e-4, 2e-2),
    Knob("dp_overlap", OVERLAPPED, 0.8, 0.1, 1.0),
    Knob("message_frac", ("deepspeed-zero3",), 0.5, 0.02, 1.0, 1.0),
)
