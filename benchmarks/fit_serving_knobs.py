"""What `fit_serving.py` may move: each constant with where it starts, how far it may go, and which engines share it."""

from __future__ import annotations

from robust_fit import Knob

GRAPHS = ("vllm", "sglang", "lmdeploy", "tgi", "tensorrt-llm")
"""Servers of today: steps captured in graphs, the host at work on the next step while the device is on this one."""
BATCH = ("vllm-v0", "deepspeed-mii")
"""Python between steps, which the device waits for."""
NOW, THEN = ("llama.cpp", "mlx"), ("llama.cpp-2024",)
"""Engines of one user: kernels of their own, launched from graphs since 2025."""
TRT = ("tensorrt-llm-v0", "tensorrt-llm-2023")

CAPTURED = (*GRAPHS, "vllm-v0", *TRT, "deepspeed-inference")
"""Steps captured in graphs, or compiled whole."""

KNOBS = (
    Knob("layer_s", CAPTURED, 10e-6, 0.1e-6, 1e-4),
    Knob("layer_s", ("deepspeed-mii",), 80e-6, 1e-6, 4e-4),
    Knob("layer_s", NOW, 20e-6, 0.1e-6, 2e-4),
    Knob("layer_s", THEN, 40e-6, 0.1e-6, 2e-4),
    Knob("step_s", (*GRAPHS, *TRT, "deepspeed-inference"), 1e-3, 0.05e-3, 5e-3),
    Knob("step_s", BATCH, 3e-3, 0.1e-3, 1e-2),
    Knob("sequence_s", GRAPHS, 5e-6, 0.1e-6, 2e-4, 1.0),
    Knob("sequence_s", BATCH, 30e-6, 1e-6, 4e-4, 1.0),
    Knob("request_s", GRAPHS, 30e-3, 2e-3, 0.3),
    Knob("request_s", TRT, 15e-3, 2e-3, 0.3),
    Knob("synchrony", (*GRAPHS, *BATCH, *TRT), 0.15, 0.02, 3.0),
    Knob("steps_ahead", ("vllm", "lmdeploy", "tgi"), 2.0, 0.1, 40.0, 1.0),
    Knob("steps_ahead", ("tensorrt-llm",), 2.0, 0.1, 40.0, 1.0),
    Knob("steps_ahead", ("sglang",), 2.0, 0.1, 40.0, 1.0),
    Knob("pointwise_traffic", (*CAPTURED, "deepspeed-mii", *NOW, *THEN), 0.71, 0.2, 2.0, 0.3),
    Knob("hidden_frac", GRAPHS, 0.5, 0.01, 1.0),
    Knob("stage_loss", (*GRAPHS, *BATCH, *TRT), 0.1, 0.01, 0.5),
    Knob("port_frac", THEN, 0.7, 0.1, 1.0),
    Knob("core_bytes_per_cycle", (*NOW, *THEN), 7.0, 2.0, 40.0),
    Knob("core_flops_per_s", (*NOW, *THEN), 9e11, 2e11, 4e12),
    Knob("cache_convert_flops", ("any",), 40.0, 5.0, 200.0, column=False),
    Knob("dram_frac", ("ponte-vecchio",), 0.8, 0.05, 0.95, column=False),
)
