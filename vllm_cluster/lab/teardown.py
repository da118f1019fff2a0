"""Take a lab away, whatever state it is in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vllm_cluster.lab import cgroup, network, power, storage
from vllm_cluster.lab.layout import HostLayout, Layout
from vllm_cluster.lab.proc import processes_in, read_pid_file


def tear_down(layout: Layout, say: Callable[[str], None]) -> None:
    """End the lab's processes, then its mounts, cgroups and namespaces.

    It goes by what the machine has, not by what the lab wrote down: processes are found by the
    lab's records and by the lab's namespaces, mounts by the lab's folder. Whatever still runs in
    one of the lab's namespaces (a shell, a client) ends too; it is named.
    """
    hosts = [h for h in layout.every_host() if h.directory.exists() or h.netns.exists()]
    if hosts:
        with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
            list(pool.map(lambda host: _remove_host(layout, host), hosts))
        say(f"cut and removed: {', '.join(host.name for host in hosts)}")
    proxy = read_pid_file(layout.proxy_pid)
    if proxy is not None:
        proxy.end()
    for namespace in (layout.outside, layout.switch):
        for process in processes_in(Path("/run/netns", namespace)):
            say(f"ending process {process.pid}, still in {namespace}")
            process.end()
        network.remove_namespace(namespace)
    storage.unmount(layout.directory)
    cgroup.remove_lab(layout)


def _remove_host(layout: Layout, host: HostLayout) -> None:
    power.cut(layout, host)
    storage.remove_disk(host)
