"""Counts operations and saved bytes of a small model with parts frozen: `python record_frozen.py`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("frozen.json")
BATCH, SEQ = 2, 64
CASES: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": False,
    },
    "qwen2-tied": {
        "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "tie_word_embeddings": True,
    },
}  # fmt: skip
FROZEN = ("", "embedding", "first:2", "embedding,first:2", "all-but-last:1", "all-but-last:0", "head")


def _model(case: dict[str, Any], frozen: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(case)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.bfloat16).train()
    layers = model.model.layers
    for part in frozen.split(",") if frozen else ():
        name, _, number = part.partition(":")
        below = {"first": int(number or 0), "all-but-last": len(layers) - int(number or 0)}.get(name, 0)
        modules = [*layers[:below]]
        if name in ("embedding", "all-but-last"):
            modules.append(model.model.embed_tokens)
        if name == "head":
            modules.append(model.lm_head)
        for module in modules:
            module.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    return model


def counts(case: dict[str, Any], frozen: str) -> dict[str, int]:
    """Operations of forward and backward, those of the forward pass alone, saved bytes, trained parameters."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, ids = _model(case, frozen), torch.zeros(BATCH, SEQ, dtype=torch.long)
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (tensor.detach(), storage.nbytes())
        return tensor

    with FlopCounterMode(display=False) as forward, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return {
        "forward": forward.get_total_flops(),
        "whole": forward.get_total_flops() + backward.get_total_flops(),
        "bytes": sum(size for _, size in kept.values()),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def record() -> dict[str, Any]:
    """All cases with the versions of what counted them."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [{"case": c, "frozen": f, **counts(CASES[c], f)} for c in CASES for f in FROZEN]
    return {
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "batch": BATCH,
        "seq": SEQ,
        "configs": CASES,
        "rows": rows,
    }


if __name__ == "__main__":
    RECORD.write_text(json.dumps(record(), indent=1) + "\n")
