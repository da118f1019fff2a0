"""The model's files: there, whole, the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.doctor import in_place
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import HERE, Finding, Step, by_hand, on
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.facts.doctor.script import VERIFY_TIMER
from vllm_cluster.plan import HostPlan, paths
from vllm_cluster.spec.weights_checks import beneath


def weights(case: Case) -> Iterator[Finding]:
    """Names and sizes of every file; content of those that were touched since they were verified.

    Hashing everything takes minutes; bits that rot without a write are found by the deploy's
    whole verification alone.
    """
    for host, facts in case.deployed():
        if in_place.other_model(case, facts):
            continue
        hung = facts.model.hung and any(beneath(case.plan.model_path, m) for m in facts.hung)
        if (facts.model.hung and not hung) or facts.model.unhashed:
            yield _unread(case, host, facts)
        if facts.model.hung:
            continue
        if not facts.model.present:
            yield Finding(
                "model.missing", "model", host.name,
                expected=f"{case.plan.model_name} in {case.plan.model_path}",
                found="no such directory",
                evidence=f"ls: cannot access '{case.plan.model_path}': No such file or directory",
                fix=case.run_deploy(),
            )  # fmt: skip
            continue
        yield from _files(case, host, facts)


def _unread(case: Case, host: HostPlan, facts: HostFacts) -> Finding:
    """A disk that is busy, or so much that was touched that reading it takes minutes."""
    names = facts.model.hung
    return Finding(
        "model.unread", "model", host.name,
        expected=f"the files of {case.plan.model_path} {'listed' if names else 'read'} in time",
        found="no list within 10 s" if names
        else "files that were touched since they were verified take longer than 20 s to read",
        evidence=f"{'find' if names else 'sha256sum'} in {case.plan.model_path}: ended by timeout",
        fix=_verify(case),
        severity="warning",
    )  # fmt: skip


def _files(case: Case, host: HostPlan, facts: HostFacts) -> Iterator[Finding]:
    expected = case.model_files
    if expected is None:
        return
    found = facts.model.sizes
    path = case.plan.model_path
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [
        f"{name} has {found[name]} bytes, not {entry.size_bytes}"
        for name, entry in expected.items()
        if name in found and found[name] != entry.size_bytes
    ]
    if case.plan.weights.copied:  # a share is its owner's, who may keep more there
        wrong += [f"{name} does not belong to the model" for name in found if name not in expected]
    if wrong:
        yield Finding(
            "model.files", "model", host.name,
            expected=f"{len(expected)} files as in the manifest",
            found="; ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""),
            evidence=f"find {path}: {wrong[0]}",
            fix=case.run_deploy(),
        )  # fmt: skip
        return
    bad = [name for name, digest in facts.model.hashes.items()
           if name in expected and digest != expected[name].sha256]  # fmt: skip
    if bad:
        yield Finding(
            "model.corrupt", "model", host.name,
            expected=f"{bad[0]} with SHA-256 {expected[bad[0]].sha256[:16]}…",
            found=f"{facts.model.hashes[bad[0]][:16]}…: it was written to after it was verified",
            evidence=f"sha256sum {path}/{bad[0]}: {facts.model.hashes[bad[0]]}",
            fix=_bytes_back(case, f"{path}/{bad[0]}"),
        )  # fmt: skip
    if case.model_id and facts.model.manifest and facts.model.manifest != case.model_id:
        yield Finding(
            "model.other", "model", host.name,
            expected=f"the model {case.model_id[:16]}",
            found=f"{facts.model.manifest[:16]}",
            evidence=f"sha256sum {path}/.vllm-cluster/manifest.json: {facts.model.manifest}",
            fix=case.run_deploy(),
        )  # fmt: skip


def _bytes_back(case: Case, file: str) -> tuple[Step, ...]:
    """Reads all of it and fetches the bad pieces alone from the other hosts; of a share, which is
    its owner's, it only says what differs."""
    (mend,) = _verify(case)
    if case.plan.weights.copied:
        return (mend,)
    return (*by_hand(f"put the right {file} back on the server of that share"), mend)


def _verify(case: Case) -> tuple[Step, ...]:
    return (Step(HERE, f"vllm-cluster weights verify {case.description}"),)


def verified(case: Case) -> Iterator[Finding]:
    """What the monthly reading of every byte found, and whether there is one."""
    for host, facts in case.deployed():
        service, timer = f"{paths.WEIGHTS_VERIFY}.service", facts.unit(VERIFY_TIMER)
        found = facts.verified
        if not found.whole:
            yield Finding(
                "model.rotten", "model", host.name,
                expected="the bytes that were placed, as the monthly reading compares them",
                found=found.words[0] if found.words else "others",
                evidence=f"{paths.WEIGHTS_VERIFIED}: ok false",
                # The second reading takes the finding away, or keeps it.
                fix=(Step(HERE, f"vllm-cluster weights verify {case.description}"),
                     Step(host.name, f"systemctl start {service}")),
            )  # fmt: skip
        if timer.load == "loaded" and not timer.running:
            yield Finding(
                "model.unverified", "model", host.name,
                expected=f"{VERIFY_TIMER} running",
                found=f"it is {timer.active}: nobody reads the weights for bits that rot",
                evidence=f"systemctl show {VERIFY_TIMER}: ActiveState={timer.active}",
                fix=on(host.name, f"systemctl enable --now {VERIFY_TIMER}"),
                severity="warning",
            )  # fmt: skip


CHECKS = (weights, verified)
