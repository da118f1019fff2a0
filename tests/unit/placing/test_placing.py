"""What a run says of hosts: `whole` only what was read whole, and never a traceback for a host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cluster.placing import aside, first, verify
from vllm_cluster.placing import place as place_module
from vllm_cluster.placing.place import Outcome
from vllm_cluster.placing.remote import HostError, Remote
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.seen import Seen
from vllm_cluster.weights.sources import Push

IDENTITY = "a" * 64
WHOLE = Seen("x", {"identity": IDENTITY, "ok": True, "total_bytes": 5, "key": "m@a"})


def quiet(_text: str) -> None:
    pass


class FakeRemote:
    """A host whose glance is always good; `answers` is what each reading of all bytes gives."""

    def __init__(self, name: str, *answers: dict[str, Any] | str) -> None:
        self.name, self.answers = name, list(answers)

        self.told: list[tuple[tuple[str, ...], Any]] = []
        self.seen = WHOLE

    def look(self) -> Seen:
        return self.seen

    def agent(self, *words: str, stdin: bytes = b"", **_more: float) -> dict[str, Any]:
        self.told.append((words, json.loads(stdin)))
        return {"lines": []}

    def lines(self, *_words: str) -> Iterator[dict[str, Any]]:
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise HostError(self.name, answer)
        yield answer


def known(*, copied: bool) -> Any:
    weights = SimpleNamespace(
        identity=IDENTITY, copied=copied, model="m", revision="r", path="/m", aside=lambda: ()
    )
    return SimpleNamespace(plan=SimpleNamespace(weights=weights, cluster="c"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def verified(
        remotes: list[FakeRemote], *, copied: bool = True, repair: bool = True
    ) -> verify.Verified:
        names = [remote.name for remote in remotes]

        def place(*_words: Any, **_more: Any) -> Outcome:
            return Outcome(IDENTITY, placed=names)  # by their glances all have it

        monkeypatch.setattr(verify, "remotes_of", lambda *_words: remotes)
        monkeypatch.setattr(verify, "place", place)
        plan = known(copied=copied)
        plan.plan.weights.model = "m"
        return verify.verify(plan, None, quiet, repair=repair)

    return verified


READ = {"ok": True, "copies": [{"read_bytes": 5}], "lines": []}
BAD = {"ok": False, "copies": [{"read_bytes": 5}], "lines": ["s: 1 damaged piece(s)"]}


def test_a_share_whose_bytes_are_wrong_is_not_called_whole(run: Any) -> None:
    out = run([FakeRemote("a", "/m is b, the cluster's is a")], copied=False)
    assert out.failed == {"a": "a: /m is b, the cluster's is a"}
    assert out.whole == []


def test_wrong_bytes_on_a_share_are_told_to_every_host_and_right_ones_too(run: Any) -> None:
    sums = {"s": "f" * 64}
    wrong = {"ok": False, "found": sums, "lines": ["/m is b, the cluster's is a"]}
    hosts = [FakeRemote("a", wrong), FakeRemote("b")]
    out = run(hosts, copied=False)
    assert out.failed == {"a": "a: /m is b, the cluster's is a"}
    [(words, given)] = hosts[1].told
    assert (words[:2], given) == (("note", "--found"), sums)

    notes = {"manifest": "m", "stamps": {}}
    hosts = [FakeRemote("a", {"notes": notes, "total_bytes": 5}), FakeRemote("b"), FakeRemote("c")]
    hosts[1].seen = Seen("x", {"identity": IDENTITY, "ok": False, "unproven": ["s"]})
    out = run(hosts, copied=False)
    assert (out.whole, out.failed) == (["a"], {})
    [(words, given)] = hosts[1].told
    assert (words[:2], given) == (("note", "--given"), notes)
    assert hosts[2].told == [], "that one knows it"


def test_notes_of_a_host_do_not_outweigh_wrong_bytes_that_another_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubting = Seen("x", {"identity": IDENTITY, "ok": False, "unproven": ["s"]})
    wrong = {"ok": False, "found": {"s": "f" * 64}, "lines": ["/m is b"]}
    hosts: list[Any] = [FakeRemote("a", wrong), FakeRemote("b")]
    hosts[0].seen = doubting
    monkeypatch.setattr(Remote, "look", FakeRemote.look)
    monkeypatch.setattr(aside, "readers_of", lambda *_words: [])
    plan = known(copied=False)
    plan.plan.weights.root = "/m"
    plan.cluster = SimpleNamespace(description=None)
    told: Any = SimpleNamespace(known=plan, say=quiet, show=None)
    identity, failed = aside.place_aside(told, hosts)
    assert (identity, failed) == ("", {"a": "a: /m is b", "b": "a: /m is b"})
    assert hosts[1].told[0][0][:2] == ("note", "--found")


def test_a_host_that_could_not_read_is_read_again_before_it_is_whole(run: Any) -> None:
    out = run([FakeRemote("a", READ), FakeRemote("b", "SSH is gone", READ)])
    assert (sorted(out.whole), out.failed) == (["a", "b"], {})
    out = run([FakeRemote("a", READ), FakeRemote("b", "SSH is gone", "and again")])
    assert (out.whole, out.failed) == (["a"], {"b": "b: and again"})
    out = run([FakeRemote("a", READ), FakeRemote("b", "SSH is gone", BAD)])
    assert (out.whole, out.failed) == (["a"], {"b": "b: s: 1 damaged piece(s)"})


def test_what_is_damaged_is_mended_and_told(run: Any) -> None:
    out = run([FakeRemote("a", READ), FakeRemote("b", BAD)])
    assert (out.whole, out.failed) == (["a", "b"], {})
    assert out.damaged == {"b": ["s: 1 damaged piece(s)"]}
    out = run([FakeRemote("a", READ), FakeRemote("b", BAD)], repair=False)
    assert (out.whole, out.failed) == (["a"], {"b": "b: s: 1 damaged piece(s)"})


def test_a_manifest_that_a_host_does_not_give_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_words: Any, **_more: Any) -> Any:
        raise HostError("a", "does not answer", silent=True)

    remote = FakeRemote("a")
    monkeypatch.setattr(remote, "run", lost, raising=False)
    plan: Any = SimpleNamespace(
        manifest=None, plan=SimpleNamespace(weights=SimpleNamespace(manifest="/m"))
    )
    out = Outcome(IDENTITY, placed=["a"])
    remotes: list[Any] = [remote]
    place_module._bring_manifest(plan, remotes, out)
    assert out.notes == ["the manifest was not brought to this machine: a: does not answer"]


def lines_of(monkeypatch: pytest.MonkeyPatch, script: str) -> list[dict[str, Any]]:
    """What is heard of a host on which `script` stands for the agent."""
    monkeypatch.setattr(Remote, "argv", lambda *_words: ["sh", "-c", script])
    monkeypatch.setattr(Remote, "agent_words", lambda *_words: [])
    host: Any = SimpleNamespace(name="a")
    return list(Remote(host, host, host).lines("verify"))


def test_a_command_that_complains_of_a_thousand_files_is_heard_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = "seq 50000 >&2; echo '{\"ok\": false}'; exit 4"
    assert lines_of(monkeypatch, script) == [{"ok": False}]


def test_a_host_that_has_said_all_and_has_yet_to_end_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ssh: ended by a signal, it ends with 255, like one that found nobody."""
    script = "trap 'exit 255' TERM; echo '{\"ok\": true}'; exec >&-; sleep 1"
    assert lines_of(monkeypatch, script) == [{"ok": True}]


def pushing(argv: list[str], tmp_path: Path) -> None:
    with (tmp_path / "guard").open("w") as guard:
        told: Any = SimpleNamespace(guard=guard.fileno(), show=SimpleNamespace(state=quiet))
        first._rsync(told, "a", argv, Push(tmp_path, ()))


def test_an_rsync_that_is_not_here_or_ends_at_once_is_told(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="this machine has no rsync"):
        pushing([str(tmp_path / "rsync")], tmp_path)
    script = "exec <&-; seq 50000 >&2; exit 1"
    with pytest.raises(HostError, match=f"a: rsync of {tmp_path}: 1; 2; 3"):
        pushing(["sh", "-c", script], tmp_path)
