"""How a recipe's routing loads the experts of a model: what the fullest rank computes, and what is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.ops.routing import hottest_rank_load

if TYPE_CHECKING:
    from flopwise.ops.types import Floats, Ints
    from flopwise.training.layout import Layout, Recipe


def expert_load(model: Model, recipe: Recipe, ep: Ints) -> Floats:
    """Tokens that the fullest of `ep` ranks computes over the mean of balanced routing; shape of `ep`, or 1.0.

    Without a capacity every token is computed, wherever it is sent. With one, buffers of capacity x mean are computed
    whole: filled up, or with what is too much dropped.

    Source: Gale et al. 2022 (arXiv:2211.15841) section 2 for both; Fedus et al. 2021 (arXiv:2101.03961) section 2.2
    for the capacity.
    Assumes: as `hottest_rank_load`; layers with fewer experts are as uneven as those with the most.
    """
    item = model.stacks[0].largest_experts
    if item is None or not recipe.uneven:
        return 1.0
    if recipe.capacity_factor is not None:
        return recipe.capacity_factor
    return hottest_rank_load(item.experts, recipe.expert_skew, ep)


def check_skew(model: Model, recipe: Recipe) -> None:
    """Refuse routing that cannot be, whatever the layout.

    Raises:
        SpecError: says what was given and what is allowed.
    """
    item = model.stacks[0].largest_experts
    if item is None:
        if recipe.uneven:
            raise SpecError(f"{model.name} has no experts; leave out expert skew and capacity factor")
        return
    most = item.experts / item.top_k
    if recipe.expert_skew > most:
        raise SpecError(
            f"expert skew {recipe.expert_skew:g}: each token goes to {item.top_k} of {item.experts} experts of "
            f"{model.name}, so the fullest has at most {most:g} times the mean; allowed: 1 to {most:g}"
        )


def check_routing(model: Model, recipe: Recipe, layout: Layout) -> None:
    """Refuse routing that cannot be in `layout`.

    Raises:
        SpecError: says what was given and what is allowed.
    """
    check_skew(model, recipe)
    item = model.stacks[0].largest_experts
    if item is None:
        return
    if int(layout.ep) > item.experts:
        raise SpecError(f"ep {layout.ep} is more than the {item.experts} experts of {model.name}")
    tokens = int(layout.micro_batch) * int(recipe.seq_len) // int(layout.cp) * int(layout.ep)
    if tokens < item.experts:
        raise SpecError(
            f"{item.experts} experts of {model.name}, but a micro-batch has only {tokens} tokens (micro-batch "
            f"{layout.micro_batch} x sequence {recipe.seq_len} / cp {layout.cp} x ep {layout.ep}); "
            f"give at least {item.experts}: longer sequences or a larger micro-batch"
        )
