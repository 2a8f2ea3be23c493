"""HCL text: as `terraform fmt` writes it, and read by Terraform as what was written."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.exports.terraform import Expression, HclBlock, block, hcl_text, string_text, values_text

TERRAFORM = shutil.which("terraform")
needs_terraform = pytest.mark.skipif(TERRAFORM is None, reason="terraform is not installed")
ENVIRONMENT = os.environ | {"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}


def terraform(*args: str, text: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A run of Terraform, which reads no settings of the machine."""
    assert TERRAFORM is not None
    return subprocess.run(
        [TERRAFORM, *args], input=text, capture_output=True, text=True, env=ENVIRONMENT, cwd=folder, check=False
    )


def test_text_as_it_is_written_by_hand() -> None:
    made = hcl_text(
        block(
            "resource", "kind", "name", cluster=Expression("var.cluster"), number=3, labels={"a.b/c": "x", "d": True},
            none=None, after=["x", 2], blocks=[block("inner", blocks=[block("empty")])],
        ),
        comment="first\nsecond",
    )  # fmt: skip
    assert made == (
        "# first\n# second\n\n"
        'resource "kind" "name" {\n'
        "  cluster = var.cluster\n"
        "  number  = 3\n"
        "  labels = {\n"
        '    "a.b/c" = "x"\n'
        "    d       = true\n"
        "  }\n"
        "  none  = null\n"
        '  after = ["x", 2]\n'
        "\n"
        "  inner {\n"
        "    empty {}\n"
        "  }\n"
        "}\n"
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('a "b"', r'"a \"b\""'), ("a\\b", r'"a\\b"'), ("a\nb\t", r'"a\nb\t"'), ("${x}", '"$${x}"'), ("%{x}", '"%%{x}"'),
        ("$x{", '"$x{"'), ("$(x)", '"$(x)"'), ("$${x}", '"$\\u0024{x}"'), ("\x01", '"\\u0001"'), ("ü", '"ü"'),
        ("\U000e0001", '"\\U000e0001"'),
    ],
)  # fmt: skip
def test_text_is_escaped(text: str, written: str) -> None:
    assert string_text(text) == written


def test_what_has_no_place_in_hcl_is_no_value() -> None:
    with pytest.raises(TypeError, match="no HCL value"):
        hcl_text(block("locals", a=object()))


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdefgh_", min_size=1, max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)


@needs_terraform
def test_terraform_would_write_it_alike() -> None:
    draws = list[str]()

    @given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,14}", fullmatch=True), VALUES, min_size=1, max_size=6))
    def draw(values: dict[str, Any]) -> None:
        draws.append(hcl_text(HclBlock(("locals",), values, [HclBlock(("inner", "label"), values)])))

    draw()
    text = "\n".join(draws)
    done = terraform("fmt", "-check", "-diff", "-", text=text)
    assert done.returncode == 0, done.stdout + done.stderr
    crooked = text.replace(" = ", "  = ", 1)
    assert terraform("fmt", "-check", "-", text=crooked).returncode


@needs_terraform
def test_terraform_reads_what_was_written(tmp_path: Path) -> None:
    signs, rng = ["$", "%", "{", "}", "\\", '"', "\n", "a", "\U0001f600", "\x02", "\u200b"], random.Random(3)  # noqa: S311 - text to read back
    texts = ["$", "${", "$${", "$$${", "%%{", "$$$${x}", "$%{", "%${", "*x", "a: b", "\u2028", "\x7f"]
    texts += ["".join(rng.choice(signs) for _ in range(rng.randint(0, 12))) for _ in range(300)]
    (tmp_path / "main.tf").write_text(hcl_text(block("locals", all=texts)), encoding="utf-8")
    done = terraform("console", text="base64encode(jsonencode(local.all))\n", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    read = json.loads(base64.b64decode(json.loads(done.stdout)))
    assert read == [unicodedata.normalize("NFC", text) for text in texts]


def test_values_of_a_tfvars_file() -> None:
    assert values_text({"a": "x", "long": [1]}, comment="About.") == '# About.\n\na    = "x"\nlong = [1]\n'
