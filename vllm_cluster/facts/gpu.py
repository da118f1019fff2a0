"""NVIDIA's driver and GPUs on a host, in one round trip."""

from __future__ import annotations

from collections.abc import Iterator

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan.gpu import Card, GpuState

_CARD = (
    "index,name,uuid,memory.total,persistence_mode,mig.mode.current,"
    "ecc.errors.uncorrected.aggregate.total"
)
_ROWS = "gpu_uuid,remapped_rows.pending,remapped_rows.failure"
# The library's file name is its version, whoever packaged it. nvidia-smi that hangs is a symptom.
_SCRIPT = rf"""
echo "loaded $(cat /sys/module/nvidia/version 2>/dev/null)"
echo "module $(modinfo -F version nvidia 2>/dev/null)"
for f in /usr/lib/*/libnvidia-ml.so.*.* /usr/lib/*/nvidia/current/libnvidia-ml.so.*.* \
    /usr/lib64/libnvidia-ml.so.*.*; do
  [ -f "$f" ] && echo "library ${{f##*/libnvidia-ml.so.}}"
done
[ -d /sys/module/nouveau ] && echo "nouveau loaded"
k=$(ls -1 /boot/vmlinuz-* 2>/dev/null | sort -V | tail -n1)
k=${{k#/boot/vmlinuz-}}
[ -z "$k" ] || [ -n "$(modinfo -k "$k" -F version nvidia 2>/dev/null)" ] || echo "kernel $k"
dpkg-query -W -f '${{db:Status-Status}} ${{db:Status-Want}} ${{Package}} ${{Version}}\n' \
  '*nvidia*' 'cuda-drivers*' 'libcuda*' 'libnvcuvid*' 'libnvoptix*' 'libxnvctrl*' 2>/dev/null |
  sed -n 's/^installed /package /p'
ls /proc/driver/nvidia-nvswitch/devices/* >/dev/null 2>&1 && echo "switches there"
systemctl show -P ActiveState nvidia-fabricmanager.service | sed 's/^/fabric /'
[ "$(systemctl show -P LoadState nvidia-persistenced.service)" = loaded ] &&
  echo "persistenced $(systemctl is-active nvidia-persistenced.service)"
if command -v nvidia-smi >/dev/null; then
  out=$(timeout 60 nvidia-smi --query-gpu={_CARD} --format=csv,noheader,nounits 2>&1)
  code=$?
  if [ $code = 0 ]; then
    echo "$out" | sed 's/^/card /'
    timeout 60 nvidia-smi --query-remapped-rows={_ROWS} --format=csv,noheader 2>/dev/null |
      sed 's/^/rows /'
  elif [ $code = 124 ]; then echo "smi no answer within 60 s; reboot this host"
  else echo "smi $(echo "$out" | tr '\n' ' ')"; fi
fi
journalctl --quiet --dmesg --boot --output=cat --grep='NVRM: Xid' --lines=20 2>/dev/null |
  sed 's/^/xid /'
true
"""


class GpuFact(FactBase[GpuState]):
    """See GpuState."""

    @staticmethod
    def default() -> GpuState:
        return GpuState()

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT.strip())

    def process(self, output: list[str]) -> GpuState:
        try:
            return read(output)
        except (ValueError, IndexError) as error:
            raise FactProcessError(f"the state of the GPUs: {error}") from error


def read(output: list[str]) -> GpuState:
    """The state in the lines of the script above. Raises ValueError or IndexError."""
    rows = [line.partition(" ")[::2] for line in output if line.strip()]
    one = {name: value.strip() for name, value in rows}
    packages = [value.split() for name, value in rows if name == "package"]
    kernel = one.get("kernel", "")
    fabric = next((w[2] for w in packages if w[1].startswith("nvidia-fabricmanager")), "")
    return GpuState(
        smi_error=one.get("smi", ""),
        cards=tuple(_cards(rows)),
        loaded=one.get("loaded", ""),
        library=one.get("library", ""),
        module=one.get("module", ""),
        nouveau="nouveau" in one,
        next_kernel=kernel,
        next_module=not kernel,
        packages={words[1]: words[2] for words in packages},
        held=frozenset(words[1] for words in packages if words[0] == "hold"),
        switches="switches" in one,
        fabric_manager=_upstream(fabric),
        fabric_active=one.get("fabric") == "active",
        persistenced=one.get("persistenced", ""),
        xids=tuple(value for name, value in rows if name == "xid"),
    )


def _cards(rows: list[tuple[str, str]]) -> Iterator[Card]:
    remapped = {
        words[0]: words[1:]
        for words in (_fields(value) for name, value in rows if name == "rows")
        if len(words) == 3
    }
    for words in (_fields(value) for name, value in rows if name == "card" and value):
        pending, failed = remapped.get(words[2], ["", ""])
        yield Card(
            index=int(words[0]),
            name=words[1],
            uuid=words[2],
            memory_mib=_number(words[3]),
            persistence=words[4] == "Enabled",
            mig=words[5] == "Enabled",
            ecc_uncorrected=_number(words[6]),
            remap_pending=pending == "Yes",
            remap_failed=failed == "Yes",
        )


def _fields(line: str) -> list[str]:
    return [word.strip() for word in line.split(",")]


def _number(text: str) -> int:
    """0 for [N/A] and [Not Supported], which cards without ECC or memory of their own say."""
    return int(text) if text.isdigit() else 0


def _upstream(version: str) -> str:
    """580.95.05 of 1:580.95.05-0ubuntu1."""
    return version.rpartition(":")[2].partition("-")[0]
