"""From the hosts that have the model to those that have not, over the fabric."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.control.context import Context
from vllm_cluster.placing.follow import State, follow
from vllm_cluster.placing.remote import HostError, Remote, on_all
from vllm_cluster.placing.run import Run
from vllm_cluster.weights.fanout import Host, Model, make_jobs, token_of


@dataclass(frozen=True)
class Spread:
    """What spreads. `attempt` takes the next port of the plan's range: another model may be spread
    on the one before."""

    identity: str
    attempt: int = 0


def spread(
    run: Run,
    model: Spread,
    holders: Sequence[Remote],
    receivers: Sequence[Remote],
) -> tuple[dict[str, State], dict[str, HostError]]:
    """Start a job on each host, all detached, and watch the receivers' to their end.

    Without holders every receiver has a hurt copy, and each mends its own from the others' sound
    parts.
    """
    jobs = _jobs(run.known, model, holders, receivers)
    serving = {remote.name for remote in holders}

    def start(remote: Remote) -> str:
        how = "serve" if remote.name in serving else "pull"
        job = jobs[remote.name].encode()
        return str(remote.agent(how, "--job", "-", "--detach", stdin=job)["key"])

    # Those that have it first: a receiver that finds nobody waits, and then complains.
    _, failed = on_all(list(holders), start)
    keys, lost = on_all(list(receivers), start)
    lost |= failed
    going = [remote for remote in receivers if remote.name in keys]
    states, silent = follow(going, keys, run.show)
    return states, lost | silent


def _jobs(
    known: Context, model: Spread, holders: Sequence[Remote], receivers: Sequence[Remote]
) -> dict[str, str]:
    weights = known.plan.weights
    made = make_jobs(
        Model(weights.model, weights.revision, model.identity),
        [Host(remote.name, remote.host.address) for remote in holders or receivers],
        [Host(remote.name, remote.host.address) for remote in receivers if holders],
        token=_token(known, model.identity),
        port=_port(known, model),
        link_mbit=weights.link_gbit_s * 1000 if weights.link_gbit_s else None,
        options={
            "limit_mbit": weights.limit_mbit,
            "reserve_bytes": known.cluster.description.storage.reserve,
            "keep": weights.keep,
            # The store is ours alone, and what lies in it is what vLLM loads.
            "remove_added": True,
        },
    )
    return {name: _on_its_disk(known, name, job) for name, job in made.items()}


def _on_its_disk(known: Context, name: str, job: str) -> str:
    mount = known.plan.hosts[name].storage.holding(known.plan.weights.root)
    value = json.loads(job)
    return json.dumps({**value, "mountpoint": mount.where if mount else None})


def _token(known: Context, identity: str) -> str:
    """The same in every run, so that a host that is started later joins those that run already.

    It follows from the cluster's own secret and tells nothing of it.
    """
    secret = "".join(known.secrets[name] for name in sorted(known.secrets))
    text = f"weights {known.plan.cluster} {identity}"
    return token_of(secret, text)


def _port(known: Context, model: Spread) -> int:
    first, last = known.plan.weights.port_first, known.plan.weights.port_last
    return first + (int(model.identity[:8], 16) + model.attempt) % (last - first + 1)


def hurt(seen: Mapping[str, Mapping[str, object] | None], identity: str) -> list[str]:
    """The hosts that have a copy of that identity which is not whole."""
    return [
        name
        for name, copy in seen.items()
        if copy is not None and copy["identity"] == identity and not copy["ok"]
    ]
