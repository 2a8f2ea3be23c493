"""Hours as cron has them: of KEDA's triggers, and of a node group whose services overlap."""

from __future__ import annotations

from typing import Any

import pytest
import validators
import yaml
from export_samples import expressible, sample_deployment, sample_export
from fleet_samples import sample_fleet
from terraform_arguments import unknown_arguments
from test_terraform import parsed

from flopwise.exports.targets import exported_assessment
from flopwise.exports.targets.schedules import _cron_pairs, _spans
from flopwise.fleet.schedules import schedule
from flopwise.fleet.spec import Hours


def _crons(**hours: Any) -> list[tuple[str, str]]:
    return list(_cron_pairs(_spans(schedule(Hours(**hours), "", "test").windows)))


@pytest.mark.parametrize(
    ("hours", "crons"),
    [
        ({"start": "09:00", "stop": "17:30", "days": "mon-fri"}, [("0 9 * * 1,2,3,4,5", "30 17 * * 1,2,3,4,5")]),
        ({"start": "18:00", "stop": "02:00", "days": "daily"}, [("0 18 * * *", "0 2 * * *")]),
        ({"start": "22:15", "stop": "06:00", "days": ["fri", "sun"]}, [("15 22 * * 0,5", "0 6 * * 1,6")]),
        # whole days that touch are one window: Saturday 0:00 to Monday 0:00
        ({"start": "00:00", "stop": "24:00", "days": "weekends"}, [("0 0 * * 6", "0 0 * * 1")]),
        # Sunday and Monday touch over the end of the week: Sunday 0:00 to Tuesday 0:00
        ({"start": "00:00", "stop": "24:00", "days": ["sun", "mon"]}, [("0 0 * * 0", "0 0 * * 2")]),
    ],
)
def test_hours_as_cron_has_them(hours: dict[str, Any], crons: list[tuple[str, str]]) -> None:
    assert _crons(**hours) == crons


def test_services_of_a_fleet_are_scaled_by_their_hours() -> None:
    text = exported_assessment("schedules", sample_fleet()).files["aws/us-east-1/keda.yaml"]
    validators.kubernetes(text)
    found = {one["metadata"]["annotations"]["flopwise.dev/title"]: one["spec"] for one in yaml.safe_load_all(text)}
    assert set(found) == {"mornings", "evenings"}
    assert found["mornings"]["triggers"][0]["metadata"] == {
        "timezone": "Etc/UTC", "start": "0 8 * * 1,2,3,4,5", "end": "0 12 * * 1,2,3,4,5", "desiredReplicas": "1",
    }  # fmt: skip
    assert found["mornings"]["minReplicaCount"] == 0
    with pytest.raises(AssertionError):
        validators.kubernetes(text.replace("scaleTargetRef", "scaleTarget", 1))


def test_a_node_group_follows_the_services_on_it() -> None:
    configuration = parsed(exported_assessment("schedules", sample_fleet()), "aws/us-east-1/")
    assert not unknown_arguments(configuration)
    actions = {
        body["recurrence"].strip('"'): body["desired_capacity"]
        for part in configuration["resource"]
        for named in part.values()
        for body in named.values()
    }
    # one that is always on; another from 8 to 12 on working days; a third from 18 to 2 each day
    assert actions == {"0 2 * * *": 1, "0 8 * * 1,2,3,4,5": 2, "0 12 * * 1,2,3,4,5": 1, "0 18 * * *": 2}


def test_a_plan_has_usual_hours_and_says_so() -> None:
    for sample in expressible("schedules"):
        deployment, exported = sample_deployment(sample), sample_export("schedules", sample)
        validators.kubernetes(exported.files["keda.yaml"])
        for scaled, pool in zip(yaml.safe_load_all(exported.files["keda.yaml"]), deployment.pools, strict=True):
            assert scaled["spec"]["maxReplicaCount"] == pool.replicas
            many = pool.nodes_per_replica > 1
            assert scaled["spec"]["scaleTargetRef"].get("kind") == ("LeaderWorkerSet" if many else None)
        assert any("a plan has no hours" in one for one in exported.assumptions)
