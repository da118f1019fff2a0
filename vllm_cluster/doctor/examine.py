"""From a description's file to what is wrong with its cluster."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from vllm_cluster.control import secrets
from vllm_cluster.control.context import Context, context
from vllm_cluster.control.remote import ssh_argv
from vllm_cluster.control.typed import deploy_line, shown
from vllm_cluster.doctor import exposure
from vllm_cluster.doctor.case import Case, Entry
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import Finding
from vllm_cluster.doctor.reach import Look, look, pool
from vllm_cluster.plan import paths
from vllm_cluster.steps import configs


@dataclass(frozen=True)
class Examination:
    """Findings, causes first, each with the finding that explains it, and what they rest on."""

    case: Case
    look: Look
    findings: tuple[tuple[Finding, Finding | None], ...]

    @property
    def exit_code(self) -> int:
        """0 sound, 1 failing, 2 could not look. Warnings are sound."""
        severities = {finding.severity for finding, _ in self.findings}
        if not self.look.facts:
            return 2
        return 1 if "failing" in severities else 2 if "blind" in severities else 0


def examine(
    file: Path,
    *,
    only: tuple[str, ...] = (),
    deep: bool = False,
    log_lines: int = 0,
    keyless: bool = True,
) -> Examination:
    """Look at the cluster of `file` and run every check. Raises DescriptionError.

    `keyless`: False asks the API nothing that it logs as refused.
    """
    known = context(file.resolve(), make_secrets=False)
    with pool(1) as threads:
        dialled = threads.submit(_from_here, known)
        found = look(
            known.cluster, known.plan, only=only, deep=deep, log_lines=log_lines, keyless=keyless
        )
        answers = dialled.result()
    case = case_of(known, found)
    every = [
        *findings(case),
        *exposure.findings(known.plan, answers, case),
        *exposure.keyless(known.plan, case.description, case.deploy),
    ]
    return Examination(case, found, tuple(ordered(every, replicas=known.plan.replicas > 1)))


def _from_here(known: Context) -> dict[tuple[str, int], exposure.Dialled]:
    head = known.plan.hosts[known.plan.head]
    if not exposure.direct(ssh_argv(known.cluster, head)):
        return {}
    return exposure.dial_all(known.plan, known.cluster.description.ssh.port)


def case_of(known: Context, found: Look) -> Case:
    """What the checks are given."""
    description = known.cluster.description
    file = known.cluster.file
    return Case(
        plan=known.plan,
        facts=found.facts,
        silent=found.silent,
        deploy=deploy_line(file),
        fabric=description.network.fabric,
        description=shown(file),
        model_files={e.path: Entry(e.size_bytes, e.sha256) for e in known.manifest.files}
        if known.manifest
        else None,
        model_id=known.plan.weights.identity,
        gpu_model=description.gpu.model,
        driver=description.driver,
        generation=_generation(known),
        secrets=_digests(known, found.salt),
        known_hosts=str(known.cluster.local(description.ssh.known_hosts_file))
        if description.ssh.known_hosts_file
        else "~/.ssh/known_hosts",
    )


def _generation(known: Context) -> str:
    """As a deploy from this machine would find it."""
    whole = set(known.secrets) == set(secrets.described(known.cluster))
    return configs.generation(known.plan, known.secrets) if whole else ""


def _digests(known: Context, salt: str) -> dict[str, str]:
    names = {"ray_token": paths.RAY_TOKEN, "api_key": paths.API_KEY}
    return {
        names[name]: hashlib.sha256(f"{salt}{value}".encode()).hexdigest()[:16]
        for name, value in known.secrets.items()
        if name in names
    }
