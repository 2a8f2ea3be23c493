"""Options that set a training job, by the names of their figures."""

from __future__ import annotations

LAYOUT_SETTINGS = {
    **{name: (name,) for name in ("dp", "tp", "pp", "cp", "ep", "recompute", "interleave")},
    "stages": ("pp",), "ranks": ("tp", "cp", "ep", "dp"), "replicas": ("dp",), "dp x cp": ("dp", "cp"),
    "ranks of experts": ("ep",), "ZeRO stage": ("zero", "fsdp"), "shard": ("shard", "fsdp"),
    "ranks that share the shards": ("shard", "fsdp"), "micro-batch": ("micro_batch",),
    "layers of the stages": ("stage_layers",),
}  # fmt: skip
"""Options that say a layout's settings, by the names of their figures."""
SETTINGS = {
    "sequence length": ("seq",), "global batch": ("global_batch", "global_batch_tokens"), "optimizer": ("optimizer",),
    "spare nodes": ("spares",), "GPUs per node": ("gpus_per_node",), "LoRA rank": ("lora",),
    "base format": ("base_format", "qlora"), "load of the fullest expert over the mean": ("expert_skew",),
    "bytes per token": ("token_bytes",), "batches per validation": ("validate_batches",),
}  # fmt: skip
"""Options of the recipe, the data and the run, by the names of their figures."""
