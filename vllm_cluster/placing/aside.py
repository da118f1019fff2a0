"""A model that hosts read from a file system of others: read once, then compared on every host."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
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
    if any(_unproven(s, wanted) for s in seen.values()):
        good = {}  # one read wrong bytes, which the others' notes do not tell: it is read again
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
    return identity, failed | give(known, others, notes, identity)


def _unproven(seen: Seen, wanted: str) -> bool:
    copy = seen.copy or {}
    return bool(copy.get("unproven")) and copy.get("identity") == (wanted or copy.get("identity"))


def give(
    known: Context, remotes: Sequence[Remote], notes: Mapping[str, Any], identity: str
) -> dict[str, str]:
    """Give the notes of the host that read the model to others: why one did not take them."""
    text = json.dumps(notes).encode()

    def take(remote: Remote) -> None:
        answer = remote.agent(
            "note", "--given", "--identity", identity, *_words(known), stdin=text, timeout_s=600
        )
        if answer["lines"]:
            raise HostError(remote.name, "; ".join(answer["lines"][:3]))

    _, wrong = on_all(remotes, take)
    return {name: str(error) for name, error in wrong.items()}


def withdraw(
    known: Context, remotes: Sequence[Remote], found: Mapping[str, str], identity: str
) -> dict[str, str]:
    """Tell others which bytes were read, so that no unit starts with wrong ones: who does not know.

    Names, sizes and times are still the same there.
    """
    text = json.dumps(found).encode()

    def hear(remote: Remote) -> None:
        remote.look()  # brings the agent where it is missing
        remote.agent("note", "--found", "--identity", identity, *_words(known), stdin=text)

    _, lost = on_all(remotes, hear)
    return {
        name: f"{error}; its units may start with the wrong bytes" for name, error in lost.items()
    }


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
    if "found" in answer:
        others = [r for r in remotes if r.name in seen and r.name != first.name]
        withdraw(known, others, answer["found"], weights.identity)
    if "notes" not in answer:
        words = "; ".join(answer.get("lines", [])) or "the agent said nothing"
        raise HostError(first.name, words)
    return answer["notes"], str(answer["identity"])
