"""Layers of each pipeline stage, for many pipeline degrees at once."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.training.layout import ENDS

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.ops.types import Array, Ints
    from flopwise.training.layout import Layout


FULL = 2
"""The recompute mode that may be of some blocks only, the last of a table before the partial ones."""


class Partial(NamedTuple):
    """Blocks that are computed again: every `every`-th of the model, or the `first` of each stage."""

    every: int = 1
    first: int = 0


def left_to_heads(layers: int, stages: Ints, output_heads: int) -> Ints:
    """Layers that the last stage leaves to its `output_heads`, where layers for multi-token prediction have heads, too.

    Source: Megatron-Bridge, recipes/deepseek/deepseek_v3.py: of 61 layers and one more for prediction the last of 16
    stages has two, those before it four; of 8 stages six and eight.
    Assumes: a head counts as a layer; none is left where stages are as short as that.
    """
    if output_heads == 1:
        return 0
    stages = np.asarray(stages)
    enough = (layers + output_heads) // stages >= output_heads
    spare: NDArray[np.int64] = np.where((stages > 1) & enough, output_heads, 0)
    return spare


def even_layers(layers: int, stages: int, output_heads: int = 1) -> NDArray[np.int64]:
    """Layers of each of `stages`, as even as whole layers allow.

    What is left over goes to the stages in the middle, then to the first, never to the last, which has the head. Where
    layers with embedding and head divide, each of these so counts as a layer. Of several `output_heads` all do.

    Source: `left_to_heads`; Narayanan et al. 2021 (arXiv:2104.04473) section 2.2; Megatron-LM splits evenly, or counts
    the ends (account_for_embedding_in_pipeline_split); Llama 3 (arXiv:2407.21783) section 3.3.2.
    Assumes: whole layers.
    """
    spare = int(left_to_heads(layers, stages, output_heads))
    each, left = divmod(layers + spare, stages)
    sizes = np.full(stages, each)
    sizes[[*range(1, stages - 1), 0][:left]] += 1
    sizes[-1] -= spare
    return sizes


def layers_of_fullest(layers: int, stages: Ints, output_heads: int = 1) -> Ints:
    """Layers of the stage that has most of them; shape of `stages`.

    Source and assumptions: `even_layers`.
    """
    return -(-(layers + left_to_heads(layers, stages, output_heads)) // np.asarray(stages))


def check_first_blocks(layout: Layout, model: Model) -> None:
    """Refuse to compute more first blocks again than a (virtual) stage of a single layout has.

    Raises:
        SpecError: says how many the fullest stage has.
    """
    stack, stages, chunks, first = model.stacks[0], int(layout.pp), int(layout.interleave), int(layout.recompute_first)
    named = layout.stage_layers
    fullest = max(named) if named else int(layers_of_fullest(stack.num_layers, stages, stack.output_heads))
    most = fullest if len(named) == stages * chunks else -(-fullest // chunks)
    if first > most:
        raise SpecError(
            f"recompute of the first {first:,} blocks of a stage: stages of {model.name} have at most {most:,} here; "
            f"allowed: 1 to {most:,}, or full recompute of all (--recompute full)"
        )


def cuts_alike(layers: int, stages: Ints, chunks: Ints) -> NDArray[np.bool_]:
    """True where the layers of the fullest of `stages` make so many `chunks` of one size; broadcasts.

    Source: as `even_layers`: 126 layers on 16 stages are 7, 8 ... 8, 7 and so make 8 chunks, of which the first has the
    embedding alone and the last the head. Assumes: a chunk has a layer, embedding or head.
    """
    fullest = -(-layers // np.asarray(stages))
    alike: NDArray[np.bool_] = (fullest % chunks == 0) & (stages * chunks <= layers + ENDS)
    return alike


def uneven_layers(layout: Layout) -> tuple[int, ...]:
    """Layers of each pipeline rank where the layout names them: of every stage, or of every virtual stage in order.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 2.2: chunk c lies on rank c mod p.
    Assumes: layers of a rank count as neighbours; where nothing is named, ranks hold as even a number as can be, and
    chunks of a rank too.
    """
    if not layout.stage_layers:
        return ()
    return tuple(np.array(layout.stage_layers).reshape(-1, int(layout.pp)).sum(axis=0).tolist())


def recomputed_layers(edges: NDArray[np.int64], some: Partial) -> NDArray[np.bool_]:
    """True for layers that are computed again; `edges`: the first layers of the stages, and the end.

    Source: torchtitan, activation checkpointing of every n-th layer; Megatron-LM, `recompute_method=block`.
    Assumes: every n-th counts from the model's first layer, the n-th being the first that is computed again.
    """
    index = np.arange(edges[-1])
    if some.first:
        index = index - edges[np.searchsorted(edges, index, side="right") - 1]
    again: NDArray[np.bool_] = index < some.first if some.first else (index + 1) % some.every == 0
    return again


def partials_of(layout: Layout) -> tuple[Partial, ...]:
    """Recompute of every n-th block among the candidates of `layout`, in the order of a table's modes."""
    return tuple(Partial(every=n) for n in sorted(set(np.ravel(layout.recompute_every).tolist())) if n > 1)


def mode_index(layout: Layout, partials: tuple[Partial, ...]) -> Array:
    """Each candidate's place among the modes of a table with `partials`; shape of the columns.

    That of all blocks where the first ones are computed again (`first_blocks`).
    """
    modes = np.asarray(layout.recompute)
    every = np.asarray(layout.recompute_every)
    if every.max() == 1:
        return modes
    known = np.array([some.every for some in partials])
    return np.where((every > 1) & (modes == FULL), FULL + 1 + np.searchsorted(known, every), modes)


def first_blocks(layout: Layout) -> Array:
    """The number of first blocks of each stage, over its chunks, that are computed again; 0 where it is not of those.

    Source: Megatron-LM, `recompute_method=block`: `recompute_num_layers` of each virtual stage.
    Assumes: chunks of a stage count as neighbours.
    """
    of_stage = np.asarray(layout.recompute_first) * np.asarray(layout.interleave)
    return np.where(np.asarray(layout.recompute) == FULL, of_stage, 0) if of_stage.any() else of_stage


def recomputes_all(layout: Layout) -> NDArray[np.bool_]:
    """True where all blocks are computed again; shape of the columns."""
    some = (np.asarray(layout.recompute_every) > 1) | (np.asarray(layout.recompute_first) > 0)
    again: NDArray[np.bool_] = (np.asarray(layout.recompute) == FULL) & ~some
    return again


@lru_cache(maxsize=4096)
def stage_layer_counts(
    order: tuple[int, ...],
    num_kinds: int,
    pp: int,
    sizes: tuple[int, ...] = (),
    some: Partial | None = None,
    output_heads: int = 1,
) -> NDArray[np.float64]:
    """Layers of each kind on each stage, (pp, kinds); with `some` first those kept, then those computed again.

    `sizes`: layers of each stage; as `even_layers` has them beside `output_heads` where none are given.

    Source and assumptions: `even_layers`, `recomputed_layers`.
    """
    edges = np.concatenate([[0], np.cumsum(sizes or even_layers(len(order), pp, output_heads))])
    labels = np.asarray(order, dtype=np.intp)
    if some is not None:
        labels, num_kinds = labels + num_kinds * recomputed_layers(edges, some), 2 * num_kinds
    onehot = np.zeros((len(order) + 1, num_kinds))
    onehot[np.arange(1, len(order) + 1), labels] = 1.0
    running = np.cumsum(onehot, axis=0)
    counts: NDArray[np.float64] = running[edges[1:]] - running[edges[:-1]]
    counts.setflags(write=False)
    return counts


@lru_cache(maxsize=4096)
def stage_weights(
    order: tuple[int, ...],
    num_kinds: int,
    degrees: tuple[int, ...],
    sizes: tuple[int, ...] = (),
    some: Partial | None = None,
    output_heads: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The counts of each block on each distinct stage, (stages, blocks), and the first stage of each pipeline degree.

    Blocks are what stands before the layers, the kinds as `stage_layer_counts` has them, and what stands after.
    """
    stages = []
    for pp in degrees:
        ends = np.zeros((pp, 2))
        ends[0, 0], ends[-1, 1] = 1.0, 1.0
        counts = stage_layer_counts(order, num_kinds, pp, sizes, some, output_heads)
        rows, _ = np.unique(np.hstack([counts, ends]), axis=0, return_index=True)  # without an index it loads numpy.ma
        stages.append(np.column_stack([rows[:, -2], rows[:, :-2], rows[:, -1]]))
    return np.concatenate(stages), np.cumsum([0, *map(len, stages[:-1])])


def heaviest(starts: NDArray[np.intp], weights: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest stage's sum over blocks for each pipeline degree; (blocks, n) to (d, n)."""
    return np.maximum.reduceat(weights @ rows, starts, axis=0)
