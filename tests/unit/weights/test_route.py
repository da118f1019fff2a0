"""Which upstream is chosen, with a clock and answers made here."""

from __future__ import annotations

from vllm_cluster.weights.agent.route import Route, Tuning
from vllm_cluster.weights.agent.wire import Peer

NEAR, MIDDLE, FIRST = (Peer(name, "10.0.0.1", 1) for name in ("near", "middle", "first"))
TUNING = Tuning(patience_s=5, absent_s=20, slow_s=20, trial_s=10, return_s=4, hold_s=60)


class World:
    """What the peers say when they are asked, and the time."""

    def __init__(self, known_bytes_s: float = 0.0) -> None:
        self.now = 0.0
        self.states: dict[str, dict[str, object] | None] = {
            peer.name: {"phase": "fetching", "have": 0} for peer in (NEAR, MIDDLE, FIRST)
        }
        self.route = Route([NEAR, MIDDLE, FIRST], TUNING, 0.0, known_bytes_s=known_bytes_s)
        for peer in (NEAR, MIDDLE, FIRST):
            self.route.worked(peer)
        self.asked: list[str] = []

    def probe(self, peer: Peer) -> dict[str, object] | None:
        self.asked.append(peer.name)
        return self.states[peer.name]

    def run(self, seconds: int, *, have: int = 0, rate: float = 0.0, refused: bool = False) -> None:
        for _ in range(seconds):
            self.now += 1
            if refused:
                self.route.failed(NEAR, "Connection refused", self.now)
            self.route.tick(self.now, have, rate, self.probe)


def test_a_short_failure_changes_nothing() -> None:
    world = World()
    world.run(4, refused=True)
    world.route.worked(NEAR)
    world.run(10)
    assert world.route.current == NEAR
    assert world.route.passed == {}


def test_a_dead_peer_is_passed_by_and_named_with_the_reason() -> None:
    world = World()
    world.states["near"] = None
    world.run(7, refused=True)
    assert world.route.current == MIDDLE
    assert world.route.passed == {"near": "Connection refused"}


def test_a_peer_that_has_not_started_yet_is_given_longer() -> None:
    world = World()
    world.route = Route([NEAR, MIDDLE, FIRST], TUNING, 0.0)
    world.run(19, refused=True)
    assert world.route.current == NEAR
    world.run(3, refused=True)
    assert world.route.current == MIDDLE


def test_two_dead_in_a_row_are_both_passed_by_at_once() -> None:
    world = World()
    world.states["near"] = world.states["middle"] = None
    world.run(7, refused=True)
    assert world.route.current == FIRST


def test_a_host_that_gave_up_is_no_way_out() -> None:
    world = World()
    world.states["near"] = None
    world.states["middle"] = {"phase": "failed", "have": 9}
    world.run(7, refused=True)
    assert world.route.current == FIRST


def test_it_returns_to_the_preferred_peer_when_that_one_is_back() -> None:
    world = World()
    world.states["near"] = None
    world.run(7, refused=True)
    world.run(20)
    assert world.route.current == MIDDLE
    world.states["near"] = {"phase": "checking", "have": 0}
    world.run(10, have=500)
    assert world.route.current == NEAR
    assert world.route.passed == {}


def test_one_lucky_answer_is_not_yet_a_return() -> None:
    world = World()
    world.states["near"] = None
    world.run(7, refused=True)
    world.states["near"] = {"phase": "fetching", "have": 0}
    while "near" not in world.asked[-1:]:
        world.run(1)
    world.states["near"] = None
    world.run(20)
    assert world.route.current == MIDDLE


def test_a_peer_that_only_waits_itself_is_not_left_however_long() -> None:
    world = World(known_bytes_s=100e6)
    for name in ("near", "middle"):
        world.states[name] = {"phase": "fetching", "have": 50}
    world.run(300, have=50, rate=0.0)
    assert world.route.current == NEAR


def slow_world() -> World:
    world = World(known_bytes_s=100e6)
    world.states["near"] = {"phase": "fetching", "have": 60}
    world.states["middle"] = {"phase": "fetching", "have": 500}
    return world


def test_a_slow_peer_is_passed_by_when_another_is_faster() -> None:
    world = slow_world()
    world.run(26, have=59, rate=10e6)
    assert world.route.current == MIDDLE, "the trial"
    world.run(15, have=300, rate=95e6)
    assert world.route.current == MIDDLE
    assert "slow: 10.0 MB/s, 95.0 MB/s from middle" in world.route.passed["near"]


def test_when_the_trial_is_no_faster_the_peer_was_not_at_fault() -> None:
    world = slow_world()
    world.run(26, have=59, rate=10e6)
    assert world.route.current == MIDDLE
    world.run(11, have=80, rate=11e6)
    assert world.route.current == NEAR
    assert world.route.passed == {}
    world.run(50, have=80, rate=11e6)
    assert world.route.current == NEAR, "no second trial soon after"


def test_a_slow_peer_is_tried_again_later_and_left_alone_longer_each_time() -> None:
    world = slow_world()
    world.run(26, have=59, rate=10e6)
    world.run(11, have=300, rate=95e6)
    assert world.route.current == MIDDLE
    world.states["near"] = {"phase": "fetching", "have": 900}
    world.run(75, have=600, rate=95e6)
    assert world.route.current == NEAR


def slow_replacement() -> World:
    """near is dead, middle takes its place and is slow; first has all."""
    world = World(known_bytes_s=100e6)
    world.states["near"] = None
    world.states["middle"] = {"phase": "fetching", "have": 60}
    world.states["first"] = {"phase": "serving", "have": 900}
    world.run(7, refused=True)
    assert world.route.current == MIDDLE
    world.run(28, have=59, rate=10e6)
    assert world.route.current == FIRST, "the trial"
    world.run(10, have=200, rate=95e6)
    assert world.route.current == MIDDLE, "measured again"
    return world


def test_a_slow_replacement_of_a_dead_peer_is_passed_by_too() -> None:
    world = slow_replacement()
    world.run(11, have=210, rate=12e6)
    assert world.route.current == FIRST
    assert world.route.passed["middle"] == "slow: 12.0 MB/s, 95.0 MB/s from first"
    assert world.route.passed["near"] == "Connection refused"
    world.states["near"] = {"phase": "fetching", "have": 500}
    world.run(10, have=300, rate=95e6)
    assert world.route.current == NEAR, "the preferred one is gone back to as ever"


def test_a_replacement_whose_uplink_others_left_meanwhile_was_not_at_fault() -> None:
    world = slow_replacement()
    world.run(11, have=210, rate=80e6)
    assert world.route.current == MIDDLE
    assert list(world.route.passed) == ["near"]


def test_a_dead_peer_after_the_slow_one_is_stepped_over() -> None:
    world = slow_world()
    world.states["middle"] = None
    world.states["first"] = {"phase": "serving", "have": 500}
    world.run(26, have=59, rate=10e6)
    assert world.route.current == FIRST
    world.run(11, have=300, rate=95e6)
    assert "slow: 10.0 MB/s, 95.0 MB/s from first" in world.route.passed["near"]


def test_one_that_has_no_more_than_we_is_no_peer_to_try() -> None:
    world = World(known_bytes_s=100e6)
    world.states["near"] = {"phase": "serving", "have": 900}
    world.states["middle"] = world.states["first"] = {"phase": "fetching", "have": 40}
    for _ in range(100):
        world.run(1, have=50, rate=10e6)
        assert world.route.current == NEAR


def test_every_peer_dead_keeps_the_preferred_and_says_what_is_wrong_with_each() -> None:
    world = World()
    world.states = dict.fromkeys(world.states)
    world.run(30, refused=True)
    assert world.route.current == NEAR
    told = " ".join(world.route.troubles())
    assert "near (10.0.0.1): Connection refused" in told
    assert "first (10.0.0.1): does not answer" in told
