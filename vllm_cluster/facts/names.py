"""A host's names, what names resolve to there, and who else writes /etc/hosts: one round trip."""

from __future__ import annotations

import base64
import binascii
import shlex
from dataclasses import dataclass, field

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

CLOUD_DROP_IN = "/etc/cloud/cloud.cfg.d/zz-vllm-cluster.cfg"
# User data and vendor data of this instance outrank every file under /etc/cloud (cloud-init
# 22.4 and 24.4, cloudinit/helpers.py, ConfigMerger._read_cfg).
_INSTANCE = "/var/lib/cloud/instance"

# A resolver that cannot be reached keeps `hostname -f` for as long as it likes.
_SCRIPT = r"""
echo "hostname $(hostname)"
echo "fqdn $(timeout 5 hostname -f 2>/dev/null)"
ip -o -4 address show | awk '{split($4, a, "/"); print "address " a[1]}'
for name in NAMES; do
  echo "resolves $name $(getent ahostsv4 "$name" | awk '{print $1}' | sort -u | tr '\n' ' ')"
done
echo "hosts $(base64 -w0 /etc/hosts 2>/dev/null)"
if [ -d /etc/cloud ] && [ ! -e /etc/cloud/cloud-init.disabled ]; then
  grep -HiEs '^[[:space:]]*manage_etc_hosts:[[:space:]]*["'"'"']?(true|template|localhost|yes|on)' \
    /etc/cloud/cloud.cfg /etc/cloud/cloud.cfg.d/*.cfg INSTANCE/*cloud-config.txt |
    sed 's/:.*//; s/^/cloud /'
fi
true
"""


@dataclass(frozen=True)
class NamesState:
    """`cloud`: files that let cloud-init write /etc/hosts, without ours."""

    hostname: str = ""
    fqdn: str = ""
    addresses: tuple[str, ...] = ()
    resolves: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hosts_file: bytes = b""
    cloud: tuple[str, ...] = ()

    @property
    def instance_data(self) -> tuple[str, ...]:
        """Those of `cloud` that no file under /etc outranks."""
        return tuple(path for path in self.cloud if path.startswith(_INSTANCE))


class NamesFact(FactBase[NamesState]):
    """See NamesState; `names` are those to resolve."""

    @staticmethod
    def default() -> NamesState:
        return NamesState()

    def command(self, names: list[str]) -> StringCommand:
        words = " ".join(shlex.quote(name) for name in names)
        return StringCommand(_SCRIPT.replace("NAMES", words).replace("INSTANCE", _INSTANCE).strip())

    def process(self, output: list[str]) -> NamesState:
        rows = [(*line.split(" ", 1), "")[:2] for line in output if line.strip()]
        one = {key: value.strip() for key, value in rows}
        resolves = (value.split() for key, value in rows if key == "resolves")
        try:
            hosts = base64.b64decode(one.get("hosts", ""), validate=True)
        except binascii.Error as error:
            raise FactProcessError(f"/etc/hosts: content is not base64: {error}") from error
        return NamesState(
            hostname=one.get("hostname", ""),
            fqdn=one.get("fqdn", ""),
            addresses=tuple(value.strip() for key, value in rows if key == "address"),
            resolves={words[0]: tuple(words[1:]) for words in resolves if words},
            hosts_file=hosts,
            cloud=tuple(
                value.strip()
                for key, value in dict.fromkeys(rows)
                if key == "cloud" and value.strip() != CLOUD_DROP_IN
            ),
        )
