"""The kernel's settings, memory and clock of a host, in one round trip."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan.kernel import FILE, KernelState

TIME_SERVICES = ("chrony", "chronyd", "ntpsec", "ntp", "openntpd", "systemd-timesyncd")

# Files of others in the order in which systemd-sysctl reads them: by name, whatever the folder.
_SCRIPT = r"""
for name in NAMES; do
  f=/proc/sys/$(echo "$name" | tr . /)
  [ -w "$f" ] && echo "value $name $(cat "$f")"
done
find /etc/sysctl.conf /etc/sysctl.d /run/sysctl.d /usr/local/lib/sysctl.d -name '*.conf' \
    -not -type d -not -path FILE -printf '%f %p\n' 2>/dev/null | sort | while read -r _ f; do
  sed -nE 's/^ *-?([a-z][A-Za-z0-9_./-]*)[[:space:]]*=[[:space:]]*(.*)$/other \1 \2/p' "$f"
done
echo "memory $(( $(awk '/^MemTotal:/ {print $2}' /proc/meminfo) * 1024 ))"
echo "shm $(df --output=size -B1 /dev/shm 2>/dev/null | tail -n1)"
for unit in SERVICES; do
  [ "$(systemctl show -P LoadState $unit.service)" = loaded ] &&
    echo "time $unit $(systemctl is-active $unit.service)"
done
[ "$(timedatectl show -P NTPSynchronized 2>/dev/null)" = yes ] && echo "synchronized yes"
systemd-detect-virt --quiet --container && echo "container yes"
true
"""


class KernelFact(FactBase[KernelState]):
    """See KernelState; `names` are settings to read."""

    @staticmethod
    def default() -> KernelState:
        return KernelState()

    def command(self, names: list[str]) -> StringCommand:
        text = _SCRIPT.replace("NAMES", " ".join(names)).replace("FILE", FILE)
        return StringCommand(text.replace("SERVICES", " ".join(TIME_SERVICES)).strip())

    def process(self, output: list[str]) -> KernelState:
        rows = [line.partition(" ")[::2] for line in output if line.strip()]
        one = {name: value.strip() for name, value in rows}
        pairs: dict[str, dict[str, str]] = {"value": {}, "other": {}, "time": {}}
        for name, value in rows:
            if name in pairs:
                key, _, rest = value.partition(" ")
                pairs[name][key.replace("/", ".")] = " ".join(rest.split())
        try:
            return KernelState(
                values=pairs["value"],
                elsewhere=pairs["other"],
                memory_bytes=int(one["memory"]),
                shm_bytes=int(one.get("shm") or 0),
                time_services=pairs["time"],
                synchronized="synchronized" in one,
                container="container" in one,
            )
        except (KeyError, ValueError) as error:
            raise FactProcessError(f"the state of the kernel: {error}") from error


@dataclass(frozen=True)
class Offset:
    """How far a host's clock is ahead of this machine's, and how far that may be wrong."""

    seconds: float
    uncertainty_s: float


class ClockOffset(FactBase[Offset]):
    """See Offset: one question, its way there and back known."""

    def __init__(self) -> None:
        self._asked = 0.0

    @staticmethod
    def default() -> Offset:
        return Offset(0.0, 0.0)

    def command(self) -> StringCommand:
        self._asked = time.time()
        return StringCommand("date +%s.%N")

    def process(self, output: list[str]) -> Offset:
        answered = time.time()
        try:
            told = float(output[0])
        except (IndexError, ValueError) as error:
            raise FactProcessError(f"date does not tell the time: {error}") from error
        middle = (self._asked + answered) / 2
        return Offset(told - middle, (answered - self._asked) / 2)
