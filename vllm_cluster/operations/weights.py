"""The model on every host: one operation that looks at its host, and works on all together."""

from __future__ import annotations

from collections.abc import Callable, Generator

import click
from pyinfra.api.command import FunctionCommand
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.control.context import Context
from vllm_cluster.facts.weights import ModelThere
from vllm_cluster.operations.once import Once
from vllm_cluster.placing.place import Outcome, place
from vllm_cluster.placing.text import summary
from vllm_cluster.spec import DescriptionError
from vllm_cluster.weights.build import agent_version

# The first host that has something to do does it for all, since they get the model from each other.
_placing: Once[Outcome] = Once()


@operation()
def placed(known: Callable[[], Context]) -> Generator[FunctionCommand, None, None]:
    """Have the model of the plan on this host, whole and verified."""
    plan = known().plan
    seen = host.get_fact(ModelThere, weights=plan.weights)
    why = seen.trouble(plan.weights.identity, agent_version())
    if not why:
        host.noop(f"{plan.model_path} holds the model whole")
        return
    host.log(f"{plan.model_path}: {why}")
    yield FunctionCommand(_placed, (known,), {})


def _placed(state: State, host: Host, known: Callable[[], Context]) -> bool:
    out = _placing.of(state, lambda: _together(state, known()))
    if host.name not in out.failed:
        return True
    host.log_styled(out.failed[host.name], fg="red")
    return False


def _together(state: State, known: Context) -> Outcome:
    names = {h.name for h in state.active_hosts if state.is_host_in_limit(h)}
    try:
        out = place(known, names, lambda text: click.echo(f"    {text}", err=True))
    except DescriptionError as error:
        return Outcome(failed=dict.fromkeys(names, error.text()))
    for line in summary(known, out):
        click.echo(f"    {line}", err=True)
    return out
