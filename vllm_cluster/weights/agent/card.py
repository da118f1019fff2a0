"""The network card that carries an address of this host, and the speed that it says it has."""

from __future__ import annotations

import ipaddress
import struct
from contextlib import suppress
from pathlib import Path

_ROUTES = Path("/proc/net/route")
_CARDS = Path("/sys/class/net")


def card_mbit(address: str, routes: Path = _ROUTES, cards: Path = _CARDS) -> int | None:
    """Mbit/s of a real card or a bond of such; None where nothing says it.

    What is made of software says a number of its own, which is no limit of a link.
    """
    with suppress(OSError, ValueError, struct.error):
        name = _card(int(ipaddress.IPv4Address(address)), routes.read_text())
        card = cards / name if name else None
        if card is not None and ((card / "device").exists() or (card / "bonding").exists()):
            speed = int((card / "speed").read_text())
            return speed if speed > 0 else None  # -1: the card does not know
    return None


def _card(address: int, table: str) -> str | None:
    """The card of the narrowest route. The kernel shows addresses as the processor reads them,
    turned round on all that carry GPUs."""
    found: tuple[int, str] | None = None
    for line in table.splitlines()[1:]:
        words = line.split()
        net, mask = (struct.unpack("<I", struct.pack(">I", int(words[i], 16)))[0] for i in (1, 7))
        if mask and address & mask == net and (found is None or mask > found[0]):
            found = (mask, words[0])
    return found[1] if found else None
