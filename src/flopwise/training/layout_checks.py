"""What a layout must hold, whoever asks about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.ops.degrees import check_expert_ranks, check_pipeline
from flopwise.training.stages import check_stages

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.training.layout import Layout


def check_layout(layout: Layout, model: Model, seq_len: int) -> None:
    """Refuse degrees of a single layout that do not divide what they have to.

    Raises:
        SpecError: says which degree and what would do.
    """
    layers, ranks = model.stacks[0].num_layers, int(layout.dp) * int(layout.cp)
    check_pipeline(model, int(layout.pp))
    check_expert_ranks(int(layout.ep), ranks, "dp x cp")
    shard, interleave = int(layout.shard), int(layout.interleave)
    if shard and (ranks % shard or not int(layout.zero)):
        raise SpecError(f"shard {shard} has to divide dp x cp = {ranks} and needs a ZeRO stage")
    if interleave > 1 and layers < int(layout.pp) * interleave:
        raise SpecError(f"interleave {interleave} x pp {layout.pp} is more than the {layers} layers of {model.name}")
    check_stages(layout, layers)
    if seq_len % int(layout.cp):
        raise SpecError(f"cp {layout.cp} does not divide the sequence of {seq_len} tokens")
