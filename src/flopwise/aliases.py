"""Option names of other tools, and the flopwise options that they stand for."""

from __future__ import annotations

ALIASES: dict[str, tuple[str, ...]] = {
    "--batch": ("--micro-batch", "--concurrency"),
    "--batch-size": ("--batch", "--micro-batch", "--concurrency"),
    "--concurrency": ("--users",),
    "--context": ("--seq", "--input"),
    "--context-length": ("--context", "--seq", "--input"),
    "--ctx-size": ("--context", "--seq", "--input"),
    "--data-parallel-size": ("--dp",),
    "--decode-context-parallel-size": ("--cp",),
    "--dtype": ("--precision", "--weights"),
    "--enable-expert-parallel": ("--ep",),
    "--enforce-eager": ("--eager",),
    "--expert-parallel-size": ("--ep",),
    "--gpu-memory-utilization": ("--memory-fraction",),
    "--gpu-name": ("--gpu",),
    "--gpu-type": ("--gpu",),
    "--gradient-accumulation-steps": ("--grad-accum",),
    "--input-len": ("--input",),
    "--input-length": ("--input",),
    "--input-tokens": ("--input",),
    "--isl": ("--input",),
    "--kv-cache-dtype": ("--kv-dtype",),
    "--lora-r": ("--lora",),
    "--lora-rank": ("--lora",),
    "--max-concurrency": ("--concurrency", "--users"),
    "--max-model-len": ("--context", "--seq", "--input"),
    "--max-num-batched-tokens": ("--step-tokens",),
    "--max-num-seqs": ("--max-batch", "--concurrency"),
    "--max-seq-len": ("--seq", "--context", "--input"),
    "--max-seq-length": ("--seq", "--context", "--input"),
    "--mem-fraction-static": ("--memory-fraction",),
    "--micro-batch-size": ("--micro-batch",),
    "--num-gpus": ("--gpus", "--max-gpus"),
    "--num-prompts": ("--requests",),
    "--osl": ("--output",),
    "--output-len": ("--output",),
    "--output-length": ("--output",),
    "--output-tokens": ("--output",),
    "--per-device-train-batch-size": ("--micro-batch",),
    "--pipeline-model-parallel-size": ("--pp",),
    "--pipeline-parallel-size": ("--pp",),
    "--qps": ("--rate",),
    "--quantization": ("--weights",),
    "--request-rate": ("--rate",),
    "--scheduler-recv-interval": ("--recv-interval",),
    "--seq-len": ("--seq", "--context", "--input"),
    "--seq-length": ("--seq", "--context", "--input"),
    "--sequence-length": ("--seq", "--context", "--input"),
    "--speculative-model": ("--draft",),
    "--tensor-model-parallel-size": ("--tp",),
    "--tensor-parallel-size": ("--tp",),
    "--users": ("--concurrency",),
    "--zero-stage": ("--zero",),
}
"""Options of vLLM, SGLang, llama.cpp, Megatron, DeepSpeed, transformers and load generators, and plain words for ours.

The first of the options that a command has is meant.
"""
MODEL_OPTIONS = frozenset({"--model", "--model-id", "--model-name", "--model-path"})
"""Options by which vLLM, SGLang, TGI and load generators take the model, which is an argument here."""
MODEL_ARGUMENTS = ("model", "workload")
"""Names of arguments that may be a model."""
CONTEXT_LENGTHS = {
    "--context", "--context-length", "--ctx-size", "--max-model-len", "--max-seq-len", "--max-seq-length", "--seq-len",
    "--seq-length", "--sequence-length",
}  # fmt: skip
"""Names of a context length, whose `k` is 1,024 whatever the option that they stand for."""


def as_context(alias: str, value: str) -> str:
    """The value of an alias for an option that counts in thousands: `32k` of a context length is `32Ki`."""
    number = value.removesuffix("k").removesuffix("K")
    return f"{number}Ki" if alias in CONTEXT_LENGTHS and number != value else value
