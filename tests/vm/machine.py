"""Two machines with kernels of their own, under software emulation, on a network of their own.

Everything lies in one network namespace: a bridge with the control side's address and a tap for
each machine. Nothing of this machine's own network changes.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm.root_image import ADDRESSES, Image, mac
from vllm_cluster.lab.network import enter

CONTROL = "10.78.0.1"
BOOT_TIMEOUT_S = 900  # about 60 s on an idle machine, many times that beside other work
SSH_TIMEOUT_S = 180


@dataclass
class Disk:
    """A further disk: a file, and the serial number under which udev names it."""

    file: Path
    serial: str

    @property
    def by_id(self) -> str:
        """The name that survives a reboot."""
        return f"/dev/disk/by-id/virtio-{self.serial}"


@dataclass
class Machine:
    """A virtual machine. `disks` are those that are plugged in at the next power-on."""

    name: str
    folder: Path
    image: Image
    namespace: str
    disks: list[Disk] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    user: str = "root"

    @property
    def address(self) -> str:
        """Its address on the machines' network."""
        return ADDRESSES[self.name]

    @property
    def console(self) -> Path:
        """What it printed."""
        return self.folder / f"{self.name}.console"

    def add_disk(self, serial: str, size_bytes: int) -> Disk:
        """A blank disk, there from the next power-on."""
        file = self.folder / f"{self.name}-{serial}.img"
        with file.open("wb") as empty:
            empty.truncate(size_bytes)
        disk = Disk(file, serial)
        self.disks.append(disk)
        return disk

    def power_on(self) -> None:
        """Start it, without waiting."""
        root = self.folder / f"{self.name}.qcow2"
        if not root.exists():
            made = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b"]
            subprocess.run([*made, str(self.image.disk), str(root)], check=True)
        argv = [*enter(self.namespace), "qemu-system-x86_64"]
        argv += ["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "768"]
        argv += ["-nodefaults", "-display", "none", "-no-reboot"]
        argv += ["-serial", f"file:{self.console}"]
        argv += ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd)]
        kernel = ["root=/dev/vda", "rw", "console=ttyS0", "net.ifnames=0", "mitigations=off"]
        kernel += ["systemd.show_status=1", f"systemd.hostname={self.name}"]
        argv += ["-append", " ".join(kernel)]
        # The first device of its kind, and so /dev/vda.
        argv += ["-drive", f"file={root},if=none,id=root,format=qcow2,cache=unsafe"]
        argv += ["-device", "virtio-blk-pci,drive=root"]
        for disk in self.disks:
            drive = f"file={disk.file},if=none,id={disk.serial},format=raw,cache=writeback"
            device = f"virtio-blk-pci,drive={disk.serial},serial={disk.serial}"
            argv += ["-drive", drive, "-device", device]
        argv += ["-netdev", f"tap,id=n0,ifname={self.name},script=no,downscript=no"]
        argv += ["-device", f"virtio-net-pci,netdev=n0,mac={mac(self.name)},romfile="]
        argv += ["-device", "virtio-rng-pci"]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def power_cut(self) -> None:
        """Off at once; nothing inside hears of it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ssh_argv(self, command: str) -> list[str]:
        """The command that runs another in a root shell of the machine."""
        if self.user != "root":
            command = f"sudo -n sh -c {shlex.quote(command)}"
        return ["ssh", "-F", str(self.folder / "ssh_config"), "-l", self.user, self.name, command]

    def ssh(self, command: str, timeout_s: float = SSH_TIMEOUT_S) -> str:
        """The output of a root shell's command, which must end with 0."""
        done = subprocess.run(
            self.ssh_argv(command), capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ask(self, command: str) -> str | None:
        """The output, or None where SSH or the command fails."""
        done = subprocess.run(
            self.ssh_argv(command), capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout.strip() if done.returncode == 0 else None

    def await_ssh(self) -> None:
        """Wait until SSH lets in."""
        end = time.monotonic() + BOOT_TIMEOUT_S
        while self.ask("true") is None:
            tail = self.console.read_text(errors="replace")[-2000:]
            assert self.process is not None, f"{self.name} has no power"
            assert self.process.poll() is None, f"{self.name} went off:\n{tail}"
            assert time.monotonic() < end, f"{self.name}: no SSH:\n{tail}"
            time.sleep(1)

    def await_true(self, what: str, command: str, timeout_s: float) -> None:
        """Wait until a command succeeds inside."""
        end = time.monotonic() + timeout_s
        while self.ask(command) is None:
            assert time.monotonic() < end, f"{self.name}: {what}: not within {timeout_s:.0f} s"
            time.sleep(1)


@contextmanager
def machines(image: Image, folder: Path, namespace: str) -> Iterator[dict[str, Machine]]:
    """Both machines, off, and their network; all of it is gone afterwards."""
    made = {name: Machine(name, folder, image, namespace) for name in ADDRESSES}
    _ssh_files(image, folder, namespace)
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        lines = ["link set lo up", "link add br0 type bridge forward_delay 0"]
        lines += [f"address add {CONTROL}/24 dev br0", "link set br0 up"]
        for name in made:
            lines += [f"tuntap add dev {name} mode tap"]
            lines += [f"link set {name} master br0", f"link set {name} up"]
        ip = ["ip", "-n", namespace, "-batch", "-"]
        subprocess.run(ip, input="\n".join(lines) + "\n", text=True, check=True)
        yield made
    finally:
        for machine in made.values():
            machine.power_cut()
        subprocess.run(["ip", "netns", "delete", namespace], check=True)


def _ssh_files(image: Image, folder: Path, namespace: str) -> None:
    host_key = image.host_key.with_suffix(".pub").read_text()
    known = "".join(f"{name},{address} {host_key}" for name, address in ADDRESSES.items())
    (folder / "known_hosts").write_text(known)
    blocks = [f"Host {name} {address}\n  HostName {address}\n" for name, address in
              ADDRESSES.items()]  # fmt: skip
    common = (
        f"Host *\n  User root\n  IdentityFile {image.key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
        "  BatchMode yes\n  ConnectTimeout 10\n  ServerAliveInterval 10\n"
        f"  ProxyCommand {' '.join(enter(namespace))} socat - TCP:%h:%p,nodelay\n"
    )
    (folder / "ssh_config").write_text("".join(blocks) + common)
