"""`flopwise io`: which storage bandwidth training needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.render import Screen
from flopwise.cli.views import parts
from flopwise.cli.views import storage as view
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import choice
from flopwise.storage.spec import SampleSpec, StorageRequest


@options.command(
    "io",
    "flopwise io cosmoflow --gpu v100",
    "flopwise io resnet50 --gpu a100 --gpus 64 --records compressed --dataset 150GB --cache 64GB",
    "flopwise io Llama-3.1-8B --gpu h100 --gpus 64 --seq 8192 --checkpoint-interval 30min --restore-within 5min --json",
    "flopwise io --flops-per-sample 4.2T --sample-bytes 56MB --gpu v100 --achieved 14TFLOP/s --storage nfs",
)
@options.argument("model", required=False)
@declared(MachineSpec, "gpu", section="")
@declared(SharedSpec, "gpus")
@declared(SampleSpec)
@declared(StorageRequest)
@declared(MachineSpec, without="gpu")
@declared(SourceSpec)
@add("--units", choice("si", "binary"), "GB/s or GiB/s in the text.", field="base", default="si")
@options.explained
def command(*, model: str | None, base: str, explain: bool, **given: Any) -> None:
    """Storage bandwidth per accelerator, node and cluster, and which storage keeps up.

    MODEL is a workload (cosmoflow, deepcam, resnet50, unet3d, tiramisu, bert) or any model; or give
    --flops-per-sample and --sample-bytes. Bytes per FLOP times the achieved FLOP/s, which are estimated unless given.
    """
    from flopwise.api.io import io
    from flopwise.provenance import to_json
    from flopwise.storage.figures import storage_figure

    answer = io(model, **options.values(given))

    def text(paper: Screen) -> Iterator[str]:
        yield from view.lines(answer, paper, base)
        if explain:
            yield parts.tree([storage_figure(answer)], paper)

    def document() -> dict[str, Any]:
        return view.document(answer) | ({"provenance": [to_json(storage_figure(answer))]} if explain else {})

    options.answer(document, text)
