"""A host that is a directory: the hosts' own program on it, with a systemctl that keeps books."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from vllm_cluster.plan.generations import Kept, read, tree_digest
from vllm_cluster.steps.render import templates

TOOL = templates() / "usr/local/lib/vllm-cluster/generation"
UNIT = "/etc/systemd/system/{}.service"
ENV = "/etc/vllm-cluster/cluster.env"
THEIRS = "[Service]\nExecStart=/opt/theirs\n"

# A unit whose file says "broken" does not start; docker answers the load with what its file says.
# They are called thousands of times: the smallest shell, and what it can do without a program.
_SYSTEMCTL = """#!/bin/sh
for unit; do :; done
at=$GENERATIONS_ROOT/fragments/$unit
case $* in *FragmentPath*) [ ! -e "$at" ] || { read -r at <"$at"; echo "$at"; }; exit ;; esac
echo "systemctl $*" >>"${GENERATIONS_ROOT%/*}/said"
file=$GENERATIONS_ROOT/etc/systemd/system/$unit active=${GENERATIONS_ROOT%/*}/active
case " $* " in
  *" show "*) [ ! -e "$active/$unit" ] || echo active ;;
  *" is-active "*) [ -e "$active/$unit" ] || exit 3 ;;
  *" start "*) [ -e "$file" ] && ! grep -q broken "$file" || exit 1; : >"$active/$unit" ;;
  *" stop "*) [ ! -e "$active/$unit" ] || rm -f "$active/$unit" ;;
esac
"""
_DOCKER = """#!/bin/sh
case "$*" in
  *" load "*) grep -h -o '{.*}' "$GENERATIONS_ROOT"/etc/systemd/system/vllm.service ;;
  *) echo "docker $*" >>"${GENERATIONS_ROOT%/*}/said" ;;
esac
"""
_OTHER = """#!/bin/sh
echo "NAME $*" >>"${GENERATIONS_ROOT%/*}/said"
"""


class Machine:
    """See the module."""

    program = TOOL
    """What is run for the hosts' program; the same by another way while the tests run."""

    def __init__(self, folder: Path) -> None:
        """The host in `folder`, also where another was copied there."""
        self.root, self.state = folder / "root", folder / "generations"
        self.said, self.active_folder = folder / "said", folder / "active"
        programs = folder / "bin"
        if not programs.exists():
            self._make(programs)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "GENERATIONS": str(self.state),
            "GENERATIONS_ROOT": str(self.root),
        }

    def _make(self, programs: Path) -> None:
        for path in (programs, self.active_folder):
            path.mkdir(parents=True)
        texts = {"systemctl": _SYSTEMCTL, "docker": _DOCKER, "journalctl": "#!/bin/sh\n"}
        texts |= {name: _OTHER.replace("NAME", name) for name in ("systemd-run", "sync")}
        for name, text in texts.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)

    def run(self, *words: str, stdin: str = "", fails: bool = False) -> str:
        """The hosts' program with `words`; its output."""
        done = subprocess.run(
            [self.program, *words], input=stdin, capture_output=True, text=True, check=False,
            env=self.environment,
        )  # fmt: skip
        assert bool(done.returncode) == fails, done.stderr
        return done.stdout

    def shell(self, command: str, stdin: str = "") -> tuple[bool, str]:
        """A command as a run sends it, with the program where it lies here."""
        command = command.replace("/usr/local/lib/vllm-cluster/generation", str(self.program))
        command = command.replace("/usr/local/lib/vllm-cluster/wait-for-gpus", "true")
        done = subprocess.run(
            ["bash", "-c", command], input=stdin, capture_output=True, text=True, check=False,
            env=self.environment,
        )  # fmt: skip
        return done.returncode == 0, done.stdout + done.stderr

    def put(self, unit: str, text: str = THEIRS) -> Path:
        """Somebody's own unit file, which runs; without a text a mask, which does not."""
        file = self.root / UNIT.format(unit).lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        if text:
            file.write_text(text)
            (self.active_folder / file.name).touch()
        else:
            file.symlink_to("/dev/null")
        return file

    def package(self, unit: str) -> str:
        """A unit that a package brought, which runs; where its file is."""
        at = f"/usr/lib/systemd/system/{unit}.service"
        fragments = self.root / "fragments"
        fragments.mkdir(parents=True, exist_ok=True)
        (fragments / f"{unit}.service").write_text(f"{at}\n")
        (self.active_folder / f"{unit}.service").touch()
        return at

    def lay(self, name: str, **units: str) -> str:
        """Files of a generation with such units; the plan's digest of them."""
        files = {
            UNIT.format(unit.replace("_", "-")): ["644", f"# Managed by vllm-cluster\n{text}"]
            for unit, text in units.items()
        }
        files[ENV] = ["644", f"# Managed by vllm-cluster\nA={name}\n"]
        self.run("lay", name, stdin=json.dumps(files))
        return tree_digest({path: (mode, body) for path, (mode, body) in files.items()})

    def serve(self, name: str) -> None:
        """Let a generation that was laid serve, as a first deploy does."""
        self.run("place", name)
        self.run("adopt", name, json.dumps({"number": 1, "image": "sha256:1", "vllm": "1"}))
        for path in (self.root / "etc/systemd/system").iterdir():
            (self.active_folder / path.name).touch()

    def active(self) -> set[str]:
        """Units that run."""
        return {path.name for path in self.active_folder.iterdir()}

    def kept(self) -> Kept:
        """What `show` says."""
        return read(self.run("show"))

    def text(self, path: str) -> str:
        """The content of a file of the host; nothing where there is none."""
        file = self.root / path.lstrip("/")
        return file.read_text() if file.exists() else ""

    def calls(self) -> list[str]:
        """What was called since the last look."""
        lines = self.said.read_text().splitlines() if self.said.exists() else []
        self.said.unlink(missing_ok=True)
        return lines
