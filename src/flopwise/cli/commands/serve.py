"""`flopwise serve`: how fast does it serve."""

from __future__ import annotations

from typing import Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.views import parts, serving
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FLAG, name
from flopwise.serving.spec import RequestSpec, ServingSpec, StartSpec, TechniqueRequest


@options.command(
    "serve",
    "flopwise serve Llama-3.1-8B --gpu h100 --input 1024 --output 256 --concurrency 64",
    "flopwise serve Llama-3.1-8B --gpu l40s --weights fp8 --gpus 4 --rate 6 --json",
    "flopwise serve Llama-3.1-8B --gpu h100 --input 1000 --output 500 --sweep concurrency",
    "flopwise serve Llama-3.1-70B --gpu h100 --tp 4 --draft Llama-3.2-1B --acceptance 0.75 --concurrency 8",
)
@options.argument("model")
@declared(MachineSpec, "gpu", section="")
@declared(SharedSpec, "gpus")
@declared(ServingSpec, "tp pp ep dp", section="")
@declared(RequestSpec, section="")
@add("--static", FLAG, "A fixed batch: all prompts first, then all answers.", default=False)
@add("--sweep", name("axis"), "Instead: the curve of latency against throughput along concurrency, batch or tp.")
@declared(ServingSpec, without="tp pp ep dp")
@declared(TechniqueRequest)
@declared(StartSpec)
@declared(MachineSpec, without="gpu")
@declared(SourceSpec)
@options.explained
def command(*, sweep: str | None, explain: bool, **given: Any) -> None:
    """Latency, throughput, maximum concurrency and cost per token.

    TTFT is the time to the first token, TPOT the time for each further one; models that do not generate have a latency.
    Input and output tokens share the bill by the time that prompts and answers take. A deployment that does not fit, or
    does not sustain --rate, is estimated all the same; the exit code is then 1.
    """
    if sweep is not None:
        from flopwise.api.serve_sweep import serve_sweep

        options.refuse(["explain"], "of one estimate; leave it out with --sweep")
        swept = serve_sweep(given.pop("model"), sweep, **options.values(given))
        options.answer(lambda: serving.sweep_document(swept), lambda paper: serving.sweep_lines(swept, paper))
        return
    answer = question(**given)
    parts.write_answer(answer, serving.document, serving.lines, explained=explain)
    if not (answer.fits and answer.keeps_up):
        click.get_current_context().exit(1)


def question(*, model: str, **given: Any) -> Any:
    """The answer to the parameters of this command."""
    from flopwise.api.serve import serve

    return serve(model, **options.values(given))
