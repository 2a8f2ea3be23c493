"""Names of leaderboards and of published measurements of 2023 to 2026, and the networks that they mean."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.architecture import Attend
from flopwise.facts.models.catalog import load_model
from flopwise.ops.tensors import active_parameters, parameters
from named import FACTS

NAMES = [
    ("command-a-reasoning", "Command-A"),
    ("c4ai-aya-expanse-32b", "Aya-Expanse-32B"),
    ("pixtral-12b-2409", "Pixtral-12B"),
    ("Llama3-ChatQA-1.5-70B", "Llama-3-70B"),
    ("codegeex4-9b", "GLM-4-9B"),
    ("gpt4all-13b-snoozy", "LLaMA-13B"),
    ("wizardcoder-34b", "CodeLlama-34B"),
    ("phind-codellama-34b-v2", "CodeLlama-34B"),
    ("sus-chat-34b", "Yi-34B"),
    ("notux-8x7b", "Mixtral-8x7B"),
    ("light-r1-32b", "Qwen2.5-32B"),
    ("cogito-v2-671b", "DeepSeek-V3"),
    ("DeepHermes-3-Mistral-24B", "Mistral-Small-24B-2501"),
    ("zamba-7b", "Zamba-7B"),
    ("olmo-hybrid-7b", "Olmo-Hybrid-7B"),
    ("facebook/cwm", "CWM-32B"),
    ("flexolmo-7x7b-1t", "FlexOlmo-7x7B-1T"),
    ("jais-2-8b", "Jais-2-8B"),
    ("iquest-coder-v1-40b", "IQuest-Coder-V1-40B"),
    ("youtu-llm-2b", "Youtu-LLM-2B"),
    ("helium-1-preview-2b", "Helium-1-2B"),
    ("ctrl", "CTRL 1.6B"),
    ("blenderbot-3b", "BlenderBot-3B"),
    ("rembert", "RemBERT"),
    ("Athene-v2-Chat-72B", "Qwen2.5-72B"),
    ("Xwin-LM-70B", "Llama-2-70B"),
    ("Smaug-Llama-3-70B", "Llama-3-70B"),
    ("gemma-2-9b-it-SimPO", "Gemma-2-9B"),
    ("command-a-03-2025", "Command-A"),
    ("command-r7b-12-2024", "Command-R7B"),
    ("ChatGLM-6B", "ChatGLM-6B"),
    ("Aquila2-34B", "Aquila2-34B"),
    ("Orion-14B", "Orion-14B"),
    ("sea-lion-7b", "SEA-LION-7B"),
    ("ibm/PowerLM-3b", "PowerLM-3B"),
    ("nllb-moe-54b", "NLLB-MoE-54B"),
    ("switch-c-2048", "Switch-C-2048"),
    ("madlad400-3b", "MADLAD-400-3B-MT"),
    ("bigbird-roberta-base", "BigBird-RoBERTa base"),
    ("fnet-base", "FNet-base"),
    ("ettin-decoder-1b", "Ettin-decoder-1B"),
    ("stella_en_400M_v5", "GTE-large-en-v1.5"),
    ("gte-multilingual-base", "GTE-multilingual-base"),
    ("sarvam-105b", "Sarvam-105B"),
    ("reader-lm-1.5b", "Qwen2-1.5B"),
    ("Amber-7B", "LLaMA-7B"),
    ("T0_3B", "Flan-T5-XL (T5 v1.1 3B)"),
    ("Grok-1", "Grok-1"),
    ("Nemotron-8B", "Nemotron-8B"),
    ("nemotron-3-8b", "Nemotron-8B"),
    ("Nemotron-22B", "Nemotron-22B"),
    ("Nemotron-15B", "Nemotron-4-15B"),
    ("galactica-120b", "Galactica-120B"),
    ("goliath-120b", "Goliath-120B"),
    ("persimmon-8b", "Persimmon-8B"),
    ("Poro-34B", "Poro-34B"),
    ("miqu-1-70b-sf", "Llama-2-70B"),
    ("command-r-v01", "Command-R 35B"),
    ("Smaug-72B", "Qwen-72B"),
    ("T-pro-it-1.0", "Qwen2.5-32B"),
    ("Baichuan2-7B", "Baichuan2-7B"),
    ("mt0-xxl", "mT5-XXL"),
    ("bloomz-7b1", "BLOOM-7b1"),
    ("BLOOMZ", "BLOOM-176b"),
    ("T0pp", "Flan-T5-XXL (T5 v1.1 11B)"),
    ("Vicuna-7B", "Llama-2-7B"),
    ("vicuna-13b-v1.5", "Llama-2-13B"),
    ("Alpaca-7B", "LLaMA-7B"),
    ("WizardLM-13B", "Llama-2-13B"),
    ("WizardCoder-15B", "StarCoder-15B"),
    ("WizardCoder-33B", "DeepSeek-Coder-33B"),
    ("Zephyr-7B", "Mistral-7B-v0.1"),
    ("zephyr-7b-beta", "Mistral-7B-v0.1"),
    ("OpenHermes-2.5-Mistral-7B", "Mistral-7B-v0.1"),
    ("Nous-Hermes-2-Mixtral-8x7B", "Mixtral-8x7B"),
    ("Nous-Hermes-13b", "LLaMA-13B"),
    ("Hermes-3-Llama-3.1-8B", "Llama-3.1-8B"),
    ("Starling-LM-7B", "Mistral-7B-v0.1"),
    ("OpenChat-3.5", "Mistral-7B-v0.1"),
    ("Orca-2-7b", "Llama-2-7B"),
    ("Orca-2-13b", "Llama-2-13B"),
    ("Dolly-v2-12b", "Pythia-12b"),
    ("dolly-v2-3b", "Pythia-2.8b"),
    ("Guanaco-33B", "LLaMA-30B"),
    ("Guanaco-65B", "LLaMA-65B"),
    ("Platypus2-70B", "Llama-2-70B"),
    ("Tulu-2-70B", "Llama-2-70B"),
    ("Tulu-3-8B", "Llama-3.1-8B"),
    ("Llama-3.1-Tulu-3-405B", "Llama-3.1-405B"),
    ("Koala-13B", "LLaMA-13B"),
    ("Alpaca-13B", "LLaMA-13B"),
    ("Magistral-Small-2506", "Mistral-Small-24B-2501"),
    ("Dolphin-2.2", "Mistral-7B-v0.1"),
    ("Nous-Hermes-2-Mixtral", "Mixtral-8x7B"),
    ("FastChat-T5-3B", "Flan-T5-XL (T5 v1.1 3B)"),
    ("Dolly-12B", "Pythia-12b"),
    ("OASST-12B", "Pythia-12b"),
    ("BloombergGPT-50B", "BloombergGPT-50B"),
    ("StableVicuna-13B", "LLaMA-13B"),
    ("GPT4All-J", "GPT-J-6B"),
    ("RedPajama-INCITE-7B", "Pythia-6.9b"),
    ("RedPajama-INCITE-3B", "Pythia-2.8b"),
    ("OpenLLaMA-7B", "LLaMA-7B"),
    ("OpenLLaMA-13B", "LLaMA-13B"),
    ("Phi-3-mini", "Phi-3-mini-4k"),
    ("microsoft/Phi-3-mini-128k-instruct", "Phi-3-mini-128k"),
    ("Phi-3-medium", "Phi-3-medium-4k"),
    ("Phi-3.5-mini", "Phi-3-mini-128k"),
    ("Phi-4", "Phi-4 14B"),
    ("Phi-4-reasoning", "Phi-4 14B"),
    ("Phi-4-reasoning-plus", "Phi-4 14B"),
    ("Phi-4-mini-reasoning", "Phi-4-mini 3.8B"),
    ("Mistral-7B", "Mistral-7B-v0.1"),
    ("Mistral-7B-Instruct-v0.2", "Mistral-7B-v0.2"),
    ("Mistral-7B-v0.2", "Mistral-7B-v0.2"),
    ("Mathstral-7B", "Mistral-7B-v0.3"),
    ("Codestral-22B-v0.1", "Codestral-22B"),
    ("Mistral-Small-22B", "Codestral-22B"),
    ("Mistral-Small-24B", "Mistral-Small-24B-2501"),
    ("Mistral-Small-3", "Mistral-Small-24B-2501"),
    ("Mistral-Small-3.1-24B", "Mistral-Small-3.2-24B"),
    ("Mistral-Small-3.2-24B", "Mistral-Small-3.2-24B"),
    ("Mistral-Large", "Mistral-Large-2 123B"),
    ("Mistral-Large-2407", "Mistral-Large-2 123B"),
    ("Mistral-Large-2411", "Mistral-Large-2 123B"),
    ("Magistral-Small-2506", "Mistral-Small-24B-2501"),
    ("Devstral-Small-2505", "Mistral-Small-24B-2501"),
    ("Devstral-Small-2507", "Mistral-Small-24B-2501"),
    ("Mixtral-8x7B-Instruct", "Mixtral-8x7B"),
    ("Mixtral-8x22B-Instruct", "Mixtral-8x22B"),
    ("Llama-2-7B-chat", "Llama-2-7B"),
    ("Llama-2-13b-hf", "Llama-2-13B"),
    ("LLaMA-33B", "LLaMA-30B"),
    ("LLaMA-65B", "LLaMA-65B"),
    ("Llama-3-8B-Instruct", "Llama-3-8B"),
    ("Meta-Llama-3-70B", "Llama-3-70B"),
    ("Llama-3.3-70B", "Llama-3.3-70B-Instruct"),
    ("Llama-4-Scout", "Llama-4-Scout (text)"),
    ("Llama-4-Maverick", "Llama-4-Maverick (text)"),
    ("Llama-Guard-3-8B", "Llama-3.1-8B"),
    ("CodeLlama-7b-Instruct", "CodeLlama-7B"),
    ("Llama-3.1-Nemotron-70B", "Llama-3.1-Nemotron-70B"),
    ("Llama-3.1-Nemotron-Nano-8B", "Llama-3.1-8B"),
    ("Nemotron-3-Nano", "Nemotron-3-Nano-30B-A3B"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", "Nemotron-3-Nano-4B"),
    ("Gemma-1.1-7b", "Gemma-7B"),
    ("CodeGemma-7B", "Gemma-7B"),
    ("Gemma-2-9b-it", "Gemma-2-9B"),
    ("Gemma-3-270M", "Gemma-3-270M"),
    ("Gemma-3-1b-it", "Gemma-3-1B"),
    ("Gemma-3-4b", "Gemma-3-4B (text tower)"),
    ("MedGemma-27B", "Gemma-3-27B (text tower)"),
    ("MedGemma-4B", "Gemma-3-4B (text tower)"),
    ("RecurrentGemma-2B", "RecurrentGemma-2B"),
    ("Qwen-7B-Chat", "Qwen-7B"),
    ("Qwen1.5-7B-Chat", "Qwen1.5-7B"),
    ("Qwen2-7B-Instruct", "Qwen2-7B"),
    ("Qwen2.5-7B-Instruct-1M", "Qwen2.5-7B"),
    ("Qwen2.5-Coder-7B", "Qwen2.5-7B"),
    ("Qwen2.5-Coder-32B-Instruct", "Qwen2.5-Coder-32B"),
    ("Qwen2.5-Math-7B", "Qwen2.5-7B"),
    ("Qwen2.5-Math-72B", "Qwen2.5-72B"),
    ("QwQ-32B", "Qwen2.5-32B"),
    ("QwQ-32B-Preview", "Qwen2.5-32B"),
    ("QVQ-72B", "Qwen2-VL-72B"),
    ("Qwen3-4B-Instruct-2507", "Qwen3-4B"),
    ("Qwen3-235B-A22B-Instruct-2507", "Qwen3-235B-A22B"),
    ("Qwen3-30B-A3B-Thinking-2507", "Qwen3-30B-A3B"),
    ("Qwen3-Coder-30B-A3B", "Qwen3-30B-A3B"),
    ("Qwen3-Coder-Next", "Qwen3-Next-80B-A3B"),
    ("Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next-80B-A3B"),
    ("Qwen3-Embedding-4B", "Qwen3-Embedding-4B"),
    ("Qwen3.5-27B", "Qwen3.5-27B (text)"),
    ("Qwen3.5-397B-A17B", "Qwen3.5-397B-A17B (text)"),
    ("DeepSeek-LLM-7B-Chat", "DeepSeek-LLM-7B"),
    ("DeepSeek-Coder-33B", "DeepSeek-Coder-33B"),
    ("DeepSeek-Coder-V2", "DeepSeek-V2"),
    ("DeepSeek-Coder-V2-Lite", "DeepSeek-V2-Lite"),
    ("DeepSeek-V2.5", "DeepSeek-V2"),
    ("DeepSeek-V3-Base", "DeepSeek-V3"),
    ("DeepSeek-V3.1", "DeepSeek-V3"),
    ("DeepSeek-V3.2-Exp", "DeepSeek-V3.2"),
    ("DeepSeek-R1-Zero", "DeepSeek-R1"),
    ("DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-1.5B"),
    ("DeepSeek-R1-Distill-Qwen-7B", "Qwen2.5-7B"),
    ("DeepSeek-R1-Distill-Qwen-14B", "Qwen2.5-14B"),
    ("DeepSeek-R1-Distill-Qwen-32B", "Qwen2.5-32B"),
    ("DeepSeek-R1-Distill-Llama-8B", "Llama-3.1-8B"),
    ("DeepSeek-R1-Distill-Llama-70B", "Llama-3.3-70B-Instruct"),
    ("DeepSeek-Prover-V2-671B", "DeepSeek-V3"),
    ("DeepSeek-Math-7B", "DeepSeek-LLM-7B"),
    ("Kimi-K2-Instruct", "Kimi-K2"),
    ("Kimi-K2-Thinking", "Kimi-K2-Thinking"),
    ("Kimi-Dev-72B", "Qwen2.5-72B"),
    ("GLM-4-9B-Chat", "GLM-4-9B"),
    ("GLM-4-32B-0414", "GLM-4-32B"),
    ("GLM-Z1-32B", "GLM-4-32B"),
    ("GLM-4.6", "GLM-4.5"),
    ("GLM-4.7", "GLM-4.5"),
    ("ChatGLM2-6B", "ChatGLM3-6B"),
    ("ChatGLM3-6B", "ChatGLM3-6B"),
    ("Yi-34B-Chat", "Yi-34B"),
    ("Yi-1.5-6B", "Yi-6B"),
    ("Yi-1.5-9B", "Yi-9B"),
    ("Yi-1.5-34B", "Yi-34B"),
    ("Yi-34B-200K", "Yi-34B"),
    ("Yi-Coder-9B", "Yi-9B"),
    ("InternLM2.5-7B", "InternLM2-7B"),
    ("InternLM2.5-20B", "InternLM2-20B"),
    ("InternLM3-8B", "InternLM3-8B"),
    ("Baichuan-13B", "Baichuan-13B"),
    ("Baichuan2-13B-Chat", "Baichuan2-13B"),
    ("MiniCPM-2B", "MiniCPM-2B"),
    ("MiniCPM3-4B", "MiniCPM3-4B"),
    ("Falcon-7B-Instruct", "Falcon-7B"),
    ("Falcon-180B-Chat", "Falcon-180B"),
    ("Falcon3-10B-Instruct", "Falcon3-10B"),
    ("MPT-7B-Instruct", "MPT-7B"),
    ("MPT-30B-Chat", "MPT-30B"),
    ("Command-R", "Command-R 35B"),
    ("Command-R-Plus", "Command-R+ 104B"),
    ("Command-R-08-2024", "Command-R-08-2024 32B"),
    ("Command-A", "Command-A"),
    ("Command R7B", "Command-R7B"),
    ("Aya-101", "mT5-XXL"),
    ("Aya-23-35B", "Command-R 35B"),
    ("Aya-Expanse-8B", "Aya-23-8B"),
    ("Solar-10.7B-Instruct", "Solar-10.7B"),
    ("SOLAR-0-70B", "Llama-2-70B"),
    ("Jamba-1.5-Mini", "Jamba-v0.1"),
    ("Jamba-1.5-Large", "Jamba-1.5-Large"),
    ("Jamba-v0.1", "Jamba-v0.1"),
    ("Jamba-Instruct", "Jamba-v0.1"),
    ("DBRX-Instruct", "DBRX"),
    ("gpt-oss-120b", "gpt-oss-120b"),
    ("gpt-oss-20b", "gpt-oss-20b"),
    ("Granite-3.3-8B", "Granite-3.1-8B"),
    ("Granite-3.1-2B", "Granite-3.0-2B"),
    ("Granite-8B-Code", "Granite-8B-Code"),
    ("OLMo-2-7B-Instruct", "OLMo-2-7B"),
    ("OLMo-3-7B", "OLMo-3-7B"),
    ("OLMo-3-32B", "OLMo-3-32B"),
    ("OLMo-1.7-7B", "OLMo-7B"),
    ("OLMoE-1B-7B-Instruct", "OLMoE-1B-7B"),
    ("StableLM-Zephyr-3B", "StableLM-3B-4E1T"),
    ("StableLM-2-Zephyr-1.6B", "StableLM-2-1.6B"),
    ("StableCode-3B", "StableLM-3B-4E1T"),
    ("StarChat-beta", "StarCoder-15B"),
    ("StarCoderBase-15B", "StarCoder-15B"),
    ("StarCoder2-15b-instruct", "StarCoder2-15b"),
    ("SmolLM2-1.7B-Instruct", "SmolLM2-1.7B"),
    ("SmolLM3-3B", "SmolLM3-3B"),
    ("TinyLlama-1.1B-Chat", "TinyLlama-1.1B"),
    ("Hunyuan-A13B", "Hunyuan-A13B"),
    ("ERNIE-4.5-21B-A3B", "ERNIE-4.5-21B-A3B"),
    ("Seed-OSS-36B", "Seed-OSS-36B"),
    ("dots.llm1", "dots.llm1"),
    ("MiMo-V2-Flash", "MiMo-V2-Flash"),
    ("MiniMax-M1", "MiniMax-Text-01"),
    ("MiniMax-M2", "MiniMax-M2"),
    ("MiniMax-M2.1", "MiniMax-M2"),
    ("EXAONE-3.5-32B", "EXAONE-3.5-32B"),
    ("EXAONE-3.5-2.4B", "EXAONE-3.5-2.4B"),
    ("EXAONE-Deep-32B", "EXAONE-3.5-32B"),
    ("LFM2-1.2B", "LFM2.5-1.2B"),
    ("Hermes-4-70B", "Llama-3.1-70B"),
    ("Hermes-4-405B", "Llama-3.1-405B"),
    ("INTELLECT-1", "INTELLECT-1"),
    ("INTELLECT-2", "Qwen2.5-32B"),
    ("Sailor-7B", "Qwen1.5-7B"),
    ("Mamba-2.8B", "Mamba-2.8B"),
    ("GPT-JT-6B", "GPT-J-6B"),
    ("UL2", "UL2 20B"),
    ("Flan-UL2", "UL2 20B"),
    ("Flan-T5-XL", "Flan-T5-XL (T5 v1.1 3B)"),
    ("Flan-T5-XXL", "Flan-T5-XXL (T5 v1.1 11B)"),
    ("OPT-66B", "OPT-66b"),
    ("OPT-IML-30B", "OPT-30b"),
    ("GPT-NeoX-20B", "GPT-NeoX-20B"),
    ("Pythia-12B", "Pythia-12b"),
    ("h2ogpt-12b", "Pythia-12b"),
    ("Cerebras-GPT-13B", "Cerebras-GPT-13B"),
    ("Cerebras-GPT-6.7B", "Cerebras-GPT-6.7B"),
    ("LLaVA-1.5-7B", "LLaVA-1.5-7B"),
    ("BGE-large-en", "BERT large (uncased)"),
    ("e5-large-v2", "BERT large (uncased)"),
    ("multilingual-e5-large", "XLM-RoBERTa large"),
    ("mxbai-embed-large", "BERT large (uncased)"),
    ("all-mpnet-base-v2", "MPNet base"),
    ("bge-m3", "BGE-M3"),
    ("whisper-large-v2", "Whisper large-v2"),
]
"""A name, and the model of the catalog whose architecture it has."""
UNKNOWN = ("Gemma-4-E3B", "Qwen9-7B", "Nobody-13B", "Mistral-Medium-9", "T0_9B", "Grok-11", "Tulu-2-71B", "bloomz-8b")
"""Names that nobody knows; some end in a size or belong to a series that has none of that size."""


@pytest.mark.parametrize(("name", "network"), NAMES)
def test_names_that_people_use_resolve(name: str, network: str) -> None:
    assert FACTS.model(name, offline=True).name == network


def test_there_are_enough_of_them() -> None:
    assert len({name for name, _ in NAMES}) >= 200


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_nobody_knows_is_no_generic_model(name: str) -> None:
    with pytest.raises(UnknownNameError):
        FACTS.model(name, offline=True)


def test_a_tuned_model_says_whose_architecture_it_has() -> None:
    note = "Tulu-3-70B: the architecture of Llama-3.1-70B, which it was tuned from"
    assert note in FACTS.model("Tulu-3-70B", offline=True).notes
    assert not any("tuned from" in note for note in FACTS.model("Llama-3.1-70B", offline=True).notes)


def test_every_series_leads_to_models_of_the_catalog() -> None:
    series = json.loads(resources.files("flopwise").joinpath("data/model_series.json").read_text(encoding="utf-8"))
    names = set(FACTS.models.names)
    folded = {name.lower().replace(" ", "-") for name in names}
    for pattern, row in series.items():
        base = row if isinstance(row, str) else row["of"]
        assert isinstance(row, str) or set(row) == {"of", "context"}
        if "*" not in pattern:
            assert "*" not in base
            assert base in names, pattern
        else:
            before, _, after = base.lower().partition("*")
            assert any(name.startswith(before) and name.endswith(after) for name in folded), pattern


@pytest.mark.parametrize(
    ("name", "context"),
    [  # cards: 256K of Qwen3-2507 and Kimi-K2-0905; configurations: 1,010,000 and 200,000; YaRN, 128k of 4k
        ("Qwen3-4B", 40_960),
        ("Qwen3-4B-Instruct-2507", 262_144),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", 262_144),
        ("qwen3:30b-a3b-instruct-2507", 262_144),
        ("Qwen3-Coder-30B-A3B-Instruct", 262_144),
        ("Kimi-K2-Instruct", 131_072),
        ("moonshotai/Kimi-K2-Instruct-0905", 262_144),
        ("Kimi-K2-Thinking", 262_144),
        ("Qwen2.5-14B-Instruct-1M", 1_010_000),
        ("Yi-34B-200K", 200_000),
        ("NousResearch/Yarn-Llama-2-13b-128k", 131_072),
        ("yarn-llama2:7b-64k", 65_536),
    ],
)
def test_a_model_tuned_to_a_context_of_its_own_has_that(name: str, context: int) -> None:
    assert FACTS.model(name, offline=True).max_position == context


def test_yarn_mistral_has_no_window_of_4096() -> None:
    """Its configuration has one of 131,072, as many as its context."""
    window = [item.window for item in FACTS.model("Yarn-Mistral-7b-128k").stacks[0].items if isinstance(item, Attend)]
    assert window == [None] * len(window) != []


@pytest.mark.parametrize(
    ("given", "note"),
    [("llama-70b", "llama-70b is read as Llama-2-70B"), ("Llama-2-70B", None), ("Llama-3.1-8B", None)],
)
def test_a_name_that_leaves_the_version_open_says_what_was_taken(given: str, note: str | None) -> None:
    assert [text for text in load_model(given).notes if "is read as" in text] == ([note] if note else [])
    assert load_model(given).stacks == load_model(load_model(given).name).stacks


HUB_IDS = [
    ("sentence-transformers/sentence-t5-xxl", "GTR-T5-XXL"),
    ("hkunlp/instructor-xl", "GTR-T5-XL"),
    ("LLM360/K2-Chat", "K2-65B"),
    ("HuggingFaceH4/starchat2-15b-v0.1", "StarCoder2-15b"),
    ("mistralai/Pixtral-Large-Instruct-2411", "Pixtral-Large-124B"),
    ("google/gemma-4-E2B-it", "Gemma-4-E2B"),
    ("HuggingFaceH4/zephyr-7b-beta", "Mistral-7B-v0.1"),
    ("NousResearch/Hermes-4-70B", "Llama-3.1-70B"),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen2.5-32B"),
    ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-30B-A3B"),
    ("bartowski/google_gemma-3-27b-it-GGUF", "Gemma-3-27B (text tower)"),
    ("unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "Qwen3-30B-A3B"),
    ("cpatonn/Qwen3-Coder-30B-A3B-Instruct-AWQ-4bit", "Qwen3-30B-A3B"),
    ("mistralai/Mixtral-8x22B-Instruct-v0.1", "Mixtral-8x22B"),
    ("swiss-ai/Apertus-8B-Instruct-2509", "Apertus-8B"),
    ("ibm-granite/granite-4.0-h-small", "Granite-4.0-H-Small"),
    ("tiiuae/Falcon-H1-7B-Instruct", "Falcon-H1-7B"),
    ("inclusionAI/Ring-mini-2.0", "Ling-mini-2.0"),
    ("google/gemma-4-12B-it", "Gemma-4-12B"),
    ("sentence-transformers/all-MiniLM-L12-v2", "BGE-small-en v1.5"),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "Llama-3.3-70B-Instruct"),
]
"""Ids of the hub of other organisations than that of the architecture, or with what tuning and formats add."""


@pytest.mark.parametrize(("given", "network"), HUB_IDS)
def test_ids_of_the_hub_lead_to_their_architecture(given: str, network: str) -> None:
    assert FACTS.model(given, offline=True).name == network


def test_a_publisher_that_nobody_knows_is_asked_for_on_the_hub() -> None:
    for given in ("someone/zephyr-7b-beta", "someone/Mixtral-8x22B-Instruct-v0.1", "someone/Llama-3.1-8B"):
        with pytest.raises(SpecError, match="offline"):
            FACTS.model(given, offline=True)
    assert FACTS.model("someone/Llama-3.1-8B-Instruct-GGUF", offline=True).name == "Llama-3.1-8B"


TAGS = [
    ("llama3", "Llama-3-8B"), ("llama3.3", "Llama-3.3-70B-Instruct"), ("mistral", "Mistral-7B-v0.3"),
    ("gemma3", "Gemma-3-4B (text tower)"), ("qwen3", "Qwen3-8B"), ("qwen3:30b", "Qwen3-30B-A3B"),
    ("qwen3-coder", "Qwen3-30B-A3B"), ("gpt-oss", "gpt-oss-20b"), ("deepseek-r1:32b", "Qwen2.5-32B"),
    ("granite4:small-h", "Granite-4.0-H-Small"), ("phi3:14b", "Phi-3-medium-4k"),
    ("llama3.2-vision", "Llama-3.2-11B-Vision"), ("mistral-large:123b", "Mistral-Large-2 123B"),
    ("mistral-small:22b-instruct-2409-q4_K_M", "Codestral-22B"), ("magistral:24b", "Mistral-Small-24B-2501"),
    ("hermes3:405b", "Llama-3.1-405B"), ("granite3-moe:3b", "Granite-3.0-3B-A800M"), ("r1-1776:671b", "DeepSeek-R1"),
    ("gpt-oss:120b-cloud", "gpt-oss-120b"), ("mxbai-embed-large:335m", "BERT large (uncased)"),
]  # fmt: skip
"""Tags of Ollama's library; one without a size is its default."""


@pytest.mark.parametrize(("tag", "network"), TAGS)
def test_tags_of_ollama_are_known(tag: str, network: str) -> None:
    found = FACTS.model(tag, offline=True)
    assert found.name == network
    size = any(c.isdigit() for c in tag.partition(":")[2])
    assert size or tag.startswith("granite") or any(f"{tag} is read as {network}" in note for note in found.notes)


@pytest.mark.parametrize("tag", ["mistral-large:99b", "qwq:7b", "mixtral:8x9b", "gpt-4o:8b", "mxbai-embed-large:33m"])
def test_a_tag_of_another_size_than_the_default_is_not_it(tag: str) -> None:
    with pytest.raises(UnknownNameError):
        FACTS.model(tag, offline=True)


OFFERED = [
    ("us.meta.llama3-3-70b-instruct-v1:0", "Llama-3.3-70B-Instruct"), ("deepseek.r1-v1:0", "DeepSeek-R1"),
    ("mistral.mistral-7b-instruct-v0:2", "Mistral-7B-v0.2"), ("openai.gpt-oss-120b-1:0", "gpt-oss-120b"),
    ("mistral.mixtral-8x7b-instruct-v0:1", "Mixtral-8x7B"), ("ai21.jamba-1-5-large-v1:0", "Jamba-1.5-Large"),
    ("qwen.qwen3-coder-480b-a35b-v1:0", "Qwen3-Coder-480B-A35B"), ("z-ai/glm-4.5-air", "GLM-4.5-Air"),
    ("google/gemma-3-27b-it:free", "Gemma-3-27B (text tower)"), ("meta/llama-3.1-405b-instruct", "Llama-3.1-405B"),
    ("DeepSeek V3.1 Terminus (Reasoning)", "DeepSeek-V3"), ("llama2-70b-99.9", "Llama-2-70B"),
    ("meituan/longcat-flash-chat", "LongCat-Flash-560B"), ("deepseek/deepseek-chat-v3-0324", "DeepSeek-V3"),
    ("nvidia/llama-3.3-nemotron-super-49b-v1.5", "Llama-3.3-Nemotron-Super-49B"),
]  # fmt: skip
"""As Bedrock, OpenRouter, NVIDIA's catalog, Artificial Analysis and MLPerf write names."""


@pytest.mark.parametrize(("given", "network"), OFFERED)
def test_names_of_catalogs_and_leaderboards_are_known(given: str, network: str) -> None:
    assert FACTS.model(given, offline=True).name == network


@pytest.mark.parametrize("given", ["openai.gpt-4o-v1:0", "anthropic.claude-3-opus-v1:0", "amazon.nova-pro-v1:0"])
def test_models_that_only_their_owner_runs_are_refused(given: str) -> None:
    with pytest.raises(SpecError):
        FACTS.model(given, offline=True)


def test_publishers_are_listed_once_in_order() -> None:
    text = resources.files("flopwise").joinpath("data/model_publishers.json").read_text(encoding="utf-8")
    publishers: list[str] = json.loads(text)
    assert publishers == sorted(set(publishers), key=str.lower)
    assert all("/" not in name and name.strip() == name for name in publishers)


@pytest.mark.parametrize(
    ("given", "network", "says"),
    [
        ("smollm3", "SmolLM3-3B", True),
        ("Nemotron 3 Super", "Nemotron-3-Super-120B-A12B", True),
        ("ERNIE-4.5-300B", "ERNIE-4.5-300B-A47B", True),
        ("qwen3.5-397b", "Qwen3.5-397B-A17B (text)", True),
        ("Qwen2_5-7B", "Qwen2.5-7B", False),
        ("InternVL3_5-8B", "InternVL3.5-8B", False),
    ],
)
def test_a_name_that_leaves_out_a_size_means_the_only_model_of_that_name(
    given: str,
    network: str,
    says: bool,
) -> None:
    found = FACTS.model(given, offline=True)
    assert found.name == network
    assert any("is read as" in note for note in found.notes) is says


@pytest.mark.parametrize("given", ["Llama", "Pythia", "Granite-4.0-H", "Cerebras-GPT", "Hermes-9"])
def test_a_name_without_a_size_of_which_there_are_several_is_not_guessed(given: str) -> None:
    with pytest.raises(UnknownNameError):
        FACTS.model(given, offline=True)


PUBLISHED = [
    ("NLLB-MoE-54B", 54.5e9, 0.001), ("Switch-C-2048", 1.571e12, 0.001), ("Switch-base-8", 619e6, 0.002),
    ("MADLAD-400-3B-MT", 2.94e9, 0.001), ("M2M100-12B", 11.8e9, 0.001), ("PowerLM-3B", 3.51e9, 0.001),
    ("Orion-14B", 14.5e9, 0.001), ("SqueezeBERT", 51.1e6, 0.001), ("FNet-base", 83e6, 0.003),
    ("Minerva-7B", 7.4e9, 0.001), ("Ettin-decoder-150M", 150e6, 0.003), ("Sarvam-105B", 105e9, 0.01),
    ("Snowflake-Arctic-480B", 480e9, 0.004), ("Grok-2", 270e9, 0.003), ("LongCat-Flash-560B", 560e9, 0.002),
    ("Llama-3.3-Nemotron-Super-49B", 49.867e9, 0.0001), ("Llama-3.1-Nemotron-Ultra-253B", 253.4e9, 0.0001),
    ("Hunyuan-Large-389B", 389e9, 0.001), ("A.X-K1", 519e9, 0.001), ("Mistral-Small-4-119B", 119e9, 0.001),
    ("Phi-3-small-8k", 7.39e9, 0.001), ("LFM2-24B-A2B", 23.8e9, 0.002), ("Hy3-preview", 295e9, 0.001),
    ("InternVL3.5-30B-A3B", 30.8e9, 0.002), ("InternVL2.5-26B", 25.5e9, 0.001), ("LLaVA-OneVision-7B", 8.03e9, 0.001),
]  # fmt: skip
"""Parameters that the models' papers and cards state, and how finely they round them."""


ACTIVE = [
    ("LongCat-Flash-560B", 27e9, 0.04), ("Hunyuan-Large-389B", 52e9, 0.02), ("Step3", 38e9, 0.03),
    ("Grok-2", 115e9, 0.005), ("Snowflake-Arctic-480B", 17e9, 0.03), ("A.X-K1", 33e9, 0.01),
    ("Hy3-preview", 21e9, 0.02),
]  # fmt: skip
"""The parameters that a token uses, as their publishers state them."""


@pytest.mark.parametrize(("name", "published", "near"), ACTIVE)
def test_active_sizes_are_those_that_their_publishers_state(name: str, published: float, near: float) -> None:
    assert active_parameters(load_model(name)) == pytest.approx(published, rel=near)


@pytest.mark.parametrize(("name", "published", "near"), PUBLISHED)
def test_sizes_are_those_that_their_publishers_state(name: str, published: float, near: float) -> None:
    assert parameters(load_model(name)) == pytest.approx(published, rel=near)
