"""The other half of the corpus: sections that the example leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.spec import DescriptionError, loads

PROD = (Path(__file__).parents[3] / "inventories" / "prod.yaml").read_text()

# (what is added to the example, the key, words of what was found, words of what is accepted)
ADDED = [
    ('install: {system: centos-9}', 'install.system', "'centos-9'", 'ubuntu-24.04'),
    ('install: {system: debian-12, password: x}', 'install.password', 'unknown key', 'authorized_keys'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/sda}}}', 'install.hosts.node-b.disk', "'/dev/sda'", '/dev/disk/by-id'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/disk/by-id/nvme-x-part1}}}', 'install.hosts.node-b.disk', '-part1', 'whole disk'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/disk/by-id/nvme-x, cards: [{address: 192.168.1.11/24}]}}}', 'install.hosts.node-b.cards[0]', 'neither mac nor name', 'one of mac and name'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/disk/by-id/nvme-x, cards: [{name: eth0, mac: "52:54:00:00:00:01", address: 192.168.1.11/24}]}}}', 'install.hosts.node-b.cards[0]', 'mac and name', 'one of'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/disk/by-id/nvme-x, cards: [{mac: "52:54", address: 192.168.1.11/24}]}}}', 'install.hosts.node-b.cards[0].mac', "'52:54'", '52:54:00:12:34:56'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/disk/by-id/nvme-x, cards: [{name: eth0, address: 192.168.1.99/24}]}}}', 'install.hosts.node-b.cards', '192.168.1.99', 'a card with 192.168.1.11'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/disk/by-id/nvme-x, cards: [{name: eth0, address: 192.168.1.11/24, gateway: 10.0.0.1}]}}}', 'install.hosts.node-b.cards[0].gateway', '10.0.0.1', 'in 192.168.1.0/24'),
    ('install: {system: debian-12, hosts: {node-b: {disk: /dev/disk/by-id/nvme-x, cards: [{name: e0, address: 192.168.1.11/24}, {name: e0, address: 10.0.0.2/24}]}}}', 'install.hosts.node-b.cards[1].name', 'e0 of node-b again', 'of its own'),
    ('install: {system: debian-12, authorized_keys: [my key], hosts: {}}', 'install.authorized_keys[0]', "'my key'", 'ssh-ed25519'),
    ('install: {system: debian-12, mirror: ftp://x, hosts: {}}', 'install.mirror', 'ftp://x', 'http://HOST/PATH'),
    ('install: {system: debian-12, hosts: {node-z: {disk: /dev/disk/by-id/nvme-x, cards: [{name: e0, address: 10.0.0.2/24}]}}}', 'install.hosts.node-z', 'not under hosts', 'node-a, node-b'),
    ("docker: {data_root: data}", "docker.data_root", "'data'", "absolute path"),
    ("docker: {packages: snap}", "docker.packages", "'snap'", "distribution (docker.io)"),
    ("docker: {log: {driver: syslog}}", "docker.log.driver", "'syslog'", "local, json-file"),
    ("docker: {log: {max_size: 50}}", "docker.log.max_size", "50", "such as 50m"),
    ("docker: {log: {max_files: 3}}", "docker.log.max_files", "unknown key", "max_file?"),
    ("docker: {log: {max_file: 0}}", "docker.log.max_file", "0", "1 or more"),
    ("driver: {install: yes please}", "driver.install", "'yes please'", "true or false"),
    ("driver: {branch: latest}", "driver.branch", "'latest'", 'such as "580"'),
    ("driver: {version: 580}", "driver.version", "580", '"580.95.05"'),
    ("driver: {kernel_module: nouveau}", "driver.kernel_module", "'nouveau'", "proprietary"),
    ("driver: {mig: enable}", "driver.mig", "'enable'", "refuse, or disable"),
    ("driver: {hold: 1}", "driver.hold", "1", "true or false"),
    ("driver: {source: {uri: ftp://x}}", "driver.source.uri", "ftp://x", "mirror.example.com"),
    ("toolkit: {version: latest}", "toolkit.version", "'latest'", "1.19.0-1"),
    ("toolkit: {source: {}}", "toolkit.source.fingerprint", "missing", "40 upper-case hex"),
    ("kernel: {sysctl: {swappiness: 1}}", "kernel.sysctl.swappiness", "'swappiness'", "vm."),
    ('kernel: {sysctl: {vm.swappiness: "1\\nkernel.panic=1"}}', "kernel.sysctl.vm.swappiness",
     "'1\\nkernel.panic=1'", "on one line"),
    ('clock: {servers: ["ntp\\nDNS=x"]}', "clock.servers[0]", "'ntp\\nDNS=x'", "names or addresses"),
    ("kernel: {sysctl: {vm.swappiness: [1]}}", "kernel.sysctl.vm.swappiness", "[1]", "value"),
    ("clock: {max_offset_s: 0}", "clock.max_offset_s", "0", "such as 0.5"),
    ("clock: {max_offset_s: 1h}", "clock.max_offset_s", "'1h'", "seconds"),
    ("clock: {service: ntpd}", "clock.service", "'ntpd'", "auto"),
    ("rdma: {devices: []}", "rdma.devices", "[]", "[mlx5_0, mlx5_1:1]"),
    ("rdma: {devices: [mlx5 0]}", "rdma.devices[0]", "'mlx5 0'", "/sys/class/infiniband"),
    ("rdma: {devices: [mlx5_0], gid_index: 3}", "rdma.gid_index", "3", "it drifts"),
    ("names: {hostname: change}", "names.hostname", "'change'", "keep"),
    ("limits: {memlock: 8MiB}", "limits.memlock", "'8MiB'", "unlimited"),
    ("limits: {nofile: 10}", "limits.nofile", "10", "1024 or more"),
    ("limits: {stack: small}", "limits.stack", "'small'", "such as 64MiB"),
    ("ray: {cpus: 0}", "ray.cpus", "0", "one for each GPU"),
    ("ray: {drain_timeout_s: 1.5}", "ray.drain_timeout_s", "1.5", "whole seconds"),
    ("ray: {dashboard: true}", "ray.dashboard", "unknown key", "cpus, drain_timeout_s"),
    ("ports: {gcs: '6379'}", "ports.gcs", "'6379'", "1 to 65535"),
    ("ports: {dashbord: 8265}", "ports.dashbord", "unknown key", "dashboard?"),
    ("ports: {worker_first: 30000, worker_last: 33000}", "ports.worker_first", "ephemeral", "below"),
    ("ports: {metrics: 8000}", "serve.port", "ports.metrics too", "of its own"),
    ("ports: [6379]", "ports", "[6379]", "gcs"),
    ("storage: {disks: {/models: {devices: {node-a: /dev/sdb}}}}", "storage.disks./models.devices.node-a", "survives a reboot", "UUID="),
    ("storage: {disks: {/etc: {devices: {node-a: UUID=ab12}}}}", "storage.disks./etc", "directory of the system", "mount points"),
    ("storage: {disks: {/m: {devices: {node-a: UUID=ab12}, format: btrfs}}}", "storage.disks./m.format", "'btrfs'", "ext4 or xfs"),
    ("storage: {nfs: {/m: {server: node-a}}}", "storage.nfs./m.export", "missing", "absolute path"),
    ("storage: {nfs: {/m: {server: a b, export: /x}}}", "storage.nfs./m.server", "'a b'", "host of this cluster"),
    ("ports: {weights_first: 6395, weights_last: 6394}", "ports.weights_last", "6395 to 6394", "in order"),
    ("ports: {weights_first: 20100, weights_last: 20200}", "ports.weights_first", "20100 to 20200", "apart from"),
    ("ports: {metrics: 6391}", "ports.metrics", "among ports.weights_first", "of its own"),
    ("storage: {reserve: some}", "storage.reserve", "'some'", "such as 5GiB"),
]  # fmt: skip


@pytest.mark.parametrize(("added", "key", "found", "accepted"), ADDED, ids=[a[0] for a in ADDED])
def test_a_wrong_value_of_a_further_section_is_named(
    added: str, key: str, found: str, accepted: str
) -> None:
    with pytest.raises(DescriptionError) as caught:
        loads(f"{PROD}\n{added}\n", Path("prod.yaml"))
    named = [problem for problem in caught.value.problems if problem.key == key]
    assert named, f"{key} is not named in:\n{caught.value}"
    assert found in named[0].found
    assert accepted in named[0].accepted
    assert named[0].line > 0
