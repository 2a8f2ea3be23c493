"""Parts of a model that are not trained: which layers, and which of them gradients still pass through.

A layer may be trained; frozen with gradients passing through it to what is trained below; or frozen with nothing
trained below, so that its backward pass never runs.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Self

from flopwise.errors import SpecError, nearest_names
from flopwise.facts.architecture import Item, Linear, Model, Stack
from flopwise.facts.software import TrainingStack
from flopwise.ops.flops import runs
from flopwise.ops.habits import model_of_modules
from flopwise.values import dataclass, replace

State = Literal["trained", "passed", "idle"]
PARTS = ("embedding", "head", "towers")
COUNTED = ("first", "all-but-last")
_NAMES: dict[State, str] = {"trained": "", "passed": " (frozen)", "idle": " (frozen, no gradients)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """The parts that are not trained: embedding, head, towers beside the layers, and layers from the bottom."""

    embedding: bool = False
    head: bool = False
    towers: bool = False
    first: int = 0  # layers from the bottom
    but_last: int | None = None  # everything before this many last layers, embedding and towers included

    @property
    def text(self) -> str:
        """As people write it."""
        counted = [f"first:{self.first}"] if self.first else []
        counted += [f"all-but-last:{self.but_last}"] if self.but_last is not None else []
        return ",".join([*(name for name in PARTS if getattr(self, name)), *counted])

    @classmethod
    def of(cls, text: str) -> Self:
        """The parts that `embedding,head,towers,first:N,all-but-last:N` names.

        Raises:
            SpecError: a part that does not exist; says which do.
        """
        fields: dict[str, Any] = {}
        for part in (p.strip() for p in text.split(",")):
            name, _, number = part.partition(":")
            if name in PARTS and not number:
                fields[name] = True
            elif name in COUNTED and number.isdigit() and len(number) < 7:
                fields["first" if name == "first" else "but_last"] = int(number)
            else:
                near = nearest_names(name, (*PARTS, *COUNTED))
                allowed = f"{', '.join(PARTS)}, first:N and all-but-last:N, separated by commas"
                nearest = f"; nearest: {near[0]}" if near else ""
                raise SpecError(f"--freeze {part[:40]!r}; allowed: {allowed}{nearest}")
        return cls(**fields)

    def layers(self, model: Model) -> int:
        """Frozen layers of the first stack, from the bottom."""
        count = model.stacks[0].num_layers
        return self.first if self.but_last is None else max(count - self.but_last, self.first)


class Block(NamedTuple):
    """The trained part of a block, and a flag for its backward pass."""

    frozen: frozenset[str] = frozenset()  # names of its items whose weights are not trained
    backward: bool = True

    def trains(self, item: Item) -> bool:
        """True if an item's weights have gradients."""
        return item.name not in self.frozen


TRAINED = Block()


class SplitModel(NamedTuple):
    """A model whose kinds of layers tell trained and frozen ones apart, with the state of each block."""

    model: Model
    blocks: tuple[Block, ...]  # before the layers, each kind, after: as the first stack has them
    towers: Block


def run_model(model: Model, frozen: Frozen | None, software: TrainingStack) -> SplitModel:
    """`split_model` of what the modules of a training stack run: transformers' may run every expert.

    Raises:
        SpecError: as there.
    """
    return split_model(model_of_modules(model) if software.hf_modules else model, frozen)


def split_model(model: Model, frozen: Frozen | None) -> SplitModel:
    """`model` with a kind of its own for layers in each state; the same model where nothing is frozen.

    Raises:
        SpecError: nothing would be trained, or there are not as many layers.
    """
    stack = model.stacks[0]
    if frozen is None:
        return SplitModel(model, (Block(),) * (len(stack.kinds) + 2), Block())
    _check(model, frozen)
    below = frozen.layers(model)
    tied = [i for i in stack.after if isinstance(i, Linear) and i.tied]
    inputs = frozen.embedding or frozen.but_last is not None or (frozen.head and bool(tied))
    has_towers = any(runs(model, s) for s in model.stacks[1:])
    towers = not has_towers or frozen.towers or frozen.but_last is not None
    below_state: State = "idle" if inputs and towers else "passed"
    states: list[State] = [below_state if layer < below else "trained" for layer in range(stack.num_layers)]
    kinds = sorted(set(zip(stack.order, states, strict=True)))
    named = tuple(replace(stack.kinds[k], name=stack.kinds[k].name + _NAMES[state]) for k, state in kinds)
    order = tuple(kinds.index(pair) for pair in zip(stack.order, states, strict=True))
    first = replace(stack, kinds=named, order=order)
    head = _heads(stack, model) if frozen.head or (inputs and tied) else frozenset[str]()
    blocks = (
        Block(_names(stack.before), backward=False) if inputs else Block(),
        *(
            Block() if state == "trained" else Block(_names(stack.kinds[k].items), backward=state == "passed")
            for k, state in kinds
        ),
        Block(head),
    )
    others = [(*s.before, *(i for kind in s.kinds for i in kind.items), *s.after) for s in model.stacks[1:]]
    beside = Block(_names(sum(others, start=())), backward=False) if towers else Block()
    return SplitModel(replace(model, stacks=(first, *model.stacks[1:])), blocks, beside)


def _names(items: tuple[Item, ...]) -> frozenset[str]:
    return frozenset(item.name for item in items)


def _heads(stack: Stack, model: Model) -> frozenset[str]:
    return frozenset(i.name for i in stack.after if isinstance(i, Linear) and i.outputs == model.vocab)


def _check(model: Model, frozen: Frozen) -> None:
    stack = model.stacks[0]
    layers = stack.num_layers
    for given in (frozen.first, frozen.but_last or 0):
        if given > layers:
            raise SpecError(f"--freeze: {given} layers, but {model.name} has {layers}; give 0 to {layers}")
    if stack.shared_weights and 0 < frozen.layers(model) < layers:
        raise SpecError(f"--freeze: the layers of {model.name} share the same weights; freeze none or all of them")
    if frozen.head and not _heads(stack, model):
        raise SpecError(f"--freeze head: {model.name} has no head over a vocabulary")
    if frozen.towers and not any(runs(model, s) for s in model.stacks[1:]):
        raise SpecError(f"--freeze towers: training {model.name} on text runs no towers; leave it out")
    others = frozen.embedding and (frozen.head or not _heads(stack, model))
    if frozen.layers(model) == layers and (others or (frozen.but_last is not None and frozen.head)):
        raise SpecError(f"--freeze: only norms of {model.name} are left to train; freeze less")
