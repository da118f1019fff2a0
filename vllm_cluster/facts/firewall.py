"""The firewall as it is, who holds it, and the ports that sshd listens on, in one round trip."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.facts import gcs_table
from vllm_cluster.plan import Allow, admitted, paths

POLICY = "/etc/firewalld/policies/vllm-cluster.xml"

# sshd's ports three times: as configured (`sshd -T`), as systemd listens in its place (ssh.socket,
# the default since Ubuntu 22.10), and as processes listen (a port given on sshd's command line).
# ufw is a Python program: it is only asked where its own file says that it is on.
_SCRIPT = f"""{gcs_table.SHELL}gcs_table
nft=$(command -v nft || echo /usr/sbin/nft)
[ -x "$nft" ] || echo "nft missing"
echo "file $(sha256sum 2>/dev/null < {paths.FIREWALL} | cut -c1-64)"
echo "table $($nft -n list table inet vllm_cluster 2>/dev/null | sha256sum | cut -c1-64)"
$nft list table inet vllm_cluster >/dev/null 2>&1 && echo "held"
echo "loaded $(cut -c1-64 {paths.FIREWALL_STATE}/loaded 2>/dev/null | tr '\\n' ' ')"
[ -d {paths.FIREWALL_STATE}/pending ] && echo "pending"
sed -n 's/^\\t\\tip saddr /nft-rule &/p' {paths.FIREWALL} 2>/dev/null
sshd=$(command -v sshd || echo /usr/sbin/sshd)
$sshd -T 2>/dev/null | awk '$1 == "port" {{print "ssh " $2}}'
if systemctl is-active --quiet ssh.socket; then
  systemctl show -P Listen ssh.socket |
    awk '{{n = split($1, part, ":"); if (part[n] ~ /^[0-9]+$/) print "ssh " part[n]}}'
fi
ss -Hltnp 2>/dev/null | awk '/"sshd"/ {{n = split($4, part, ":"); print "ssh " part[n]}}'
if grep -qs '^ENABLED=yes' /etc/ufw/ufw.conf; then
  ufw status verbose |
    awk '/^Status: active/ {{print "ufw active"}} /^Default:/ {{print "ufw " $0}}'
  ufw show added | grep '^ufw ' | sed 's/^/ufw-rule /'
fi
if [ "$(firewall-cmd --state 2>/dev/null)" = running ]; then
  echo "firewalld running"
  echo "policy $(sha256sum 2>/dev/null < {POLICY} | cut -c1-64)"
  sed -n 's/^  <\\(!--\\|rule\\)/policy-rule &/p' {POLICY} 2>/dev/null
  firewall-cmd --get-policies | grep -qw vllm-cluster && echo "policy-live"
  firewall-cmd --list-all-zones | awk '
    /^[^ ]/ {{zone = /active/ ? $1 : ""}}
    /^ *target: ACCEPT/ && zone != "" && zone !~ /^(docker|libvirt)/ {{print "open-zone " zone}}'
fi
$nft list chains 2>/dev/null | awk '$1 == "table" {{t = $2 " " $3}} $1 == "chain" {{c = $2}}
  /hook input/ && /policy drop/ {{print "drops " t " " c}}'
true
"""


@dataclass(frozen=True)
class FirewallState:
    """Digests of the rule file, of the loaded table, and of both when they were last confirmed.

    `drops`: chains of others (`ip filter INPUT`) that drop whatever they do not know.
    `open_zones`: firewalld's zones in use that let in whatever comes. `admits`: our own rules in
    the tool that holds the firewall. `gcs`: how the head's door to Ray's GCS is not as its unit put
    it up; empty where it is, or where none stands.
    """

    file: str = ""
    table: str = ""
    held: bool = False
    confirmed_file: str = ""
    confirmed_table: str = ""
    pending: bool = False
    nft: bool = True
    ssh_ports: tuple[int, ...] = ()
    ufw: bool = False
    ufw_default: str = ""
    ufw_rules: tuple[str, ...] = ()
    firewalld: bool = False
    policy: str = ""
    policy_live: bool = False
    drops: tuple[str, ...] = ()
    open_zones: tuple[str, ...] = ()
    admits: tuple[Allow, ...] = ()
    gcs: gcs_table.State = ""


_WORDS = (
    "nft", "file", "table", "held", "loaded", "pending", "ssh", "ufw", "ufw-rule", "firewalld",
    "policy", "policy-live", "drops", "open-zone", "nft-rule", "policy-rule",
    "gcs",
)  # fmt: skip


class Firewall(FactBase[FirewallState]):
    """See FirewallState."""

    @staticmethod
    def default() -> FirewallState:
        return FirewallState()

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT.strip())

    def process(self, output: list[str]) -> FirewallState:
        values: dict[str, list[str]] = {word: [] for word in _WORDS}
        for line in output:
            name, _, rest = line.partition(" ")
            if name not in values:
                raise FactProcessError(f"unexpected line: {line[:200]!r}")
            values[name].append(rest.strip())
        confirmed = [*" ".join(values["loaded"]).split(), "", ""]
        return FirewallState(
            file="".join(values["file"]),
            table="".join(values["table"]),
            held=bool(values["held"]),
            confirmed_file=confirmed[0],
            confirmed_table=confirmed[1],
            pending=bool(values["pending"]),
            nft=not values["nft"],
            ssh_ports=tuple(sorted({int(port) for port in values["ssh"]})),
            ufw="active" in values["ufw"],
            ufw_default="".join(v for v in values["ufw"] if v.startswith("Default:")),
            ufw_rules=tuple(values["ufw-rule"]),
            firewalld=bool(values["firewalld"]),
            policy="".join(values["policy"]),
            policy_live=bool(values["policy-live"]),
            open_zones=tuple(values["open-zone"]),
            admits=_admits(values, confirmed[0]),
            drops=tuple(v for v in values["drops"] if not v.startswith("inet vllm_cluster ")),
            gcs=gcs_table.read("".join(values["gcs"])),
        )


def _admits(values: dict[str, list[str]], confirmed: str) -> tuple[Allow, ...]:
    if "active" in values["ufw"]:
        return admitted.of_ufw(values["ufw-rule"])
    if values["firewalld"]:
        return admitted.of_firewalld(values["policy-rule"])
    # What somebody else has written there was never in force by our hand.
    return admitted.of_nft(values["nft-rule"]) if values["file"] == [confirmed] else ()
