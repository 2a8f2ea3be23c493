"""What a deployment does besides running the model as it is, as people say it, and looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.api.memory import Deployment
    from flopwise.cost.rates import Rates
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.storage import Storage
    from flopwise.serving.techniques import Offload, Speculation, Techniques

NGRAM = frozenset({"ngram", "n-gram", "prompt-lookup", "suffix"})
BLOCK = frozenset({"eagle", "eagle3", "eagle-3", "mtp", "nextn"})
DRAFT_TOKENS = 4
"""Tokens that a draft proposes where no number is given."""
DESKTOP_HOST, SERVER_HOST = "Ryzen 9 7950X", "Xeon Platinum 8480+"
"""Processors that compute offloaded layers where none is named: beside GeForce and Radeon cards, and beside others."""
STORAGE = "nvme-gen4"
"""Kind of storage that weights are read from where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Techniques of serving; None: not used."""

    shared_prefix: int | None = None  # tokens with which all prompts begin
    prefix_hit: float | None = None  # share of a prompt's tokens found in the cache
    kv_keep: float | None = None  # share of the cached tokens that eviction keeps
    draft: str | None = None  # a model, eagle, mtp or ngram
    draft_tokens: int | None = None
    acceptance: float | None = None
    draft_weights: str | None = None
    prefill_gpus: int | None = None
    offload_weights: float | None = None  # share of the layers in host memory
    gpu_layers: int | None = None  # the same, as layers that stay on the accelerator
    host: str | None = None  # processor that computes offloaded layers
    expert_skew: float | None = None
    storage: str | None = None  # kind that weights are read from at a cold start
    storage_bytes_per_s: float | None = None  # measured by the user instead
    image_bytes: float | None = None  # container image, where it must be pulled
    image_bytes_per_s: float | None = None

    def techniques(self, model: Model, asked: Deployment, chip: Accelerator, **how: object) -> Techniques:
        """The same, looked up. `how`: keywords of `flopwise.api.machines.loaded`.

        Raises:
            SpecError: a value that cannot be, or one that goes with another that is not given.
            UnknownNameError: no such draft model or processor.
        """
        from flopwise.serving.techniques import Techniques

        self._check_pairs()
        return Techniques(
            shared_tokens=self.shared_prefix or 0,
            hit_frac=self.prefix_hit or 0.0,
            kept_frac=1.0 if self.kv_keep is None else self.kv_keep,
            speculation=self._speculation(model, asked, how),
            offload=self._offload(model, asked, chip, how.get("facts")),  # type: ignore[arg-type]  # a path or None
            prefill_gpus=self.prefill_gpus or 0,
            expert_skew=1.0 if self.expert_skew is None else self.expert_skew,
        )

    def _check_pairs(self) -> None:
        """Refuse what means nothing alone."""
        for given, needed, what in (
            (
                self.draft_tokens,
                self.draft,
                "draft tokens are given, but no draft (--draft MODEL, eagle, mtp or ngram)",
            ),
            (self.acceptance, self.draft, "an acceptance is given, but no draft (--draft MODEL, eagle, mtp or ngram)"),
            (self.draft_weights, self.draft, "draft weights are given, but no draft (--draft MODEL)"),
            (self.image_bytes, self.image_bytes_per_s, "the image's size and bandwidth go together"),
            (self.image_bytes_per_s, self.image_bytes, "the image's size and bandwidth go together"),
        ):
            if given is not None and needed is None:
                raise SpecError(what)
        for name in ("storage_bytes_per_s", "image_bytes", "image_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SpecError(f"{name} {value} is out of range; give a finite number above 0")
        if self.gpu_layers is not None and self.gpu_layers < 0:
            raise SpecError(f"{self.gpu_layers} layers on the accelerator; allowed: from 0")
        if self.draft is not None and self.acceptance is None:
            raise SpecError(
                "a draft needs --acceptance, the share of its tokens that are accepted: engines report it, and drafts "
                "of one family reach 0.5 to 0.9 (arXiv:2211.17192, table 3)"
            )
        if self.offload_weights is not None and self.gpu_layers is not None:
            raise SpecError("give the share of offloaded layers or the layers that stay, not both")

    def _speculation(self, model: Model, asked: Deployment, how: dict[str, object]) -> Speculation | None:
        from flopwise.serving.speculative import block_draft
        from flopwise.serving.techniques import Speculation

        if self.draft is None or self.acceptance is None:
            return None
        tokens, name = DRAFT_TOKENS if self.draft_tokens is None else self.draft_tokens, self.draft.lower()
        if name in NGRAM:
            return Speculation(name="n-grams", tokens=tokens, acceptance=self.acceptance)
        if name in BLOCK:
            weights = self.draft_weights or (asked.weights if name in {"mtp", "nextn"} else "bf16") or "bf16"
            return Speculation(
                name=name,
                tokens=tokens,
                acceptance=self.acceptance,
                draft=block_draft(model),
                weights=weights,
                tp=asked.tp,
                shares_ends=True,
            )
        return self._drafted_by(self.draft, tokens, self.acceptance, asked, how)

    def _drafted_by(
        self, draft: str, tokens: int, acceptance: float, asked: Deployment, how: dict[str, object]
    ) -> Speculation:
        """Speculation with a model of its own, cut like the target where its heads allow it."""
        from flopwise.api.machines import described, loaded
        from flopwise.api.recipes import check_tensor_parallel
        from flopwise.serving.techniques import Speculation

        found = described(loaded(draft, **how))  # type: ignore[arg-type]  # options of mixed types
        tp = asked.tp
        try:
            check_tensor_parallel(found, tp)
        except SpecError:
            tp = 1
        return Speculation(
            name=found.name,
            tokens=tokens,
            acceptance=acceptance,
            draft=found,
            weights=self.draft_weights or found.checkpoint_format or "bf16",
            tp=tp,
        )

    def _offload(self, model: Model, asked: Deployment, chip: Accelerator, facts: Path | None) -> Offload | None:
        from flopwise.facts.engine_support import support
        from flopwise.serving.techniques import Offload

        layers = model.stacks[0].num_layers
        if self.gpu_layers is not None and self.gpu_layers > layers:
            raise SpecError(
                f"{self.gpu_layers} layers on the accelerator; {model.name} has {layers}: allowed: 0 to {layers}"
            )
        frac = self.offload_weights if self.gpu_layers is None else 1.0 - self.gpu_layers / layers
        if not frac:
            if self.host is not None:
                raise SpecError("a host is given, but no layers for it (--offload-weights, --gpu-layers)")
            return None
        way = support(asked.engine).offload
        if way == "none":
            raise SpecError(
                f"{asked.engine} keeps all weights on the device; engines that offload: vllm, sglang, hf, llama.cpp"
            )
        if chip.kind in {"cpu", "soc"}:
            raise SpecError(f"{chip.name} shares the host's memory: there is nothing to offload to")
        if way == "stream" and self.host is not None:
            raise SpecError(
                f"{asked.engine} brings offloaded weights to the device; only llama.cpp computes on the host"
            )
        return Offload(frac=frac, host=None if way == "stream" else _host_rates(self.host, chip, facts))

    def kind_of_storage(self, facts: Path | None) -> Storage:
        """Where weights are read from at a start.

        Raises:
            UnknownNameError: no such kind.
        """
        from flopwise.facts.storage import Storage, storage

        if self.storage_bytes_per_s is None:
            return storage(self.storage or STORAGE, facts)
        if self.storage is not None:
            raise SpecError("a kind of storage and a bandwidth are both given; give one")
        return Storage(name="given", read_bytes_per_s=self.storage_bytes_per_s, source="given", date="")


def _host_rates(name: str | None, chip: Accelerator, facts: Path | None) -> Rates:
    """What the host's processor sustains.

    Raises:
        SpecError: it is no processor.
    """
    from flopwise.cost.rates import rates
    from flopwise.facts.catalog import load_facts

    desktop = chip.name.startswith(("RTX", "GTX", "Radeon", "Arc"))
    found = load_facts(facts).resolve(name or (DESKTOP_HOST if desktop else SERVER_HOST)).accelerator
    if found.kind != "cpu":
        raise SpecError(f"{found.name} is no processor of a host; give one of kind cpu (flopwise gpus --kind cpu)")
    return rates(found)
