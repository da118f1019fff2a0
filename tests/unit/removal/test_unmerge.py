"""Our part taken out of files that others write too."""

import json

import pytest

from vllm_cluster.plan.docker_config import merged
from vllm_cluster.plan.hosts_file import hosts_text
from vllm_cluster.plan.unmerge import Write, unmerged

DAEMON = "/etc/docker/daemon.json"
OURS = {"data-root": "/srv/docker", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
ADDRESSES = {"node-a": "10.0.0.1", "node-b": "10.0.0.2"}
DEBIAN = (
    "127.0.0.1\tlocalhost\n127.0.1.1\tnode-a\n\n# The following\n::1\tlocalhost ip6-localhost\n"
)


def test_an_untouched_file_is_byte_for_byte_what_it_was() -> None:
    for before in ('{"debug":true,  "log-driver": "journald"}\n', '{\n\t"debug": false\n}'):
        new = merged(before, OURS)
        assert unmerged(DAEMON, new, [Write(before, new)]) == before


def test_a_file_that_was_not_there_goes() -> None:
    new = merged("", OURS)
    assert unmerged(DAEMON, new, [Write(None, new)]) is None
    reformatted = json.dumps(json.loads(new))
    assert unmerged(DAEMON, reformatted, [Write(None, new)]) is None


def test_what_somebody_added_since_stays_and_ours_goes() -> None:
    before = '{"debug": true}\n'
    new = merged(before, OURS)
    edited = json.loads(new) | {"mtu": 1400}
    edited["runtimes"]["crun"] = {"path": "crun"}
    got = json.loads(unmerged(DAEMON, json.dumps(edited), [Write(before, new)]) or "")
    assert got == {"debug": True, "mtu": 1400, "runtimes": {"crun": {"path": "crun"}}}


def test_what_somebody_changed_of_ours_stays_his() -> None:
    new = merged("", OURS)
    edited = json.loads(new) | {"data-root": "/elsewhere"}
    got = json.loads(unmerged(DAEMON, json.dumps(edited), [Write(None, new)]) or "")
    assert got == {"data-root": "/elsewhere"}


def test_a_key_added_between_two_of_our_writes_is_not_ours() -> None:
    first = merged("", OURS)
    between = json.dumps(json.loads(first) | {"mtu": 1400})
    second = merged(between, {**OURS, "data-root": "/srv/other"})
    writes = [Write(None, first), Write(between, second)]
    assert json.loads(unmerged(DAEMON, second, writes) or "") == {"mtu": 1400}


def test_a_write_that_was_recorded_and_never_happened_takes_nothing_away() -> None:
    before = '{"debug": true}\n'
    assert unmerged(DAEMON, before, [Write(before, merged(before, OURS))]) == before


def test_hosts_gets_its_own_line_back() -> None:
    new = hosts_text(DEBIAN, {"node-a"}, ADDRESSES)
    assert "127.0.1.1" not in new
    assert unmerged("/etc/hosts", new, [Write(DEBIAN, new)]) == DEBIAN


@pytest.mark.parametrize("line", ["127.0.1.1\tnode-a", "127.0.1.1\tnode-a old-name"])
def test_hosts_edited_since_keeps_the_edit(line: str) -> None:
    before = DEBIAN.replace("127.0.1.1\tnode-a", line)
    new = hosts_text(before, {"node-a"}, ADDRESSES)
    now = new.replace("# BEGIN", "192.0.2.1\tprinter\n# BEGIN")
    got = unmerged("/etc/hosts", now, [Write(before, new)])
    assert got == before.rstrip("\n") + "\n192.0.2.1\tprinter\n"


def test_hosts_written_twice_between_edits() -> None:
    new = hosts_text(DEBIAN, {"node-a"}, ADDRESSES)
    edited = "192.0.2.1\tprinter\n" + new
    third = hosts_text(edited, {"node-a"}, {**ADDRESSES, "node-c": "10.0.0.3"})
    writes = [Write(DEBIAN, new), Write(edited, third)]
    assert unmerged("/etc/hosts", third, writes) == "192.0.2.1\tprinter\n" + DEBIAN
    assert unmerged("/etc/hosts", third + "# end\n", writes) is not None


def test_another_kind_of_file_that_was_changed_is_refused() -> None:
    assert unmerged("/etc/apt/keyrings/x.asc", "key\n", [Write(None, "key\n")]) is None
    with pytest.raises(ValueError, match="changed"):
        unmerged("/etc/apt/keyrings/x.asc", "other\n", [Write(None, "key\n")])
