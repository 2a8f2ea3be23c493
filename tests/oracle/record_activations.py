"""Bytes that autograd keeps for the backward pass of real models, on the CPU: `python record_activations.py`.

Every tensor that an operation saves is caught by a hook; storages count once, parameters and buffers not at all.
bfloat16 or fp32 under autocast to it, training mode, with dropout where the configuration has it, with labels.
Checkpointing is the reentrant kind, which saves its inputs where the hook sees them. Attention dropout is off under
SDPA: the CPU's fused kernel has none.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from flop_cases import CASES

RECORD = Path(__file__).with_name("activations.json")
BATCH, SEQ = 3, 40
NAMES = (
    "llama", "mistral", "qwen2", "qwen3", "granite", "gemma", "gemma2", "gemma3", "phi3", "starcoder2", "olmo2", "gpt2",
    "gpt_neox", "opt", "bert", "mixtral", "qwen3_moe", "deepseek_v3",
)  # fmt: skip
EAGER_ONLY = ("gemma2",)
ATTENTION_DROPOUT = {"gpt2": "attn_pdrop", "bert": "attention_probs_dropout_prob"}
LORA = {
    "qv": ("q_proj", "v_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
RANK = 4
FULL_PRECISION = ("llama", "gpt2", "gemma")
AUTOCAST = ("llama", "qwen3", "gemma", "gemma3", "phi3", "starcoder2", "olmo2", "gpt_neox", "opt")
"""Of dense models: the CPU's grouped product of experts does not autocast."""
CASTS = {"ToCopyBackward0", "TBackward0", "TransposeBackward0"}


def _add_adapters(model: Any, targets: tuple[str, ...]) -> None:
    """Freeze the model and put a low-rank pair beside every linear of these names."""
    import torch
    from torch import nn

    class LoraLinear(nn.Module):  # type: ignore[misc]
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base
            self.down = nn.Linear(base.in_features, RANK, bias=False, dtype=torch.bfloat16)
            self.up = nn.Linear(RANK, base.out_features, bias=False, dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + 2.0 * self.up(self.down(x))

    for parameter in model.parameters():
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    for module in list(model.modules()):
        for name in targets:
            if isinstance(getattr(module, name, None), nn.Linear):
                setattr(module, name, LoraLinear(getattr(module, name)))


def _is_weight(tensor: Any) -> bool:
    """True for a parameter's copy in 16 bits, transposed or not."""
    node = tensor.grad_fn
    while node is not None and type(node).__name__ in CASTS:
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"


def saved_bytes(
    case: dict[str, Any], attention: str, *, full: bool = False, targets: tuple[str, ...] = (), elem_bytes: int = 2,
    autocast: bool = False,
) -> int:  # fmt: skip
    """Bytes of the distinct storages that the forward pass leaves for the backward pass.

    `autocast`: of fp32 weights, under PyTorch's autocast to bfloat16; the copies that it keeps of weights don't count.
    """
    import torch
    import transformers

    fields = dict(case)
    kind = fields.pop("model_type")
    if attention == "sdpa" and kind in ATTENTION_DROPOUT:
        fields[ATTENTION_DROPOUT[kind]] = 0.0
    config = transformers.AutoConfig.for_model(kind, **fields)
    auto = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
    model = auto.from_config(
        config, attn_implementation=attention, dtype=torch.float32 if autocast or elem_bytes == 4 else torch.bfloat16
    ).train()
    if targets:
        _add_adapters(model, targets)
    if full:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    kept: dict[int, tuple[Any, int]] = {}  # the tensor is held, so that its address is not used again

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and not (autocast and _is_weight(tensor)):
            kept[storage.data_ptr()] = (tensor.detach(), storage.nbytes())
        return tensor

    ids = torch.zeros(BATCH, SEQ, dtype=torch.long)
    options = {} if kind == "bert" else {"use_cache": False, "labels": ids}
    casts = torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), casts:
        output = model(input_ids=ids, **options)
    del output
    return sum(size for _, size in kept.values())


def record() -> dict[str, Any]:
    """All cases with the versions of what kept them."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows: list[dict[str, Any]] = []

    def add(
        name: str, attention: str, *, full: bool = False, lora: str = "", elem_bytes: int = 2, autocast: bool = False
    ) -> None:  # fmt: skip
        targets = LORA.get(lora, ())
        size = saved_bytes(CASES[name], attention, full=full, targets=targets, elem_bytes=elem_bytes, autocast=autocast)
        row = {
            "case": name,
            "attention": attention,
            "full": full,
            "lora": lora,
            "elem_bytes": elem_bytes,
            "autocast": autocast,
            "bytes": size,
        }
        rows.append(row)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attention in ("eager", "sdpa"):
            for name in NAMES:
                if attention == "eager" or name not in EAGER_ONLY:
                    add(name, attention)
                    add(name, attention, full=True)
            for lora in LORA:
                add("llama", attention, lora=lora)
            for name in FULL_PRECISION:
                add(name, attention, elem_bytes=4)
            for name in AUTOCAST:
                add(name, attention, autocast=True)
                add(name, attention, full=True, autocast=True)
            add("gpt2", attention, autocast=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {**versions, "batch": BATCH, "seq": SEQ, "rank": RANK, "configs": {n: CASES[n] for n in NAMES}, "rows": rows}


if __name__ == "__main__":
    RECORD.write_text(json.dumps(record(), indent=1) + "\n")
