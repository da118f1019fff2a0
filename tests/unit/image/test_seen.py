"""What a host's Docker says of itself, as it was printed by Docker 20.10 and 26.1."""

from __future__ import annotations

import pytest

from vllm_cluster.image.seen import Image, parse, script

OVERLAY2 = """id
other
root /var/lib/docker/vllm-cluster-images
staged no
driver overlay2 [["Backing Filesystem","extfs"],["Supports d_type","true"]]
held
disk  71234567890 100000000000
mbit 25000
image sha256:aa 1024 ["sha256:11","sha256:22"]
image sha256:bb 0 null
"""


def test_images_room_and_link() -> None:
    seen = parse(OVERLAY2)
    assert (seen.id, seen.other, seen.staged, seen.containerd) == ("", "", False, False)
    assert seen.staging == "/var/lib/docker/vllm-cluster-images"
    assert (seen.free_bytes, seen.total_bytes, seen.held_bytes) == (71234567890, 10**11, 0)
    assert seen.link_mbit == 25000.0
    assert seen.images == (
        Image("sha256:aa", 1024, ("sha256:11", "sha256:22")),
        Image("sha256:bb", 0, ()),
    )


@pytest.mark.parametrize("speed", ["-1", "", "0"])
def test_a_card_that_does_not_know_its_speed_has_none(speed: str) -> None:
    assert parse(OVERLAY2.replace("mbit 25000", f"mbit {speed}")).link_mbit is None


def test_containerds_store_is_known() -> None:
    said = 'driver overlayfs [["driver-type","io.containerd.snapshotter.v1"]]'
    seen = parse(OVERLAY2.replace(OVERLAY2.splitlines()[4], said))
    assert seen.containerd


def test_a_host_that_has_it_says_two_lines() -> None:
    seen = parse("id sha256:aa\nstaged yes\n")
    assert (seen.id, seen.staged, seen.images) == ("sha256:aa", True, ())


def test_names_are_data_for_the_shell() -> None:
    assert "image='a; reboot'" in script("a; reboot", everything=False)


@pytest.mark.parametrize("output", ["", "docker: not found", "id x\nimage a b"])
def test_anything_else_is_no_answer(output: str) -> None:
    with pytest.raises(ValueError, match=r"not what|values to unpack"):
        parse(output)
