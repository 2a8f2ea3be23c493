"""Speculative decoding: tokens that one verification brings, what drafts cost, and up to which batch it pays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flopwise.facts.architecture import Attend, Linear, Model, Norm
from flopwise.ops.types import Floats, Ints

if TYPE_CHECKING:
    from flopwise.facts.architecture import Item


def tokens_per_step(acceptance: Floats, draft_tokens: Ints) -> Floats:
    """Tokens that a sequence gets from one verification of `draft_tokens` proposals; broadcasts.

    (1 - a^(k + 1)) / (1 - a): proposals up to the first that is refused, and one token of the target's own.

    Source: Leviathan et al. 2023 (arXiv:2211.17192) equation 1.
    Assumes: proposals are accepted independently with one probability; they form a chain, not a tree.
    """
    a = np.asarray(acceptance, dtype=float)
    k = np.asarray(draft_tokens) + 1.0
    return np.where(a < 1.0, (1.0 - a**k) / np.where(a < 1.0, 1.0 - a, 1.0), k)


def tokens_variance(acceptance: Floats, draft_tokens: Ints) -> Floats:
    """Variance of the tokens of one verification, whose mean is `tokens_per_step`; broadcasts.

    E[X^2] is the sum of (2 j - 1) P(X >= j), and P(X >= j) = a^(j - 1) for j up to k + 1: by parts with b = 1 - a,
    (1 + a - (2 k + 3) a^(k + 1) + (2 k + 1) a^(k + 2)) / b^2.

    Source: as `tokens_per_step`. Assumes: as there.
    """
    a, k = np.asarray(acceptance, dtype=float), np.asarray(draft_tokens) * 1.0
    sure = a > 1.0 - 1e-6
    b = np.where(sure, 1.0, 1.0 - a)
    squares = (1.0 + a - (2.0 * k + 3.0) * a ** (k + 1.0) + (2.0 * k + 1.0) * a ** (k + 2.0)) / b**2
    return np.where(sure, 0.0, np.maximum(squares - tokens_per_step(a, k) ** 2, 0.0))


def speedup(acceptance: Floats, draft_tokens: Ints, draft_cost: Floats) -> Floats:
    """Time of a token without over the time with speculation; broadcasts.

    `draft_cost`: one pass of the draft over one of the target.

    Source: Leviathan et al. 2023 (arXiv:2211.17192) theorem 3.8.
    Assumes: verifying takes as long as decoding one token, which small batches of large models come close to.
    """
    return tokens_per_step(acceptance, draft_tokens) / (np.asarray(draft_tokens) * draft_cost + 1.0)


def block_draft(model: Model) -> Model:
    """The draft that EAGLE and multi-token prediction are: one more block like the last, and the model's own head.

    Its input is the target's last hidden state joined with the embedding of the token: a projection of twice the width.

    Source: Li et al. 2024 (arXiv:2401.15077) section 4; DeepSeek-V3 report (arXiv:2412.19437) section 2.2.
    Assumes: the whole vocabulary (EAGLE-3 heads with a reduced one are cheaper); a chain, not a tree.
    """
    stack = model.stacks[0]
    last = stack.kinds[stack.order[-1]]
    joined: tuple[Item, ...] = (
        Norm(name="joined_norm", dim=stack.width, groups=2),
        Linear(name="joined", inputs=2 * stack.width, outputs=stack.width),
    )
    one = replace(stack, before=joined, kinds=(last,), order=(0,))
    return replace(model, name=f"block like the last of {model.name}", stacks=(one,))


def draft_tp(draft: Model, tp: Ints) -> Ints:
    """Degree at which a draft is cut: as its target where its heads divide, else not at all; shape of `tp`.

    Source: vLLM, draft_tensor_parallel_size: that of the target, or 1. Assumes: as there.
    """
    heads = [item.heads for kind in draft.stacks[0].kinds for item in kind.items if isinstance(item, Attend)]
    cut: Ints = np.where(np.all([np.asarray(h) % tp == 0 for h in heads], axis=0), tp, 1) if heads else tp
    return int(cut) if np.ndim(cut) == 0 else cut


def without_ends(model: Model) -> Model:
    """The same without its head and final norm, which are another model's: for counting what is stored.

    Source: as `block_draft`. Assumes: nothing else is shared.
    """
    return replace(model, stacks=(replace(model.stacks[0], after=()),))
