"""Docker images."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from pyinfra.api.command import FunctionCommand, QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.image.seen import Seen, parse, script
from vllm_cluster.image.spread import Terms, Wanted, bring
from vllm_cluster.operations import owned, ssh
from vllm_cluster.operations.once import Once
from vllm_cluster.plan import paths
from vllm_cluster.weights.remote import Remote


class ImageSeen(FactBase[Seen]):
    """Whether `image` is on the host, and whether a run has left something staged."""

    @staticmethod
    def default() -> Seen:
        return Seen()

    def command(self, image: str) -> StringCommand:
        return StringCommand("sh", "-c", QuoteString(script(image, everything=False)))

    def process(self, output: list[str]) -> Seen:
        try:
            return parse("\n".join(output))
        except ValueError as error:
            raise FactProcessError(f"not what Docker has: {output[:3]!r}") from error


# A fan-out is one thing for all hosts: why each failed, by host.
_bringing: Once[dict[str, str]] = Once()


@operation()
def image_present(
    wanted: Wanted, terms: Terms, addresses: Mapping[str, str]
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Have the wanted image on every host of the run; `addresses` of all hosts on the fabric."""
    seen = host.get_fact(ImageSeen, image=wanted.image)
    if seen.id and not seen.staged:
        host.noop(f"{wanted.image} is there")
        return
    host.log(f"{wanted.image}: {'there; what was staged goes' if seen.id else 'missing'}")
    if not seen.id:
        yield StringCommand(owned.first("image", wanted.image, "absent"))
    yield FunctionCommand(take_part, (wanted, terms, addresses), {})


def take_part(
    state: State, host: Host, wanted: Wanted, terms: Terms, addresses: Mapping[str, str]
) -> bool:
    """Do it for all hosts, or wait until another has; say what became of this one."""
    failed = _bringing.of(state, lambda: _together(state, wanted, terms, addresses))
    reason = failed.get(host.name)
    if reason is not None:
        host.log_styled(f"the image is not on this host: {reason}", fg="red")
    return reason is None


def _together(
    state: State, wanted: Wanted, terms: Terms, addresses: Mapping[str, str]
) -> dict[str, str]:
    others = {name: state.inventory.get_host(name) for name in addresses}
    # A host beyond --limit may give the image; one that failed earlier is left alone.
    usable = {
        name: other
        for name, other in others.items()
        if other in state.active_hosts or not state.is_host_in_limit(other)
    }
    receivers = tuple(name for name, other in usable.items() if other in state.active_hosts)
    remotes = {name: _remote(other) for name, other in usable.items()}
    return bring(wanted, terms, remotes, addresses, receivers)


def _remote(host: Host) -> Remote:
    def reach(line: str) -> list[str]:
        return ssh.ssh_command(host, "sh", "-c", line)

    return Remote(host.name, paths.AGENT, "", reach, host.log)
