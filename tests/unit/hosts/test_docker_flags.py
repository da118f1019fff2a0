"""Flags of dockerd, from the unit and the files it reads, against the keys of daemon.json."""

from __future__ import annotations

from vllm_cluster.facts.docker import DockerFact
from vllm_cluster.plan.docker_config import changes, merged, unknown_default_runtime
from vllm_cluster.plan.docker_flags import conflicts, environment, flags

# `systemctl show -P ExecStart docker.service`, argv[] alone, of Debian's and of Docker's package.
DEBIAN = "/usr/sbin/dockerd -H fd:// $DOCKER_OPTS"
DOCKER_CE = "/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock"


def test_flags_stand_for_keys_and_say_where_they_are_written() -> None:
    variables = environment(
        [("/etc/default/docker", "# DOCKER_OPTS=no"), ("/etc/default/docker", 'DOCKER_OPTS="-D '
         '--dns 9.9.9.9 --log-opt=max-size=1m --icc=false"')]
    )  # fmt: skip
    found = {flag.key: (flag.value, flag.text, flag.source) for flag in flags(
        DEBIAN, variables, "docker.service")}  # fmt: skip
    file = "/etc/default/docker"
    assert found == {
        "hosts": ("fd://", "-H fd://", "docker.service"),
        "debug": ("true", "-D", file),
        "dns": ("9.9.9.9", "--dns 9.9.9.9", file),
        "log-opts": ("max-size=1m", "--log-opt=max-size=1m", file),
        "icc": ("false", "--icc=false", file),
    }


def test_a_variable_that_nobody_sets_is_no_flag() -> None:
    assert [flag.key for flag in flags(DEBIAN, {}, "docker.service")] == ["hosts"]


def test_a_switch_takes_no_word_after_it() -> None:
    found = flags("dockerd --live-restore=true -D fd://", {}, "u")
    assert [(flag.key, flag.value) for flag in found] == [
        ("live-restore", "true"),
        ("debug", "true"),
    ]


def test_docker_ces_own_flags_conflict_with_hosts_alone() -> None:
    given = flags(DOCKER_CE, {}, "docker.service")
    assert conflicts(given, ["log-driver", "data-root", "runtimes"]) == []
    assert [flag.text for flag in conflicts(given, ["hosts"])] == ["-H fd://"]


def test_a_plural_key_conflicts_with_its_singular_flag() -> None:
    given = flags("dockerd --label a=b --add-runtime x=/y --insecure-registry r", {}, "u")
    keys = ["labels", "runtimes", "insecure-registries"]
    assert [flag.key for flag in conflicts(given, keys)] == keys


def test_a_difference_is_told_by_key_and_without_what_stays() -> None:
    old = '{"http-proxy": "http://me:secret@proxy", "runtimes": {"a": {"path": "/a"}}}'
    new = merged(old, {"runtimes": {"nvidia": {"path": "n", "args": []}}, "data-root": "/d"}, {})
    assert changes(old, new) == [
        '+ data-root: "/d"', "+ runtimes.nvidia.args: []", '+ runtimes.nvidia.path: "n"'
    ]  # fmt: skip
    assert changes('{"a": 1, "b": [1]}', '{"b": [2]}') == ["- a: 1", "~ b: [1] -> [2]"]


def test_a_default_runtime_must_be_defined() -> None:
    assert unknown_default_runtime('{"default-runtime": "nvidia"}') == "nvidia"
    assert unknown_default_runtime('{"default-runtime": "runc"}') == ""
    defined = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "x"}}}'
    assert unknown_default_runtime(defined) == ""


# Recorded on Debian 12 with docker.io 20.10.24; the container of somebody's web server added.
RECORDED = r"""package docker.io 20.10.24+dfsg1-1+deb12u1+b6
cli /usr/bin/docker
version 20.10.24
exec /usr/sbin/dockerd -H fd:// $DOCKER_OPTS
env docker.service
env /etc/default/docker # Docker Upstart and SysVinit configuration file
env /etc/default/docker DOCKER_OPTS="--dns 8.8.8.8"
config 600 e30=
root /var/lib/docker"""
CONTAINERS = [
    'container {"name": "/web", "running": true, "restart": "always", '
    '"ports": {"80/tcp":[{"HostIp":"","HostPort":"8080"}]}, "labels": {}}',
    'container {"name": "/vllm", "running": true, "restart": "no", "ports": {}, '
    '"labels": {"vllm-cluster.config": "x"}}',
]


def test_dockers_state_is_read_from_one_answer() -> None:
    state = DockerFact().process([*RECORDED.splitlines(), *CONTAINERS])
    assert state.engine == "docker.io"
    assert [flag.key for flag in state.flags] == ["hosts", "dns"]
    assert (state.config, state.config_mode) == (b"{}", "600")
    web, vllm = state.containers
    assert (web.name, web.ports, web.restart, web.ours) == (
        "web",
        ("0.0.0.0:8080",),
        "always",
        False,
    )
    assert vllm.ours


# Ubuntu 24.04 with Docker's own packages: no /etc/default/docker, another path of dockerd.
UBUNTU_CE = r"""package docker-ce 5:28.1.1-1~ubuntu.24.04~noble
cli /usr/bin/docker
version 28.1.1
validates
exec /usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock
env docker.service
root /var/lib/docker"""


def test_docker_ce_on_ubuntu_is_an_engine_that_stays() -> None:
    state = DockerFact().process(UBUNTU_CE.splitlines())
    assert state.engine == "docker-ce"
    assert state.validates
    assert state.config is None
    assert [flag.key for flag in state.flags] == ["hosts", "containerd"]
