"""daemon.json is merged: what others set stays."""

import json

import pytest

from vllm_cluster.plan.docker_config import merged


def test_unknown_keys_stay() -> None:
    new = json.loads(merged('{"dns": ["9.9.9.9"], "x": {"y": 1}}', {"data-root": "/d"}))
    assert new["dns"] == ["9.9.9.9"]
    assert new["x"] == {"y": 1}
    assert new["data-root"] == "/d"


def test_logs_are_bounded_where_nobody_chose() -> None:
    assert json.loads(merged("", {}))["log-driver"] == "local"


@pytest.mark.parametrize(
    "chosen", ['{"log-driver": "journald"}', '{"log-opts": {"max-size": "1g"}}']
)
def test_a_chosen_log_driver_stays(chosen: str) -> None:
    assert json.loads(merged(chosen, {})) == json.loads(chosen)


def test_a_file_that_is_right_keeps_its_bytes() -> None:
    old = '{"log-driver":"journald",   "data-root": "/d"}\n'
    assert merged(old, {"data-root": "/d"}) == old


def test_a_second_time_changes_nothing() -> None:
    once = merged('{"dns": []}', {"data-root": "/d"})
    assert merged(once, {"data-root": "/d"}) == once


@pytest.mark.parametrize("broken", ["{", "[]", "null", "text"])
def test_a_file_that_is_no_json_object_is_refused(broken: str) -> None:
    with pytest.raises(ValueError, match="not"):
        merged(broken, {})
