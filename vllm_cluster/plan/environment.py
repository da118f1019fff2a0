"""The environment of the containers."""

from __future__ import annotations

import json

from vllm_cluster.plan import hardware, paths
from vllm_cluster.spec.model import Description

# Never sent from the driver to the workers over Ray's unencrypted gRPC: vLLM copies every other
# variable (vllm/ray/ray_env.py, RAY_NON_CARRY_OVER_ENV_VARS_FILE, 0.26 to 0.33).
NOT_CARRIED = ("VLLM_API_KEY", "RAY_AUTH_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def shared(description: Description) -> dict[str, str]:
    """What is the same on every host."""
    user = {name: str(value) for name, value in description.serve.env.items()}
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": f"{paths.COMPILE_CACHE}/vllm",
        "TRITON_CACHE_DIR": f"{paths.COMPILE_CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{paths.COMPILE_CACHE}/inductor",
        # Kernels that FlashInfer and the driver compile lie in the home otherwise, which ends
        # with the container.
        "FLASHINFER_WORKSPACE_BASE": f"{paths.COMPILE_CACHE}/flashinfer",
        "CUDA_CACHE_PATH": f"{paths.COMPILE_CACHE}/cuda",
        "VLLM_CONFIG_ROOT": paths.VLLM_CONFIG,
        **hardware.nccl(description),
        **user,
    }


def ray(description: Description) -> dict[str, str]:
    """What Ray's processes and its drivers read, the same on every host."""
    return {
        # Explicit on every process: the default changes between Ray 2.59 and 2.61, and the
        # head's differs from a worker's.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": paths.IN_TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(description.ray.drain_timeout_s),
        # Ray gives its workers the niceness 15 (ray_config_def.h, worker_niceness), made for
        # batch jobs: on a host with anything else to do the ranks would come last.
        "RAY_worker_niceness": "0",
        # Every rank's own words in the journal: with deduplication the one that differs is lost.
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        "AUTOSCALER_METRIC_PORT": str(description.ports.autoscaler_metrics),
        "DASHBOARD_METRIC_PORT": str(description.ports.dashboard_metrics),
        # Two containers have two /tmp: without one shared place the engine waits for ever.
        "VLLM_RPC_BASE_PATH": paths.RPC,
    }


def own(address: str, interface: str) -> dict[str, str]:
    """What differs between hosts. Set on the container, since workers keep their own values
    (vllm/v1/executor/ray_executor_v2.py applies the driver's with setdefault)."""
    return {
        "VLLM_HOST_IP": address,
        "NCCL_SOCKET_IFNAME": f"={interface}",
        "GLOO_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
    }


def not_carried_json() -> str:
    """The content of ray_non_carry_over_env_vars.json."""
    return json.dumps(list(NOT_CARRIED)) + "\n"
