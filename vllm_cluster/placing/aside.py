"""A model that hosts read from a file system of others: read once, then compared on every host."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from typing import Any

from vllm_cluster.control.context import Context
from vllm_cluster.placing.remote import HostError, Remote, on_all
from vllm_cluster.placing.run import Run
from vllm_cluster.plan import paths
from vllm_cluster.plan.weights import readers_of
from vllm_cluster.weights.seen import Seen


def place_aside(run: Run, remotes: Sequence[Remote]) -> tuple[str, dict[str, str]]:
    """Every host knows the model and sees its very files: the identity, and why not, by host.

    Nothing is written where the model lies.
    """
    known = run.known
    seen, silent = on_all(remotes, Remote.look)
    failed = {name: str(error) for name, error in silent.items()}
    wanted = known.plan.weights.identity
    good = {n: s for n, s in seen.items() if s.identity and s.identity == (wanted or s.identity)}
    if len({s.identity for s in good.values()}) > 1:
        told = ", ".join(f"{n} has {s.identity[:16]}" for n, s in good.items())
        words = f"the hosts know different models: {told}"
        words += f"; remove {paths.WEIGHTS_NOTES} on those that are wrong"
        return "", failed | {name: f"{name}: {words}" for name in seen}
    try:
        notes, identity = _notes(run, remotes, good, seen)
    except HostError as error:
        return "", failed | {name: str(error) for name in seen}
    others = [r for r in remotes if r.name in seen and r.name not in good]
    now, gone = on_all(others, Remote.look)
    failed |= {name: str(error) for name, error in gone.items()}
    # not the one that just read it
    others = [r for r in others if r.name in now and now[r.name].identity != identity]
    text = json.dumps(notes).encode()

    def take(remote: Remote) -> None:
        answer = remote.agent(
            "note", "--given", "--identity", identity, *_words(known), stdin=text, timeout_s=600
        )
        if answer["lines"]:
            raise HostError(remote.name, "; ".join(answer["lines"][:3]))

    _, wrong = on_all(others, take)
    return identity, failed | {name: str(error) for name, error in wrong.items()}


def _words(known: Context) -> tuple[str, ...]:
    weights = known.plan.weights
    return ("--model", weights.model, "--revision", weights.revision, *weights.aside())


def _notes(
    run: Run, remotes: Sequence[Remote], good: dict[str, Seen], seen: dict[str, Seen]
) -> tuple[dict[str, Any], str]:
    """The notes of a host that has them, or of the first one, which reads everything now."""
    known = run.known
    weights = known.plan.weights
    for remote in remotes:
        if remote.name in good:
            stamps = f"{posixpath.dirname(weights.manifest)}/stamps.json"
            manifest = remote.run(["cat", weights.manifest], timeout_s=600).stdout.decode()
            told = remote.run(["cat", stamps], timeout_s=600)
            try:
                value = json.loads(told.stdout)
            except ValueError:
                words = told.stderr.decode(errors="replace").strip() or "not JSON"
                raise HostError(remote.name, f"{stamps}: {words}") from None
            return {"manifest": manifest, "stamps": value}, good[remote.name].identity
    order = readers_of(known.cluster.description, weights.root)
    first = min(
        (r for r in remotes if r.name in seen),
        key=lambda r: order.index(r.name) if r.name in order else 0,
        default=None,
    )
    if first is None:
        raise HostError(known.plan.head, "no host answers", silent=True)
    run.say(f"{first.name} reads {weights.path} once, all of it")
    asked = ["note", *_words(known)]
    asked += ["--identity", weights.identity] if weights.identity else []
    answer: dict[str, Any] = {}
    for answer in first.lines(*asked):
        if "phase" in answer:
            run.show.state(first.name, answer)
    if "notes" not in answer:
        raise HostError(first.name, "the agent said nothing")
    return answer["notes"], str(answer["identity"])
