"""Which transport NCCL really took, read from its log (NCCL_DEBUG=INFO)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["RDMA", "sockets", "unknown"]

# `Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA`, `… via NET/IBext_v8/2`,
# `… via NET/AWS Libfabric/2/GDRDMA`, `… via NET/Socket/0`; `via P2P/IPC` stays inside a host.
# `NET/IB/0(4)/GDRDMA` goes through rank 4, which sits next to the adapter (PXN).
_CHANNEL = re.compile(r"via NET/([^/\n]+)/(\d+)(?:\(\d+\))?(/GDRDMA)?")
_NETWORK = re.compile(r"Using network (\S+)")
_SOCKET = re.compile(r"NET/Socket : Using ((?:\[\d+\]\S+ ?)+)")
_IB = re.compile(r"NET/IB : Using ((?:\[\d+\]\S+ ?)+)")
# A plugin of libfabric may itself go over TCP.
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\w+)")
_OVER_TCP = {"tcp", "sockets", "net"}
_WARNING = re.compile(r"NCCL WARN (.*)")


@dataclass(frozen=True)
class Transport:
    """What carried tensors between hosts.

    `opened`: channels were, so it is known how. `gpu_direct`: adapters read GPU memory themselves
    on every channel. `devices`: adapters or
    cards that NCCL chose. `warnings`: NCCL's own.
    """

    kind: Kind = "unknown"
    name: str = ""
    gpu_direct: bool = False
    devices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    opened: bool = False

    def text(self) -> str:
        """For people."""
        if self.kind == "unknown":
            return "not said"
        how = ", GPUDirect" if self.gpu_direct else ", through host memory"
        which = f" over {', '.join(self.devices)}" if self.devices else ""
        return f"{self.name}{how if self.kind == 'RDMA' and self.opened else ''}{which}"


def transport(log: str) -> Transport:
    """Channels say what was taken; before any is opened, "Using network" says what would be."""
    channels = _CHANNEL.findall(log)
    names = [name for name, _, _ in channels] or _NETWORK.findall(log)
    warnings = tuple(dict.fromkeys(m.strip() for m in _WARNING.findall(log)))
    if not names:
        return Transport(warnings=warnings)
    # One channel over sockets holds all others up.
    name = next((n for n in names if n == "Socket"), names[0])
    provider = _PROVIDER.search(log)
    over_tcp = provider is not None and provider[1] in _OVER_TCP and "Libfabric" in name
    sockets = name == "Socket" or over_tcp
    chosen = (_SOCKET if sockets else _IB).search(log)
    devices = re.findall(r"\[\d+\]([^\s<]+)", chosen[1]) if chosen else []
    return Transport(
        "sockets" if sockets else "RDMA",
        name,
        gpu_direct=bool(channels) and not sockets and all(gdr for _, _, gdr in channels),
        devices=tuple(dict.fromkeys(re.sub(r":\d+\.\d+.*", "", d) for d in devices)),
        warnings=warnings,
        opened=bool(channels),
    )
