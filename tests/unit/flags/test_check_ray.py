"""Command lines of `ray start`: what is wrong, where, and what to write."""

import pytest

from vllm_cluster.plan.flags import Kind, table, versions

HEAD = ["--head", "--port=6379", "--node-ip-address", "192.168.1.10", "--min-worker-port", "20000"]
HEAD += ["--include-dashboard", "false", "--disable-usage-stats", "--block", "-vv"]


@pytest.mark.parametrize("version", versions("ray"))
def test_a_head_s_command_line_is_taken(version: str) -> None:
    assert table("ray", version).check(HEAD) == []


@pytest.mark.parametrize("version", versions("ray"))
@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("--worker-port-min", "--min-worker-port"),
        ("--worker-port-max", "--max-worker-port"),
        ("--gcs-server-port", "--port"),
        ("--redis-port", "--port"),
        ("--redis-address", "--address"),
        ("--min_worker_port", "--min-worker-port"),
        ("--num-gpu", "--num-gpus"),
        ("--node-ip-adress", "--node-ip-address"),
        ("--min-worker", "--min-worker-port"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_the_one_that_does(
    version: str, written: str, instead: str
) -> None:
    [problem] = table("ray", version).check([written, "1"])
    assert problem.kind is Kind.UNKNOWN
    assert problem.nearest[0] == instead


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (["--node-ip-address", "--head"], Kind.MISSING_VALUE),
        (["--port"], Kind.MISSING_VALUE),
        (["--port", "six"], Kind.NOT_A_NUMBER),
        (["--num-gpus", "1.5"], Kind.NOT_A_NUMBER),
        (["--include-dashboard", "perhaps"], Kind.BAD_CHOICE),
        (["--log-style", "loud"], Kind.BAD_CHOICE),
        (["--system-config", "{"], Kind.NOT_JSON),
        (["--head=true"], Kind.UNEXPECTED_VALUE),
        (["head"], Kind.STRAY_WORD),
        (["--help"], Kind.DOES_NOT_SERVE),
    ],
)
def test_each_fault_gets_its_kind(args: list[str], kind: Kind) -> None:
    problems = table("ray", "2.60.0").check(args)
    assert problems[0].kind is kind


def test_an_argument_of_vllm_is_named_as_one() -> None:
    [problem] = table("ray", "2.60.0").check(["--tensor-parallel-size", "4"])
    assert "`vllm serve`" in problem.sentence


def test_values_are_read_as_click_reads_them() -> None:
    args = ["--head", "--num-gpus", "4", "--include-dashboard", "No", "--log-style", "PRETTY"]
    assert table("ray", "2.60.0").values(args) == {
        "head": True,
        "num_gpus": 4,
        "include_dashboard": False,
        "log_style": "pretty",
    }
