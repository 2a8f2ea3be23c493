"""Techniques as people say them, and looked up: models of drafts, processors of hosts, habits of engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flopwise import options
from flopwise.errors import MissingFactError, SpecError
from flopwise.ops.spec import SharedSpec
from flopwise.options import OptionError, Spec, option, same

if TYPE_CHECKING:
    from flopwise.cost.rates import Rates
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.formats import WeightFormat
    from flopwise.facts.software import Engine
    from flopwise.ops.types import Ints
    from flopwise.serving.techniques import Offload, Speculation, Techniques

NGRAM = frozenset({"ngram", "n-gram", "prompt-lookup", "suffix"})
BLOCK = frozenset({"eagle", "eagle3", "eagle-3", "mtp", "nextn"})
DRAFT_TOKENS = 4
"""Tokens that a draft proposes where no number is given."""
DESKTOP_HOST, SERVER_HOST = "Ryzen 9 7950X", "Xeon Platinum 8480+"
"""Processors that compute offloaded layers where none is named: beside GeForce and Radeon cards, and beside others."""


TECHNIQUES = "Prefixes, drafts, pools, layers on the host"
_technique = partial(option, section=TECHNIQUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueContext:
    """Where techniques run: formats and degrees may be columns of candidates."""

    tp: Ints
    weights: WeightFormat
    engine: Engine
    chip: Accelerator
    facts: Facts


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueRequest(Spec):
    """Techniques of serving; None: not used."""

    shared_prefix: int | None = _technique(
        "--shared-prefix", options.TOKENS, "Tokens with which all prompts begin: computed once, cached once.",
        key="techniques.shared_prefix",
    )
    prefix_hit: float | None = _technique(
        "--prefix-hit", options.FRACTION_OR_ZERO, "Share of a prompt's tokens found in the cache: 0.6, 60%.",
        key="techniques.prefix_hit",
    )
    kv_keep: float | None = _technique(
        "--kv-keep", options.FRACTION, "Share of cached tokens that eviction keeps (H2O, SnapKV).",
        key="techniques.kv_keep",
    )
    draft: str | None = _technique(
        "--draft", options.name("draft"), "Speculate: with a model, eagle, mtp or ngram.", key="techniques.draft",
    )
    draft_tokens: int | None = _technique(
        "--draft-tokens", options.whole(high=64), f"Tokens that the draft proposes (default: {DRAFT_TOKENS}).",
        key="techniques.draft_tokens",
    )
    acceptance: float | None = _technique(
        "--acceptance", options.FRACTION_OR_ZERO, "Share of proposed tokens that are accepted.",
        key="techniques.acceptance",
    )
    draft_weights: str | None = _technique(
        "--draft-weights", options.name("format"), "Format of the draft's weights (default: as published).",
        key="techniques.draft_weights",
    )
    prefill_gpus: int | None = _technique(
        "--prefill-gpus", options.DEGREE, "Accelerators of each replica, besides its own, for prompts only.",
    )
    offload_weights: float | None = _technique(
        "--offload-weights", options.FRACTION_OR_ZERO, "Share of the layers whose weights stand in host memory.",
        key="techniques.offload_weights",
    )
    gpu_layers: int | None = _technique(
        "--gpu-layers", options.whole(low=0, high=100_000), "The same as layers that stay, as llama.cpp -ngl.",
        key="techniques.gpu_layers",
    )
    host: str | None = _technique(
        "--host", options.name("cpu"), "Processor that computes offloaded layers (llama.cpp).", key="techniques.host",
    )
    expert_skew: float | None = same(SharedSpec, "expert_skew", section=TECHNIQUES, key="techniques.expert_skew")
    # fmt: on

    @property
    def any(self) -> bool:
        """Whether a technique is asked for."""
        return bool(options.changed(self))

    @property
    def draft_name(self) -> str | None:
        """The model that drafts, where it is one of its own."""
        return None if self.draft is None or self.draft.lower() in NGRAM | BLOCK else self.draft

    def resolve(self, model: Model, place: TechniqueContext, load: Callable[[str], Model]) -> Techniques:
        """The techniques with draft model, formats and host rates looked up; `load` returns the model of a name.

        Raises:
            SpecError: a value that cannot be, or one that goes with another that is not given.
            UnknownNameError: no such draft model or processor.
        """
        from flopwise.serving.techniques import Techniques  # noqa: PLC0415 - commands start without it

        self.check()
        return Techniques(
            shared_tokens=self.shared_prefix or 0,
            hit_frac=self.prefix_hit or 0.0,
            kept_frac=1.0 if self.kv_keep is None else self.kv_keep,
            speculation=self._speculation(model, place, load),
            offload=self._offload(model, place),
            prefill_gpus=self.prefill_gpus or 0,
            expert_skew=1.0 if self.expert_skew is None else self.expert_skew,
        )

    def check(self) -> None:
        """Refuse what means nothing alone.

        Raises:
            SpecError: says what is missing.
        """
        for name in ("draft_tokens", "acceptance", "draft_weights"):
            if getattr(self, name) is not None and self.draft is None:
                raise OptionError(name, "given, but no draft (--draft MODEL, eagle, mtp or ngram)")
        if self.draft is not None and self.acceptance is None:
            raise OptionError(
                "draft", "needs --acceptance, the share of its tokens that are accepted: engines report it, and drafts "
                "of one family reach 0.5 to 0.9 (arXiv:2211.17192, table 3)"
            )
        if self.offload_weights is not None and self.gpu_layers is not None:
            raise OptionError("gpu_layers", "the share of offloaded layers is given, too (--offload-weights); give one")

    def _speculation(self, model: Model, place: TechniqueContext, load: Callable[[str], Model]) -> Speculation | None:
        from flopwise.facts.formats import BF16  # noqa: PLC0415 - as above
        from flopwise.serving.speculative import block_draft, draft_tp  # noqa: PLC0415 - as above
        from flopwise.serving.techniques import Speculation  # noqa: PLC0415 - as above

        if self.draft is None or self.acceptance is None:
            return None
        tokens, name = DRAFT_TOKENS if self.draft_tokens is None else self.draft_tokens, self.draft.lower()
        if name in NGRAM:
            return Speculation(name="n-grams", tokens=tokens, acceptance=self.acceptance)
        if name in BLOCK:
            weights = place.weights if name in {"mtp", "nextn"} else BF16
            if self.draft_weights is not None:
                weights = place.facts.weight_format(self.draft_weights)
            return Speculation(
                name=name,
                tokens=tokens,
                acceptance=self.acceptance,
                draft=block_draft(model),
                weights=weights,
                tp=place.tp,
                shares_ends=True,
            )
        found = load(self.draft)
        if not found.stacks:
            raise MissingFactError(
                f"{found.name} has no layers in the catalog, only published figures: it cannot draft"
            )
        return Speculation(
            name=found.name,
            tokens=tokens,
            acceptance=self.acceptance,
            draft=found,
            weights=place.facts.weight_format(self.draft_weights or found.checkpoint_format or BF16.name),
            tp=draft_tp(found, place.tp),
        )

    def _offload(self, model: Model, place: TechniqueContext) -> Offload | None:
        from flopwise.serving.techniques import Offload  # noqa: PLC0415 - as above

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
        way = place.engine.offload
        if way == "none":
            raise SpecError(
                f"{place.engine.name} keeps all weights on the device; engines that offload: "
                f"{', '.join(name for name, row in place.facts.engines.items() if row.offload != 'none')}"
            )
        if place.chip.kind in {"cpu", "soc"}:
            raise SpecError(f"{place.chip.name} shares the host's memory: there is nothing to offload to")
        if way == "stream" and self.host is not None:
            raise SpecError(
                f"{place.engine.name} brings offloaded weights to the device; only llama.cpp computes on the host"
            )
        return Offload(frac=frac, host=None if way == "stream" else _host_rates(self.host, place.chip, place.facts))


def _host_rates(name: str | None, chip: Accelerator, facts: Facts) -> Rates:
    """Rates of the host's processor.

    Raises:
        SpecError: it is no processor.
    """
    from flopwise.cost.rates import rates  # noqa: PLC0415 - as above

    desktop = chip.name.startswith(("RTX", "GTX", "Radeon", "Arc"))
    found = facts.resolve(name or (DESKTOP_HOST if desktop else SERVER_HOST)).accelerator
    if found.kind != "cpu":
        raise SpecError(f"{found.name} is no processor of a host; give one of kind cpu (flopwise gpus --kind cpu)")
    return rates(found)
