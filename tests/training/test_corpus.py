"""A corpus in files: ids of two or four bytes, and text; what `train` says of it."""

from __future__ import annotations

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.facts.models.config import model_from_config
from flopwise.training.corpus import corpus
from flopwise.training.storage import stored_token_bytes
from flopwise.values import replace
from named import train_answer

FACTS = load_facts()


@pytest.mark.parametrize(("vocab", "each"), [(50_257, 2), (65_536, 2), (65_537, 4), (128_256, 4)])
def test_ids_take_the_bytes_that_the_vocabulary_needs(vocab: int, each: int) -> None:
    found = corpus(replace(FACTS.model("gpt2"), vocab=vocab), 1024, 1e9)
    assert (found.id_bytes, found.ids_bytes, found.text_bytes) == (each, each * 1e9, 4e9)
    assert str(found.id_bytes) == str(each)


def test_images_are_no_text() -> None:
    """ViT-L/16: a token is a patch of 16 x 16 pixels in three channels of 8 bits."""
    found = corpus(FACTS.model("ViT-L/16"), 197, 1e9)
    assert (found.id_bytes, found.text_bytes) == (16 * 16 * 3, None)
    assert found.stored_bytes == found.ids_bytes == 768e9
    assert found.text == "715 GiB decoded, 768 bytes a token"


def test_sound_is_read_with_its_text() -> None:
    """Whisper: 30 s of sound, 16 kHz in 16 bits, for each transcript of 448 ids of two bytes."""
    found = corpus(FACTS.model("whisper-large-v3"), 448, 448e3)
    assert found.ids_bytes == pytest.approx(1000 * (448 * 2 + 30 * 16_000 * 2))
    assert found.text_bytes is None


def test_a_frame_of_raw_sound() -> None:
    """wav2vec 2.0, section 2: strides of 5, 2, 2, 2, 2, 2 and 2: a frame for each 20 ms of sound of 16 kHz."""
    sizes = {"conv_dim": [512] * 7, "conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2]}
    model = model_from_config({
        "model_type": "wav2vec2", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
        "intermediate_size": 3072, **sizes,
    }, name="w")  # fmt: skip
    assert stored_token_bytes(model, 1000) == 0.020 * 16_000 * 2


def test_train_counts_tokens_once_whatever_the_epochs() -> None:
    # 1e9 tokens of gpt2: 2 GB of ids and 4 GB of text at aws's price of a byte and month
    answer = train_answer("gpt2", gpu="a100-80gb", seq=1024, tokens=1e9, epochs=3)
    assert answer.corpus is not None
    assert answer.corpus.tokens == pytest.approx(1e9)
    price = load_facts().volume_prices["aws", "storage"]
    assert answer.corpus_storage is not None
    assert answer.corpus_storage[0] == pytest.approx(6e9 * price.tiers[0][1])


def test_without_a_length_there_is_no_corpus() -> None:
    assert train_answer("gpt2", gpu="a100-80gb", seq=1024).corpus is None
