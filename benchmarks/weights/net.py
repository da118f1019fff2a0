"""Hosts that are network namespaces on one switch, every link shaped. Needs root.

Nothing is put into the root namespace: the bridge lies in a namespace of its own. Names begin with
"vcw-" and the tag, so that two runs do not meet.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from types import TracebackType

BURST_BYTES = 128 * 1024  # above 64 KiB, or the kernel takes its large packets apart by software


def run(*argv: str) -> str:
    """Run a command; raise with its own words when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


class Net:
    """`count` hosts, numbered from 0, with 10.99.0.<number + 1> on eth0 each.

    rate_mbit shapes every host's link both ways; None leaves it as fast as the machine.
    """

    def __init__(self, tag: str, count: int, rate_mbit: float | None) -> None:
        self.tag = tag
        self.count = count
        self.rate_mbit = rate_mbit
        self._switch = f"vcw-{tag}-sw"

    def namespace(self, number: int) -> str:
        return f"vcw-{self.tag}-{number}"

    @staticmethod
    def address(number: int) -> str:
        return f"10.99.0.{number + 1}"

    def __enter__(self) -> Net:
        self._clear()
        try:
            run("ip", "netns", "add", self._switch)
            self._ip(self._switch, "link", "add", "br0", "type", "bridge")
            self._ip(self._switch, "link", "set", "br0", "up")
            for number in range(self.count):
                self._add_host(number)
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    def _add_host(self, number: int) -> None:
        space, port = self.namespace(number), f"p{number}"
        run("ip", "netns", "add", space)
        self._ip(space, "link", "add", "eth0", "type", "veth", "peer", port, "netns", self._switch)
        self._ip(space, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        self._ip(space, "link", "set", "lo", "up")
        self._ip(space, "link", "set", "eth0", "up")
        self._ip(self._switch, "link", "set", port, "master", "br0")
        self._ip(self._switch, "link", "set", port, "up")
        if self.rate_mbit is not None:
            self.shape(number, self.rate_mbit)

    def shape(self, number: int, rate_mbit: float) -> None:
        """Both ways of a host's link."""
        for space, device in ((self.namespace(number), "eth0"), (self._switch, f"p{number}")):
            run(
                "ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", device, "root",
                "tbf", "rate", f"{rate_mbit}mbit", "burst", str(BURST_BYTES), "limit", "1000000",
            )  # fmt: skip

    def cut(self, number: int) -> None:
        """Pull the host's cable: nothing is refused, everything is silent."""
        self._ip(self._switch, "link", "set", f"p{number}", "down")

    def mend(self, number: int) -> None:
        self._ip(self._switch, "link", "set", f"p{number}", "up")

    def sent_bytes(self, number: int) -> int:
        """What the host has put on its link, headers included."""
        text = run("ip", "-n", self.namespace(number), "-s", "-j", "link", "show", "eth0")
        return int(json.loads(text)[0]["stats64"]["tx"]["bytes"])

    def enter(self, number: int) -> list[str]:
        """What to put before a command that is to run on the host."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(number)}"]

    @staticmethod
    def _ip(space: str, *argv: str) -> None:
        run("ip", "-n", space, *argv)

    def _clear(self) -> None:
        for space in [self._switch, *(self.namespace(n) for n in range(self.count))]:
            with suppress(RuntimeError):
                run("ip", "netns", "delete", space)
