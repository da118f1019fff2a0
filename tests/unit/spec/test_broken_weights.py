"""Sources and storage of the model that cannot be meant: named with key, found, accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.spec import DescriptionError, loads
from vllm_cluster.spec.model import Description

PROD = (Path(__file__).parents[3] / "inventories" / "prod.yaml").read_text()
SOURCE = "  source: /srv/models/Llama-3.3-70B-Instruct   # here, on the machine that runs pyinfra\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NFS = "storage: {nfs: {/mnt/models: {server: 10.0.0.9, export: /models}}}\n"


def described(sources: str, *, revision: str = "", added: str = "") -> Description:
    assert SOURCE in PROD
    given = f"  sources: {sources}\n" if sources else ""
    if revision:
        given += f"  revision: {revision}\n"
    return loads(PROD.replace(SOURCE, given) + added, Path("prod.yaml")).description


# (sources, revision, the key, words of what was found, words of what is accepted)
BROKEN = [
    ("", "", "model.source", "missing", "directory on this machine"),
    ("[]", "", "model.sources", "[]", "in order of preference"),
    ("[{}]", "", "model.sources[0]", "none of them", "exactly one of here, hub, host, nfs"),
    ("[{here: /a, hub: o/n}]", COMMIT, "model.sources[0]", "here and hub", "exactly one"),
    ("[{hub: name}]", COMMIT, "model.sources[0].hub", "'name'", "ORG/NAME"),
    ("[{hub: o/n}]", "", "model.revision", "missing", "40 hex digits"),
    ("[{hub: o/n}]", "main", "model.revision", "main", "branch or tag can move"),
    ("[{here: /a}, {hub: o/n}]", COMMIT[:12], "model.revision", COMMIT[:12], "40 hex digits"),
    ("[{hub: o/n, endpoint: hub}]", COMMIT, "model.sources[0].endpoint", "'hub'", "https://"),
    ("[{here: /a, endpoint: 'https://h'}]", "", "model.sources[0].endpoint", "beside here", "hub"),
    ("[{host: node-a}]", "v1", "model.sources[0].directory", "missing", "model on node-a"),
    ("[{host: node-z, directory: /a}]", "v1", "model.sources[0].host", "node-z", "node-a, node-b"),
    ("[{host: node-a, directory: a}]", "v1", "model.sources[0].directory", "'a'", "absolute path"),
    ("[{host: node-a, directory: /a}]", "", "model.revision", "missing", "such as v1"),
    ("[{here: /a, directory: /b}]", "", "model.sources[0].directory", "beside here", "host alone"),
    ("[{nfs: /mnt/models/m}]", "v1", "model.sources[0].nfs", "/mnt/models/m", "there is none"),
    ("[{here: /a}]", "../x", "model.revision", "'../x'", "label of your own"),
]


@pytest.mark.parametrize(("sources", "revision", "key", "found", "accepted"), BROKEN)
def test_a_source_that_cannot_be_used_is_named(
    sources: str, revision: str, key: str, found: str, accepted: str
) -> None:
    with pytest.raises(DescriptionError) as caught:
        described(sources, revision=revision)
    [problem] = caught.value.problems
    assert problem.key == key
    assert found in problem.found
    assert accepted in problem.accepted


WRITTEN = [
    ("storage: nvme", "storage: ssd", "weights.storage", "'ssd'", "nvme (a verified copy"),
    ("storage: nvme", "storage: nfs", "weights.directory", "no mount point", "beneath one"),
    ("keep: 2", "keep: 0", "weights.keep", "0", "1 or more"),
    ("keep: 2", "limit_mbit: fast", "weights.limit_mbit", "'fast'", "such as 5000"),
]


@pytest.mark.parametrize(("old", "new", "key", "found", "accepted"), WRITTEN)
def test_a_wrong_word_about_the_weights_is_named(
    old: str, new: str, key: str, found: str, accepted: str
) -> None:
    assert old in PROD
    with pytest.raises(DescriptionError) as caught:
        loads(PROD.replace(old, new), Path("prod.yaml"))
    [problem] = caught.value.problems
    assert problem.key == key
    assert found in problem.found
    assert accepted in problem.accepted


def test_both_forms_at_once_are_refused() -> None:
    with pytest.raises(DescriptionError, match=r"model\.sources: found sources beside source"):
        loads(PROD.replace(SOURCE, SOURCE + "  sources: [{here: /a}]\n"), Path("prod.yaml"))


def test_the_short_form_is_a_directory_of_this_machine() -> None:
    model = loads(PROD, Path("prod.yaml")).description.model
    assert [source.here for source in model.ordered] == ["/srv/models/Llama-3.3-70B-Instruct"]
    assert model.here == "/srv/models/Llama-3.3-70B-Instruct"


def test_all_kinds_in_order_are_a_sound_description() -> None:
    sources = "[{nfs: /mnt/models/m}, {here: /a}, {hub: o/n}, {host: node-b, directory: /b}]"
    model = described(sources, revision=COMMIT, added=NFS).model
    assert [source.kinds for source in model.ordered] == [("nfs",), ("here",), ("hub",), ("host",)]


def placed(directory: str, storage: str, added: str = NFS) -> Description:
    text = PROD.replace("  directory: /var/lib/vllm-cluster/models", f"  directory: {directory}")
    return loads(text.replace("  storage: nvme", f"  storage: {storage}") + added, Path("p.yaml")
                 ).description  # fmt: skip


def test_copies_on_a_share_are_refused() -> None:
    with pytest.raises(DescriptionError, match="on the NFS share /mnt/models, with weights"):
        placed("/mnt/models/here", "nvme")


def test_a_model_read_over_nfs_must_be_read_only_and_mounted_everywhere() -> None:
    assert placed("/mnt/models", "nfs").weights.storage == "nfs"
    writable = NFS.replace("export: /models", "export: /models, read_only: false")
    with pytest.raises(DescriptionError, match=r"read_only: found false, and /mnt/models is on it"):
        placed("/mnt/models", "nfs", writable)
    some = NFS.replace("export: /models", "export: /models, clients: [node-b]")
    with pytest.raises(DescriptionError, match=r"clients: found clients without node-a"):
        placed("/mnt/models", "nfs", some)


def test_sources_that_a_share_would_never_use_are_refused() -> None:
    text = PROD.replace(SOURCE, f"  sources: [{{hub: o/n}}]\n  revision: {COMMIT}\n")
    with pytest.raises(DescriptionError, match=r"hub with weights\.storage: shared"):
        loads(text.replace("storage: nvme", "storage: shared"), Path("prod.yaml"))


def test_a_name_that_no_directory_of_copies_can_have_is_refused() -> None:
    text = PROD.replace("directory: llama-3.3-70b-instruct", "directory: a--b")
    with pytest.raises(DescriptionError, match=r"model\.directory: found 'a--b'"):
        loads(text, Path("prod.yaml"))
    assert loads(text.replace("storage: nvme", "storage: shared"), Path("prod.yaml"))
