"""Who may fetch: the cluster's addresses, with the token, while there is something to fetch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from benchmarks.weights.fleet import PORT, TOKEN, Fleet, wait_until
from tests.lab.weights.helpers import listening

pytestmark = pytest.mark.lab


@pytest.fixture
def serving(fleet: Fleet) -> Iterator[Fleet]:
    """Host 0 serves to host 1; host 1 is not there yet, host 2 is none of the chain."""
    fleet.options["linger_s"] = 60.0
    fleet.start(0, "serve", fleet.jobs([1])[fleet.name(0)])
    wait_until(lambda: listening(fleet, 0), 30, "host 0 listens")
    yield fleet
    fleet.call(0, "stop", "--key", fleet.key())


def curl(fleet: Fleet, number: int, path: str, token: str = TOKEN) -> tuple[int, int, bytes]:
    """curl's exit status, the HTTP status, the body."""
    done = subprocess.run(
        [
            *fleet.net.enter(number), "curl", "-s", "--path-as-is", "-m", "5",
            "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {token}",
            f"http://{fleet.net.address(0)}:{PORT}{path}",
        ],
        capture_output=True, check=False,
    )  # fmt: skip
    body, _, status = done.stdout.rpartition(b"\n")
    return done.returncode, int(status or 0), body


def state_path(fleet: Fleet) -> str:
    return f"/v1/{fleet.identities['r1']}/state"


def test_a_host_of_the_chain_with_the_token_is_answered(serving: Fleet) -> None:
    code, status, body = curl(serving, 1, state_path(serving))
    assert (code, status) == (0, 200)
    assert json.loads(body)["phase"] == "serving"


def test_a_wrong_token_gets_nothing(serving: Fleet) -> None:
    _, status, body = curl(serving, 1, state_path(serving), "lab-token-0123456780")
    assert status == 401
    assert b"serving" not in body


def test_an_address_that_is_not_on_the_list_is_hung_up_on(serving: Fleet) -> None:
    code, status, body = curl(serving, 2, state_path(serving))
    assert code in {52, 56}, "an empty reply or a reset"
    assert (status, body) == (0, b"")


def test_it_listens_on_the_fabric_address_alone(serving: Fleet) -> None:
    lines = listening(serving, 0).splitlines()
    assert [line.split()[3] for line in lines] == [f"{serving.net.address(0)}:{PORT}"]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/v1/{id}/../../../etc/passwd", "/v1/{id}/chunk/../manifest", "/v1/{id}",
     "/v1/" + "0" * 64 + "/manifest", "/v1/{id}/chunk/99999", "/v1/{id}/chunk/-1"],
)  # fmt: skip
def test_nothing_but_the_models_own_pieces_can_be_named(serving: Fleet, path: str) -> None:
    _, status, body = curl(serving, 1, path.replace("{id}", serving.identities["r1"]))
    assert status == 404
    assert b"root:" not in body


def test_nonsense_does_not_end_the_service(serving: Fleet) -> None:
    for data in ("\\0\\0\\0\\n\\r\\n\\r\\n", "GET\\r\\n\\r\\n", "A" * 20000):
        subprocess.run(
            [*serving.net.enter(1), "sh", "-c",
             f"printf '{data}' | timeout 2 socat - TCP:{serving.net.address(0)}:{PORT}"],
            capture_output=True, check=False,
        )  # fmt: skip
    assert curl(serving, 1, state_path(serving))[1] == 200


def test_the_token_is_in_no_command_line_and_no_readable_file(serving: Fleet) -> None:
    lines = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(serving.agent) in lines.stdout
    assert TOKEN not in lines.stdout
    found = subprocess.run(
        ["grep", "-rl", TOKEN, str(serving.root(0))], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
