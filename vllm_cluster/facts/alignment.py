"""What must be equal on all hosts, from one of them, in one round trip."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from vllm_cluster.facts.pins import QUERY
from vllm_cluster.plan import paths

# Versions inside the image, read once an image: its ID says that they cannot change.
VERSIONS = f"{paths.STATE}/image-versions"

_SCRIPT = r"""
echo "began $(date +%s.%N)"
echo "kernel $(uname -r)"
echo "os $(. /etc/os-release; echo "$PRETTY_NAME")"
echo "docker $(docker version --format '{{.Server.Version}}' 2>/dev/null)"
id=$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null)
echo "image $id"
if [ -n "$id" ] && [ "$(head -n1 "$versions" 2>/dev/null)" = "image $id" ]; then
  tail -n +2 "$versions"
fi
echo "manifest $(sha256sum "$manifest" 2>/dev/null | cut -d' ' -f1)"
card=$(ip -o -4 address show | awk -v a="$address" '{split($4, p, "/"); if (p[1] == a) print $2}')
echo "mtu $(cat "/sys/class/net/$card/mtu" 2>/dev/null)"
if [ "$locked" = yes ]; then
  @QUERY@
fi
if [ "$nvidia" = yes ]; then
  echo "driver_loaded $(cat /sys/module/nvidia/version 2>/dev/null)"
  echo "driver_installed $(modinfo -F version nvidia 2>/dev/null)"
  echo "toolkit $(nvidia-ctk --version 2>/dev/null | sed -n '1s/.* //p')"
  echo "cuda $(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p')"
  nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits 2>/dev/null |
    sed 's/^/gpu /'
fi
echo "ended $(date +%s.%N)"
"""


@dataclass(frozen=True)
class HostFacts:
    """Values by the keys of plan.alignment, and the host's clock when the script began and ended.

    Both are seconds since the epoch.
    """

    values: dict[str, str]
    began_s: float
    ended_s: float


class Alignment(FactBase[HostFacts]):
    """See HostFacts. `image` as Docker names it, `manifest` a path, `address` on the fabric.

    `locked`: versions of packages too, as a lock holds them.
    """

    @staticmethod
    def default() -> HostFacts:
        return HostFacts({}, 0.0, 0.0)

    def command(
        self, image: str, manifest: str, address: str, nvidia: bool, locked: bool = False
    ) -> StringCommand:
        values = {
            "image": image, "manifest": manifest, "address": address, "versions": VERSIONS,
            "nvidia": "yes" if nvidia else "no", "locked": "yes" if locked else "no",
        }  # fmt: skip
        lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
        return StringCommand(
            "sh", "-c", QuoteString("\n".join([*lines, _SCRIPT.replace("@QUERY@", QUERY)]))
        )

    def process(self, output: list[str]) -> HostFacts:
        values: dict[str, str] = {}
        gpus: list[tuple[str, str]] = []
        for line in output:
            key, _, value = line.strip().partition(" ")
            if key == "package":
                name, _, version = value.partition("\t")
                values[f"package {name}"] = version.strip()
            elif key == "gpu":
                model, _, memory_mib = value.rpartition(",")
                gpus.append((model.strip(), memory_mib.strip()))
            elif key:
                values[key] = value.strip()
        if gpus:
            values["gpu_model"] = _kinds([model for model, _ in gpus])
            values["gpu_memory"] = _kinds([f"{memory} MiB" for _, memory in gpus])
            values["gpu_count"] = str(len(gpus))
        began, ended = values.pop("began", ""), values.pop("ended", "")
        return HostFacts(values, float(began or 0), float(ended or 0))


def _kinds(values: list[str]) -> str:
    """`A100`, or `3 x A100, 1 x V100` where a host mixes."""
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    return ", ".join(f"{count} x {value}" for value, count in sorted(counts.items()))
