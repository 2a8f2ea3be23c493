"""Common parts of Terraform configurations: providers, variables with validation, and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import comment_text
from flopwise.exports.exported import Files
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.node_pools import NodePool, fleet_pools, plan_pool
from flopwise.exports.spec import ExportSettings
from flopwise.values import dataclass

WIDTH = 100
"""Length from which a list is written over several lines."""
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Expression:
    """An unquoted expression, such as `var.cluster`; never contains a user's value."""

    text: str


@dataclass(frozen=True, slots=True)
class HclBlock:
    """A block: its kind and labels, its arguments, and nested blocks."""

    head: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    blocks: Sequence[HclBlock] = ()


@dataclass(frozen=True, slots=True)
class _HclLine:
    depth: int
    start: str
    value: str | None = None  # of an argument whose value ends on its line


def block(*head: str, blocks: Sequence[HclBlock] = (), **arguments: Any) -> HclBlock:
    """A block with its arguments by name."""
    return HclBlock(head, arguments, blocks)


def hcl_text(*blocks: HclBlock, comment: str = "") -> str:
    """HCL of blocks separated by empty lines, after a comment."""
    parts = [comment_text(comment) + "\n"] if comment else []
    parts += [_lines_text(list(_block_lines(part, 0))) for part in blocks]
    return "\n".join(parts)


def values_text(values: Mapping[str, Any], comment: str = "") -> str:
    """HCL of values, such as those of a tfvars file."""
    lines = [line for name, value in values.items() for line in _argument_lines(name, value, 0)]
    return (comment_text(comment) + "\n\n" if comment else "") + _lines_text(lines)


def string_text(text: str) -> str:
    """`text` as a quoted and escaped HCL string.

    A dollar sign before an escaped one is written as a code point: HCL reads `$$${` as a dollar sign and a template.
    """
    parts = []
    for position, sign in enumerate(text):
        if sign in "$%" and text[position + 1 : position + 2] == "{":
            doubled = text[position - 1 : position] != sign if position else True
            parts.append(sign * 2 if doubled else f"\\u{ord(sign):04x}")
        elif sign in ESCAPES:
            parts.append(ESCAPES[sign])
        elif not sign.isprintable():
            parts.append(f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}")
        else:
            parts.append(sign)
    return f'"{"".join(parts)}"'


def _block_lines(part: HclBlock, depth: int) -> Iterator[_HclLine]:
    kind, *labels = part.head
    head = " ".join([kind, *(string_text(label) for label in labels)])
    if not part.arguments and not part.blocks:
        yield _HclLine(depth, f"{head} {{}}")
        return
    yield _HclLine(depth, f"{head} {{")
    for name, value in part.arguments.items():
        yield from _argument_lines(name, value, depth + 1)
    for number, inner in enumerate(part.blocks):
        if number or part.arguments:
            yield _HclLine(depth, "")
        yield from _block_lines(inner, depth + 1)
    yield _HclLine(depth, "}")


def _argument_lines(name: str, value: Any, depth: int) -> Iterator[_HclLine]:
    first, *others = _value_lines(value, depth)
    if others:
        yield _HclLine(depth, f"{name} = {first.start}")
        yield from others
    else:
        yield _HclLine(depth, name, first.start)


def _value_lines(value: Any, depth: int) -> list[_HclLine]:
    """The lines of a value; the first follows the name of its argument."""
    match value:
        case Mapping() if value:
            inner = [line for key, part in value.items() for line in _argument_lines(_key(key), part, depth + 1)]
            return [_HclLine(depth, "{"), *inner, _HclLine(depth, "}")]
        case list() | tuple():
            parts = [_value_lines(part, depth + 1) for part in value]
            whole = f"[{', '.join(part[0].start for part in parts)}]"
            if len(whole) + 2 * depth <= WIDTH and all(len(part) == 1 for part in parts):
                return [_HclLine(depth, whole)]
            ends = [[*part[:-1], _HclLine(depth + 1, f"{part[-1].start},", part[-1].value)] for part in parts]
            return [_HclLine(depth, "["), *(line for part in ends for line in part), _HclLine(depth, "]")]
        case _:
            return [_HclLine(depth, _scalar(value))]


def _scalar(value: Any) -> str:
    match value:
        case Expression():
            return value.text
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return string_text(value)
        case None:
            return "null"
        case Mapping():
            return "{}"
        case _:
            raise TypeError(f"no HCL value: {value!r}")


def _key(key: str) -> str:
    return key if IDENTIFIER.fullmatch(key) else string_text(key)


def _lines_text(lines: Sequence[_HclLine]) -> str:
    """Lines with the values of consecutive arguments aligned."""
    written, chain = list[str](), list[_HclLine]()
    for line in [*lines, None]:
        if line is not None and line.value is not None:
            chain.append(line)
            continue
        width = max((len(one.start) for one in chain), default=0)
        written += [f"{'  ' * one.depth}{one.start:<{width}} = {one.value}" for one in chain]
        chain.clear()
        if line is not None:
            written.append(f"{'  ' * line.depth}{line.start}" if line.start else "")
    return "\n".join(written) + "\n"


REQUIRED_VERSION = ">= 1.5.0"
APPLY = ("cp -n terraform.tfvars.example terraform.tfvars", "terraform init", "terraform apply")
AWS, GOOGLE = ("hashicorp/aws", "~> 6.0"), ("hashicorp/google", ">= 6.20, < 8.0")
AZURERM = ("hashicorp/azurerm", "~> 4.0")
"""Providers with the versions whose documentation the blocks follow."""
TAG = "flopwise-pool"
"""Tag or label of all machines of a node pool; the budget of a plan counts resources with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable: its type, meaning, default or example, and a validation with its message."""

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
    """A required variable for a name; `value` is the example, a setting or its placeholder."""
    check = f'can(regex("{pattern}", var.{name}))'
    return Variable(name=name, meaning=meaning, example=value, check=check, message=message)


def aws_cluster(settings: ExportSettings) -> Variable:
    """The variable for the name of an EKS cluster."""
    return name_variable(
        "cluster", "Name of the EKS cluster.", settings.value("cluster"),
        "^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$", "1 to 100 letters, digits, hyphens and underscores.",
    )  # fmt: skip


def gcp_project(settings: ExportSettings) -> Variable:
    """The variable for a project of Google Cloud."""
    return name_variable(
        "project", "Identifier of the GCP project.", settings.value("account"),
        "^[a-z][a-z0-9-]{4,28}[a-z0-9]$", "6 to 30 lower-case letters, digits and hyphens.",
    )  # fmt: skip


def azure_account(settings: ExportSettings, meaning: str) -> tuple[Variable, Variable]:
    """The variables for a subscription of Azure, and for the resource group of that meaning."""
    return Variable(name="subscription_id", meaning="Azure subscription (default: that of ARM_SUBSCRIPTION_ID)."), (
        name_variable(
            "resource_group", meaning, settings.value("account"), "^[A-Za-z0-9_().-]{0,89}[A-Za-z0-9_()-]$",
            "1 to 90 letters, digits, and _().-, with no period at the end.",
        )
    )  # fmt: skip


def azure_provider() -> HclBlock:
    """The provider of Azure, for the subscription of `azure_account`."""
    return block("provider", "azurerm", subscription_id=Expression("var.subscription_id"), blocks=[block("features")])


def tags_variable() -> Variable:
    """The variable for tags of all resources."""
    return Variable(name="tags", meaning="Tags of all resources created here.", kind="map(string)", default={})


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
    """main.tf, variables.tf and an example of terraform.tfvars with variables that have no default."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolModule:
    """A cloud's target: node pools of an existing cluster, as a module for each of its regions.

    `nodes`, `cluster`: the cloud's terms. `unknown`: reason why it has no such nodes, None if it has.
    """

    provider: str
    cloud: str
    nodes: str
    cluster: str
    files: Callable[[str, Sequence[NodePool], ExportSettings], dict[str, str]]
    notes: Callable[[Sequence[NodePool]], Iterator[str]]
    unknown: Callable[[NodePool], str | None] = lambda _: None

    def refusals(self, deployment: Deployment) -> Iterator[str]:
        """Reasons why no node pool can be created."""
        if deployment.candidate.provider != self.provider:
            yield f"the plan is for {deployment.candidate.provider}; plan again with --provider {self.provider}"
        elif (why := self.unknown(plan_pool(deployment))) is not None:
            yield why

    def export(self, deployment: Deployment) -> Files:
        """The node pool of a plan."""
        pool = plan_pool(deployment)
        files = self.files(f"{self.nodes} of {self.cluster} for {deployment.title}.", [pool], deployment.settings)
        return Files(files=files, apply=APPLY, assumptions=tuple(self.notes([pool])))

    def export_fleet(self, fleet: FleetDeployment) -> Files:
        """The node pools of all workloads, a folder for each region, which has a cluster of its own.

        Raises: InfeasibleError: no machine is on this cloud, or it has no such nodes.
        """
        regions = fleet_pools(fleet, self.provider)
        pools = [pool for own in regions.values() for pool in own]
        if not pools:
            why = [f"no machine of the plan is on {self.cloud}"]
            raise InfeasibleError(f"terraform-{self.provider} has nothing to export", why)
        if reasons := [reason for pool in pools if (reason := self.unknown(pool))]:
            raise InfeasibleError(f"terraform-{self.provider} cannot express the plan", reasons)
        within = self.cluster.partition(" ")[2]
        folders = {
            region: self.files(
                f"{self.nodes}s of the {within} in {region} for {fleet.assessment.name}.", own, fleet.settings
            )
            for region, own in regions.items()
        }
        return region_files(folders, list(self.notes(pools)))


def resource_label(name: str) -> str:
    """A valid name of a Terraform resource."""
    return name.replace("-", "_")
