"""Low-rank adapters beside a model's projections: which projections, and how many parameters they train."""

from __future__ import annotations

from collections.abc import Iterable

from flopwise.errors import SpecError
from flopwise.facts.architecture import Embedding, Item, Linear, Model
from flopwise.facts.formats import Role, tensor_role
from flopwise.facts.software import PLAIN_FORMATS
from flopwise.ops.backward import adapter_items
from flopwise.ops.tensors import item_parameters, sharded_parameters
from flopwise.ops.types import Floats, Ints
from flopwise.training.layout import Lora, Recipe

_ROLES: dict[str, tuple[Role, ...]] = {
    "q": ("attention_q",), "k": ("attention_k",), "v": ("attention_v",), "o": ("attention_o",),
    "gate": ("gate",), "up": ("up",), "down": ("down",),
}  # fmt: skip
_LATENT = ("attention/q_a_proj", "attention/q_b_proj", "attention/kv_a_proj", "attention/kv_b_proj")


def adapted_products(items: Iterable[Item], lora: Lora) -> list[Linear]:
    """The projections among `items` that get an adapter; fused qkv and MLA's parts when q, k or v is named."""
    roles = {role for target in lora.targets for role in _ROLES[target]}
    attention = bool({"q", "k", "v"} & set(lora.targets))
    products: list[Linear] = []
    for item in items:
        if not isinstance(item, Linear):
            continue
        fused = item.name.endswith("qkv_proj") or item.name in _LATENT
        if (attention if fused else tensor_role(item) in roles) and not item.name.endswith("router"):
            products.append(item)
    return products


def adapter_parameters(items: Iterable[Item], lora: Lora, tp: Ints = 1) -> Floats:
    """Trained adapter parameters of one layer's `items` on one rank of `tp`; shape of `tp`."""
    total: Floats = sharded_parameters(adapter_matrices(items, lora), tp, 1)
    if lora.method == "dora":
        for item in adapted_products(items, lora):
            total = total + item.outputs / (tp if item.shard == "column" else 1)
    return total


def adapter_matrices(items: Iterable[Item], lora: Lora) -> list[Linear]:
    """The trained matrices of the adapters beside one layer's `items`: both of each pair, or the second of LoRA-FA."""
    pairs = (adapter_items(item, lora.rank) for item in adapted_products(items, lora))
    return [part for down, up in pairs for part in ((up,) if lora.method == "lora-fa" else (down, up))]


def fuses_adapters(recipe: Recipe) -> bool:
    """True if kernels of the software's own take adapters with the products beside them.

    Source: unsloth/kernels/fast_lora.py; axolotl, kernels/lora.py: attention's and the MLP's projections, in the
    activations' type, with whatever type the adapters have. Both leave dropout and DoRA to PEFT's modules.
    """
    lora = recipe.lora
    return lora is not None and recipe.stack.fused_adapters and not lora.dropout and lora.method == "lora"


def casts_inputs(recipe: Recipe) -> bool:
    """True if every adapter casts its input to fp32, which autocast casts back to 16 bits for the product.

    Source: PEFT, get_peft_model (autocast_adapter_dtype: adapters in fp32) and tuners/lora/layer.py, Linear.forward
    (_cast_input_dtype); lora/bnb.py casts nothing under autocast.
    Assumes: stacks that keep a master copy of 16-bit weights (DeepSpeed) hold adapters so, and run without autocast.
    """
    lora, stack = recipe.lora, recipe.stack
    if lora is None or lora.adapter_dtype != "fp32" or lora.base.name not in PLAIN_FORMATS or fuses_adapters(recipe):
        return False
    return stack.hf_modules and not stack.master_weights and recipe.elem_bytes < 4


def trainable_parameters(model: Model, lora: Lora) -> int:
    """All parameters that adapters add, and the whole tensors trained beside them.

    Raises:
        SpecError: no projection of the model matches the targets.
    """
    stack = model.stacks[0]
    per_kind = [adapter_parameters(kind.items, lora) for kind in stack.kinds]
    total = sum(int(per_kind[k]) for k in stack.stored_order)
    if not total:
        raise SpecError(f"{model.name} has no projection named by the LoRA targets {', '.join(lora.targets)}")
    return total + sum(int(item_parameters(i)) for i in extra_items(model, lora))


def extra_items(model: Model, lora: Lora) -> list[Item]:
    """Embedding and head, as far as the recipe trains them whole."""
    stack = model.stacks[0]
    picked: list[Item] = []
    if "embedding" in lora.extra_trainable:
        picked += [i for i in stack.before if isinstance(i, Embedding) and tensor_role(i) == "embedding"]
    if "head" in lora.extra_trainable:
        picked += [i for i in stack.after if isinstance(i, Linear) and not i.tied]
    return picked
