"""Every byte of the model on every host, at once; bad pieces fetched from hosts that have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_cluster.control.context import Context
from vllm_cluster.placing.aside import give, withdraw
from vllm_cluster.placing.place import Outcome, alone, place, remotes_of
from vllm_cluster.placing.remote import Remote, on_all
from vllm_cluster.placing.run import Say
from vllm_cluster.placing.show import Show
from vllm_cluster.weights.seen import Seen


@dataclass
class Verified:
    """`damaged`: what was wrong, by host, before it was mended. `failed`: what still is."""

    read_bytes: int = 0
    damaged: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ok": not self.failed}


def verify(
    known: Context, names: Collection[str] | None, say: Say, *, repair: bool, in_place: bool = False
) -> Verified:
    """Read all of it from the disks; with `repair` fetch what is bad, else leave it as it is."""
    remotes = remotes_of(known, names)
    weights = known.plan.weights
    out = Verified()
    if not weights.identity:
        out.failed = {r.name: f"{r.name}: the model was not placed yet" for r in remotes}
        return out
    if not weights.copied:
        remotes = remotes[:1]  # one file system, which one host reads

    answers = _read(known, remotes, say, out, in_place=in_place)
    if not weights.copied:
        _tell(known, names, answers, out)
    # A share is its owner's: nothing of ours mends what lies there.
    if not (repair and weights.copied and (out.damaged or out.failed)):
        out.failed |= {name: f"{name}: {lines[0]}" for name, lines in out.damaged.items()}
        return out
    unread = set(out.failed)
    _mend(known, names, say, out, in_place=in_place)
    # Placing looks at names, sizes and times: of a host that could not read its copy that is no
    # word about the bytes. What it was given just now has been read, but who knows which that is.
    again = [remote for remote in remotes if remote.name in unread and remote.name in out.whole]
    if again:
        out.whole = [name for name in out.whole if name not in unread]
        second = Verified()
        _read(known, again, say, second, in_place=in_place)
        out.read_bytes += second.read_bytes
        out.whole += second.whole
        out.damaged |= second.damaged
        out.failed |= second.failed
        out.failed |= {name: f"{name}: {lines[0]}" for name, lines in second.damaged.items()}
    return out


def _read(
    known: Context, remotes: Sequence[Remote], say: Say, out: Verified, *, in_place: bool
) -> dict[str, dict[str, Any]]:
    """Let the hosts read all of it; what they find goes to `out`. Returns their answers."""
    show, weights = Show(say, in_place=in_place), known.plan.weights

    def read(remote: Remote) -> dict[str, Any]:
        remote.look()  # brings the agent where it is missing
        asked = ["verify", "--identity", weights.identity]
        if not weights.copied:
            asked = ["note", "--model", weights.model, "--revision", weights.revision]
            asked += [*weights.aside(), "--identity", weights.identity]
        answer: dict[str, Any] = {}
        for answer in remote.lines(*asked):
            if "phase" in answer:
                show.state(remote.name, answer)
        return answer

    with alone(known, say):
        answers, failed = on_all(remotes, read)
    show.end()
    out.failed = {name: str(error) for name, error in failed.items()}
    for name, answer in answers.items():
        copies = answer.get("copies", [])
        out.read_bytes += sum(int(copy.get("read_bytes", 0)) for copy in copies)
        if not weights.copied:
            out.read_bytes += int(answer.get("total_bytes", 0))
        if answer.get("ok", True):
            out.whole.append(name)
        else:
            out.damaged[name] = list(answer["lines"])
    return answers


def _tell(
    known: Context,
    names: Collection[str] | None,
    answers: Mapping[str, Mapping[str, Any]],
    out: Verified,
) -> None:
    """What one host read of a file system that all see holds for the others too."""
    identity = known.plan.weights.identity
    for answer in answers.values():
        if "found" in answer:
            others = [r for r in remotes_of(known) if r.name not in answers]
            out.failed |= withdraw(known, others, answer["found"], identity)
        elif "notes" in answer:
            others = [r for r in remotes_of(known, names) if r.name not in answers]
            seen, silent = on_all(others, lambda remote: remote.look())
            out.failed |= {name: str(error) for name, error in silent.items()}
            lack = [r for r in others if r.name in seen and seen[r.name].identity != identity]
            out.failed |= give(known, lack, answer["notes"], identity)


def _mend(
    known: Context, names: Collection[str] | None, say: Say, out: Verified, *, in_place: bool
) -> None:
    """What is wrong has lost its stamp, so that placing sees it and fetches those pieces alone."""
    for name, lines in out.damaged.items():
        for line in lines:
            say(f"{name}: {line}")
    mended: Outcome = place(known, names, say, in_place=in_place)
    out.failed = dict(mended.failed)
    out.whole = list(mended.placed)


def remove(known: Context, names: Collection[str] | None, revision: str) -> dict[str, str]:
    """Remove the copies of the description's model at `revision` (or with that key) from the hosts.

    Returns what came of it by host: "removed", "not there", or the reason against it. A copy that a
    unit uses stays.
    """
    weights = known.plan.weights

    def one(remote: Remote) -> str:
        remote.look()
        gone = 0
        for copy in remote.agent("list")["copies"]:
            ours = copy.get("model") == weights.model and copy.get("revision") == revision
            if ours or copy["key"] == revision:
                remote.agent("remove", "--key", str(copy["key"]), timeout_s=3600)
                gone += 1
        return "removed" if gone else "not there"

    with alone(known, lambda _: None):
        done, failed = on_all(remotes_of(known, names), one)
    return done | {name: str(error) for name, error in failed.items()}


def listed(known: Context, names: Collection[str] | None) -> dict[str, list[dict[str, Any]] | str]:
    """All placed copies of every model by host, or why a host could not be asked.

    Of a file system of others: the description's model there.
    """

    def one(remote: Remote) -> list[dict[str, Any]]:
        seen = remote.look()
        if not known.plan.weights.copied:
            return _not_ours(known, seen)
        return list(remote.agent("list", timeout_s=600)["copies"])

    done, failed = on_all(remotes_of(known, names), one)
    found: dict[str, list[dict[str, Any]] | str] = {}
    for remote in remotes_of(known, names):
        name = remote.name
        found[name] = done[name] if name in done else str(failed[name])
    return found


def _not_ours(known: Context, seen: Seen) -> list[dict[str, Any]]:
    weights = known.plan.weights
    if seen.copy is None:
        why = seen.problem or "; ".join(seen.why)
        return [{"key": weights.path, "ok": False, "error": {"reason": why}}]
    return [{**seen.copy, "model": weights.model, "revision": weights.revision}]
