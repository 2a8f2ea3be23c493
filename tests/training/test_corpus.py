"""A corpus in files: ids of two or four bytes, and text; what `train` says of it."""

from __future__ import annotations

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.training.corpus import corpus
from named import train_answer


@pytest.mark.parametrize(("vocab", "each"), [(50_257, 2), (65_536, 2), (65_537, 4), (128_256, 4)])
def test_ids_take_the_bytes_that_the_vocabulary_needs(vocab: int, each: int) -> None:
    found = corpus(vocab, 1e9)
    assert (found.id_bytes, found.ids_bytes, found.text_bytes) == (each, each * 1e9, 4e9)


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
