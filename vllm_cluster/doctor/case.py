"""All that the checks may know: the plan, the hosts' facts, and what this machine holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from vllm_cluster.doctor.finding import HERE, Step
from vllm_cluster.doctor.reach import Silence
from vllm_cluster.facts.doctor import HostFacts
from vllm_cluster.facts.doctor.model import Unit
from vllm_cluster.plan import HostPlan, Plan
from vllm_cluster.spec.hosts_model import Driver


@dataclass(frozen=True)
class Entry:
    """A file of the model as its manifest has it."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Case:
    """One look at one cluster.

    `deploy`: the command that brings every host to the plan. `model_files` and `model_id`: from
    the manifest on this machine; None where the model is not here. `gpu_model`: the card's name
    in the description, empty where it says none. `driver`: what the description says of it.
    `generation`: the identity of what the description describes, empty where a secret is missing.
    """

    plan: Plan
    facts: Mapping[str, HostFacts]
    silent: Mapping[str, Silence] = field(default_factory=dict)
    deploy: str = "pyinfra -y inventories/prod.py deploys/cluster.py"
    fabric: IPv4Network = field(default_factory=lambda: IPv4Network("0.0.0.0/0"))
    description: str = "inventories/prod.yaml"
    model_files: Mapping[str, Entry] | None = None
    model_id: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)
    gpu_model: str = ""
    known_hosts: str = "~/.ssh/known_hosts"
    driver: Driver = field(default_factory=Driver)
    generation: str = ""

    def seen(self) -> Iterator[tuple[HostPlan, HostFacts]]:
        """Each host that could be looked at as root, in the plan's order. What is missing from an
        answer that broke off would look as if it were not there, so that host is left out."""
        for name, host in self.plan.hosts.items():
            facts = self.facts.get(name)
            if facts is not None and facts.whole:
                yield host, facts

    def deployed(self) -> Iterator[tuple[HostPlan, HostFacts]]:
        """Those of them that a deploy has been to."""
        return ((host, facts) for host, facts in self.seen() if facts.deployed)

    @property
    def deployed_somewhere(self) -> bool:
        """Whether this cluster has ever been deployed, as far as can be seen."""
        return any(True for _ in self.deployed())

    @property
    def head(self) -> HostFacts | None:
        """The head's facts; None where it could not be looked at as a whole."""
        facts = self.facts.get(self.plan.head)
        return facts if facts is not None and facts.whole else None

    @property
    def serves(self) -> bool:
        """Whether vLLM has just answered with a token."""
        return self.head is not None and self.head.api.gave_a_token

    def run_deploy(self) -> tuple[Step, ...]:
        """The fix for whatever differs from the plan."""
        return (Step(HERE, self.deploy),)

    def unit(self, host: str, name: str) -> Unit:
        """A unit of a host that was seen."""
        return self.facts[host].unit(name)
