"""How the modules of transformers write each family's operations, as far as that changes what autograd keeps.

The mathematics of two families can agree while their code differs: one multiplies by the norm's weight in fp32, another
after the cast back; one softmax runs in fp32, another in bfloat16; GELU is one kernel or eight elementwise operations.
"""

from __future__ import annotations

from functools import lru_cache

from flopwise.facts.architecture import Experts, Item, Model, Pointwise
from flopwise.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """The operations of an implementation besides the mathematics. The defaults are those of Llama's modules."""

    norm_weight_fp32: bool = False  # RMSNorm multiplies by its weight before the cast back: keeps an fp32 copy
    softmax_fp32: bool = True  # eager attention: probabilities in fp32 beside the cast ones
    softcap: bool = False  # scores go through tanh first
    gelu_tensors: int = 1  # tensors that GELU keeps: its input, or the intermediate ones of a composed form
    rope_concat: bool = False  # rotated heads are concatenated even where nothing stays unrotated
    router_fp32: bool = False  # the router multiplies an fp32 copy of its input
    fused_norm: bool = False  # RMSNorm is one kernel, which keeps its input and a number a row
    every_expert: bool = False  # each token goes through all experts, weighted by nothing where it was not sent


_COMPOSED_GELU = 4  # 0.5 x, tanh(...), 1 + tanh(...) and x itself

HABITS: dict[str, Habit] = {
    **dict.fromkeys(
        ("gemma", "gemma3_text", "gemma3n_text", "gemma4_text", "olmo2", "olmo3", "helium", "gpt_oss"),
        Habit(norm_weight_fp32=True),
    ),
    "gemma2": Habit(norm_weight_fp32=True, softcap=True),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "electra", "camembert", "t5", "whisper", "falcon"),
        Habit(softmax_fp32=False),
    ),
    **dict.fromkeys(("llama4", "llama4_text"), Habit(softmax_fp32=False, every_expert=True)),
    "phi3": Habit(rope_concat=True),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "kimi_k2", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "dots1"),
        Habit(router_fp32=True),
    ),
    "gpt2": Habit(softmax_fp32=False, gelu_tensors=_COMPOSED_GELU),
    "gptj": Habit(softmax_fp32=False, gelu_tensors=_COMPOSED_GELU),
    "gpt_neo": Habit(gelu_tensors=_COMPOSED_GELU),
    "codegen": Habit(gelu_tensors=_COMPOSED_GELU),
    "phi": Habit(gelu_tensors=_COMPOSED_GELU),
}  # fmt: skip
"""By type of model, from the modelling files of transformers; a family that is not listed is written as Llama is."""


@lru_cache(maxsize=64)
def model_of_modules(model: Model) -> Model:
    """A model as transformers' modules run it: where they send each token through every expert, so do its layers.

    Source: transformers, models/llama4/modeling_llama4.py (Llama4TextMoe repeats the tokens for all experts and
    multiplies them by scores that are 0 but for the chosen ones).
    Assumes: what replaces the modules keeps to that, as adapters and quantised experts that are split up do.
    """
    if model.model_type not in HABITS or not HABITS[model.model_type].every_expert:
        return model
    stacks = (
        replace(stack, kinds=tuple(replace(kind, items=_through_every_expert(kind.items)) for kind in stack.kinds))
        for stack in model.stacks
    )
    return replace(model, stacks=tuple(stacks))


def _through_every_expert(items: tuple[Item, ...]) -> tuple[Item, ...]:
    experts = max((item.experts for item in items if isinstance(item, Experts)), default=0)
    return tuple(
        replace(item, top_k=experts)
        if isinstance(item, Experts)
        else replace(item, per_expert=experts)
        if isinstance(item, Pointwise) and item.per_expert
        else item
        for item in items
    )
