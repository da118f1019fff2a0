"""The three containers: Ray head, Ray worker, vLLM."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from vllm_cluster.plan import hardware, paths
from vllm_cluster.plan.model import Container
from vllm_cluster.plan.sizes import concrete
from vllm_cluster.spec.model import Description, Host

CONFIG_LABEL = "vllm-cluster.config"
RAY_HEAD, RAY_WORKER, VLLM = "ray-head", "ray-worker", "vllm"
# Every unit that some role has, in the order in which they are stopped.
EVERY = (VLLM, RAY_WORKER, RAY_HEAD)

# Ray drains busy actors at SIGTERM before it ends (ray/scripts/scripts.py, 2.60); Docker's own
# ten seconds would kill it in the middle.
STOP_MARGIN_S = 30


def ray_head(description: Description, image: str) -> Container:
    """`ray start --head`, in the foreground."""
    host = description.hosts[description.head]
    p = description.ports
    command = (
        "ray", "start", "--head", f"--port={p.gcs}",
        "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={p.dashboard}",
        f"--ray-client-server-port={p.client}", "--disable-usage-stats",
        *_ray_node(description, host),
    )  # fmt: skip
    return _ray(description, RAY_HEAD, image, command)


def ray_worker(description: Description, host: Host, image: str) -> Container:
    """`ray start --address`, in the foreground."""
    head = description.hosts[description.head].address
    address = f"--address={head}:{description.ports.gcs}"
    command = ("ray", "start", address, *_ray_node(description, host))
    return _ray(description, RAY_WORKER, image, command)


def vllm(description: Description, image: str, model_path: str, *, ray: bool) -> Container:
    """`vllm serve`, beside the Ray head or alone."""
    options = [*_common(VLLM, description.serve.shutdown_timeout_s + STOP_MARGIN_S)]
    if ray:
        head = description.hosts[description.head].address
        # vLLM is a Ray driver: it must see its raylet's processes, shared memory and sockets.
        options += [f"--pid=container:{RAY_HEAD}", hardware.joined(description, RAY_HEAD)]
        options += [f"--env=RAY_ADDRESS={head}:{description.ports.gcs}", *_ray_mounts()]
    else:
        options += hardware.shared_memory(description, shareable=False)
    options += [*hardware.options(description), *_limits(description), *_mounts(description)]
    if description.secrets.api_key != "none":
        options.append(_mount(paths.API_KEY, paths.IN_API_KEY, read_only=True))
    options.append("--entrypoint=/bin/bash")
    serve = f"{paths.IN_SCRIPTS}/serve"
    return Container(
        VLLM, image, tuple(options), (serve, *serve_arguments(description, model_path, ray=ray))
    )


def serve_arguments(description: Description, model_path: str, *, ray: bool) -> tuple[str, ...]:
    """The arguments after `vllm serve`. The API key is not among them: ps would show it."""
    arguments = [
        model_path,
        f"--served-model-name={description.model.name}",
        "--host=0.0.0.0",
        f"--port={description.serve.port}",
        f"--tensor-parallel-size={concrete(description).tensor}",
        f"--pipeline-parallel-size={concrete(description).pipeline}",
        f"--shutdown-timeout={description.serve.shutdown_timeout_s}",
        # The watchdog and Prometheus ask every few seconds: the journal would hold little else.
        "--disable-access-log-for-endpoints=/metrics,/health",
    ]
    if ray:
        # Never chosen by itself, also where a Ray cluster runs (vllm/config/parallel.py).
        arguments.append("--distributed-executor-backend=ray")
    for words in user_arguments(description).values():
        arguments += words
    return tuple(arguments)


def user_arguments(description: Description) -> dict[str, list[str]]:
    """The words that each key of serve.args becomes."""
    args = description.serve.args.items()
    return {name: _argument(name.replace("_", "-"), value) for name, value in args}


def _argument(name: str, value: Any) -> list[str]:
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}={json.dumps(value, separators=(',', ':'))}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}={value}"]


def _ray_node(description: Description, host: Host) -> tuple[str, ...]:
    p = description.ports
    return (
        "--block",
        f"--node-ip-address={host.address}",
        f"--node-manager-port={p.node_manager}",
        f"--object-manager-port={p.object_manager}",
        f"--dashboard-agent-grpc-port={p.agent_grpc}",
        f"--dashboard-agent-listen-port={p.agent_http}",
        f"--runtime-env-agent-port={p.runtime_env}",
        f"--metrics-export-port={p.metrics}",
        f"--min-worker-port={p.worker_first}",
        f"--max-worker-port={p.worker_last}",
        f"--num-gpus={host.gpus}",
        f"--num-cpus={description.ray.cpus or host.gpus}",
        f"--object-store-memory={description.memory.object_store}",
        f"--temp-dir={paths.RAY_SESSIONS}",
    )


def _ray(description: Description, name: str, image: str, command: tuple[str, ...]) -> Container:
    options = [
        *_common(name, description.ray.drain_timeout_s + STOP_MARGIN_S),
        "--init",  # reaps what Ray's workers leave behind
        *hardware.shared_memory(description, shareable=True),
        *hardware.options(description),
        *_limits(description),
        *_mounts(description),
        *_ray_mounts(),
        f"--entrypoint={command[0]}",
    ]
    return Container(name, image, tuple(options), command[1:])


def _common(name: str, stop_timeout_s: int) -> tuple[str, ...]:
    return (
        "--rm",
        f"--name={name}",
        # A unit starts without the network, and with the very image that was checked.
        "--pull=never",
        "--network=host",
        "--restart=no",  # systemd is the only supervisor
        "--log-driver=none",  # the journal has it already, with rotation
        f"--stop-timeout={stop_timeout_s}",
        f"--env-file={paths.ENVIRONMENT}",
    )


def _limits(description: Description) -> tuple[str, ...]:
    limits = description.limits
    options = [f"--ulimit=nofile={limits.nofile}:{limits.nofile}"]
    if limits.memlock == "unlimited":
        options.append("--ulimit=memlock=-1:-1")
    if limits.stack is not None:
        options.append(f"--ulimit=stack={limits.stack}:{limits.stack}")
    return tuple(options)


def _mounts(description: Description) -> tuple[str, ...]:
    weights = description.weights.directory
    return (
        _mount(weights, weights, read_only=True),
        _mount(paths.SCRIPTS, paths.IN_SCRIPTS, read_only=True),
        _mount(paths.VLLM_CONFIG, paths.VLLM_CONFIG, read_only=True),
        _mount(paths.COMPILE_CACHE, paths.COMPILE_CACHE),
    )


def _ray_mounts() -> tuple[str, ...]:
    return (
        _mount(paths.RAY, paths.RAY),
        _mount(paths.RAY_TOKEN, paths.IN_TOKEN, read_only=True),
    )


def _mount(source: str, target: str, *, read_only: bool = False) -> str:
    # --mount, not --volume: a missing source is an error there, not a new directory of root's.
    return f"--mount=type=bind,source={source},target={target}" + (",readonly" * read_only)


def labelled(container: Container, config: str) -> Container:
    """`container` with the digest of its configuration, to be told from one started earlier."""
    options = (*container.options[:2], f"--label={CONFIG_LABEL}={config}", *container.options[2:])
    return replace(container, options=options)
