"""What the tokens of a run are as files: records as training reads them, and the text that they were made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.training.storage import holds_text_alone, stored_token_bytes
from flopwise.units import format_bytes
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model

TEXT_BYTES_PER_TOKEN = 4.0
"""English text in UTF-8: about four characters a token (OpenAI, "What are tokens and how to count them?")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Bytes of a corpus that is gone through `epochs` times. `text_bytes`: None where it is of images or sound."""

    tokens: float
    id_bytes: float  # of a token's record: its id; pixels or sound, decoded
    ids_bytes: float
    text_bytes: float | None

    @property
    def stored_bytes(self) -> float:
        """Bytes of the records and of the text that they were made from."""
        return self.ids_bytes + (self.text_bytes or 0.0)

    @property
    def text(self) -> str:
        """The sizes, for people."""
        records = format_bytes(self.ids_bytes)
        if self.text_bytes is None:
            return f"{records} decoded, {self.id_bytes:,.4g} bytes a token"
        return f"{records} as ids of {self.id_bytes} bytes, about {format_bytes(self.text_bytes)} as text"


def corpus(model: Model, seq_len: float, tokens: float) -> Corpus:
    """A corpus of `tokens` different tokens for `model`, in sequences of `seq_len`.

    Source: `stored_token_bytes`: ids are stored as the least of 2 and 4 bytes that holds them, as nanoGPT's and
    Megatron's indexed data sets do. Assumes: no compression; text is English, in UTF-8, of `TEXT_BYTES_PER_TOKEN`.
    """
    each = stored_token_bytes(model, seq_len)
    if not holds_text_alone(model):
        return Corpus(tokens=tokens, id_bytes=each, ids_bytes=tokens * each, text_bytes=None)
    return Corpus(tokens=tokens, id_bytes=int(each), ids_bytes=tokens * each, text_bytes=tokens * TEXT_BYTES_PER_TOKEN)
