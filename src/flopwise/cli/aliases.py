"""Spellings that people know from other tools, and the options of ours that they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

ALIASES: dict[str, tuple[str, ...]] = {
    "--batch": ("--micro-batch", "--concurrency"),
    "--batch-size": ("--batch", "--micro-batch", "--concurrency"),
    "--context": ("--seq", "--input"),
    "--context-length": ("--context", "--seq", "--input"),
    "--ctx-size": ("--context", "--seq", "--input"),
    "--data-parallel-size": ("--dp",),
    "--decode-context-parallel-size": ("--cp",),
    "--dtype": ("--precision", "--weights"),
    "--enable-expert-parallel": ("--ep",),
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
    "--max-concurrency": ("--concurrency",),
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
    "--seq-len": ("--seq", "--context", "--input"),
    "--seq-length": ("--seq", "--context", "--input"),
    "--sequence-length": ("--seq", "--context", "--input"),
    "--speculative-model": ("--draft",),
    "--tensor-model-parallel-size": ("--tp",),
    "--tensor-parallel-size": ("--tp",),
    "--zero-stage": ("--zero",),
}
"""Options of vLLM, SGLang, llama.cpp, Megatron, DeepSpeed, transformers and load generators, and plain words for ours.

The first of the options that a command has is meant.
"""


def with_own_names(args: Sequence[str], own: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Each argument with the option of `own` in place of an alias, and what was replaced; None where nothing was.

    `--name=value` and underscores for dashes are understood; an option that the command has is never an alias.
    """
    known = set(own)
    for place, arg in enumerate(args):
        if arg == "--":
            yield from ((rest, None) for rest in args[place:])
            return
        name, equals, value = arg.partition("=")
        dashed = name.replace("_", "-")
        if not name.startswith("--") or name in known:
            yield arg, None
            continue
        meant = dashed if dashed in known else next((o for o in ALIASES.get(dashed, ()) if o in known), None)
        yield (arg, None) if meant is None else (f"{meant}{equals}{value}", name)
