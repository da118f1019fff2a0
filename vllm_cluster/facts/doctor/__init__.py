"""A host as doctor sees it: one script, one round trip, parsed into one frozen value.

No pyinfra here: doctor asks all hosts at once with OpenSSH and is done before pyinfra has loaded.
"""

from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.facts.doctor.read import parse
from vllm_cluster.facts.doctor.script import script

__all__ = ["HostFacts", "parse", "script"]
