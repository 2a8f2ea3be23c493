"""Writes a tiny Llama with random weights and a tokenizer of bytes; run with the Python that has vLLM."""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
folder.mkdir(parents=True)
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(["<s>", "</s>", *letters])}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer.save(str(folder / "tokenizer.json"))
names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
(folder / "tokenizer_config.json").write_text(json.dumps(names))
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, dtype="bfloat16",
)  # fmt: skip
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
