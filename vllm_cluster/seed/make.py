"""The files of a seed, and the words that make an installer look for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import jinja2

from vllm_cluster.seed.values import Kind, Values, continued, quoted
from vllm_cluster.steps.render import new_environment

# What makes a volume a NoCloud seed (cloud-init, doc: reference/datasources/nocloud).
VOLUME = "CIDATA"


@dataclass(frozen=True)
class Seed:
    """One host's seed: its files by name, and which of them an installer cannot do without."""

    kind: Kind
    host: str
    files: dict[str, str]
    needed: tuple[str, ...]
    secret: bool


def make(kind: Kind, values: Values) -> Seed:
    """Render the seed of one host."""
    if kind == "preseed":
        guard = _render("guard", values, wait=True)
        late = _render("preseed/late", values)
        files = {"preseed.cfg": _render("preseed/preseed.cfg", values, guard=guard, late=late)}
        needed: tuple[str, ...] = ("preseed.cfg",)
    else:
        files = {
            "user-data": _render(f"{kind}/user-data", values, wait=False),
            "meta-data": _render("cloud-init/meta-data", values),
            "vendor-data": "#cloud-config\n",
            # The live system of an installer keeps what it booted with; the seed sets the target's.
            "network-config": _render("cloud-init/network-config", values),
        }
        if kind == "autoinstall":
            del files["network-config"]
        needed = ("user-data", "meta-data")
    return Seed(kind, values.host, files, needed, secret=values.host_key is not None)


def boot_words(seed: Seed, values: Values, url: str) -> str:
    """What is added to the kernel's command line; `url` is where the seed is served."""
    first = values.first
    if seed.kind == "cloud-init":
        return f"ds=nocloud-net;s={url}"
    if seed.kind == "autoinstall":
        card = first.name or ""
        dns = str(first.dns[0]) if first.dns else ""
        # Documentation/admin-guide/nfs/nfsroot.rst: ip=client:server:gateway:mask:host:device:
        # autoconf:dns. casper brings the card up with it before cloud-init asks.
        static = f"{first.address.ip}::{first.gateway or ''}:{first.address.netmask}"
        mac = f" BOOTIF=01-{first.mac.replace(':', '-')}" if first.mac else ""
        return f'autoinstall "ds=nocloud-net;s={url}" ip={static}:{seed.host}:{card}:off:{dns}{mac}'
    words = ["auto=true", "priority=critical", f"url={url}preseed.cfg"]
    words += [f"interface={first.name or 'auto'}"]
    words += [f"BOOTIF=01-{first.mac.replace(':', '-')}"] if first.mac else []
    words += ["netcfg/disable_autoconfig=true", f"netcfg/get_ipaddress={first.address.ip}"]
    words += [f"netcfg/get_netmask={first.address.netmask}", "netcfg/confirm_static=true"]
    words += [f"netcfg/get_gateway={first.gateway or ''}"]
    words += [f'netcfg/get_nameservers="{" ".join(map(str, first.dns))}"'] if first.dns else []
    return " ".join([*words, f"hostname={seed.host}", "domain="])


def _render(name: str, values: Values, **more: object) -> str:
    return _environment().get_template(f"seed/{name}.j2").render(seed=values, **more)


@cache
def _environment() -> jinja2.Environment:
    environment = new_environment()
    environment.filters["quoted"] = quoted
    environment.filters["continued"] = continued
    # jinja2's own filter escapes < and > for HTML; YAML is a superset of plain JSON.
    environment.policies["json.dumps_function"] = _json
    return environment


def _json(value: object, **_: object) -> str:
    return json.dumps(value)
