"""A host's fingerprint: packages, files, units, rules, images and containers, in one round trip.

Two runs of one description end in the same fingerprint, whatever happened in between, and so
does a machine that was wiped and made again. What a host makes up by itself (keys, identities,
caches, logs) is no part of it.
"""

from __future__ import annotations

import shlex

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan import paths

# Random, dated or dependent on the order of installation; and password hashes stay on the host.
_OWN = (
    "/etc/machine-id", "/etc/hostid", "/etc/ssh/ssh_host_*", "/etc/shadow*", "/etc/gshadow*",
    "/etc/passwd-", "/etc/group-", "/etc/subuid-", "/etc/subgid-", "/etc/docker/key.json",
    "/etc/ld.so.cache", "/etc/mtab", "/etc/.pwd.lock", "/etc/.updated", "/etc/ssl/certs/*",
    f"{paths.RAY}/*", f"{paths.COMPILE_CACHE}/*", f"{paths.OWNED}/*", paths.WEIGHTS_VERIFIED,
    f"{paths.GENERATIONS}/*",
    f"{paths.WEIGHTS_NOTES}/*",
)  # fmt: skip

_SCRIPT = r"""
t=$(printf '\t')
dpkg-query --show --showformat='${db:Status-Abbrev}\t${binary:Package}\t${Version}\n' |
  sed -n "s/^ii ${t}/package$t/p"
find /etc /usr/local/lib/vllm-cluster "$state" -xdev \( @OWN@ -false \) -prune -o \
  -path "$state/models" -prune -o -type f -printf 'F%m %u:%g\t%p\n' -o -type l \
  -printf 'L%l\t%p\n' 2>/dev/null |
while IFS="$t" read -r how path; do
  case $how in
    F*) case $path in "$secrets"/*) sum=secret ;;
          # An installer makes file systems with identifiers of its own.
          */etc/fstab|*/etc/crypttab|*/etc/initramfs-tools/conf.d/resume)
            sum=$(sed -E 's/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/ID/g
                          s/[0-9A-F]{4}-[0-9A-F]{4}/ID/g' "$path" | sha256sum) ;;
          *) sum=$(sha256sum < "$path") ;; esac
        echo "file$t$path$t${how#F} ${sum%% *}" ;;
    L*) echo "link$t$path$t${how#L}" ;;
  esac
done
find "$weights" -xdev -mindepth 1 -path "$weights/.jobs" -prune -o -name stamps.json -o \
  -not -type d -printf 'weights\t%P\t%s\n' 2>/dev/null
find "$weights" -xdev -path '*/.vllm-cluster/manifest.json' 2>/dev/null | while read -r path; do
  echo "manifest$t${path#"$weights"/}$t$(sha256sum < "$path" | cut -c1-64)"
done
echo "kernel${t}release$t$(uname -r)"
units=$(grep -lsF 'Managed by vllm-cluster' /etc/systemd/system/*.* |
  sed 's|.*/||' | grep -v '\.d$'; echo docker.service)
for unit in $units; do
  shown=$(systemctl show -P LoadState -P ActiveState -P UnitFileState -P NeedDaemonReload "$unit" |
    tr '\n' ' ')
  echo "unit$t$unit$t$shown"
done
echo "rules${t}vllm_cluster$t$(nft -n list table inet vllm_cluster 2>/dev/null | sha256sum)"
docker image ls --no-trunc --format 'image\t{{.ID}}\tthere' 2>/dev/null
docker ps --format '{{.Names}}' 2>/dev/null | while read -r name; do
  docker container inspect --format \
    "container$t$name$t{{.Image}} {{index .Config.Labels \"vllm-cluster.config\"}}" "$name"
done
findmnt -nro TARGET,FSTYPE -t ext4,xfs,nfs4 | sed "s/^/mount$t/; s/ /$t/"
"""


class FingerprintFact(FactBase[dict[str, str]]):
    """The fingerprint of a host that keeps its weights under `weights`. See plan.fingerprint."""

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def command(self, weights: str) -> StringCommand:
        return StringCommand("sh", "-c", QuoteString(script(weights)))

    def process(self, output: list[str]) -> dict[str, str]:
        return parse(output)


def script(weights: str) -> str:
    """The shell script that prints the fingerprint, KIND, NAME and VALUE by tabs."""
    own = " ".join(f"-path {shlex.quote(path)} -o" for path in _OWN)
    values = {"state": paths.STATE, "secrets": paths.SECRETS, "weights": weights}
    start = "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    return start + _SCRIPT.replace("@OWN@", own)


def parse(output: list[str]) -> dict[str, str]:
    """Lines of the script as a fingerprint. Raises FactProcessError for any other line."""
    found: dict[str, str] = {}
    for line in output:
        parts = line.split("\t", 2)
        if len(parts) != 3:
            raise FactProcessError(f"not a line of a fingerprint: {line[:200]!r}")
        found[f"{parts[0]} {parts[1]}"] = parts[2].strip()
    return found
