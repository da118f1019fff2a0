"""What to write instead of options that `ray start` does not have (2.48.0 to 2.60.0)."""

_WORKER = "A host without `--head` is a worker; it joins with `--address HOST:6379`."
_STAY = "Leave it out: `ray start` goes to the background by itself unless `--block` is given."
_NONE = "Leave it out: "

SENTENCES: dict[str, str] = {
    "--worker-port-min": "It is called `--min-worker-port`.",
    "--worker-port-max": "It is called `--max-worker-port`.",
    "--worker-port-range --worker-ports --port-range": (
        "The range is `--min-worker-port` to `--max-worker-port`; a list is `--worker-port-list`."
    ),
    "--gcs-server-port --gcs-port --redis-port": (
        "The head's own port is `--port`, 6379 by default."
    ),
    "--head-port": "It is called `--port`, and only the head takes it.",
    "--redis-address --head-address --head-ip --head-node-ip --ray-address --cluster-address": (
        "A worker finds the head with `--address HOST:6379`."
    ),
    "--ray-head --head-node": "It is called `--head`.",
    "--worker --worker-node --join": _WORKER,
    "--node-ip --host --ip --advertise-address": (
        "The address that a host is reached at is `--node-ip-address`; the dashboard listens at "
        "`--dashboard-host`."
    ),
    "--gpus --num-gpu --ngpus": "It is called `--num-gpus`.",
    "--cpus --num-cpu": "It is called `--num-cpus`.",
    "--ray-client-port --client-server-port": "It is called `--ray-client-server-port`.",
    "--webui-host": "It is called `--dashboard-host`.",
    "--include-webui --dashboard --enable-dashboard --no-dashboard": (
        "It is called `--include-dashboard`, with true or false, and only the head takes it."
    ),
    "--dashboard-agent-port --agent-port": "It is called `--dashboard-agent-listen-port`.",
    "--metrics-port": "It is called `--metrics-export-port`.",
    "--object-store-size --plasma-store-memory --shm-size": (
        "The object store's size in bytes is `--object-store-memory`; the size of /dev/shm is an "
        "option of the container."
    ),
    "--internal-config": "It is called `--system-config`.",
    "--daemon --detach --background --no-block": _STAY,
    "--foreground": "It is called `--block`.",
    "--token --auth-token --auth": (
        "Set the environment variables RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH instead."
    ),
    "--plasma-store-socket-name --raylet-socket-name --huge-pages --lru-evict": (
        "It was removed; where the object store lies is `--plasma-directory`."
    ),
    "--java-worker-options --load-code-from-local --use-pickle": _NONE + "it was removed.",
    "--ray-enabled --profile-memory --cluster-name": _NONE + "nothing stands for it.",
}
