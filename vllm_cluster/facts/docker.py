"""Docker as it is installed, configured and used on a host, in one round trip."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan.docker_flags import Flag, environment, flags

DAEMON_JSON = "/etc/docker/daemon.json"
ENGINES = ("docker-ce", "docker.io", "moby-engine")

_INSPECT = (
    '{"name": {{json .Name}}, "running": {{.State.Running}}, '
    '"restart": {{json .HostConfig.RestartPolicy.Name}}, '
    '"ports": {{json .HostConfig.PortBindings}}, "labels": {{json .Config.Labels}}}'
)
_SCRIPT = rf"""
dpkg-query -W -f '${{db:Status-Status}} ${{Package}} ${{Version}}\n' {" ".join(ENGINES)} \
  podman-docker 2>/dev/null | sed -n 's/^installed /package /p'
[ -e /snap/bin/dockerd ] || [ -d /snap/docker ] && echo "package snap -"
command -v docker >/dev/null && echo "cli $(readlink -f "$(command -v docker)")"
dockerd=$(command -v dockerd) && {{
  echo "version $(dockerd --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n1)"
  dockerd --help | grep -q -- --validate && echo validates
}}
systemctl show -P ExecStart docker.service | sed -n 's/.*argv\[\]=\([^;]*\) ;.*/exec \1/p'
systemctl show -P Environment docker.service | sed 's/^/env docker.service /'
systemctl show -P EnvironmentFiles docker.service | sed 's/ (.*//' | while read -r file; do
  [ -f "$file" ] && sed "s|^|env $file |" "$file"
done
f={DAEMON_JSON}
[ -e $f ] && echo "config $(stat -c %a $f) $(base64 -w0 $f)"
command -v nvidia-ctk >/dev/null && echo "ctk $(nvidia-ctk runtime configure --runtime=docker \
  --config=$f --dry-run 2>/dev/null | base64 -w0)"
if systemctl is-active --quiet docker.service && command -v docker >/dev/null; then
  echo "root $(docker info --format '{{{{.DockerRootDir}}}}' 2>/dev/null)"
  ids=$(docker ps -aq) && [ -n "$ids" ] && docker inspect --format 'INSPECT' $ids |
    sed 's/^/container /'
fi
true
"""


@dataclass(frozen=True)
class Tenant:
    """A container on the host, whoever started it."""

    name: str
    running: bool
    restart: str
    ports: tuple[str, ...]
    ours: bool


@dataclass(frozen=True)
class DockerState:
    """Docker on a host. `packages` maps a name to a version; `config` is None without a file.

    `with_nvidia`: daemon.json as `nvidia-ctk runtime configure` would write it; None where there
    is no nvidia-ctk.
    """

    packages: dict[str, str]
    cli: str = ""
    version: str = ""
    validates: bool = False
    flags: tuple[Flag, ...] = ()
    config: bytes | None = None
    config_mode: str = "644"
    data_root: str = ""
    with_nvidia: bytes | None = None
    containers: tuple[Tenant, ...] = ()

    @property
    def engine(self) -> str:
        """The package that brings dockerd; empty when there is none."""
        return next((name for name in ENGINES if name in self.packages), "")


class DockerFact(FactBase[DockerState]):
    """See DockerState."""

    @staticmethod
    def default() -> DockerState:
        return DockerState({})

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT.replace("INSPECT", _INSPECT).strip())

    def process(self, output: list[str]) -> DockerState:
        rows = [line.partition(" ")[::2] for line in output if line.strip()]
        one = dict(rows)
        packages = [value.split() for name, value in rows if name == "package"]
        variables = [value.partition(" ")[::2] for name, value in rows if name == "env"]
        mode, _, content = one.get("config", "644").partition(" ")
        try:
            config = base64.b64decode(content, validate=True) if "config" in one else None
            ctk = base64.b64decode(one["ctk"], validate=True) if "ctk" in one else None
            tenants = tuple(_tenant(value) for name, value in rows if name == "container")
        except (binascii.Error, ValueError, KeyError) as error:
            raise FactProcessError(f"Docker's state: {error}") from error
        return DockerState(
            packages={words[0]: words[-1] for words in packages if words},
            cli=one.get("cli", ""),
            version=one.get("version", ""),
            validates="validates" in one,
            flags=flags(one.get("exec", ""), environment(variables), "docker.service"),
            config=config,
            config_mode=mode,
            data_root=one.get("root", ""),
            with_nvidia=ctk,
            containers=tenants,
        )


def _tenant(text: str) -> Tenant:
    found = json.loads(text)
    ports = [
        f"{binding.get('HostIp') or '0.0.0.0'}:{binding.get('HostPort')}"  # noqa: S104  shown
        for bindings in (found["ports"] or {}).values()
        for binding in bindings or []
    ]
    return Tenant(
        name=found["name"].lstrip("/"),
        running=found["running"],
        restart=found["restart"],
        ports=tuple(sorted(ports)),
        ours="vllm-cluster.config" in (found["labels"] or {}),
    )
