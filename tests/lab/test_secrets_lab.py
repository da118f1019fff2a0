"""Secrets on real hosts: who can see them, while they are written and afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from tests.lab.harness import ROOT, Cluster
from vllm_cluster.commands.rotate import command as rotate
from vllm_cluster.plan import paths

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
HOSTS = ("node-a", "node-b")
# What any user of a host may read, over and over, for as long as a deploy runs.
_SPY = r"""
cd /; while :; do
  cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /tmp/* /tmp/.[!.]* /etc/vllm-cluster/* \
    /etc/vllm-cluster/.[!.]* /etc/vllm-cluster/secrets/* /etc/vllm-cluster/secrets/.[!.]* \
    /etc/systemd/system/* /var/lib/vllm-cluster/* /run/vllm-cluster/* /dev/shm/* /var/tmp/* \
    2>/dev/null | tr '\0' '\n' | grep -aoFf /spy/patterns >> /spy/seen
  echo >> /spy/rounds
done
"""


@contextmanager
def spying(cluster: Cluster, values: list[str]) -> Iterator[None]:
    """On every host an unprivileged process that looks for `values` all the time."""
    for name in HOSTS:
        cluster.on(name, "mkdir -p /spy && : > /spy/seen && : > /spy/rounds && chmod 777 /spy && "
                   "chmod 666 /spy/*")  # fmt: skip
        host = cluster.lab.host(name)
        host.ssh("cat > /spy/patterns && chmod 644 /spy/patterns", stdin="\n".join(values))
        host.ssh("cat > /spy/spy && chmod 755 /spy/spy", stdin=_SPY)
        cluster.on(name, "systemd-run --quiet --unit=spy --uid=65534 sh /spy/spy")
    try:
        for name in HOSTS:
            cluster.on(
                name, "timeout 20 sh -c 'until [ $(wc -l < /spy/rounds) -gt 2 ]; do :; done'"
            )
        yield
    finally:
        for name in HOSTS:
            cluster.on(name, "systemctl stop spy")


def seen(cluster: Cluster) -> dict[str, set[str]]:
    return {name: set(cluster.on(name, "cat /spy/seen").split()) for name in HOSTS}


def rounds(cluster: Cluster) -> int:
    return min(int(cluster.on(name, "wc -l < /spy/rounds")) for name in HOSTS)


def new_values(cluster: Cluster) -> tuple[dict[str, str], dict[str, str]]:
    """Old and new values, after a rotation on this machine."""
    old = cluster.secrets
    assert CliRunner().invoke(rotate, [str(cluster.description)]).exit_code == 0
    new = cluster.secrets
    assert not set(old.values()) & set(new.values())
    return old, new


def test_the_spy_itself_sees_a_secret_that_is_shown_for_a_moment(standins: Cluster) -> None:
    value = "planted-for-the-spy"
    with spying(standins, [value]):
        standins.on("node-a", f"sh -c 'sleep 2; : {value}'")
        standins.on("node-b", f"(umask 022; echo {value} > /tmp/x; sleep 2; rm /tmp/x)")
    assert seen(standins) == {name: {value} for name in HOSTS}


def test_rotation_is_one_run_that_nobody_on_the_hosts_sees(standins: Cluster) -> None:
    old, new = new_values(standins)
    units = {"node-a": ("ray-head", "vllm"), "node-b": ("ray-worker",)}
    with spying(standins, [*old.values(), *new.values()]):
        began = rounds(standins)
        done = standins.pyinfra("-y", "-vvv", "--diff", "--debug")
        assert rounds(standins) - began > 5, "the spy hardly looked"
    assert done.returncode == 0, done.stdout + done.stderr
    assert seen(standins) == {name: set() for name in HOSTS}
    for value in (*old.values(), *new.values()):
        assert value not in done.stdout + done.stderr
    for name, containers in units.items():
        for container in containers:
            inside = f"docker exec {container} bash -c 'cat {paths.IN_TOKEN}'"
            assert standins.on(name, inside).strip() == new["ray_token"]
    key = standins.on("node-a", f"docker exec vllm bash -c 'cat {paths.IN_API_KEY}'").strip()
    assert key == new["api_key"]
    assert standins.planned() == {}


def test_no_file_journal_unit_or_container_of_a_host_holds_a_secret(standins: Cluster) -> None:
    values = "\n".join(standins.secrets.values())
    allowed = {"node-a": {paths.RAY_TOKEN, paths.API_KEY}, "node-b": {paths.RAY_TOKEN}}
    for name in HOSTS:
        host = standins.lab.host(name)
        places = "/etc /usr/local /var/lib /var/log /var/spool /run /tmp /root /home /opt /srv"
        find = f"grep -rlaFf /dev/stdin {places} --exclude-dir=overlay2 2>/dev/null"
        assert set(host.ssh(find, stdin=values).stdout.split()) == allowed[name]
        tells = (
            "journalctl --no-pager --all", "systemctl show '*'", "docker ps --all --no-trunc",
            "docker inspect $(docker ps --all --quiet)", "docker image inspect $(docker images -q)",
            "systemctl cat 'ray-*' 'vllm*'", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'",
        )  # fmt: skip
        for tell in tells:
            said = host.ssh(f"{tell} 2>&1 | grep -cFf <(cat)", stdin=values)
            assert said.stdout.strip() == "0", f"{name}: {tell}"


def test_dry_runs_diffs_and_json_show_no_secret(standins: Cluster) -> None:
    standins.on("node-a", f"echo other > {paths.API_KEY} && rm {paths.RAY_TOKEN}")
    try:
        for options in (("--dry", "--diff", "-vvv"), ("--json", "--dry"), ("--debug-operations",),
                        ("--dry", "--debug", "--debug-facts")):  # fmt: skip
            done = standins.pyinfra(*options, "--yes" if "--json" not in options else "--dry")
            said = done.stdout + done.stderr
            assert len(said) > 500, options
            for value in standins.secrets.values():
                assert value not in said, options
        plan = standins.planned()
        assert plan["Secrets | Write the Ray token and the API key"] == ["node-a"]
    finally:
        standins.apply()


def test_an_opened_file_is_closed_again_and_a_stray_one_goes(standins: Cluster) -> None:
    standins.on("node-a", f"chmod 644 {paths.API_KEY}; chmod 755 {paths.SECRETS}")
    standins.on("node-b", f"echo old > {paths.API_KEY}; chown nobody {paths.RAY_TOKEN}")
    standins.apply("deploys/secrets.py")
    modes = "stat -c '%a %U:%G %n' {} {}/*"
    shown = {n: standins.on(n, modes.format(paths.SECRETS, paths.SECRETS)) for n in HOSTS}
    closed = f"700 root:root {paths.SECRETS}\n"
    token = f"600 root:root {paths.RAY_TOKEN}\n"
    assert shown["node-a"] == f"{closed}600 root:root {paths.API_KEY}\n{token}"
    assert shown["node-b"] == closed + token


def test_the_hubs_token_never_leaves_this_machine(standins: Cluster) -> None:
    token = "hf_" + "x" * 30
    standins.description.write_text(
        standins.description.read_text() + "\nsecrets: {hub_token: {env: HUB_OF_TEST}}\n"
    )
    try:
        done = subprocess.run(
            [ROOT / ".venv/bin/pyinfra", "-y", "-vvv", str(standins.inventory),
             "deploys/cluster.py"],
            cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "HUB_OF_TEST": token},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert token not in done.stdout + done.stderr
        for name in HOSTS:
            find = "grep -rlaF -f /dev/stdin /etc /var/lib/vllm-cluster /root /tmp; true"
            assert standins.lab.host(name).ssh(find, stdin=token).stdout == ""
        # and a deploy does without it
        assert standins.planned() == {}
    finally:
        text = standins.description.read_text()
        standins.description.write_text(text.rpartition("\nsecrets:")[0])
