"""Configurations from anywhere: the good ones in their dialects, the bad ones refused with one clear sentence."""

from __future__ import annotations

import contextlib
import json
import runpy
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.architecture import Attend, Pointwise
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.facts.models.families import _BY_FILE, FAMILIES, family

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip

ORACLE = Path(__file__).resolve().parents[1] / "oracle"
CONFIGURATIONS: dict[str, dict[str, Any]] = runpy.run_path(str(ORACLE / "configurations.py"))["CONFIGURATIONS"]


def test_every_registered_family_has_its_function_and_every_file_is_registered() -> None:
    import flopwise.facts.models.families as folder

    for model_type in FAMILIES:
        assert callable(family(model_type)), model_type
    files = {p.stem for p in Path(folder.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(_BY_FILE)


def test_a_file_a_folder_and_an_object_make_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder == by_file == model_from_config(LLAMA, name="my-model")


def test_a_byte_order_mark_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert load_model(str(path)).model_type == "llama"


def test_other_spellings_of_keys() -> None:
    gpt = {"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}
    same = {
        "model_type": "gpt2", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 32,
    }  # fmt: skip
    assert model_from_config(gpt, name="x") == model_from_config(same, name="x")


def test_nested_configurations_may_leave_out_what_their_class_has() -> None:
    # the hub's LLaVA-1.5 names little more than the vocabulary of its text model
    given = {
        "model_type": "llava",
        "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096},
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "image_size": 336,
            "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        },
    }  # fmt: skip
    from flopwise.ops.tensors import parameters

    model = model_from_config(given, name="llava-1.5-7b")
    assert [s.name for s in model.stacks] == ["decoder", "vision", "projector"]
    assert parameters(model) == 7_063_427_072  # the checkpoint's own total


def test_older_flat_multimodal_files() -> None:
    nested = {
        "model_type": "qwen2_vl",
        "text_config": {k: v for k, v in LLAMA.items() if k != "model_type"},
        "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2},
        "tie_word_embeddings": False,
    }
    flat = {**nested, **nested["text_config"]}  # type: ignore[dict-item]
    del flat["text_config"]
    assert model_from_config(flat, name="x") == model_from_config(nested, name="x")


def test_an_unknown_type_names_what_to_do_and_can_be_assumed() -> None:
    strange = LLAMA | {"model_type": "lama_next"}
    with pytest.raises(SpecError, match=r"'lama_next' is not known.*--assume-family llama"):
        model_from_config(strange, name="x")
    assumed = model_from_config(strange, name="x", assume_family="llama")
    assert assumed.stacks == model_from_config(LLAMA, name="x").stacks
    assert assumed.notes == ("model_type 'lama_next' read as 'llama' (assume_family)",)
    with pytest.raises(SpecError, match="'lamma' is not known; nearest: llama"):
        model_from_config(strange, name="x", assume_family="lamma")


def windows(config: dict[str, Any]) -> list[int | None]:
    stack = model_from_config(config, name="x").stacks[0]
    attends = [next(i for i in layer.items if isinstance(i, Attend)) for layer in stack.kinds]
    return [attends[k].window for k in stack.order]


def test_windows_by_layer() -> None:
    base = LLAMA | {"num_hidden_layers": 6, "head_dim": 16, "sliding_window": 8}
    assert windows(base | {"model_type": "mistral"}) == [8] * 6
    assert windows(base | {"model_type": "mistral", "sliding_window": None}) == [None] * 6
    assert windows(base | {"model_type": "gemma2"}) == [8, None] * 3
    assert windows(base | {"model_type": "gemma3_text"}) == [8] * 5 + [None]
    assert windows(base | {"model_type": "gemma3_text", "sliding_window_pattern": 3}) == [8, 8, None] * 2
    assert windows(base | {"model_type": "qwen2", "use_sliding_window": False}) == [None] * 6
    qwen = base | {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 4}
    assert windows(qwen) == [None] * 4 + [8] * 2
    listed = ["full_attention", "sliding_attention"] * 3
    assert windows(base | {"model_type": "qwen3", "use_sliding_window": True, "layer_types": listed}) == [None, 8] * 3


def test_layers_without_positions_have_no_rope() -> None:
    stack = model_from_config(LLAMA | {"model_type": "smollm3", "num_hidden_layers": 8}, name="x").stacks[0]
    rope = [any(isinstance(i, Pointwise) and i.kind == "rope" for i in k.items) for k in stack.kinds]
    assert [rope[k] for k in stack.order] == [True, True, True, False] * 2


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
WRONG: tuple[Any, ...] = (0, -1, 1.5, float("nan"), float("inf"), "64", [64], {}, True, 10**30)
BAD_VALUES: list[tuple[str, Any]] = [(key, value) for key in SIZES for value in WRONG] + [
    ("num_key_value_heads", 3),
    ("num_key_value_heads", -2),
    ("num_attention_heads", 7),
    ("num_hidden_layers", 10**6),
    ("head_dim", -4),
    ("attention_bias", "yes"),
    ("tie_word_embeddings", 1),
    ("hidden_act", 3),
    ("model_type", 3),
    ("model_type", ""),
    ("model_type", None),
    ("max_position_embeddings", "long"),
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_value_that_cannot_be_is_refused_by_its_key(key: str, value: Any) -> None:
    start = time.process_time()
    with pytest.raises(SpecError) as caught:
        model_from_config(LLAMA | {key: value}, name="my-model")
    assert time.process_time() - start < 1
    message = str(caught.value)
    assert "my-model" in message
    assert key in message or "heads" in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("key", SIZES)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(SpecError, match=f"the key '{key}' is missing"):
        model_from_config({k: v for k, v in LLAMA.items() if k != key}, name="x")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"model_type": "llama", "hidden_size": 64, "inter', "not valid JSON .*is the file complete"),
        (b"", "not valid JSON"),
        (b"null", "an object is needed"),
        (b"[1, 2]", "an object is needed"),
        (b'"llama"', "an object is needed"),
        (bytes(range(256)), "is a binary file"),
        (b"\x80\x04\x95", "is not UTF-8 text"),
        (b"[" * 200_000, "nested too deep|not valid JSON|maximum recursion"),
        (b'{"model_type": "llama", "hidden_size": ' + b"9" * 6000 + b"}", "not valid JSON|whole number"),
        (b"{}", "'model_type' is missing"),
        (b'{"model_type": "llama"}', "'hidden_size' is missing"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=complaint):
        load_model(str(path))


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file or folder"):
        load_model(str(tmp_path / "nothing.json"))
    with pytest.raises(SpecError, match=r"the folder has no config\.json"):
        load_model(str(tmp_path))
    (tmp_path / "huge.json").write_bytes(b" " * (20 * 2**20))
    with pytest.raises(SpecError, match="too large"):
        load_model(str(tmp_path / "huge.json"))


def _keys() -> list[str]:
    from flopwise.facts.models.fields import SHIPPED_DEFAULTS

    found = set(LLAMA) - {"model_type"}
    found |= {"vision_config", "text_config", "attention_types", "hybrid_override_pattern", "layer_types"}
    found |= {"compress_ratios", "moe_layer_freq", "linear_attn_config", "attention_other_setting", "moe_layers_enum"}
    found |= {"rope_parameters", "index_topk_pattern"}
    for model_type in FAMILIES:
        found |= set(SHIPPED_DEFAULTS.of(model_type).get("defaults", {}))
    return sorted(found)


KEYS = _keys()


MOE = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def test_more_experts_a_token_than_there_are() -> None:
    with pytest.raises(SpecError, match="num_experts_per_tok is 5; it must not exceed num_local_experts = 4"):
        model_from_config(MOE | {"num_experts_per_tok": 5}, name="x")


_WHOLE = st.integers(-(2**70), 2**70)
_LIST = st.lists(st.one_of(st.none(), st.integers(-3, 10**9), st.text(max_size=3)), max_size=4)
_OBJECT = st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
JUNK = st.one_of(st.none(), st.booleans(), _WHOLE, st.floats(), st.text(max_size=5), _LIST, _OBJECT)


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(sorted(CONFIGURATIONS)), data=st.data())
def test_junk_in_any_family_is_refused_or_read_but_never_breaks(name: str, data: st.DataObject) -> None:
    config = CONFIGURATIONS[name]
    changes = {key: data.draw(JUNK) for key in data.draw(st.lists(st.sampled_from(KEYS), max_size=2))}
    part = data.draw(st.sampled_from(["", "text_config", "vision_config"]))
    own: dict[str, Any] = config.get(part) or config
    changes |= {key: data.draw(JUNK) for key in data.draw(st.lists(st.sampled_from(sorted(own)), max_size=3))}
    changed = config | changes if own is config else config | {part: own | changes}
    start = time.process_time()
    with contextlib.suppress(FlopwiseError):
        model_from_config(changed | {"model_type": config["model_type"]}, name="x")
    assert time.process_time() - start < 5
