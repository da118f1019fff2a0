"""The firewall as it is loaded, and the ports that sshd listens on, in one round trip."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan import paths

# `sshd -T` is the configuration; ssh.socket listens instead of sshd on newer Ubuntu.
_SCRIPT = f"""
f={paths.FIREWALL}
echo "file $(sha256sum 2>/dev/null < $f | cut -c1-64)"
echo "table $(nft -n list table inet vllm_cluster 2>/dev/null | sha256sum | cut -c1-64)"
echo "loaded $(cut -c1-64 {paths.FIREWALL_STATE}/loaded 2>/dev/null | tr '\\n' ' ')"
sshd=$(command -v sshd || echo /usr/sbin/sshd)
$sshd -T 2>/dev/null | awk '$1 == "port" {{print "ssh " $2}}'
systemctl show -P Listen ssh.socket 2>/dev/null |
  awk '{{n = split($1, part, ":"); if (part[n] ~ /^[0-9]+$/) print "ssh " part[n]}}'
true
"""


@dataclass(frozen=True)
class FirewallState:
    """Digests of the rule file, of the loaded table, and of both when they were last confirmed."""

    file: str
    table: str
    confirmed_file: str
    confirmed_table: str
    ssh_ports: tuple[int, ...]


class Firewall(FactBase[FirewallState]):
    """See FirewallState."""

    @staticmethod
    def default() -> FirewallState:
        return FirewallState("", "", "", "", ())

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT.strip())

    def process(self, output: list[str]) -> FirewallState:
        values: dict[str, list[str]] = {"file": [], "table": [], "loaded": [], "ssh": []}
        for line in output:
            name, *rest = line.split()
            if name not in values:
                raise FactProcessError(f"unexpected line: {line[:200]!r}")
            values[name] += rest
        confirmed = [*values["loaded"], "", ""]
        return FirewallState(
            file="".join(values["file"]),
            table="".join(values["table"]),
            confirmed_file=confirmed[0],
            confirmed_table=confirmed[1],
            ssh_ports=tuple(sorted({int(port) for port in values["ssh"]})),
        )
