"""Mounts whose server is gone: the finding, whatever else hangs with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor.case import Case
from vllm_cluster.facts.doctor.model import Model, Mount
from vllm_cluster.facts.doctor.read_host import hung
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan import storage

STALE = "Stale file handle"


def mounted(where: str, kind: str = "nfs4") -> Case:
    """node-b with a share mounted there."""
    mount = Mount(where, kind, "10.0.0.9:/models", frozenset({"ro"}))
    return changed(sound(), "node-b", mounts=(*sound().facts["node-b"].mounts, mount))


def test_targets_and_the_kernels_words_are_read() -> None:
    said = f"{MARK} hung\n/srv/models\n/srv/old\tstat: cannot read file system information for " \
        f"'/srv/old': {STALE}\n"  # fmt: skip
    assert hung(Sections(said)) == {"/srv/models": "", "/srv/old": STALE}


def test_a_share_that_hangs_under_the_weights_explains_that_they_are_not_seen() -> None:
    where = sound().plan.weights_directory
    case = changed(mounted(where), "node-b", hung={where: ""}, model=Model(hung=True))
    assert ids(case) == ["host.mount-hung"]
    assert "10.0.0.9:/models (nfs4) hangs" in first(case).found
    assert f"umount --force --lazy {where}" in first(case).fix[0].command


def test_somebody_elses_share_that_hangs_is_a_warning() -> None:
    case = changed(mounted("/home/shared"), "node-b", hung={"/home/shared": ""})
    assert ids(case) == ["host.mount-hung"]
    assert first(case).severity == "warning"


@pytest.mark.parametrize(("words", "by"), [(STALE, "node-b"), ("", "by hand")])
def test_a_stale_mount_of_the_description_is_mounted_anew(words: str, by: str) -> None:
    case = changed(mounted("/srv/models"), "node-b", hung={"/srv/models": words})
    host = case.plan.hosts["node-b"]
    share = storage.Mount("/srv/models", "10.0.0.9:/models", "nfs4", ("ro",), True, "NFS")
    host = replace(host, storage=replace(host.storage, shares=(share,)))
    case = replace(case, plan=replace(case.plan, hosts={**case.plan.hosts, "node-b": host}))
    assert first(case).severity == "failing"
    assert first(case).fix[0].on == by
    if words:
        assert first(case).fix[0].command.endswith("systemctl restart srv-models.mount")
