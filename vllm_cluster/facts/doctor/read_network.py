"""Cards, names, peers, listening sockets, RDMA ports."""

from __future__ import annotations

import re
from dataclasses import replace

from vllm_cluster.facts.doctor.gpu_model import RdmaPort
from vllm_cluster.facts.doctor.model import Docker, Holder, Link, Listener, Owner, Peer
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan import containers

_OF_DOCKER = re.compile(r"\bdocker[-/][0-9a-f]{64}\b")
_PROCESS = re.compile(r'\("([^"]+)",pid=(\d+)')


def links(sections: Sections) -> dict[str, Link]:
    """Cards by name, of `ip -o link show`."""
    lines = sections.one("links").lines
    speeds = dict(line.split()[1:3] for line in lines if len(line.split()) == 3)
    found = {}
    for line in lines:
        match = re.match(r"\d+: ([^@:]+)\S*: <([^>]*)> mtu (\d+)", line)
        if match:
            speed = speeds.get(match[1], "")
            flags = frozenset(match[2].split(","))
            mbit = int(speed) if speed.isdigit() else 0
            found[match[1]] = Link(match[1], int(match[3]), flags, mbit)
    return found


def _fields(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def addresses(sections: Sections) -> dict[str, str]:
    """IPv4 address -> card, in the kernel's order."""
    rows = (line.split() for line in sections.one("addresses").lines)
    return {row[3].split("/")[0]: row[1] for row in rows if len(row) > 3}


def prefixes(sections: Sections) -> dict[str, int]:
    """IPv4 address -> length of its network's prefix."""
    rows = (line.split() for line in sections.one("addresses").lines)
    pairs = (row[3].split("/") for row in rows if len(row) > 3 and "/" in row[3])
    return {address: int(length) for address, length in pairs}


def owners(sections: Sections, docker: Docker) -> tuple[Owner, ...]:
    """Who listens on the planned ports."""
    ours = {inside.namespace for inside in docker.inside.values() if inside.namespace}
    lines = sections.one("listeners").lines
    found = []
    for line in lines:
        words = line.split(" ", 5)
        if words[0] != "owner" or len(words) < 6:
            continue
        _, port, pid, namespace, group, command = words
        container = next((c.name for c in docker.containers.values() if c.id and c.id in group), "")
        # One that is ending answers no exec, or Docker has forgotten it already.
        unknown = not container and not docker.silent and _OF_DOCKER.search(group)
        unit = re.search(r"/([^/]+\.service)(?:/|$)", group)
        found.append(
            Owner(
                int(port), int(pid), command.strip(),
                namespace in ours or container in containers.EVERY or bool(unknown),
                unit[1] if unit else "",
                container,
                next((x for x in lines if f":{port} " in x and f"pid={pid}," in x), ""),
            )
        )  # fmt: skip
    return tuple(found)


def names(sections: Sections) -> dict[str, tuple[str, ...]]:
    """Name -> addresses that it resolves to on this host."""
    return {
        name: tuple(dict.fromkeys(re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", rest)))
        for name, rest in sections.pairs("names")
    }


def peers(sections: Sections) -> dict[str, Peer]:
    """Every other host as it is reached from this one."""
    found: dict[str, Peer] = {}
    for name, rest in sections.pairs("routes"):
        device = re.search(r"\bdev (\S+)", rest)
        source = re.search(r"\bsrc (\S+)", rest)
        found[name] = Peer(name, device[1] if device else "", source[1] if source else "")
    for line in sections.one("peers").lines:
        what, _, rest = line.partition(" ")
        name, _, rest = rest.partition(" ")
        peer = found.get(name, Peer(name))
        if what == "ping":
            found[name] = _pinged(peer, rest)
        elif what == "dial":
            port, _, words = rest.partition(" ")
            found[name] = replace(peer, ports={**peer.ports, int(port): words})
    return found


def _pinged(peer: Peer, rest: str) -> Peer:
    kind, _, rest = rest.partition(" ")
    mtu, _, words = rest.partition(" ")
    rtt = float(words) if re.fullmatch(r"[\d.]+", words) else None
    return replace(peer, ping=kind, mtu=int(mtu), rtt_ms=rtt, words="" if rtt else words.strip())


def holder(sections: Sections) -> Holder:
    """Who holds the firewall in place of our table."""
    name, *lines = sections.one("holder").lines or ("",)
    state = tuple(line for line in lines if line.startswith(("Status:", "Default:")))
    return Holder(name, state, tuple(line for line in lines if line not in state))


def listeners(sections: Sections) -> tuple[Listener, ...]:
    """Lines of `ss -Hltnp`: State Recv-Q Send-Q Local Peer Process."""
    found = []
    for line in sections.one("listeners").lines:
        words = line.split()
        if len(words) < 5 or words[0] == "owner":
            continue
        address, _, port = words[3].rpartition(":")
        process = _PROCESS.search(line)
        name, pid = (process[1], int(process[2])) if process else ("", 0)
        if port.isdigit():
            found.append(Listener(address.strip("[]").split("%")[0], int(port), name, pid))
    return tuple(found)


def rdma(sections: Sections) -> tuple[RdmaPort, ...]:
    """RDMA ports of /sys/class/infiniband; of `ibstat` where that is all there is."""
    found: dict[str, RdmaPort] = {}
    for what, rest in sections.pairs("infiniband"):
        name, _, values = rest.partition(" ")
        if what == "port":
            found[name] = _port(name, values)
        elif what == "counter" and name in found:
            counter, _, value = values.partition("=")
            found[name].errors[counter] = int(value)
        elif what == "gid" and name in found:
            said = _fields(values)
            if said.get("gid", "").strip("0:"):
                kind = said.get("type", "").replace("_", " ")
                found[name].gids[int(said["index"])] = (kind, said.get("net", ""))
    return tuple(found.values()) or ibstat(sections.one("ibstat").text)


def _port(name: str, text: str) -> RdmaPort:
    # state=4: ACTIVE physical=5: LinkUp rate=100 Gb/sec (4X EDR) layer=InfiniBand
    said = dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", text))
    rate = re.match(r"[\d.]+", said.get("rate", ""))
    return RdmaPort(
        name,
        state=said.get("state", "").split(": ")[-1].strip(),
        physical=said.get("physical", "").split(": ")[-1].strip(),
        rate_gbit=float(rate[0]) if rate else 0.0,
        layer=said.get("layer", "").strip(),
    )


def ibstat(text: str) -> tuple[RdmaPort, ...]:
    """Ports of `ibstat` (infiniband-diags)."""
    found = []
    adapter, number, said = "", "", dict[str, str]()

    def end() -> None:
        if number:
            rate = re.match(r"[\d.]+", said.get("Rate", ""))
            found.append(
                RdmaPort(
                    f"{adapter}/ports/{number}",
                    state=said.get("State", "").upper(),
                    physical=said.get("Physical state", ""),
                    rate_gbit=float(rate[0]) if rate else 0.0,
                    layer=said.get("Link layer", ""),
                )
            )

    for line in text.splitlines():
        text_ = line.strip()
        if match := re.match(r"CA '(\S+)'", text_):
            end()
            adapter, number, said = match[1], "", {}
        elif match := re.match(r"Port (\d+):", text_):
            end()
            number, said = match[1], {}
        elif ": " in text_:
            key, _, value = text_.partition(": ")
            said[key] = value.strip()
    end()
    return tuple(found)
