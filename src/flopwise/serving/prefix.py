"""Prompts that the cache already holds, wholly or in part: what is left to compute, and what need not be kept twice."""

from __future__ import annotations

import numpy as np

from flopwise.ops.types import Floats, Ints


def cached_tokens(
    input_tokens: Ints, *, shared_tokens: Ints = 0, hit_frac: Floats = 0.0, block_tokens: int = 1
) -> Floats:
    """Tokens of a prompt that need no computing; broadcasts.

    A shared prefix is found in whole blocks; of what the engine finds at any rate `hit_frac` is the measured share.
    The last token of a prompt is always computed: its result is the first token of the answer.

    Source: Kwon et al. 2023 (arXiv:2309.06180) section 4.4 for shared blocks; vLLM, `get_computed_blocks`, for the
    last token; Zheng et al. 2023 (arXiv:2312.07104) section 3 for the hit rate.
    Assumes: the cache has kept the prefix since it was last used.
    """
    whole = np.asarray(shared_tokens) // block_tokens * block_tokens
    found = np.maximum(whole, np.asarray(input_tokens) * hit_frac)
    cached: Floats = np.minimum(found, np.asarray(input_tokens) - 1.0)
    return cached
