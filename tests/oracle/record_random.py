"""Record what transformers and PyTorch count of random small configurations of every text and image type that is known.

Run: `python tests/oracle/record_random.py` with torch and transformers installed; writes `random.json` beside it:
configurations with odd sizes, biases on and off, tied and untied, grouped heads, shared experts, heads of tasks; of
each the parameters, and the forward operations of one eager pass where it runs on the meta device.
"""

from __future__ import annotations

import inspect
import json
import logging
import random
import sys
import warnings
from pathlib import Path
from typing import Any

from flopwise.facts.models.families import FAMILIES

TARGET = Path(__file__).with_name("random.json")
BATCH, SEQ = 2, 40
SEED, ROWS_OF_A_TYPE, TRIES = 20261122, 4, 24
TASKS = {
    "causal": ("CausalLM", "SequenceClassification", "TokenClassification", ""),
    "masked": ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", ""),
    "text_to_text": ("Seq2SeqLM",),
    "image": ("ImageClassification", ""),
    "audio": ("AudioClassification", ""),
    "speech": ("AudioClassification", "CTC", ""),
}
SOUND: dict[str, Any] = {"conv_dim": [16, 24, 24], "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2]}
SOUND_SIZES: dict[str, tuple[Any, ...]] = {
    "num_conv_pos_embeddings": (8, 16),
    "num_conv_pos_embedding_groups": (2, 4),
    "feat_extract_norm": ("group", "layer"),
    "do_stable_layer_norm": (True, False),
    "mask_time_prob": (0.0, 0.05),
    "classifier_proj_size": (12, 16),
}
"""Sizes of what reads sound."""
IMAGE_SIZES: dict[str, tuple[Any, ...]] = {
    "image_size": (32, 48),
    "patch_size": (8, 16),
    "num_channels": (1, 3),
    "num_register_tokens": (1, 4),
    "mlp_ratio": (2, 4),
    "max_length": (64, 80),
    "num_mel_bins": (24, 32),
}
"""Sizes of what reads images and spectrograms, and switches that change their tensors."""
IMAGE_SWITCHES = (
    "use_gated_mlp",
    "use_mask_token",
    "use_relative_position_bias",
    "use_absolute_position_embeddings",
    "use_mean_pooling",
)
SIZES: dict[str, tuple[Any, ...]] = {
    "vocab_size": (97, 131, 331),
    "intermediate_size": (56, 80, 104),
    "num_hidden_layers": (2, 3, 5),
    "max_position_embeddings": (64, 96),
    "head_dim": (8, 10, 12),
    "num_experts_per_tok": (1, 2),
    "moe_intermediate_size": (24, 40),
    "moe_topk": (1, 2),
    "moe_k": (1, 2),
    "shared_intermediate_size": (40, 56),
    "shared_expert_intermediate_size": (40, 56),
    "n_shared_experts": (1, 2),
    "num_shared_experts": (1, 2),
    "moe_num_shared_experts": (1, 2),
    "first_k_dense_replace": (0, 1),
    "num_dense_layers": (0, 1),
    "sliding_window": (8, 16),
    "q_lora_rank": (20, 28),
    "kv_lora_rank": (16, 24),
    "qk_nope_head_dim": (8, 12),
    "qk_rope_head_dim": (4, 8),
    "v_head_dim": (8, 10),
    "encoder_layers": (2, 3),
    "decoder_layers": (2, 4),
    "encoder_attention_heads": (4, 6),
    "decoder_attention_heads": (4, 6),
    "encoder_ffn_dim": (72, 56),
    "decoder_ffn_dim": (88, 56),
    "ffn_dim": (72, 88),
    "dff": (72, 88),
    "d_ff": (72, 88),
    "d_kv": (8, 10),
    "embedding_size": (32, 48),
    "type_vocab_size": (2, 3),
    "expert_hidden_size": (24, 40),
    "n_inner": (None, 72),
    "num_labels": (2, 3, 5),
    "o_groups": (2, 4),
    "mamba_d_state": (8, 16),
    "mamba_n_groups": (1, 2),
    "hidden_size_per_layer_input": (6, 10),
    "pronunciation_vocab_size": (30, 40),
    "pronunciation_embed_dim": (10, 14),
    "shape_vocab_size": (50, 70),
    "shape_embed_dim": (6, 12),
    "src_vocab_size": (90, 110),
    "tgt_vocab_size": (97, 131),
    "num_decoder_layers": (2, 3, 6),
    "encoder_sparse_step": (1, 2),
    "decoder_sparse_step": (1, 2),
    "num_sparse_encoder_layers": (0, 1, 2),
    "num_sparse_decoder_layers": (1, 2),
    "linear_key_head_dim": (8, 12),
    "linear_value_head_dim": (10, 16),
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ALWAYS = {"n_group": 1, "topk_group": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ALWAYS_TIED = {
    "bart",
    "blenderbot",
    "blenderbot-small",
    "m2m_100",
    "marian",
    "mbart",
    "mvp",
    "pegasus",
    "plbart",
    "nllb-moe",
    "switch_transformers",
}
"""Their untied forms are refused."""


LEFT_OUT = {
    "whisper": "its decoder alone is no model of ours",
    "nemotron_h": "needs a list of its layers",
    "clip": "sizes in nested configurations",
    "siglip": "sizes in nested configurations",
}
IMAGES = ("dinov3_vit",)
"""Types of images that have no class of classifiers."""


def keys_of(cls: Any) -> dict[str, Any]:
    """The keys of a configuration class with their defaults."""
    try:
        made = cls().to_dict()
    except Exception:  # noqa: BLE001 - a class that has no default configuration
        made = {}
    names = set(inspect.signature(cls.__init__).parameters) | set(getattr(cls, "__dataclass_fields__", {}))
    known = dict.fromkeys(names - {"self", "kwargs"}) | made
    return {key: known[key] for key in sorted(known)}


def dependent_sizes(model_type: str, keys: dict[str, Any], heads: int, wanted: dict[str, Any]) -> dict[str, Any]:
    """Sizes that must go with others that were drawn."""
    width = wanted["hidden_size"]
    own: dict[str, dict[str, Any]] = {
        "mamba2": {"num_heads": heads, "head_dim": 2 * width // heads, "n_groups": 2, "state_size": 16},
        "gpt_neo": {"num_hidden_layers": 2, "attention_types": [[["global", "local"], 1]]},
        "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
        "squeezebert": {"embedding_size": width},
        "diffllama": {"num_key_value_heads": 2},
        "helium": {"head_dim": width // heads},  # their other matrices are as wide as the model
        "zamba": {"head_dim": width // heads * 2},
    }
    sizes = own.get(model_type, {})
    if "mamba_n_heads" in keys or "n_mamba_heads" in keys:
        sizes |= {"mamba_n_heads": heads, "n_mamba_heads": heads // 2}
    if "vocab_size_per_layer_input" in keys:
        sizes["vocab_size_per_layer_input"] = wanted["vocab_size"]
    return sizes


def drawn(model_type: str, cls: Any, draw: random.Random) -> dict[str, Any]:
    """A random configuration of a type."""
    keys, same = keys_of(cls), getattr(cls, "attribute_map", {})
    heads = draw.choice((4, 6))
    wanted = {key: draw.choice(values) for key, values in SIZES.items()} | ALWAYS
    wanted |= {"num_attention_heads": heads, "hidden_size": heads * draw.choice((8, 12))}
    wanted |= {"num_key_value_heads": draw.choice((heads, heads // 2)), "attention_heads": heads}
    wanted |= dict.fromkeys(EXPERTS, draw.choice((4, 5, 6)))
    if "kv_lora_rank" in keys:
        wanted["num_key_value_heads"] = heads
        wanted.pop("head_dim")
    wanted |= dependent_sizes(model_type, keys, heads, wanted)
    sees = ("patch_size" in keys and "vocab_size" not in keys) or model_type in ("beit", "data2vec-vision")
    if sees:
        wanted |= {key: draw.choice(values) for key, values in IMAGE_SIZES.items()}
        wanted |= {key: draw.random() < 0.5 for key in IMAGE_SWITCHES}
    hears = "conv_dim" in keys and "conv_stride" in keys
    if hears:
        wanted |= SOUND | {key: draw.choice(values) for key, values in SOUND_SIZES.items()}
    config = {"num_labels": wanted["num_labels"]} if sees or hears else {}
    for key, value in wanted.items():
        name = same.get(key, key)
        if name in keys or key in keys:
            config[name if name in keys else key] = value
    for key, value in keys.items():
        if isinstance(value, bool) and key.endswith("bias") and draw.random() < 0.5:
            config[key] = not value
    if "tie_word_embeddings" in keys and model_type not in ALWAYS_TIED:
        config["tie_word_embeddings"] = draw.random() < 0.5
    return config


def built(model_type: str, config: dict[str, Any], task: str) -> Any:
    """The model on the meta device."""
    import torch
    import transformers as t

    name = f"AutoModelFor{task}" if task else "AutoModel"
    settings = t.AutoConfig.for_model(model_type, **config)
    auto = getattr(t, name)
    options: dict[str, Any] = {"attn_implementation": "eager"}
    if any(key in config for key in EXPERTS):
        options["experts_implementation"] = "batched_mm"
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return auto.from_config(settings, **options).eval()
        except (TypeError, ValueError):
            return auto.from_config(settings).eval()


def operations(model: Any, kind: str) -> int | None:
    """FLOPs of a forward pass of BATCH sequences of SEQ tokens, or None where it does not run without memory."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    ids = torch.zeros(BATCH, SEQ, dtype=torch.long, device="meta")
    inputs: dict[str, Any] = {"input_ids": ids}
    if kind == "image":
        side = model.config.image_size
        inputs = {"pixel_values": torch.zeros(BATCH, model.config.num_channels, side, side, device="meta")}
    if kind == "speech":
        return None  # frames at both ends of a short sound differ: a test by hand counts them
    if kind == "audio":
        inputs = {"input_values": torch.zeros(BATCH, model.config.max_length, model.config.num_mel_bins, device="meta")}
    if kind == "text_to_text":
        inputs["decoder_input_ids"] = ids
    for mask in (torch.zeros(BATCH, 1, SEQ, SEQ, device="meta"), None):
        extra = {} if mask is None or kind in ("text_to_text", "image", "audio") else {"attention_mask": mask}
        try:
            with warnings.catch_warnings(), FlopCounterMode(display=False) as counter:
                warnings.simplefilter("ignore")
                model(**inputs, **extra)
            return int(counter.get_total_flops())
        except Exception:  # noqa: BLE001, S112 - reads values of its tensors, or takes no such mask
            continue
    return None


def known_types() -> dict[str, str]:
    """By model type of what both know: causal, masked, text to text, of images or of sounds."""
    from transformers.models.auto import modeling_auto as m

    kinds = {
        "causal": m.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "text_to_text": m.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "masked": m.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "image": [*IMAGES, *m.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES],
        "audio": ["audio-spectrogram-transformer"],
        "speech": m.MODEL_FOR_CTC_MAPPING_NAMES,
    }
    known = {name: kind for kind, names in kinds.items() for name in names if name in FAMILIES}
    return {name: kind for name, kind in known.items() if name not in LEFT_OUT}


def main() -> None:
    """Draw, count and write."""
    import torch
    import transformers as t
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    t.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    rows: list[dict[str, Any]] = []
    types = known_types()
    for model_type, kind in sorted(types.items()):
        draw, mine = random.Random(f"{SEED} {model_type}"), 0  # noqa: S311 - a seeded draw
        for _ in range(TRIES):
            if mine == ROWS_OF_A_TYPE:
                break
            config, task = drawn(model_type, CONFIG_MAPPING[model_type], draw), draw.choice(TASKS[kind])
            try:
                model = built(model_type, config, task)
            except Exception:  # noqa: BLE001, S112 - a draw that the class refuses, or a task that it has not
                continue
            if len(list(model.parameters())) == 0 or sum(p.numel() for p in model.parameters()) > 10**7:
                continue  # sizes of its own that no key here reaches
            given = {"model_type": model_type, **config, "architectures": [type(model).__name__]}
            count = sum(p.numel() for p in model.parameters())
            rows.append({"config": given, "parameters": count, "forward": operations(model, kind)})
            mine += 1
        print(f"{model_type}: {mine}", file=sys.stderr)  # noqa: T201 - a script that reports
    head = {"torch": torch.__version__, "transformers": t.__version__, "batch": BATCH, "seq": SEQ}
    lines = ",\n".join(json.dumps(row) for row in rows)
    TARGET.write_text(json.dumps(head)[:-1] + f', "rows": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
