"""Faults of versions and of the clock."""

from __future__ import annotations

import base64
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lab import standin
from tests.lab.doctor.fault import Deed, Fault, on
from tests.lab.harness import Cluster

_WORKER = "/etc/systemd/system/ray-worker.service"
_ROOT = "root=/proc/$(docker inspect --format '{{.State.Pid}}' ray-worker)/root && "
_OTHER = "standin/other:1"
_PACKAGES = f"cd $root/{standin.PACKAGES} && "


def _with_image(**versions: str) -> Deed:
    """Run node-b's worker with an image that has other versions; its unit is as before."""

    def deed(cluster: Cluster) -> None:
        with TemporaryDirectory() as folder:
            archive = standin.write(cluster.lab, Path(folder) / "image.tar", versions, _OTHER)
            text = base64.b64encode(archive.read_bytes()).decode()
        done = cluster.lab.host("node-b").ssh("base64 --decode | docker load", stdin=text)
        assert done.returncode == 0, done.stderr
        cluster.on("node-b", f"new=$(docker image inspect --format '{{{{.Id}}}}' {_OTHER}) && "
                   f"cp {_WORKER} /tmp/kept && sed -i \"s/sha256:[0-9a-f]*/$new/\" {_WORKER} && "
                   "systemctl daemon-reload && systemctl restart ray-worker && "
                   f"cp /tmp/kept {_WORKER} && systemctl daemon-reload")  # fmt: skip

    return deed


# Bash that reads a clock of its own until chronyc steps it: all hosts of a lab share one kernel.
_AHEAD = r"""cat >/usr/local/bin/bash <<'END'
#!/bin/sh
[ ! -e /run/ahead ] || export BASH_ENV=/run/ahead
exec /bin/bash "$@"
END
cat >/run/ahead <<'END'
unset BASH_ENV EPOCHREALTIME
EPOCHREALTIME=$(/bin/date -d '+90 seconds' +%s.%N)
END
cat >/usr/local/bin/chronyc <<'END'
#!/bin/sh
case "$*" in *makestep*) rm /run/ahead ;; esac
END
cat >/etc/systemd/system/chrony.service <<'END'
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
END
chmod 755 /usr/local/bin/bash /usr/local/bin/chronyc && systemctl daemon-reload"""

FAULTS = (
    Fault("clock", "the clock of one host is off", "host.clock", "node-b", on("node-b", _AHEAD),
          tidy=on("node-b", "systemctl disable --now chrony; rm -f /usr/local/bin/bash "
                  "/usr/local/bin/chronyc /etc/systemd/system/chrony.service /run/ahead; "
                  "systemctl daemon-reload"),
          standin="a bash and a chronyc with a clock of their own"),
    Fault("ray-image", "Ray's versions differ: a worker runs another image",
          "docker.image-unequal", "node-b", _with_image(ray="2.55.1"),
          consequence="ray.version", tidy=on("node-b", f"docker rmi --force {_OTHER}")),
    Fault("python-image", "Python's patch versions differ: a worker runs another image",
          "docker.image-unequal", "node-b", _with_image(python="3.11.9"),
          consequence="ray.python", tidy=on("node-b", f"docker rmi --force {_OTHER}")),
    Fault("ray-in-place", "somebody installed another Ray into the running container",
          "ray.version", "node-b",
          on("node-b", _ROOT + _PACKAGES + "mv ray-*.dist-info ray-2.55.1.dist-info")),
    Fault("python-in-place", "Python was patched in a running container", "ray.python", "node-b",
          on("node-b", _ROOT + f"echo '#define PY_VERSION \"3.11.9\"' >$root/{standin.HEADER}")),
)  # fmt: skip
