"""A package repository in a folder, signed, with stand-ins under the names of NVIDIA's packages.

The layout is the vendor's: a flat repository, a pinning package for a driver's branch, names
without a branch, a newest driver and a newest toolkit that nobody asked for.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
DRIVERS = ("580.95.05", "580.105.08", "590.44.01")
TOOLKITS = ("1.17.8-1", "1.19.0-1", "1.99.0-1")
_SET = (
    "nvidia-open nvidia-utils libnvidia-compute libnvidia-common nvidia-persistenced "
    "nvidia-fabricmanager"
)


@dataclass(frozen=True)
class Package:
    """A package: its files map a path to (content, mode)."""

    name: str
    version: str
    depends: str = ""
    files: dict[str, tuple[str, int]] = field(default_factory=dict)
    postinst: str = ""


@dataclass(frozen=True)
class Repository:
    """Where it lies on this machine, and the fingerprint of the key that signs it."""

    folder: Path
    fingerprint: str

    def source(self, uri: str) -> dict[str, object]:
        """The section of a description that names it at `uri`."""
        key = f"{uri}/key.asc"
        return {"uri": uri, "suite": "./", "key": key, "fingerprint": self.fingerprint}


def build(folder: Path) -> Repository:
    """Build all packages and sign their list. Needs dpkg-deb and gpg."""
    pool = folder / "repository"
    pool.mkdir(parents=True)
    for package in _packages():
        _deb(package, folder / "tree", pool)
    index = "\n".join(entry(deb, f"./{deb.name}") for deb in sorted(pool.glob("*.deb")))
    (pool / "Packages").write_text(index)
    digest = hashlib.sha256(index.encode()).hexdigest()
    release = (
        "Origin: stand-ins\nSuite: ./\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n"
        f"SHA256:\n {digest} {len(index.encode())} Packages\n"
    )
    (pool / "Release").write_text(release)
    return Repository(pool, signed(folder / "gnupg", pool))


def _packages() -> list[Package]:
    every = []
    for version in DRIVERS:
        every += _driver(version)
    for which, pin in {"580": "580.*", "590": "590.*", **{v: f"{v}-1" for v in DRIVERS}}.items():
        text = f"Package: {_SET}\nPin: version {pin}\nPin-Priority: 1000\n"
        name = f"nvidia-driver-pinning-{which}"
        # apt skips a file whose name ends in a dot and anything but `pref`.
        files = {f"etc/apt/preferences.d/{name}.pref": (text, 0o644)}
        every.append(Package(name, "1", files=files))
    for version in TOOLKITS:
        every += _toolkit(version)
    return every


def _driver(version: str) -> list[Package]:
    full = f"{version}-1"
    library = f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}"
    smi = (HERE / "nvidia-smi").read_text().replace("@VERSION@", version)
    needs = ", ".join(
        f"{name} (= {full})"
        for name in ("nvidia-utils", "libnvidia-compute", "libnvidia-common", "nvidia-persistenced")
    )
    daemon = "mkdir -p /run/standin; touch /run/standin/persistence"
    return [
        Package(
            "nvidia-open", full, needs,
            {
                "usr/share/standin/version": (f"{version}\n", 0o644),
                "usr/local/sbin/modinfo": ((HERE / "modinfo").read_text(), 0o755),
                "usr/lib/standin/load-module": ((HERE / "load-module").read_text(), 0o755),
                "lib/systemd/system/standin-nvidia-module.service": (
                    _unit("/usr/lib/standin/load-module", before="nvidia-persistenced.service"),
                    0o644,
                ),
            },
            postinst="systemctl enable --quiet --now standin-nvidia-module.service",
        ),
        Package("nvidia-utils", full, files={"usr/bin/nvidia-smi": (smi, 0o755)}),
        Package("libnvidia-compute", full, files={library: ("stand-in\n", 0o644)}),
        Package("libnvidia-common", full),
        Package(
            "nvidia-persistenced", full,
            files={
                "lib/systemd/system/nvidia-persistenced.service": (
                    _unit(f"/bin/sh -c '{daemon}'"), 0o644
                )
            },
        ),
        Package(
            "nvidia-fabricmanager", full,
            files={
                "lib/systemd/system/nvidia-fabricmanager.service": (_unit("/bin/true"), 0o644)
            },
        ),
    ]  # fmt: skip


def _toolkit(version: str) -> list[Package]:
    same = f"(= {version})"
    ctk, runtime = ((HERE / n).read_text() for n in ("nvidia-ctk", "nvidia-container-runtime"))
    ctk = ctk.replace("@VERSION@", version.partition("-")[0])
    return [
        Package("libnvidia-container1", version),
        Package("libnvidia-container-tools", version, f"libnvidia-container1 {same}"),
        Package(
            "nvidia-container-toolkit-base", version,
            files={"usr/bin/nvidia-ctk": (ctk, 0o755)},
        ),
        Package(
            "nvidia-container-toolkit", version,
            f"nvidia-container-toolkit-base {same}, libnvidia-container-tools {same}",
            {"usr/bin/nvidia-container-runtime": (runtime, 0o755)},
        ),
    ]  # fmt: skip


def _unit(command: str, before: str = "") -> str:
    order = f"Before={before}\n" if before else ""
    return (
        f"[Unit]\nDescription=A stand-in\n{order}[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        f"ExecStart={command}\n[Install]\nWantedBy=multi-user.target\n"
    )


def _deb(package: Package, tree: Path, pool: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    control = (
        f"Package: {package.name}\nVersion: {package.version}\nArchitecture: all\n"
        "Maintainer: nobody <nobody@example.com>\nSection: misc\nPriority: optional\n"
        + (f"Depends: {package.depends}\n" if package.depends else "")
        + "Description: stand-in without a GPU, for tests\n"
    )
    files = {**package.files, "DEBIAN/control": (control, 0o644)}
    if package.postinst:
        files["DEBIAN/postinst"] = (f"#!/bin/sh\nset -e\n{package.postinst}\n", 0o755)
    for name, (text, mode) in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    target = pool / f"{package.name}_{package.version}_all.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(target)]
    subprocess.run(command, check=True, capture_output=True)


def entry(deb: Path, path: str) -> str:
    """What a Packages file says of `deb`, which lies at `path` in the repository."""
    fields = subprocess.run(
        ["dpkg-deb", "--field", str(deb)], check=True, capture_output=True, text=True
    ).stdout
    data = deb.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return f"{fields}Filename: {path}\nSize: {len(data)}\nSHA256: {digest}\n"


def signed(home: Path, pool: Path) -> str:
    """Sign `pool`/Release with a new key, left beside it; the key's fingerprint."""
    home.mkdir(mode=0o700)

    def gpg(*arguments: str) -> str:
        command = [
            "gpg",
            "--batch",
            "--yes",
            "--pinentry-mode=loopback",
            "--passphrase=",
            *arguments,
        ]
        env = {**os.environ, "GNUPGHOME": str(home)}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    gpg("--quick-generate-key", "stand-ins <nobody@example.com>", "rsa3072", "sign", "never")
    try:
        listed = gpg("--list-keys", "--with-colons")
        fingerprint = next(x.split(":")[9] for x in listed.splitlines() if x.startswith("fpr:"))
        gpg("--armor", "--output", str(pool / "key.asc"), "--export", fingerprint)
        gpg("--clearsign", "--output", str(pool / "InRelease"), str(pool / "Release"))
    finally:
        stop = ["gpgconf", "--homedir", str(home), "--kill", "all"]
        subprocess.run(stop, check=False, capture_output=True)
    return fingerprint
