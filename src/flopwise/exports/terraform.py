"""What Terraform configurations share: providers, variables with their checks, and the files that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flopwise.exports.exported import Files
from flopwise.exports.hcl import Expression, HclBlock, block, hcl_text, values_text

REQUIRED_VERSION = ">= 1.5.0"
APPLY = ("cp -n terraform.tfvars.example terraform.tfvars", "terraform init", "terraform apply")
TAG = "flopwise-pool"
"""Tag, or label, of all machines of a node pool; a budget of one plan counts what has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable: its type, what it is, its default, an example where it has none, and a check with its message."""

    name: str
    meaning: str
    kind: str = "string"
    default: Any = None
    example: Any = None  # None: it has a default
    check: str = ""
    message: str = ""

    @property
    def block(self) -> HclBlock:
        """Its declaration."""
        given = {} if self.example is not None else {"default": self.default}
        check = block("validation", condition=Expression(self.check), error_message=self.message)
        return block(
            "variable", self.name, description=self.meaning, type=Expression(self.kind), **given,
            blocks=[check] if self.check else (),
        )  # fmt: skip


def name_variable(name: str, meaning: str, value: str, pattern: str, message: str) -> Variable:
    """A variable for a name without which nothing works; `value` is the example, a setting or its placeholder."""
    check = f'can(regex("{pattern}", var.{name}))'
    return Variable(name=name, meaning=meaning, example=value, check=check, message=message)


def tags_variable() -> Variable:
    """Tags of everything that is made."""
    return Variable(name="tags", meaning="Tags of everything made here.", kind="map(string)", default={})


def pool_tags(pool: str) -> Expression:
    """Tags of the machines of a pool: those of the variable, and its name."""
    return Expression(f'merge(var.tags, {{ "{TAG}" = "{pool}" }})')


def terraform_block(**providers: tuple[str, str]) -> HclBlock:
    """The versions of Terraform and of the providers: name -> (source, version)."""
    required = {name: {"source": source, "version": version} for name, (source, version) in providers.items()}
    return block(
        "terraform", required_version=REQUIRED_VERSION, blocks=[HclBlock(("required_providers",), required)],
    )  # fmt: skip


def terraform_files(title: str, blocks: Sequence[HclBlock], variables: Sequence[Variable]) -> dict[str, str]:
    """main.tf, variables.tf and an example of terraform.tfvars with what has no default."""
    examples = {one.name: one.example for one in variables if one.example is not None}
    return {
        "main.tf": hcl_text(*blocks, comment=title),
        "variables.tf": hcl_text(*(one.block for one in variables)),
        "terraform.tfvars.example": values_text(examples, comment="Copy to terraform.tfvars."),
    }


def region_files(folders: Mapping[str, Mapping[str, str]], assumptions: Sequence[str]) -> Files:
    """The files of a fleet: a folder for each region, which has a cluster of its own."""
    files = {f"{region}/{path}": text for region, made in folders.items() for path, text in made.items()}
    apply = tuple(f"(cd {region} && {command})" for region in folders for command in APPLY)
    return Files(files=files, apply=apply, assumptions=tuple(assumptions))


def resource_label(name: str) -> str:
    """A name as Terraform's resources are called."""
    return name.replace("-", "_")
