"""From what is said of a deployment to one replica of it."""

from __future__ import annotations

from dataclasses import replace

from flopwise.cost.spec import MachineSpec
from flopwise.facts.architecture import Model
from flopwise.facts.spec import SourceSpec
from flopwise.serving.estimate import check_layout
from flopwise.serving.job import ServeJob
from flopwise.serving.spec import ServingSpec, TechniqueRequest
from flopwise.serving.techniques import resolve_techniques


def replica_of(
    model: Model, deployment: ServingSpec, machines: MachineSpec, techniques: TechniqueRequest, source: SourceSpec
) -> tuple[ServeJob, tuple[str, ...]]:
    """One replica of a deployment, without its load, and what was assumed of its format.

    Raises:
        SpecError: a degree that the model does not allow, or a technique that does not go with it.
        UnknownNameError: no such format, engine, draft or processor.
    """
    spec, notes = deployment.in_its_format(model)
    software = spec.software(source.catalog)
    check_layout(model, spec.layout())
    cluster = machines.cluster(spec.num_gpus + (techniques.prefill_gpus or 0), source.catalog)
    job = ServeJob(
        model=model, cluster=cluster, layout=spec.layout(), **software, memory_frac=spec.memory_fraction,
        max_batch=spec.max_batch,
    )  # fmt: skip
    return replace(job, techniques=resolve_techniques(techniques, job, source.catalog, source.model)), notes
