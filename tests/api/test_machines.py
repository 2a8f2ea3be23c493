"""What a question says of its machines, and what is told when they do not come out even."""

import pytest

from flopwise.api.machines import Machines


@pytest.mark.parametrize(("gpus", "per_node", "rest"), [(64, 7, 1), (12, 8, 4), (64, 8, 0), (7, 8, 0), (1, 1, 0)])
def test_a_node_that_is_not_full_is_told(gpus: int, per_node: int, rest: int) -> None:
    built = Machines(gpu="h100-sxm", gpus_per_node=per_node).cluster(gpus)
    told = [one for one in built.assumptions if "do not fill nodes" in one]
    assert bool(told) == bool(rest)
    assert all(f"nodes of {per_node}: the last has {rest} at work" in one for one in told)
