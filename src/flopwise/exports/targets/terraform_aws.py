"""A managed node group of an EKS cluster: launch template, role, placement, EFA, and shared storage for runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flopwise.exports.node_pools import NodePool
from flopwise.exports.spec import ExportSettings
from flopwise.exports.terraform import (
    AWS,
    TAG,
    Expression,
    HclBlock,
    PoolModule,
    Variable,
    aws_cluster,
    block,
    pool_tags,
    resource_label,
    tags_variable,
    terraform_block,
    terraform_files,
)  # fmt: skip

POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryReadOnly")
NVME = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: application/node.eks.aws

apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0

--//--
"""
"""Local disks as one, under containers and images: what nodeadm of Amazon Linux 2023 reads."""


def _files(title: str, pools: Sequence[NodePool], settings: ExportSettings) -> dict[str, str]:
    together, trains = any(p.together for p in pools), any(p.together and p.trains for p in pools)
    blocks = [
        terraform_block(aws=AWS),
        block("provider", "aws", region=Expression("var.region"), blocks=[
            block("default_tags", tags=Expression("var.tags")),
        ]),
        block("data", "aws_eks_cluster", "this", name=Expression("var.cluster")),
        HclBlock(("locals",), dict(_locals(pools))),
        *_role(pools[0]),
        *(_efa_group() if together else ()),
    ]  # fmt: skip
    for pool in pools:
        blocks += _pool(pool)
    if trains:
        blocks.append(_lustre())
    return terraform_files(title, blocks, list(_variables(pools, settings, trains)))


def _locals(pools: Sequence[NodePool]) -> Iterator[tuple[str, Expression | str]]:
    known = "data.aws_eks_cluster.this.vpc_config[0]"
    yield "subnet_ids", Expression(f"length(var.subnet_ids) > 0 ? var.subnet_ids : tolist({known}.subnet_ids)")
    if any(pool.together for pool in pools):
        yield "security_group", Expression(f"{known}.cluster_security_group_id")
    if any(pool.local_disk for pool in pools):
        yield "nvme", NVME


def _role(pool: NodePool) -> Iterator[HclBlock]:
    """The role that nodes have, with what EKS asks for."""
    yield block("data", "aws_iam_policy_document", "nodes", blocks=[
        block("statement", actions=["sts:AssumeRole"], blocks=[
            block("principals", type="Service", identifiers=["ec2.amazonaws.com"]),
        ]),
    ])  # fmt: skip
    yield block(
        "resource", "aws_iam_role", "nodes", name_prefix=f"{pool.name[:37]}-",
        assume_role_policy=Expression("data.aws_iam_policy_document.nodes.json"),
    )  # fmt: skip
    yield HclBlock(("resource", "aws_iam_role_policy_attachment", "nodes"), {
        "for_each": Expression(f"toset([{', '.join(repr(p) for p in POLICIES)}])".replace("'", '"')),
        "policy_arn": Expression('"arn:aws:iam::aws:policy/${each.value}"'),
        "role": Expression("aws_iam_role.nodes.name"),
    })  # fmt: skip


def _efa_group() -> Iterator[HclBlock]:
    """The security group that EFA needs: all traffic within itself, both ways."""
    rule = {"from_port": 0, "to_port": 0, "protocol": "-1", "self": True}
    yield block(
        "resource", "aws_security_group", "efa", name_prefix="efa-", description="Traffic between nodes over EFA.",
        vpc_id=Expression("data.aws_eks_cluster.this.vpc_config[0].vpc_id"),
        blocks=[HclBlock(("ingress",), rule), HclBlock(("egress",), rule)],
    )  # fmt: skip


def _pool(pool: NodePool) -> Iterator[HclBlock]:
    """The launch template and the node group, with a placement group where nodes work together."""
    label = resource_label(pool.name)
    if pool.together:
        yield block("data", "aws_ec2_instance_type", label, instance_type=pool.instance)
        yield block("resource", "aws_placement_group", label, name=pool.name, strategy="cluster")
    yield _launch_template(pool, label)
    taints = [
        block("taint", key=pool.resource, value="present", effect="NO_SCHEDULE"),
    ] if pool.resource else []  # fmt: skip
    capacity: str | Expression = "SPOT" if pool.spot else "ON_DEMAND"
    if pool.has_commitment:
        capacity = Expression('var.capacity_blocks ? "CAPACITY_BLOCK" : "ON_DEMAND"')
    subnets = "slice(local.subnet_ids, 0, 1)" if pool.together else "local.subnet_ids"
    template = f"aws_launch_template.{label}"
    yield block(
        "resource", "aws_eks_node_group", label, cluster_name=Expression("var.cluster"), node_group_name=pool.name,
        node_role_arn=Expression("aws_iam_role.nodes.arn"), subnet_ids=Expression(subnets), ami_type=_image(pool),
        capacity_type=capacity, tags={TAG: pool.name},
        depends_on=[Expression("aws_iam_role_policy_attachment.nodes")],
        blocks=[
            block("launch_template", id=Expression(f"{template}.id"), version=Expression(f"{template}.latest_version")),
            block("scaling_config", min_size=pool.least, desired_size=pool.first, max_size=pool.nodes),
            block("update_config", max_unavailable=1),
            *taints,
            block("lifecycle", ignore_changes=[Expression("scaling_config[0].desired_size")]),
        ],
    )  # fmt: skip


def _launch_template(pool: NodePool, label: str) -> HclBlock:
    disk = block(
        "ebs", volume_type="gp3", volume_size=Expression(f"max(var.root_volume_gb, {pool.disk_gb})"),
        iops=Expression("var.root_volume_iops"), throughput=Expression("var.root_volume_mib_per_s"), encrypted=True,
        delete_on_termination=True,
    )  # fmt: skip
    blocks = [
        block("block_device_mappings", device_name="/dev/xvda", blocks=[disk]),
        block("metadata_options", http_tokens="required", http_put_response_hop_limit=2),
        block("tag_specifications", resource_type="instance", tags=pool_tags(pool.name)),
    ]  # fmt: skip
    if pool.together:
        blocks += [
            block("placement", group_name=Expression(f"aws_placement_group.{label}.name")),
            _interfaces(f"data.aws_ec2_instance_type.{label}"),
        ]
    if pool.has_commitment:
        blocks += _reservation(pool.name)
    more = {"user_data": Expression("base64encode(local.nvme)")} if pool.local_disk else {}
    return block(
        "resource", "aws_launch_template", label, name_prefix=f"{pool.name}-", instance_type=pool.instance, **more,
        blocks=blocks,
    )  # fmt: skip


def _interfaces(known: str) -> HclBlock:
    """An EFA interface on each network card, as many as the instance type has; plain ones where it has none."""
    content = block(
        "content", device_index=Expression("network_interfaces.key == 0 ? 0 : 1"),
        network_card_index=Expression("network_interfaces.key"),
        interface_type=Expression(f'{known}.efa_supported ? "efa" : "interface"'), delete_on_termination=True,
        security_groups=[Expression("local.security_group"), Expression("aws_security_group.efa.id")],
    )  # fmt: skip
    cards = f"{known}.efa_supported ? {known}.maximum_network_cards : 1"
    return block("dynamic", "network_interfaces", for_each=Expression(f"range({cards})"), blocks=[content])


def _reservation(name: str) -> Iterator[HclBlock]:
    """Nodes in a capacity reservation, or in a Capacity Block, where one is named."""
    known = f'lookup(var.capacity_reservations, "{name}", null)'
    target = block(
        "capacity_reservation_target", capacity_reservation_id=Expression("capacity_reservation_specification.value")
    )
    yield block(
        "dynamic", "capacity_reservation_specification", for_each=Expression(f"{known} == null ? [] : [{known}]"),
        blocks=[block("content", blocks=[target])],
    )  # fmt: skip
    yield block(
        "dynamic", "instance_market_options", for_each=Expression("var.capacity_blocks ? [1] : []"),
        blocks=[block("content", market_type="capacity-block")],
    )  # fmt: skip


def _lustre() -> HclBlock:
    """Shared storage for data and checkpoints, made where its size is said."""
    return block(
        "resource", "aws_fsx_lustre_file_system", "shared", count=Expression("var.lustre_gb > 0 ? 1 : 0"),
        storage_capacity=Expression("var.lustre_gb"), subnet_ids=Expression("slice(local.subnet_ids, 0, 1)"),
        deployment_type="PERSISTENT_2", per_unit_storage_throughput=Expression("var.lustre_mb_per_s_per_tib"),
        security_group_ids=[Expression("local.security_group")],
    )  # fmt: skip


def _image(pool: NodePool) -> str:
    """The type of AMI, of Amazon Linux 2023. Source: EKS API reference, Nodegroup, amiType (read 2026-11-22)."""
    machine = "ARM_64" if pool.accelerator.arm_host else "x86_64"
    software = {"NVIDIA": "NVIDIA", "AWS": "NEURON"}.get(pool.accelerator.vendor, "STANDARD")
    return f"AL2023_{machine}_{software if pool.resource else 'STANDARD'}"


def _variables(pools: Sequence[NodePool], settings: ExportSettings, trains: bool) -> Iterator[Variable]:
    yield Variable(name="region", meaning="AWS region of the cluster.", default=pools[0].region)
    yield aws_cluster(settings)
    yield Variable(
        name="subnet_ids", kind="list(string)", default=[],
        check='alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])',
        meaning="Subnets of the nodes (default: those of the cluster); nodes that work together are in the first.",
        message="Identifiers of subnets, such as subnet-0a1b2c.",
    )  # fmt: skip
    yield Variable(
        name="root_volume_gb", meaning="Disk of a node, in GB; at least what the plan needs.", kind="number",
        default=0,
    )  # fmt: skip
    yield Variable(
        name="root_volume_iops", meaning="Operations per second of the gp3 disk.", kind="number", default=3000,
        check="var.root_volume_iops >= 3000 && var.root_volume_iops <= 16000", message="3000 to 16000.",
    )  # fmt: skip
    yield Variable(
        name="root_volume_mib_per_s", meaning="Throughput of the gp3 disk in MiB/s; it limits the loading of weights.",
        kind="number", default=1000, check="var.root_volume_mib_per_s >= 125 && var.root_volume_mib_per_s <= 1000",
        message="125 to 1000.",
    )  # fmt: skip
    if any(pool.has_commitment for pool in pools):
        yield Variable(
            name="capacity_reservations", meaning="Capacity reservations or Capacity Blocks, by node group.",
            kind="map(string)", default={},
            check='alltrue([for id in values(var.capacity_reservations) : startswith(id, "cr-")])',
            message="Identifiers of reservations, such as cr-0a1b2c.",
        )  # fmt: skip
        yield Variable(
            name="capacity_blocks", meaning="Whether the reservations are Capacity Blocks for ML.", kind="bool",
            default=False,
        )  # fmt: skip
    if trains:
        yield Variable(
            name="lustre_gb", kind="number", default=0,
            meaning="Size of an FSx for Lustre file system shared by the nodes, in GiB; 0: none.",
            check="contains([0, 1200], var.lustre_gb) || var.lustre_gb % 2400 == 0",
            message="0, 1200, or a multiple of 2400.",
        )  # fmt: skip
        yield Variable(
            name="lustre_mb_per_s_per_tib", kind="number", default=250,
            meaning="Throughput of the FSx for Lustre file system per TiB, in MB/s.",
            check="contains([125, 250, 500, 1000], var.lustre_mb_per_s_per_tib)", message="125, 250, 500 or 1000.",
        )  # fmt: skip
    yield tags_variable()


def _notes(pools: Sequence[NodePool]) -> Iterator[str]:
    yield "the EKS cluster exists, with its network; nodes get a role of their own"
    if any(pool.resource for pool in pools):
        yield "the device plugin of the accelerators' vendor runs in the cluster: images of Amazon Linux 2023 lack it"
    if any(pool.has_commitment for pool in pools):
        yield (
            "a reserved price is a commitment (Savings Plan, Reserved Instance) that is bought separately; name a "
            "capacity reservation or Capacity Block in capacity_reservations to be sure to get the machines"
        )
    if any(pool.together for pool in pools):
        yield "nodes that work together share one subnet and placement group, with EFA if their type supports it"
    if any(pool.first < pool.nodes for pool in pools):
        yield "a cluster autoscaler adds nodes beyond the permanent ones when pods request them"
    yield (
        "disks (gp3, 1,000 MiB/s, the most there is) hold one copy of the weights and 100 GB of system, images and logs"
    )


MODULE = PoolModule(
    provider="aws", cloud="AWS", nodes="Node group", cluster="an EKS cluster", files=_files, notes=_notes,
)  # fmt: skip
refusals, export, export_fleet = MODULE.refusals, MODULE.export, MODULE.export_fleet
