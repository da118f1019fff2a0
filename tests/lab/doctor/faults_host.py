"""Faults of hosts, the network, names and the firewall."""

from __future__ import annotations

from tests.lab.doctor import suite
from tests.lab.doctor.fault import Fault, on
from tests.lab.harness import Cluster

_RAY = "/var/lib/vllm-cluster/ray/sessions"
_STATE = "/var/lib/vllm-cluster"
_FOREIGN = "nft add table inet foreign && nft 'add chain inet foreign in " \
    "{ type filter hook input priority 10; policy accept; }' && "  # fmt: skip
_SQUATTER = """
cat >/etc/systemd/system/squatter.service <<'END'
[Service]
ExecStart=/usr/sbin/sshd -D -p 6380
[Install]
WantedBy=multi-user.target
END
systemctl stop ray-worker && systemctl daemon-reload && systemctl enable --now squatter &&
systemctl start --no-block ray-worker
"""


def _power_cut(cluster: Cluster) -> None:
    cluster.lab.host("node-b").power_cut()


def _power_on(cluster: Cluster) -> None:
    cluster.lab.host("node-b").power_on()


def _unplug(cluster: Cluster) -> None:
    cluster.lab.host("node-b").link(up=False)


def _plug(cluster: Cluster) -> None:
    cluster.lab.host("node-b").link(up=True)


def _ufw(cluster: Cluster) -> None:
    """ufw holds the firewall of node-b, with the cluster's rules; then one of them goes."""
    cluster.on("node-b", "DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "
               "--no-install-recommends ufw netbase >/dev/null && ufw allow 22/tcp && "
               "ufw --force enable")  # fmt: skip
    cluster.apply()
    suite.touched(cluster)
    suite.await_sound(cluster, timeout_s=120)
    suite.touched(cluster)
    cluster.on("node-b", "ufw delete allow from 10.77.0.11")


def _no_ufw(cluster: Cluster) -> None:
    cluster.on("node-b", "! command -v ufw >/dev/null || "
               "{ ufw --force reset && ufw disable && apt-get -qq purge -y ufw; }")  # fmt: skip
    cluster.apply()


FAULTS = (
    Fault("power-cut", "a worker has no power", "host.unreachable", "node-b",
          _power_cut, consequence="network.peer-unreachable", by_hand=_power_on),
    Fault("cable", "a worker's cable is out", "host.unreachable", "node-b",
          _unplug, consequence="network.peer-unreachable", by_hand=_plug),
    Fault("host-key", "SSH warns of another host key", "host.key-changed", "node-b",
          on("node-b", "rm /etc/ssh/ssh_host_ed25519_key* && "
             "ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key && "
             "systemctl restart ssh")),
    Fault("port-taken", "a worker ends again and again: its port is taken", "host.port-taken",
          "node-b", on("node-b", _SQUATTER),
          tidy=on("node-b", "rm -f /etc/systemd/system/squatter.service; "
                  "systemctl daemon-reload"),
          real_consequence="ray.worker-down", heal_timeout_s=900),
    Fault("disk-full", "Ray's old sessions fill the disk", "host.disk-full", "node-b",
          on("node-b", f"mkdir -p {_RAY} && mount -t tmpfs -o size=400m old {_RAY} && cd {_RAY} && "
             "mkdir -p session_2026-01-02_03-04-05_000006_7/logs session_2026-02-03_04-05-06_7_8 &&"
             "ln -s session_2026-02-03_04-05-06_7_8 session_latest && "
             "fallocate -l 380M session_2026-01-02_03-04-05_000006_7/logs/worker.out"),
          tidy=on("node-b", f"umount {_RAY}")),
    Fault("read-only", "the kernel made the state's disk read-only", "host.read-only", "node-b",
          on("node-b", f"mount --bind {_STATE} {_STATE} && mount -o remount,bind,ro {_STATE}"),
          tidy=on("node-b", f"umount {_STATE}")),
    Fault("second-address", "a second address of the fabric on the same card",
          "network.second-address", "node-b",
          on("node-b", "ip address add 10.77.0.77/24 dev fabric0"),
          real_consequence="network.second-address"),
    Fault("second-card", "a second card in the fabric's network", "network.second-address",
          "node-a", on("node-a", "ip link add other0 type veth peer other1 && "
                       "ip address add 10.77.0.78/24 dev other0 metric 9000 && "
                       "ip link set other0 up && ip link set other1 up"),
          tidy=on("node-a", "ip link del other0")),
    Fault("mtu", "unequal MTU: small requests work, large ones hang", "network.mtu", "node-b",
          on("node-b", "ip link set dev fabric0 mtu 1400")),
    Fault("gcs-dropped", "a foreign rule drops Ray's port on the head", "network.port-blocked",
          "node-a", on("node-a", _FOREIGN + "nft add rule inet foreign in tcp dport 6379 drop"),
          tidy=on("node-a", "nft delete table inet foreign"),
          real_consequence="ray.starting", heal_timeout_s=900),
    Fault("policy-drop", "another firewall's chain drops by default", "network.port-blocked",
          "node-b", on("node-b", "nft add table ip filter2 && nft 'add chain ip filter2 INPUT "
                       "{ type filter hook input priority 0; policy accept; }' && nft add rule ip "
                       "filter2 INPUT ct state established,related accept && nft add rule ip "
                       "filter2 INPUT tcp dport 22 accept && nft add rule ip filter2 INPUT iifname "
                       "lo accept && nft add rule ip filter2 INPUT meta l4proto 1 accept && "
                       "nft 'chain ip filter2 INPUT { policy drop; }'"),
          tidy=on("node-b", "nft delete table ip filter2")),
    Fault("data-plane-dropped", "only Ray's ports are open: NCCL and gloo hang",
          "network.port-blocked", "node-b",
          on("node-b", _FOREIGN + "nft add rule inet foreign in ip saddr 10.77.0.0/24 tcp dport "
             "32768-60999 ct state new drop"),
          tidy=on("node-b", "nft delete table inet foreign")),
    Fault("rejected", "a foreign rule refuses the node manager's port", "network.port-blocked",
          "node-b", on("node-b", _FOREIGN + "nft add rule inet foreign in tcp dport 6380 "
                       "ct state new reject with tcp reset"),
          tidy=on("node-b", "nft delete table inet foreign"), real=True),
    Fault("hosts-entry", "a wrong line in /etc/hosts", "network.name", "node-a",
          on("node-a", "sed -i '1i 10.77.0.99 node-b' /etc/hosts")),
    Fault("own-loopback", "a host's own name leads to 127.0.1.1", "network.name", "node-b",
          on("node-b", "sed -i '1i 127.0.1.1 node-b' /etc/hosts")),
    Fault("hosts-gone", "the block in /etc/hosts is gone", "network.name", "node-b",
          on("node-b", "sed -i '/BEGIN vllm-cluster/,/END vllm-cluster/d' /etc/hosts")),
    Fault("firewall-gone", "somebody flushed the firewall", "security.firewall", "node-a",
          on("node-a", "nft delete table inet vllm_cluster")),
    Fault("firewall-rule", "the API's rule is gone: clients time out", "security.firewall-rule",
          "node-a", on("node-a", "h=$(nft -a list chain inet vllm_cluster input | sed -n "
                       "'s/.*comment \"API.* # handle \\([0-9]*\\)/\\1/p' | head -n 1) && "
                       "nft delete rule inet vllm_cluster input handle $h")),
    Fault("ufw-rule", "ufw holds the firewall, and the rule for a peer is gone",
          "security.firewall-rule", "node-b", _ufw, consequence="network.port-blocked",
          tidy=_no_ufw),
)  # fmt: skip
