"""Which weight format fits: one model on given accelerators, in every format that engine and device run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import CONTEXT, NAMES, take
from flopwise.serving.spec import DEFAULT_CONTEXT, DEFAULT_OUTPUT, ServingSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.changes.format_fit import FitAnswer
    from flopwise.facts.architecture import Model


@takes(MachineSpec, ServingSpec, SourceSpec, context=CONTEXT, output=CONTEXT)
def fit(
    model: Model | str, *, context: int | None = None, output: int | None = None,
    formats: str | Sequence[str] | None = None, **options: Any,
) -> FitAnswer:  # fmt: skip
    """What fits in which weight format, on all GPUs that are given as one replica: `fit("...", gpu="2xa100-80gb")`.

    Requests have `context` tokens (8k where none are given, or what the model is made for), of them `output` answered.
    `formats` None: the checkpoint's own, 16 bits, and the usual smaller ones that engine and device run. `options` are
    those of `ServingSpec` (`engine="sglang", kv_dtype="fp8", tp=2 ...`), `MachineSpec` and `SourceSpec`, or whole
    specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.changes.format_fit import FitAnswer
    from flopwise.serving.deployment import spread

    machines, spec, source = take(options, MachineSpec, ServingSpec, SourceSpec)
    found = source.model_with_layers(model)
    spec = spread(spec, found, machines, source.catalog)
    names = None if formats is None else NAMES.parse(formats, "formats")
    tokens = min(DEFAULT_CONTEXT, found.max_position or DEFAULT_CONTEXT) if context is None else context
    made = min(DEFAULT_OUTPUT, max(1, tokens // 4)) if output is None else output
    return FitAnswer.of(found, spec, machines, source, names, context=tokens, output_tokens=made)
