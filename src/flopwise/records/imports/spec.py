"""Options of `runs import`, in addition to those of `train` and `serve`."""

from __future__ import annotations

from functools import partial

from flopwise import options
from flopwise.errors import SpecError
from flopwise.options import Spec, ValueKind, option
from flopwise.records.imports.raw import number_of
from flopwise.values import dataclass

_import = partial(option, section="Import")


def _mapping(value: object, what: str) -> str:
    """`loss=train/loss`, or `step_s=step_ms*0.001`."""
    text: str = options.name("mapping").parse(value, what)
    ours, equals, theirs = text.partition("=")
    if not equals or not ours.strip() or not theirs.strip():
        raise SpecError(f"{what}: {text[:60]!r} is not a mapping; write METRIC=NAME as in loss=train/loss")
    return text


METRIC = ValueKind("metric=name", _mapping)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSpec(Spec):
    """Information that the files do not contain. None: as in the file."""

    format: str = _import(
        "--format", options.name("format"),
        "Format: trainer-state, tensorboard, wandb, mlflow, guidellm, genai-perf, vllm-bench, flopwise-runs.",
        default="auto")
    name: str | None = _import("--name", options.name("name"), "Name of the run (default: as in the file).")
    model: str | None = _import(
        "--model", options.name("model", 4096), "Model of the run; without it there is no estimate to compare with.")
    task: str | None = _import(
        "--task", options.choice("pretrain", "finetune"), "What was trained (default: pretrain).")
    metric: tuple[str, ...] = _import(
        "--metric", METRIC, "Name of a metric in the file, with an optional factor: step_s=step_ms*0.001.",
        repeated=True)
    replace: bool = _import(
        "--replace", options.FLAG, "Import runs again that were imported before, and replace them.", default=False)
    # fmt: on

    @property
    def mapping(self) -> dict[str, tuple[str, float | None]]:
        """(our metric, factor if given) by names of the file. Raises SpecError: a name is mapped twice."""
        pairs: dict[str, tuple[str, float | None]] = {}
        for text in self.metric:
            ours, _, theirs = (part.strip() for part in text.partition("="))
            name, star, factor = theirs.rpartition("*")
            scale = number_of(factor) if star else None
            if scale is None:
                name = theirs
            if name in pairs:
                raise SpecError(f"metric: {name[:60]!r} is given twice")
            pairs[name] = ours, scale
        return pairs
