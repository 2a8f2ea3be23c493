"""Defaults of options: the same in every command, file and function."""

from __future__ import annotations

PURCHASES = ("on_demand", "spot", "reserved_1y", "reserved_3y")
"""How an hour of an instance is bought; the first is the default."""
ENGINE = "vllm"
PLATFORM_ENGINES = {"apple": "llama.cpp"}
"""Inference engines of models that generate, by platform: where the usual one leaves the GPU idle.

Source: vLLM documentation, installation on Apple silicon: it computes on the processor's cores; llama.cpp: by Metal."""
ENCODER_ENGINES, TOWER_ENGINES = ("tei", "onnxruntime", "hf"), ("onnxruntime", "hf")
"""Inference engines: of text encoders, and of other models that answer in one pass, the first that runs on the device.

Source: text-embeddings-inference documentation, supported models and hardware."""
OPTIMIZER = "adamw"
STACKS = ("fsdp-compile", "fsdp-eager", "xla", "hf-trainer")
ADAPTER_STACKS = ("hf-trainer", "xla")
"""Training stacks, of adapters too: the first that runs on the device (and is no younger than its month)."""
LARGE_PARAMETERS, LARGE_STACKS = 100e9, ("megatron-te", *STACKS)
"""Training stacks of models that have at least so many parameters and are trained from the start.

Source: benchmarks/truth/training.csv: of 215 runs on GPUs that pre-train so many, 178 are Megatron's, by 9 publishers;
FSDP has 9, by 4. Below 60B each has about as many publishers."""
USUAL_STACKS = ("fsdp-compile", "fsdp-eager", "megatron-te", "hf-trainer")
USUAL_ADAPTER_STACKS = ("torchtune-compile", "deepspeed-zero3")
"""Other training stacks that people use: an estimate whose stack nobody named reaches from the slowest to the
fastest."""
SEQ_LEN, TUNING_SEQ_LEN = 4096, 2048
"""Default tokens of a sequence in pre-training and fine-tuning, at most the model's context."""
LONG_SEQ_LEN = 8192
"""Tokens of a sequence up to which people train where nobody states them, and from half the default on.

Source: the medians of the publishers in benchmarks/truth/training.csv and memory.csv: 103 that pre-train have 4,096 in
the middle, 2,048 at a quarter and 8,192 at four fifths, 54 that fine-tune 2,048, 1,024 and 8,192."""
BATCH_TOKENS = ((2e9, 1e6), (20e9, 4e6), (200e9, 8e6), (float("inf"), 32e6))
"""Tokens of a global batch by model size, as published runs have (Llama 2: 4 M; Llama 3: 16 M; DeepSeek-V3: 63 M)."""
TUNING_BATCH = 64
"""Sequences of a global batch in fine-tuning."""
CONFIDENCE = 0.8
"""Probability with which a plan meets each target."""
LEAST_STEPS = 50
"""Minimum number of steps: the global batch of a short run is reduced to reach it."""
SEARCHED_STAGES = 16
"""Stages of a pipeline that the layout of a single question is searched with at most."""
CONTEXT_TOKENS = 4096
"""Sequences are cut over context ranks while each keeps at least so many tokens.

Source: Megatron-Bridge, docs/performance-summary.md: its recipe of Llama 3.1 405B on H100 cuts 8,192 tokens in two.
"""
LORA_RANK = 16
LORA_TARGETS = ("all-linear",)
WEIGHTS = "bf16"
CACHE = "bf16"
"""Formats of weights and of the key-value cache."""

RECOMPUTE_MODULES = ("core_attn", "layernorm", "activation", "mla_up_proj", "mlp", "moe", "attn_proj")
"""Modules that selective recompute can run again alone, as Megatron-Core names them (`activation`: its moe_act, and
that of dense layers), and `attn_proj`: the projections around attention, whose result alone then stays, as MaxText's
custom policies with `context` kept have it."""
