"""Every port that listens, and who may reach it. Firewall, units, doctor and tests read this.

Measured with Ray 2.60 and vLLM 0.32 over two hosts. Beside these, vLLM's workers open about a
dozen ephemeral ports each for gloo, ZMQ and the TCP store (no setting names them), so hosts of
the cluster reach each other on every port.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.plan.model import Allow, PortUse
from vllm_cluster.plan.sizes import uses_ray
from vllm_cluster.spec.model import Description

# What stands beside a rule, for people; a rule of ours is known by it.
CLUSTER, API, MONITORING = "hosts of the cluster reach every port", "API", "monitoring"
# How the uses of our own agents end, which listen in a run alone.
SPREADING = "while they spread"


def port_uses(description: Description, *, ray: bool) -> tuple[PortUse, ...]:
    """The plan's ports; Ray's only where Ray runs."""
    p = description.ports
    api = PortUse("vllm api", *_one(description.serve.port), "head", "all", "api")
    several = len(description.hosts) > 1
    copied = description.weights.storage == "nvme" and several
    weights = PortUse(
        f"weights, {SPREADING}", p.weights_first, p.weights_last, "every host", "fabric",
        "cluster",
    )  # fmt: skip
    images = PortUse(f"images, {SPREADING}", *_one(p.images), "every host", "fabric", "cluster")
    own = (api, *([images] if several else []), *([weights] if copied else []))
    if not ray:
        return own
    return (
        *own,
        PortUse("ray gcs", *_one(p.gcs), "head", "all", "cluster"),
        PortUse("ray node manager", *_one(p.node_manager), "every host", "all", "cluster"),
        PortUse("ray object manager", *_one(p.object_manager), "every host", "all", "cluster"),
        PortUse("ray agent grpc", *_one(p.agent_grpc), "every host", "all", "cluster"),
        PortUse("ray agent http", *_one(p.agent_http), "every host", "fabric", "cluster"),
        PortUse("ray runtime env", *_one(p.runtime_env), "every host", "fabric", "cluster"),
        PortUse("ray metrics", *_one(p.metrics), "every host", "all", "cluster"),
        PortUse("ray autoscaler metrics", *_one(p.autoscaler_metrics), "head", "all", "cluster"),
        PortUse("ray dashboard metrics", *_one(p.dashboard_metrics), "head", "all", "cluster"),
        PortUse("ray dashboard", *_one(p.dashboard), "head", "loopback", "nobody"),
        PortUse("ray client", *_one(p.client), "head", "fabric", "cluster"),
        PortUse("ray workers", p.worker_first, p.worker_last, "every host", "all", "cluster"),
    )


def _one(port: int) -> tuple[int, int]:
    return port, port


def allowed(description: Description, hosts: tuple[str, ...], *, head: bool) -> tuple[Allow, ...]:
    """What one host lets in from outside itself; `hosts` are the addresses of all of them.

    Everything else is dropped.
    """
    network = description.network
    rules = [
        Allow(CLUSTER, hosts),
        Allow("SSH", tuple(map(str, network.ssh_from)), (description.ssh.port,)),
    ]
    if head:
        rules.append(Allow(API, tuple(map(str, network.api_from)), (description.serve.port,)))
    return (*rules, *_others(description, head=head))


def _others(description: Description, *, head: bool) -> Iterator[Allow]:
    """Monitoring, and what the description opens beside the cluster's own."""
    network = description.network
    uses = port_uses(description, ray=uses_ray(description))
    metrics = [use.first for use in uses if "metrics" in use.name and (head or use.where != "head")]
    if head:
        metrics.append(description.serve.port)  # vLLM's own are on the API's port
    if network.monitoring_from and metrics:
        yield Allow(MONITORING, tuple(map(str, network.monitoring_from)), tuple(metrics))
    for name, opening in network.open.items():
        yield Allow(name, tuple(map(str, opening.sources)), tuple(opening.ports))
