"""Who can read and reach what they should not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.plan import paths
from vllm_cluster.plan.containers import VLLM

_OPEN_MODE = 0o077
_OPEN = 200
# A secret's file on a host, and on the operator's machine.
_NAMES = {paths.RAY_TOKEN: "ray_token", paths.API_KEY: "api_key"}


def secrets(case: Case) -> Iterator[Finding]:
    """Secrets are there, root's, and closed to everybody else."""
    for host, facts in case.deployed():
        wanted = [paths.RAY_TOKEN] if case.plan.backend == "ray" else []
        if VLLM in host.containers and case.plan.api_key:
            wanted.append(paths.API_KEY)
        for path in wanted:
            if path not in facts.secrets:
                yield Finding(
                    "security.secret-missing", "security", host.name,
                    expected=path, found="no such file",
                    evidence=f"stat: cannot statx '{path}': No such file or directory",
                    fix=case.run_deploy(),
                )  # fmt: skip
        ours = case.secrets.get(paths.API_KEY)  # None: this machine lacks it
        if ours is not None and facts.secrets.get(paths.API_KEY, ours) != ours:
            yield Finding(
                "security.secret-other", "security", host.name,
                expected=f"the operator's API key in {paths.API_KEY}",
                found="another one",
                evidence=f"salted digests: {facts.secrets[paths.API_KEY]}, {ours}",
                fix=case.run_deploy(),
            )  # fmt: skip
        for path in (*wanted, paths.SECRETS):
            file = facts.files.get(path)
            if file is None:
                continue
            mode = "700" if path == paths.SECRETS else "600"
            if int(file.mode, 8) & _OPEN_MODE or file.user != "root":
                yield Finding(
                    "security.secret-readable", "security", host.name,
                    expected=f"{path} for root alone (mode {mode})",
                    found=f"mode {file.mode}, {file.user}:{file.group}",
                    evidence=f"stat {path}: {file.mode} {file.user} {file.group}",
                    fix=on(host.name, f"chown root:root {path} && chmod {mode} {path}"),
                )  # fmt: skip


def secrets_here(case: Case) -> Iterator[Finding]:
    """What the hosts hold lies on this machine too: a deploy would make new ones."""
    wanted = [paths.RAY_TOKEN] if case.plan.backend == "ray" else []
    wanted += [paths.API_KEY] if case.plan.api_key else []
    there = {path for _, facts in case.deployed() for path in facts.secrets}
    lacking = [path for path in wanted if path in there and path not in case.secrets]
    if lacking:
        names = " and no ".join(_NAMES[path] for path in lacking)
        folder = PurePath(case.description).parent / ".secrets" / case.plan.cluster
        yield Finding(
            "security.secrets-not-here", "security", case.plan.head,
            expected=f"the cluster's generated secrets on this machine, in {folder}",
            found=f"no {names}; a deploy from here would make new ones in the place of those "
            "that the cluster runs with",
            evidence=f"ls {folder / _NAMES[lacking[0]]}: No such file or directory",
            fix=by_hand(f"Copy {folder} from the machine that deployed the cluster, before "
                        "anything is deployed from here"),
            severity="warning",
        )  # fmt: skip


def published(case: Case) -> Iterator[Finding]:
    """Ports that Docker publishes go around every rule of the input chain
    (https://github.com/moby/moby/issues/4737)."""
    for host, facts in case.seen():
        for container in facts.docker.containers.values():
            outside = [p for p in container.published if not p.startswith(("127.", "::1", "[::1]"))]
            if container.running and outside:
                yield Finding(
                    "security.published-port", "security", host.name,
                    expected="no container that publishes a port past the firewall",
                    found=f"{container.name} publishes {', '.join(outside)}",
                    evidence=f"docker ps: {container.name} {container.status} "
                    f"{' '.join(outside)}",
                    fix=on(host.name, f"docker stop {container.name}"),
                )  # fmt: skip


def api_key(case: Case) -> Iterator[Finding]:
    """The API asks for its key, where the plan has one. What else has the port is told as such."""
    for host, facts in case.seen():
        ours = case.plan.api_key and facts.unit(f"{VLLM}.service").running
        if ours and facts.api.keyless_status == _OPEN:
            yield Finding(
                "security.api-open", "security", host.name,
                expected="401 for a request without the key",
                found=f"{facts.api.keyless_status}",
                evidence=f"GET /v1/models: HTTP {facts.api.keyless_status}",
                fix=on(host.name, "systemctl restart --no-block vllm.service"),
            )  # fmt: skip


def loopback(case: Case) -> Iterator[Finding]:
    """What shall listen on loopback alone does: an open dashboard runs anybody's code
    (CVE-2023-48022)."""
    for host, facts in case.deployed():
        for use in case.plan.ports:
            if use.bind != "loopback":
                continue
            for listener in facts.listeners:
                inside = use.first <= listener.port <= use.last
                if inside and not listener.address.startswith(("127.", "::1")):
                    yield Finding(
                        "security.bound-wide", "security", host.name,
                        expected=f"{use.name} on loopback alone",
                        found=f"it listens on {listener.address}:{listener.port}",
                        evidence=f"ss: {listener.address}:{listener.port} {listener.process}",
                        fix=case.run_deploy(),
                    )  # fmt: skip


CHECKS = (secrets, secrets_here, published, api_key, loopback)
