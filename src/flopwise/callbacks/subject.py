"""What is trained: the architecture behind a module or a name, and the model FLOPs of a batch of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.config import model_from_config
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import parameters
from flopwise.values import dataclass

ADAPTERS_BELOW = 0.05
"""Share of trained parameters below which they are adapters on a frozen base."""
LIKE = (0.8, 1.25)
"""Parameters of a module over those of its configuration between which they are the same model."""
LENGTHS = 2.0 ** np.arange(4, 21)
"""Tokens of a sequence at which FLOPs are computed; a token's are linear between them, as attention's are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A model in training: its name, its architecture where it is known, and the assumption on its FLOPs."""

    name: str | None
    model: Model | None
    parameters: float | None
    trained_frac: float = 1.0
    basis: str
    _per_token: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def passes(self) -> float:
        """Operations of forward and backward over those of the forward pass.

        Source: Chowdhery et al. 2022 (arXiv:2204.02311) appendix B: a backward pass is one product for the gradients of
        inputs and one for those of weights. Assumes: what is frozen lies below what is trained, as under adapters.
        """
        return 2.0 + (self.trained_frac if self.trained_frac >= ADAPTERS_BELOW else 0.0)

    def flops(self, batch: float, seq: int, encoder: int | None = None) -> float | None:
        """Model FLOPs of training on `batch` sequences of `seq` tokens, masked attention left out; None: not known.

        Source: `causal_forward_flops`; 6 N D (Kaplan et al. 2020, arXiv:2001.08361) where only parameters are known.
        Assumes: the FLOPs of a token are linear in the length between two powers of two, as those of attention are.
        """
        if self.model is None:
            return None if self.parameters is None else 2.0 * self.passes * self.parameters * batch * seq
        if not self.model.stacks or self.model.stacks[0].tokens_per_sample is not None or encoder is not None:
            return self.passes * batch * _sample_flops(self.model, seq, encoder)
        if "at" not in self._per_token:
            self._per_token["at"] = np.asarray(causal_forward_flops(self.model, 1, LENGTHS)) / LENGTHS
        if self._per_token.get("seq") != seq:  # most loops have steps of one length
            self._per_token.update(seq=seq, flops=float(np.interp(seq, LENGTHS, self._per_token["at"])))
        per_token: float = self._per_token["flops"]
        return self.passes * batch * seq * per_token


@lru_cache(maxsize=4096)
def _sample_flops(model: Model, seq: int, encoder: int | None) -> float:
    return float(causal_forward_flops(model, 1, seq, encoder=encoder))


def trained_model(given: Any, facts: Facts, *, name: str | None = None) -> TrainedModel:
    """The model behind a module of PyTorch, a name, a configuration of transformers, or an architecture itself.

    Raises: SpecError: a name that is not known, a configuration that is not read, or neither of these.
    """
    if given is None:
        return TrainedModel(name=name, model=None, parameters=None, basis="no model was given: FLOPs are not known")
    if isinstance(given, str):
        given = facts.model(given)
    if isinstance(given, Model):
        size = float(parameters(given))
        return TrainedModel(name=given.name, model=given, parameters=size, basis=f"FLOPs counted for {given.name}")
    if isinstance(given, Mapping):
        return trained_model(model_from_config(given, name=name or str(given.get("model_type"))), facts)
    if hasattr(given, "parameters"):
        return _of_module(given, name)
    if hasattr(given, "to_dict"):  # an object of transformers
        path = str(getattr(given, "_name_or_path", "") or "")
        return trained_model(given.to_dict(), facts, name=name or path or None)
    raise SpecError(
        f"{type(given).__name__} is no model: give a module of PyTorch, a name of the catalog, a configuration of "
        "transformers, or None"
    )


def _of_module(module: Any, name: str | None) -> TrainedModel:
    """The model of a module: its configuration where it is one of transformers and of the same size, else 6 N D."""
    sizes = [(float(one.numel()), bool(one.requires_grad)) for one in module.parameters()]
    size, trained = sum(n for n, _ in sizes), sum(n for n, grad in sizes if grad)
    share = trained / size if size else 1.0
    inner = getattr(module, "module", module)  # of a wrapper for many devices
    name = name or _published_name(inner)
    config = getattr(inner, "config", None)
    why = "no configuration of transformers"
    if config is not None and hasattr(config, "to_dict"):
        base = inner.get_base_model() if hasattr(inner, "get_base_model") else inner  # under adapters
        try:
            architecture = model_from_config({**config.to_dict(), "architectures": [type(base).__name__]}, name=name)
        except FlopwiseError as error:
            why = str(error)[:160]
        else:
            packed = getattr(config, "quantization_config", None) is not None  # several weights to an element
            ratio = size / max(1.0, float(parameters(architecture)))
            if architecture.stacks and (packed or LIKE[0] <= ratio <= LIKE[1]):
                basis = f"FLOPs counted for {name}, layer by layer, from its configuration"
                return TrainedModel(name=name, model=architecture, parameters=size, trained_frac=share, basis=basis)
            why = f"its configuration describes {parameters(architecture):,} parameters, the module has {size:,.0f}"
    basis = f"FLOPs assumed as 6 N D ({size:,.0f} parameters x tokens, attention left out): {why}"
    return TrainedModel(name=name, model=None, parameters=size, trained_frac=share, basis=basis)


def _published_name(module: Any) -> str:
    """The name that a module was loaded by, else that of its class."""
    path = str(getattr(getattr(module, "config", None), "_name_or_path", "") or "")
    return path or type(module).__name__
