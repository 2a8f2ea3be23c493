"""What is known of one model: its parameters by tensor, and its operations on a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Model
from flopwise.ops.flops import Operation, backward_flops, causal_forward_flops, forward_flops, operations
from flopwise.ops.tensors import TensorGroup, active_parameters, parameters, tensor_groups
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Operations of one forward and backward pass over `batch` sequences of `seq` tokens."""

    batch: int
    seq: int
    forward_flops: float  # attention in full, as PyTorch's counter reports it
    backward_flops: float
    causal_forward_flops: float  # only what masks and windows let through
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Facts about one model; None where unknown."""

    model: Model
    parameters: int | None
    active_parameters: int | None
    groups: tuple[TensorGroup, ...]
    counts: Counts | None

    @classmethod
    def of(cls, model: Model, batch: int | None = None, seq: int | None = None) -> Self:
        """The card of a model; with `batch` or `seq` its operations too.

        Source: the model's layers, or its published figures. Assumes: one sequence where `batch` is not given.
        Raises: SpecError: no length of a sequence is given. MissingFactError: the model's operations are not known.
        """

        def count_or_none(count: Callable[[Model], int]) -> int | None:
            try:
                return count(model)
            except MissingFactError:
                return None

        counts = None
        if batch is not None or seq is not None:
            sequences, tokens = batch or 1, _sequence_tokens(model, seq)
            counts = Counts(
                batch=sequences,
                seq=tokens,
                forward_flops=float(forward_flops(model, sequences, tokens)),
                backward_flops=float(backward_flops(model, sequences, tokens)),
                causal_forward_flops=float(causal_forward_flops(model, sequences, tokens)),
                operations=tuple(operations(model, sequences, tokens)),
            )
        return cls(
            model=model,
            parameters=count_or_none(parameters),
            active_parameters=count_or_none(active_parameters),
            groups=tuple(tensor_groups(model)) if model.stacks else (),
            counts=counts,
        )


def _sequence_tokens(model: Model, seq: int | None) -> int:
    """Tokens of a sequence: as given, else the model's own (a vision tower has a fixed number)."""
    fixed = model.stacks[0].tokens_per_sample if model.stacks else 1
    if fixed is not None:
        return fixed
    if seq is None:
        raise SpecError(f"{model.name} needs --seq, the tokens of a sequence, in addition to --batch")
    return seq
