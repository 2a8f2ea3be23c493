"""What `fit_serving.py` may move: each constant with where it starts, how far it may go, and which engines share it."""

from __future__ import annotations

from robust_fit import Knob

GRAPHS = ("vllm", "sglang", "lmdeploy", "tgi", "tensorrt-llm")
"""Servers of today: steps captured in graphs, the host at work on the next step while the device is on this one."""
BATCH = ("vllm-v0", "deepspeed-mii")
"""Python between steps, which the device waits for."""
COMPILED = ("tensorrt-llm-v0", "deepspeed-inference")
"""Compiled engines, or whole steps captured, without a server's Python."""
LOCAL = ("llama.cpp", "mlx")

KNOBS = (
    Knob("layer_s", GRAPHS, 10e-6, 0.1e-6, 1e-4),
    Knob("layer_s", ("vllm-v0",), 15e-6, 0.1e-6, 2e-4),
    Knob("layer_s", ("deepspeed-mii",), 80e-6, 1e-6, 4e-4),
    Knob("layer_s", COMPILED, 10e-6, 0.1e-6, 1e-4),
    Knob("layer_s", LOCAL, 40e-6, 0.1e-6, 2e-4),
    Knob("step_s", GRAPHS, 1e-3, 0.05e-3, 5e-3),
    Knob("step_s", BATCH, 3e-3, 0.1e-3, 1e-2),
    Knob("step_s", COMPILED, 0.5e-3, 0.02e-3, 5e-3),
    Knob("sequence_s", GRAPHS, 5e-6, 0.1e-6, 2e-4, 1.0),
    Knob("sequence_s", BATCH, 30e-6, 1e-6, 4e-4, 1.0),
    Knob("request_s", ("vllm", "lmdeploy", "tgi"), 30e-3, 2e-3, 0.3),
    Knob("request_s", ("sglang",), 60e-3, 2e-3, 0.5),
    Knob("request_s", ("tensorrt-llm",), 30e-3, 2e-3, 0.3),
    Knob("request_s", ("tensorrt-llm-v0",), 15e-3, 2e-3, 0.3),
    Knob("synchrony", ("vllm", "vllm-v0", "lmdeploy", "tgi"), 0.3, 0.02, 3.0),
    Knob("synchrony", ("sglang",), 0.3, 0.02, 3.0),
    Knob("synchrony", ("tensorrt-llm", "tensorrt-llm-v0"), 0.3, 0.02, 3.0),
    Knob("hidden_frac", GRAPHS, 0.5, 0.01, 1.0),
    Knob("stage_loss", (*GRAPHS, *BATCH, "tensorrt-llm-v0"), 0.1, 0.01, 0.5),
    Knob("core_bytes_per_s", LOCAL, 9e9, 2e9, 4e10),
)
