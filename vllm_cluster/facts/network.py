"""Network cards, the addresses that they hold, and what comes back from other hosts."""

from __future__ import annotations

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan.network import NetworkState, PathState, RdmaPort

_CARDS = r"""
ip -o -4 address show | awk '{print "address " $2 " " $4}'
for d in /sys/class/net/*; do
  echo "link ${d##*/} $(cat $d/mtu) $(cat $d/operstate) $(cat $d/carrier 2>/dev/null)"
done
for peer in PEERS; do
  ip -o -4 route get $peer 2>/dev/null |
    sed -nE "s/.* dev ([^ ]+).*/route $peer \1/p"
done
for d in /sys/class/infiniband/*/ports/*; do
  [ -d "$d" ] || continue
  n=${d#/sys/class/infiniband/}
  echo "rdma ${n%%/*} ${d##*/} $(cat $d/link_layer) $(cat $d/state)"
done
true
"""
# bash can dial by itself. Of a packet that must not be split, 28 bytes are its own headers.
_PATHS = r"""
card=$(ip -o -4 address show |
  awk '{split($4, part, "/"); if (part[1] == "ADDRESS") print $2}' | head -n1)
mtu=$(cat /sys/class/net/$card/mtu)
echo "mtu $mtu"
command -v ping >/dev/null || echo "ping missing"
dial() {
  said=$(timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" 2>&1); code=$?
  case "$code $said" in
    "0 "*) said=open ;;
    "124 "*) said=silent ;;
    *refused*) said=refused ;;
    *) said=${said##*: } ;;
  esac
  echo "tcp $1 $2 $said"
}
whole() {
  ping -M do -c 3 -i 0.2 -W 2 -q -s $(($3 - 28)) "$2" >/dev/null 2>&1 && echo "$1 $2 yes" ||
    echo "$1 $2 no"
}
for peer in PEERS; do
  for port in PORTS; do dial $peer $port & done
  whole whole $peer $mtu &
  whole small $peer 1500 &
done
wait
"""


# A firewall that rejects with a TCP reset looks like a port where nobody listens, so somebody
# does, for as long as the others need to dial. systemd brings the program. What an earlier run left
# listening ends before its time: it would be taken for this run's, and then fall silent under it.
LISTEN_S = 30
_LISTEN = r"""
for port in PORTS; do
  old=$(ss -Hltnp "src ADDRESS:$port" |
    sed -nE 's/.*"systemd-socket-[^"]*",pid=([0-9]+),.*/\1/p')
  for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -n "$old" ] && kill $old 2>/dev/null || break
    sleep 0.1
  done
  setsid timeout LIMIT systemd-socket-activate --accept --listen=ADDRESS:$port /bin/true \
    >/dev/null 2>&1 </dev/null &
done
for port in PORTS; do
  for try in 1 2 3 4 5 6 7 8 9 10; do
    [ -z "$(ss -Hltn "sport = :$port")" ] || { echo $port; break; }
    sleep 0.1
  done
done
true
"""


class Listening(FactBase[frozenset[int]]):
    """Those of `ports` on which something of this host listens, for LISTEN_S from now at least."""

    @staticmethod
    def default() -> frozenset[int]:
        return frozenset()

    def command(self, ports: list[int], address: str) -> StringCommand:
        text = _LISTEN.replace("PORTS", " ".join(map(str, ports))).replace("ADDRESS", address)
        return StringCommand(text.replace("LIMIT", str(LISTEN_S)).strip())

    def process(self, output: list[str]) -> frozenset[int]:
        return frozenset(int(line) for line in output if line.strip().isdigit())


class Interfaces(FactBase[dict[str, str]]):
    """IPv4 address -> the interface that holds it."""

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def command(self) -> StringCommand:
        return StringCommand("ip -o -4 address show")

    def process(self, output: list[str]) -> dict[str, str]:
        rows = (line.split() for line in output)
        return {row[3].split("/")[0]: row[1] for row in rows if len(row) > 3}


class NetworkFact(FactBase[NetworkState]):
    """See NetworkState; `peers` are addresses whose route is looked up."""

    @staticmethod
    def default() -> NetworkState:
        return NetworkState()

    def command(self, peers: list[str]) -> StringCommand:
        return StringCommand(_CARDS.replace("PEERS", " ".join(peers)).strip())

    def process(self, output: list[str]) -> NetworkState:
        rows = [line.split() for line in output if line.strip()]
        try:
            links = [row for row in rows if row[0] == "link"]
            return NetworkState(
                addresses=tuple((row[1], row[2]) for row in rows if row[0] == "address"),
                mtu={row[1]: int(row[2]) for row in links},
                up=frozenset(row[1] for row in links if row[3] != "down"),
                routes={row[1]: row[2] for row in rows if row[0] == "route"},
                rdma=tuple(
                    RdmaPort(row[1], int(row[2]), " ".join(row[4:]), row[3])
                    for row in rows
                    if row[0] == "rdma"
                ),
            )
        except (ValueError, IndexError) as error:
            raise FactProcessError(f"the network cards: {error}") from error


class PathFact(FactBase[PathState | None]):
    """See PathState; None where there is no `ping` to ask with."""

    @staticmethod
    def default() -> PathState | None:
        return None

    def command(self, peers: list[str], ports: list[int], address: str) -> StringCommand:
        text = _PATHS.replace("PEERS", " ".join(peers)).replace("PORTS", " ".join(map(str, ports)))
        script = text.replace("ADDRESS", address).strip()
        return StringCommand("bash", "-c", QuoteString(script))

    def process(self, output: list[str]) -> PathState | None:
        rows = [line.split() for line in output if line.strip()]
        if ["ping", "missing"] in rows:
            return None
        try:
            return PathState(
                mtu=next(int(row[1]) for row in rows if row[0] == "mtu"),
                tcp={(row[1], int(row[2])): " ".join(row[3:]) for row in rows if row[0] == "tcp"},
                whole={row[1]: row[2] == "yes" for row in rows if row[0] == "whole"},
                small={row[1]: row[2] == "yes" for row in rows if row[0] == "small"},
            )
        except (ValueError, IndexError, StopIteration) as error:
            raise FactProcessError(f"the ways to the other hosts: {error!r}") from error
