"""Faults of Docker, units, secrets, the model, Ray and vLLM."""

from __future__ import annotations

from tests.lab.doctor.fault import Fault, on

_UNITS = "/etc/systemd/system"
_WORKER = f"{_UNITS}/ray-worker.service"
_ENV = "/etc/vllm-cluster/cluster.env"
_SECRETS = "/etc/vllm-cluster/secrets"
_MODEL = "cd /var/lib/vllm-cluster/models/tiny/*/ && "
_IMAGE = "image=$(docker inspect --format '{{.Image}}' $(docker ps --quiet | head -n 1)) && "
_RELOAD = "systemctl daemon-reload && "
_STOP_PROCESS = "kill -STOP $(pgrep --oldest --full '%s')"

FAULTS = (
    Fault("docker-masked", "Docker is masked and stopped", "docker.masked", "node-b",
          on("node-b", "systemctl stop docker.socket docker && "
             "systemctl mask docker.service docker.socket"), consequence="ray.worker-down"),
    Fault("daemon-json", "daemon.json is no JSON any more", "docker.config", "node-b",
          on("node-b", "sed -i '1s/{/{,/' /etc/docker/daemon.json && "
             "! systemctl restart docker"), consequence="ray.worker-down"),
    # Stopped alone it would come back: the units want it.
    Fault("docker-gone", "Docker was removed with another package", "docker.missing", "node-b",
          on("node-b", "DEBIAN_FRONTEND=noninteractive apt-get -qq remove docker.io"),
          consequence="ray.worker-down", heal_timeout_s=400),
    Fault("leftover", "a container of an earlier attempt holds on", "docker.leftover", "node-b",
          on("node-b", _IMAGE + "docker run --detach --rm --name node-4711 --entrypoint sleep "
             "$image 3600")),
    Fault("published", "a container publishes a port past the firewall",
          "security.published-port", "node-a",
          on("node-a", "docker commit ray-head web:1 && docker run --detach --rm --publish "
             "8081:80 --name web --entrypoint sleep web:1 3600"),
          tidy=on("node-a", "docker rm --force web 2>/dev/null; docker rmi --force web:1")),
    Fault("image-gone", "a worker's image was pruned", "docker.image-missing", "node-b",
          on("node-b", _IMAGE + "systemctl stop ray-worker && docker rmi --force $image && "
             "systemctl start --no-block ray-worker"), consequence="ray.worker-down",
          heal_timeout_s=400),
    Fault("image-unequal", "a worker was moved to another image by hand", "ray.unit-changed",
          "node-b",
          on("node-b", "docker commit ray-worker other:1 && new=$(docker image inspect --format "
             f"'{{{{.Id}}}}' other:1) && sed -i \"s/sha256:[0-9a-f]*/$new/\" {_WORKER} && "
             + _RELOAD + "systemctl restart ray-worker"),
          tidy=on("node-b", "docker rmi --force other:1")),
    Fault("masked", "a unit was masked and stopped", "ray.masked", "node-b",
          on("node-b", f"ln -sf /dev/null {_WORKER} && " + _RELOAD
             + "systemctl stop ray-worker")),
    Fault("disabled", "a unit will not come back after a reboot", "ray.disabled", "node-b",
          on("node-b", "systemctl disable ray-worker")),
    Fault("shm-small", "/dev/shm of 64 MB", "ray.unit-changed", "node-b",
          on("node-b", f"sed -i 's/--shm-size=[0-9]*/--shm-size=67108864/' {_WORKER} && "
             + _RELOAD + "systemctl restart ray-worker")),
    Fault("shm-stale", "a container was started with too small a /dev/shm", "memory.shm",
          "node-b",
          on("node-b", f"cp {_WORKER} /tmp/kept && "
             f"sed -i 's/--shm-size=[0-9]*/--shm-size=134217728/' {_WORKER} && " + _RELOAD
             + f"systemctl restart ray-worker && cp /tmp/kept {_WORKER} && "
             "systemctl daemon-reload")),
    Fault("drop-in", "a drop-in changes a unit behind the plan's back", "ray.unit-changed",
          "node-b",
          on("node-b", f"mkdir -p {_WORKER}.d && printf '[Service]\\nRestart=no\\n' > "
             f"{_WORKER}.d/override.conf && systemctl daemon-reload"),
          tidy=on("node-b", f"rmdir {_WORKER}.d")),
    Fault("not-reloaded", "a unit file was touched and not read again", "ray.not-loaded",
          "node-b", on("node-b", f"touch {_WORKER}")),
    Fault("wrong-card-file", "another card stands in cluster.env",
          "collective.environment-changed", "node-b",
          on("node-b", f"sed -i 's/^GLOO_SOCKET_IFNAME=.*/GLOO_SOCKET_IFNAME=docker0/' {_ENV}")),
    Fault("wrong-card", "gloo takes docker0: it starts and hangs",
          "collective.environment-changed", "node-b",
          on("node-b", f"sed -i 's/^GLOO_SOCKET_IFNAME=.*/GLOO_SOCKET_IFNAME=docker0/' {_ENV} && "
             "systemctl restart ray-worker"), consequence="collective.card",
          real_consequence="vllm.*", heal_timeout_s=900),
    Fault("token", "a worker has another Ray token", "ray.token", "node-b",
          on("node-b", f"echo 0123456789abcdef > {_SECRETS}/ray-token && "
             "systemctl restart ray-worker"), consequence="ray.node-missing", real=True,
          heal_timeout_s=900),
    Fault("token-gone", "the Ray token is gone", "security.secret-missing", "node-b",
          on("node-b", f"rm {_SECRETS}/ray-token")),
    Fault("api-key-gone", "the API key's file is gone", "security.secret-missing", "node-a",
          on("node-a", f"rm {_SECRETS}/api-key")),
    Fault("api-key-other", "the API key on the head is not the operator's",
          "security.secret-other", "node-a",
          on("node-a", f"echo another > {_SECRETS}/api-key")),
    Fault("secret-readable", "everybody on the host can read the API key",
          "security.secret-readable", "node-a",
          on("node-a", f"chmod 644 {_SECRETS}/api-key")),
    Fault("head-stopped", "the Ray head was stopped", "ray.head-down", "node-a",
          on("node-a", "systemctl stop ray-head"), consequence="vllm.down"),
    Fault("gave-up", "a worker in a crash loop gave up", "ray.worker-down", "node-b",
          # As after ten starts; the pauses between them take half an hour.
          on("node-b", "echo 10 > /run/vllm-cluster/units/ray-worker.starts; "
             "systemctl restart ray-worker || timeout 60 sh -c "
             "'until systemctl is-failed ray-worker; do sleep 0.2; done'")),
    # Ray gives the node up, and the worker comes back by itself.
    Fault("raylet-hung", "a raylet hangs behind an active unit", "ray.starting", "node-b",
          on("node-b", _STOP_PROCESS % "ray/raylet/raylet"), real=True, awaited=True,
          by_hand=lambda _: None,
          heal_timeout_s=900),
    Fault("model-gone", "the weights are missing on one host", "model.missing", "node-b",
          on("node-b", "rm -r /var/lib/vllm-cluster/models/tiny/*")),
    Fault("model-file", "one file of the weights is missing", "model.files", "node-b",
          on("node-b", _MODEL + "rm config.json")),
    Fault("model-short", "one file of the weights is cut short", "model.files", "node-b",
          on("node-b", _MODEL + "truncate --size=-1 $(ls *.safetensors | head -n 1)")),
    Fault("model-byte", "one byte of the weights is another", "model.corrupt", "node-b",
          on("node-b", _MODEL + "printf X | dd of=$(ls *.safetensors | head -n 1) bs=1 "
             "seek=7001 conv=notrunc status=none")),
    Fault("vllm-stopped", "somebody stopped vLLM", "vllm.down", "node-a",
          on("node-a", "systemctl stop vllm")),
    Fault("rank-hung", "/health says 200, and no token comes: a rank hangs", "vllm.hung",
          "node-a", on("node-b", _STOP_PROCESS % "ray::RayWorkerP"), real=True,
          heal_timeout_s=900),
    Fault("engine-hung", "/health says 200, and no token comes: the engine hangs", "vllm.hung",
          "node-a", on("node-a", _STOP_PROCESS % "VLLM::EngineCor"), real=True,
          heal_timeout_s=900),
)  # fmt: skip
