"""From the script's output to HostFacts."""

from __future__ import annotations

from vllm_cluster.facts import gcs_table
from vllm_cluster.facts.doctor import read_docker, read_host, read_network, read_services
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.facts.doctor.read_gpu import gpus
from vllm_cluster.facts.doctor.sections import Sections


def parse(name: str, output: str, *, arrived_s: float | None = None) -> HostFacts:
    """What the script printed on host `name`.

    `arrived_s`: this machine's clock when the first line came, for the offset of the host's. That
    line is printed at once, so the offset is good to one round trip (and the start of bash).
    """
    sections = Sections(output)
    clock = sections.one("clock").argument
    clock_s = float(clock.replace(",", ".")) if clock else 0.0
    offset = clock_s - arrived_s if clock and arrived_s is not None else None
    if sections.named("not-root"):
        return HostFacts(name, root=False, clock_s=clock_s, clock_offset_s=offset)
    docker = read_docker.docker(sections)
    noted = read_services.recovery(sections)
    return HostFacts(
        name=name,
        complete=bool(sections.named("end")),
        clock_s=clock_s,
        clock_offset_s=offset,
        run=read_host.run(sections, clock_s),
        system=read_host.system(sections),
        disks=read_host.disks(sections),
        mounts=read_host.mounts(sections),
        hung=read_host.hung(sections),
        units=read_host.units(sections, {name: each.starts for name, each in noted.items()}),
        recovery=noted,
        kernel_log=sections.one("kernel").lines,
        links=read_network.links(sections),
        addresses=read_network.addresses(sections),
        names=read_network.names(sections),
        cloud_init=sections.one("cloud-init").lines,
        peers=read_network.peers(sections),
        listeners=read_network.listeners(sections),
        owners=read_network.owners(sections, docker),
        usage=sections.one("usage").lines,
        prefixes=read_network.prefixes(sections),
        nft=sections.one("nft").text,
        gcs=gcs_table.read(dict(sections.pairs("gcs")).get("gcs", "")),
        holder=read_network.holder(sections),
        docker=docker,
        files=read_host.files(sections),
        contents=read_host.contents(sections),
        secrets=read_host.secrets(sections),
        model=read_host.model(sections),
        verified=read_host.verified(sections),
        gpus=gpus(sections),
        rdma=read_network.rdma(sections),
        rank_lines=sections.one("ranks").lines,
        ray_files=read_services.ray_files(sections),
        generations=read_host.generations(sections),
        kept=read_host.kept(sections),
        raylet=read_services.answer(sections.one("raylet")),
        ray=read_services.ray(sections),
        api=read_services.api(sections),
    )
