"""Which weight format fits: one model on given accelerators, in every format that engine and device run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flopwise.changes.format_fit import FitAnswer
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.keywords import takes
from flopwise.options import CONTEXT, NAMES, take
from flopwise.serving.deployment import spread
from flopwise.serving.spec import DEFAULT_CONTEXT, DEFAULT_OUTPUT, ServingSpec


@takes(MachineSpec, ServingSpec, DatedSourceSpec, context=CONTEXT, output=CONTEXT)
def fit(
    model: ModelName, *, context: int | None = None, output: int | None = None,
    formats: str | Sequence[str] | None = None, **options: Any,
) -> FitAnswer:  # fmt: skip
    """Compare weight formats on a device: whether they fit, longest context, requests at once, tokens/s and price.

    All accelerators that are given make one replica: `gpu="2xa100-80gb"`.

    Args:
        context: tokens of a request, answer included: 32768 or "32k" (default: 8k, or the model's own).
        output: tokens of the answer among them.
        formats: weight formats to compare, such as "bf16,fp8" (default: the checkpoint's, 16 bits, and the usual
            smaller ones that engine and device run).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.fit("Llama-3.1-8B", gpu="rtx4090", context="16k", formats="bf16,fp8")
        >>> [row.weights for row in answer.formats]
        ['bf16', 'fp8']
    """
    from flopwise.changes.format_fit import FitAnswer

    machines, spec, source = take(options, MachineSpec, ServingSpec, DatedSourceSpec)
    architecture = source.model_with_layers(model)
    spec = spread(spec, architecture, machines, source.catalog)
    names = None if formats is None else NAMES.parse(formats, "formats")
    tokens = min(DEFAULT_CONTEXT, architecture.max_position or DEFAULT_CONTEXT) if context is None else context
    made = min(DEFAULT_OUTPUT, max(1, tokens // 4)) if output is None else output
    return FitAnswer.of(architecture, spec, machines, source, names, context=tokens, output_tokens=made)
