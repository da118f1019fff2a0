"""What systemd and Docker say of units and containers, in one round trip."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan import paths

_PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,Result"


@dataclass(frozen=True)
class UnitState:
    """A unit as `systemctl show` describes it, and the label of its running container.

    `ours`: its file carries our mark.
    """

    load: str
    active: str
    sub: str
    file_state: str
    need_reload: bool
    result: str
    config: str = ""
    newer_files: tuple[str, ...] = field(default=())
    started_from: str = ""
    ours: bool = False


class UnitStates(FactBase[dict[str, UnitState]]):
    """States of `units` (names with suffix).

    `containers` maps a unit to the container it runs, to learn with which configuration that
    was started (the label vllm-cluster.config), and what the unit noted of the files that it
    started from. `files` maps a unit to files that it reads only
    when it starts: those changed since then are listed in `newer_files`. `mark`: the words that
    a unit's file has where it is ours.
    """

    @staticmethod
    def default() -> dict[str, UnitState]:
        return {}

    def command(
        self,
        units: list[str],
        containers: dict[str, str] | None = None,
        files: dict[str, list[str]] | None = None,
        mark: str = "",
    ) -> StringCommand:
        parts = [f"systemctl show --property={_PROPERTIES} {' '.join(units)}"]
        for unit, container in (containers or {}).items():
            label = '{{index .Config.Labels "vllm-cluster.config"}}'
            inspect = f"docker container inspect --format '{label}' {container} 2>/dev/null"
            parts.append(f'echo "Config {unit} $({inspect})"')
            noted = f"cat {paths.UNITS_STATE}/{container}.files 2>/dev/null"
            parts.append(f'echo "From {unit} $({noted})"')
        for unit, names in (files or {}).items():
            parts += [_newer(unit, name) for name in names]
        if mark:
            found = f"cd {paths.UNITS} && grep -lsF {shlex.quote(mark)} {' '.join(units)}"
            parts.append(f"({found}) | sed 's/^/Ours /'")
        return StringCommand("; ".join(parts) + "; true")

    def process(self, output: list[str]) -> dict[str, UnitState]:
        shown: dict[str, dict[str, str]] = {}
        configs: dict[str, str] = {}
        origins: dict[str, str] = {}
        newer: dict[str, list[str]] = {}
        ours: set[str] = set()
        block: dict[str, str] = {}
        for line in output:
            if line.startswith("Config "):
                _, unit, config = (line + " ").split(" ", 2)
                configs[unit] = config.strip()
            elif line.startswith("From "):
                _, unit, origin = (line + " ").split(" ", 2)
                origins[unit] = origin.strip()
            elif line.startswith("Newer "):
                _, unit, name = line.split(" ", 2)
                newer.setdefault(unit, []).append(name)
            elif line.startswith("Ours "):
                ours.add(line.removeprefix("Ours ").strip())
            elif "=" in line:
                name, value = line.split("=", 1)
                if name in block:
                    block = {}
                block[name] = value
                shown[block.get("Id", "")] = block
        states = {
            unit: replace(
                _state(unit, values),
                config=configs.get(unit, ""),
                newer_files=tuple(newer.get(unit, [])),
                started_from=origins.get(unit, ""),
            )
            for unit, values in shown.items()
            if unit
        }
        return {unit: replace(state, ours=unit in ours) for unit, state in states.items()}


class ServedPort(FactBase[int | None]):
    """The port that vLLM of this host's unit listens on; None where there is no such unit."""

    def command(self) -> StringCommand:
        shown = "systemctl show -P ExecStart vllm.service"
        return StringCommand(f"{shown} | grep -oE -- '--port=[0-9]+' | tail -n 1")

    def process(self, output: list[str]) -> int | None:
        port = "".join(output[-1:]).removeprefix("--port=")
        return int(port) if port.isdecimal() else None


def _newer(unit: str, name: str) -> str:
    # Microseconds on both sides: a file and the start that read it often share a second. A file
    # that is missing is not newer; a unit that never started has no moment of it. Counted back from
    # now: the wall time that systemd noted may be of a clock that was put right since. Uptime also
    # counts sleep, which systemd's stamp does not, but servers do not sleep.
    show = f"systemctl show -P ActiveEnterTimestampMonotonic {unit}"
    now = "read -r u _ </proc/uptime; n=$(date +%s%6N)"
    started = f"{now}; m=$({show}); m=${{m:-0}}; s=$((m ? n - ${{u%.*}}${{u#*.}}0000 + m : 0))"
    changed = f"c=$(stat -c %.6Z {name} 2>/dev/null | tr -d .)"
    return f'{started}; {changed}; [ "${{c:-0}}" -le "${{s:-0}}" ] || echo "Newer {unit} {name}"'


def _state(unit: str, values: dict[str, str]) -> UnitState:
    try:
        return UnitState(
            load=values["LoadState"],
            active=values["ActiveState"],
            sub=values["SubState"],
            file_state=values["UnitFileState"],
            need_reload=values["NeedDaemonReload"] == "yes",
            result=values.get("Result", ""),
        )
    except KeyError as error:
        raise FactProcessError(f"systemctl show {unit} says nothing of {error}") from error
