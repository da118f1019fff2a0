"""What the links between hosts carry: as measured, else as their cards say, else as described."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_cluster.control.context import Context
from vllm_cluster.placing.place import Outcome


def limit(known: Context, out: Outcome) -> tuple[float, str] | None:
    """Gbit/s of the slowest link that was used, and in words what says so; None: nothing does."""
    found = _measured(known.plan.cluster, out.carried)
    if found is None and out.cards_mbit:
        name = min(out.cards_mbit, key=lambda name: out.cards_mbit[name])
        found = out.cards_mbit[name] / 1000, f"of {name}'s card"
    described = known.plan.weights.link_gbit_s
    return found or ((described, "described") if described else None)


def _measured(cluster: str, carried: Mapping[str, Mapping[str, int]]) -> tuple[float, str] | None:
    """By the last `vllm-cluster doctor network`; each host's link is that to whom gave it most."""
    from vllm_cluster.doctor import measure, network_report  # noqa: PLC0415  for a summary alone

    pairs = measure.last_time(network_report.state_file(cluster)).pairs
    found = []
    for host, peers in carried.items():
        if not peers:
            continue
        peer = max(peers, key=lambda name: peers[name])
        there, back = pairs.get((peer, host)), pairs.get((host, peer))
        flow = (there.there if there else None) or (back.back if back else None)
        if flow is not None and max(flow.one_gbit_s, flow.many_gbit_s) > 0:
            # Several connections share the work, so what several streams reach is the limit.
            rate = max(flow.one_gbit_s, flow.many_gbit_s)
            found.append((rate, f"measured from {peer} to {host}"))
    return min(found, default=None)
