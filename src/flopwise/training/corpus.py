"""What the tokens of a run are as files: token ids as training reads them, and the text that they were made from."""

from __future__ import annotations

from flopwise.values import dataclass

TEXT_BYTES_PER_TOKEN = 4.0
"""English text in UTF-8: about four characters a token (OpenAI, "What are tokens and how to count them?")."""
SMALL_VOCAB = 2**16
"""Vocabularies up to this size have ids of two bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Bytes of a corpus that is gone through `epochs` times."""

    tokens: float
    id_bytes: int
    ids_bytes: float
    text_bytes: float


def corpus(vocab: int, tokens: float) -> Corpus:
    """A corpus of `tokens` different tokens of a vocabulary.

    Source: arithmetic: ids are stored as the least of 2 and 4 bytes that holds them, as nanoGPT's and Megatron's
    indexed data sets do. Assumes: no compression; text is English, in UTF-8, of `TEXT_BYTES_PER_TOKEN`.
    """
    each = 2 if vocab <= SMALL_VOCAB else 4
    return Corpus(tokens=tokens, id_bytes=each, ids_bytes=tokens * each, text_bytes=tokens * TEXT_BYTES_PER_TOKEN)
