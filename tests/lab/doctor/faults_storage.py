"""Faults of mounts: gone, hung, and left behind by a server that is gone.

Lab hosts have no NFS and no device units, so a share is a FUSE file system whose server is a
process that never answers, and a declared disk is a bind mount under the unit's own name. What
doctor meets is the kernel's: a mount that is not there, a call that does not return, an error.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.lab.doctor.fault import Fault, on
from tests.lab.harness import Cluster, describe

_SERVER = "/usr/local/sbin/standin-share"
_MODELS = "/var/lib/vllm-cluster/models"
_SHARE, _DISK = "/srv/share", "/srv/nvme"
_PROGRAM = r"""#!/usr/bin/perl
# A file system whose server says nothing: whoever asks it anything waits.
use strict; use Fcntl; $^F = 255;
sysopen(my $fuse, "/dev/fuse", O_RDWR) or die "/dev/fuse: $!\n";
my ($source, $where, $kind) = ("10.77.0.200:/models", $ARGV[0], "fuse.share");
my $options = "fd=" . fileno($fuse) . ",rootmode=40000,user_id=0,group_id=0,allow_other";
syscall(165, $source, $where, $kind, 0, $options) == 0 or die "mount: $!\n";
sleep 100000;
"""
_WRITE = f"test -c /dev/fuse || mknod /dev/fuse c 10 229; cat >{_SERVER} <<'END'\n{_PROGRAM}END\n" \
    f"chmod 755 {_SERVER} && "  # fmt: skip
_START = "systemd-run --quiet --unit=standin-share {server} {where} && " \
    "until grep -q ' {where} ' /proc/self/mountinfo; do sleep 0.1; done"  # fmt: skip
_STOP = "systemctl stop standin-share; systemctl reset-failed standin-share 2>/dev/null || true"
_UNIT = """cat >/etc/systemd/system/srv-{name}.mount <<'END'
[Mount]
What=/var/lib/standin-{name}
Where=/srv/{name}
Type=none
Options=bind,noatime{options}
END
mkdir -p /var/lib/standin-{name} /srv/{name} && systemctl daemon-reload && """


def _mounted(where: str) -> str:
    return _START.format(server=_SERVER, where=where)


def _umounted(where: str) -> str:
    # The words of the fix by hand.
    return f"umount --force --lazy {where}"


def _with(storage: str) -> Callable[[Cluster], Cluster]:
    def described(cluster: Cluster) -> Cluster:
        folder = cluster.inventory.parent / "with-storage"
        folder.mkdir(exist_ok=True)
        text = cluster.description.read_text()
        made = describe(cluster.lab, folder, lambda _: f"{text}\n{storage}\n")
        secrets = folder / ".secrets"
        if not secrets.exists():
            secrets.symlink_to(cluster.inventory.parent / ".secrets")
        return made

    return described


FAULTS = (
    Fault("server-hung", "`ls` of the weights hangs: the file server does not answer",
          "host.mount-hung", "node-b", on("node-b", _WRITE + _mounted(_MODELS)),
          by_hand=on("node-b", _umounted(_MODELS)), tidy=on("node-b", _STOP),
          standin="FUSE for NFS"),
    Fault("server-gone", "a share's server went away, and the mount stays stale",
          "host.mount-hung", "node-b",
          on("node-b", _WRITE + _UNIT.format(name="share", options=",ro") + _mounted(_SHARE) +
             " && systemctl kill --signal=KILL standin-share"),
          tidy=on("node-b", f"umount {_SHARE}; {_STOP}; rm /etc/systemd/system/srv-share.mount; "
                  "systemctl daemon-reload"),
          described=_with(f"storage: {{nfs: {{{_SHARE}: {{server: 10.77.0.200, export: /models, "
                          "clients: [node-b]}}}"),
          standin="FUSE for NFS"),
    Fault("mount-gone", "the weights' disk is not mounted", "host.mount-missing", "node-b",
          on("node-b", _UNIT.format(name="nvme", options="") + "systemctl start srv-nvme.mount && "
             f"mountpoint {_DISK} && umount {_DISK}"),
          tidy=on("node-b", f"umount {_DISK}; rm /etc/systemd/system/srv-nvme.mount; "
                  "systemctl daemon-reload"),
          described=_with(f"storage: {{disks: {{{_DISK}: {{devices: {{node-b: "
                          "UUID=11111111-2222-4333-8444-555555555555}}}}"),
          standin="a bind mount for a disk"),
)  # fmt: skip
