"""The input of targets: a candidate of a plan with its job, model and machines."""

from __future__ import annotations

import re
from math import gcd
from typing import TYPE_CHECKING

import msgspec

from flopwise.errors import SpecError
from flopwise.exports.spec import PLACEHOLDERS, ExportSettings
from flopwise.facts.offers import Offer
from flopwise.search.spec import TRAINING
from flopwise.search.workload import resolve
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.search.answer import Candidate, Plan
    from flopwise.search.workload import Resolved
    from flopwise.serving.job import ServeJob
    from flopwise.training.job import TrainJob

PREFILL, DECODE = "prefill", "decode"
"""The pools of a plan with separate servers for prompts: those that read them, and those that write answers."""
LABEL = 50
"""Maximum length of a name: Kubernetes allows 63 characters, and parts of a deployment append suffixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A candidate of a plan, ready for export.

    One of `training` and `serving` is its job, the other is None; the serving job is that of one replica.
    `pool`: of a plan with separate servers for prompts, the pool whose servers the replicas are; else empty.
    """

    plan: Plan
    candidate: Candidate
    workload: Resolved
    model: Model
    offer: Offer
    accelerator: Accelerator
    facts: Facts
    settings: ExportSettings
    label: str = ""  # its name in a fleet
    training: TrainJob | None = None
    serving: ServeJob | None = None
    pool: str = ""

    @classmethod
    def of_rank(cls, plan: Plan, rank: int, facts: Facts, settings: ExportSettings) -> Deployment:
        """The candidate of a plan with this rank.

        Raises: SpecError: the plan has no such candidate, or its model or devices are no longer in the facts.
        """
        chosen = next((c for c in plan.plans if c.rank == rank), None)
        if chosen is None:
            listed = f"ranks 1 to {len(plan.plans)}" if plan.plans else "no candidates: none met the targets"
            raise SpecError(f"--rank: the plan has no candidate {rank}; it has {listed}")
        return cls.of(plan, chosen, facts, settings)

    @classmethod
    def of(cls, plan: Plan, chosen: Candidate, facts: Facts, settings: ExportSettings, label: str = "") -> Deployment:
        """A candidate of a plan with its job; `label` is its name in a fleet. Raises as `of_rank`."""
        _check_candidate(chosen, plan.task)
        workload = resolve(plan.workload)
        facts = facts.at(workload.limits.software_month).with_custom(workload.limits.gpus)
        model, offer = facts.model(workload.model), _offer(chosen, facts)
        workload = replace(workload, facts=facts).with_tokens(model)
        whole = cls(
            plan=plan, candidate=chosen, workload=workload, model=model, offer=offer,
            accelerator=facts.accelerator(chosen.gpu), facts=facts, settings=settings, label=label,
        )  # fmt: skip
        if plan.task in TRAINING:
            from flopwise.search.run_job import candidate_job  # noqa: PLC0415 - half is enough

            return replace(whole, training=candidate_job(workload, model, facts, offer, chosen))
        from flopwise.search.replica import candidate_job as deployed  # noqa: PLC0415 - half is enough

        return replace(whole, serving=deployed(workload, model, facts, offer, chosen))

    @property
    def task(self) -> str:
        """The task: pretrain, finetune, serve, batch or encode."""
        return self.plan.task

    @property
    def title(self) -> str:
        """The title for messages and comments."""
        return self.label or self.settings.name or self.workload.name or self.model.name

    @property
    def name(self) -> str:
        """The title as a name that is valid in Kubernetes, Prometheus and clouds."""
        return resource_name(self.title)

    @property
    def train_job(self) -> TrainJob:
        """The job of a deployment that trains."""
        assert self.training is not None
        return self.training

    @property
    def serve_job(self) -> ServeJob:
        """The job of one replica of a deployment that serves."""
        assert self.serving is not None
        return self.serving

    @property
    def object_name(self) -> str:
        """The name of the objects of its servers: that of the deployment, and of its pool if it is one."""
        return f"{self.name}-{self.pool}" if self.pool else self.name

    @property
    def pools(self) -> tuple[Deployment, ...]:
        """The kinds of servers of a service: itself, or of a plan with separate servers for prompts each pool."""
        if self.serving is None or not self.serving.techniques.prefill_gpus:
            return (self,)
        return (self._of_pool(PREFILL), self._of_pool(DECODE))

    def _of_pool(self, pool: str) -> Deployment:
        """The servers of one pool as a service of their own; those for prompts have no attention replicas.

        Source: `flopwise.serving.disaggregated.prefill_layout`.
        """
        job, layout = self.serve_job, dict(self.candidate.layout)
        if pool == PREFILL:
            layout |= {"dp": 1, "ep": gcd(layout["tp"], layout["ep"])}
            layout["replicas"] *= job.techniques.prefill_gpus // (layout["tp"] * layout["pp"])
        del layout["prefill_gpus"]
        degrees = {name: layout[name] for name in ("tp", "pp", "dp", "ep")}
        alone = replace(
            job, layout=replace(job.layout, **degrees), techniques=replace(job.techniques, prefill_gpus=0)
        )  # fmt: skip
        return replace(self, pool=pool, serving=alone, candidate=msgspec.structs.replace(self.candidate, layout=layout))

    @property
    def num_nodes(self) -> int:
        """Number of machines of all replicas."""
        return self.candidate.num_instances

    @property
    def gpus_per_node(self) -> int:
        """Number of accelerators of one machine."""
        return self.candidate.num_gpus // self.candidate.num_instances

    @property
    def replicas(self) -> int:
        """Number of replicas of a service; 1 for a run."""
        return int(self.candidate.layout.get("replicas", 1))

    @property
    def gpus_per_replica(self) -> int:
        """Number of accelerators of one replica of a service, or of a run."""
        layout = self.candidate.layout
        if self.serving is None:
            return self.candidate.num_gpus
        return int(layout["tp"]) * int(layout["pp"]) * int(layout.get("dp", 1))

    @property
    def nodes_per_replica(self) -> int:
        """Number of machines of one replica; 1 if a machine has one or several replicas."""
        return max(1, -(-self.gpus_per_replica // self.gpus_per_node))

    @property
    def model_id(self) -> str:
        """The weights for an engine: from the settings, else the model's hub id."""
        return self.settings.model_path or self.model.hf_id or PLACEHOLDERS["model_path"]

    def value(self, setting: str) -> str:
        """A setting, or its placeholder."""
        return self.settings.value(setting)


def resource_name(text: str) -> str:
    """`text` as lower-case letters, digits and hyphens, beginning with a letter, of at most `LABEL` characters.

    If characters are removed or the name is shortened, a part of its hash is appended, so that names stay distinct.
    """
    safe = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = re.sub(r"[\s_.,:;/()+-]+", "-", text.lower()).strip("-")
    if safe == plain and safe[:1].isalpha() and len(safe) <= LABEL:
        return safe
    import hashlib  # noqa: PLC0415 - most names need no hash

    digest = hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()[:6]
    start = safe if safe[:1].isalpha() else f"w-{safe}"
    return f"{start[: LABEL - 7].strip('-')}-{digest}"


def _check_candidate(chosen: Candidate, task: str) -> None:
    """Refuse a candidate with invalid values. Raises SpecError."""
    needed = {"stack": str, "precision": str, "optimizer": str, "schedule": str, "recompute": str} | dict.fromkeys(
        ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "global_batch", "seq_len"), int
    )
    if task not in TRAINING:
        needed = {"engine": str, "weights": str, "kv_dtype": str}
        needed |= dict.fromkeys(("tp", "pp", "ep", "dp", "replicas", "max_batch"), int)
    wrong = [name for name, kind in needed.items() if type(chosen.layout.get(name)) is not kind]
    wrong += [name for name in ("num_instances", "num_gpus") if getattr(chosen, name) < 1]
    if wrong:
        raise SpecError(f"candidate {chosen.rank} of the plan has no usable {', '.join(wrong)}; plan again")


def _offer(chosen: Candidate, facts: Facts) -> Offer:
    """The offer of a candidate; own machines, and offers that no longer exist, from the candidate's own values."""
    return facts.offers_by_key.get(chosen.offer_key) or Offer(
        provider=chosen.provider, instance=chosen.instance, region=chosen.region, accelerator=chosen.gpu,
        count=chosen.num_gpus // chosen.num_instances, source=chosen.price_source, price_date=chosen.price_date,
    )  # fmt: skip
