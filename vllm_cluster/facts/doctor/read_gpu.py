"""`nvidia-smi -q -x`, the driver's own words, DCGM's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring

from vllm_cluster.facts.doctor.gpu_model import Gpu, Gpus
from vllm_cluster.facts.doctor.sections import Sections

_LAST = "</nvidia_smi_log>"
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Reasons that cost speed for a cause that a person can remove; the others (idle, a clock that an
# application asked for) are ordinary.
_SLOWING = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_NOTHING = {"N/A", "[N/A]", "Not Supported", "Requested functionality has been deprecated"}


def gpus(sections: Sections) -> Gpus:
    """See Gpus."""
    said: dict[str, list[str]] = {}
    for word, rest in sections.pairs("gpu-driver"):
        said.setdefault(word, []).append(rest)
    text = sections.one("nvidia-smi").text.strip()
    packages = (row.split() for row in said.get("package", []))
    base = Gpus(
        loaded="".join(said.get("loaded", [])[:1]),
        packages={r[0]: r[1] for r in packages if len(r) == 3 and r[2] == "installed"},
        held=frozenset(said.get("held", [])),
        devices=frozenset(said.get("device", [])),
        kernels={k: path for k, _, path in (row.partition(" ") for row in said.get("kernel", []))},
        cdi=frozenset(row.rpartition(".so.")[2] for row in said.get("cdi", [])),
        topology=sections.one("topology").text,
        dcgm=(
            *dcgm_log(sections.one("dcgm-log").lines),
            *dcgm_diag(sections.one("dcgmi-diag").text),
        ),
    )
    return smi(text, base) if text else base


def smi(text: str, base: Gpus | None = None) -> Gpus:
    """`base` with the cards of `nvidia-smi -q -x`; where that is no XML, it is what went wrong."""
    base = base or Gpus()
    # Warnings of nvidia-smi stand before and behind its XML.
    start, last = text.find("<nvidia_smi_log"), text.rfind(_LAST)
    try:
        log = fromstring(text[start : last + len(_LAST)]) if start >= 0 else None  # noqa: S314  our own hosts' output
    except ParseError:
        log = None
    if log is None:
        words = [line for line in text.splitlines() if line.strip()]
        return _with(base, error=" ".join(words[:3]) or "no answer")
    return _with(
        base,
        driver=_text(log, "driver_version"),
        cuda=_text(log, "cuda_version"),
        cards=tuple(_card(i, gpu) for i, gpu in enumerate(log.findall("gpu"))),
    )


def _with(base: Gpus, **changes: Any) -> Gpus:
    return Gpus(**{**base.__dict__, **changes})


def _card(index: int, gpu: Element) -> Gpu:
    throttle = gpu.find("clocks_event_reasons")
    if throttle is None:
        throttle = gpu.find("clocks_throttle_reasons")
    ecc = gpu.find("ecc_errors")
    return Gpu(
        index=index,
        name=_text(gpu, "product_name"),
        uuid=_text(gpu, "uuid"),
        bus=gpu.get("id", ""),
        memory_bytes=_bytes(_text(gpu, "fb_memory_usage/total")) or 0,
        used_bytes=_bytes(_text(gpu, "fb_memory_usage/used")) or 0,
        utilization=_number(_text(gpu, "utilization/gpu_util")),
        temperature_c=_number(_text(gpu, "temperature/gpu_temp")),
        persistence=_switch(_text(gpu, "persistence_mode")),
        mig=_switch(_text(gpu, "mig_mode/current_mig")),
        ecc=_switch(_text(gpu, "ecc_mode/current_ecc")),
        compute_mode=_text(gpu, "compute_mode"),
        uncorrected_volatile=_uncorrected(ecc, "volatile"),
        uncorrected_aggregate=_uncorrected(ecc, "aggregate"),
        pages_pending=_pages_pending(gpu),
        rows_pending=_switch(_text(gpu, "remapped_rows/remapped_row_pending")),
        rows_failed=_switch(_text(gpu, "remapped_rows/remapped_row_failure")),
        link_gen=_link(gpu, "pcie_gen"),
        link_width=_link(gpu, "link_widths"),
        throttle=tuple(_reasons(throttle)),
        recovery_action=_said(_text(gpu, "gpu_recovery_action")),
        fabric=_said(_text(gpu, "fabric/state")),
        processes=tuple(_processes(gpu)),
    )


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _said(text: str) -> str:
    """Empty for the ways in which nvidia-smi says nothing."""
    return "" if text in _NOTHING else text


def _number(text: str) -> int | None:
    match = re.match(r"-?\d+", text)
    return int(match[0]) if match else None


def _bytes(text: str) -> int | None:
    match = re.match(r"(\d+) (\w+)$", text)
    return int(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else None


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Yes": True, "Disabled": False, "No": False}.get(text)


def _uncorrected(ecc: Element | None, kind: str) -> int | None:
    """Uncorrected errors: one sum in old drivers, DRAM and SRAM (by kind) in newer ones."""
    part = ecc.find(kind) if ecc is not None else None
    if part is None:
        return None
    total = _number(_text(part, "double_bit/total"))
    if total is not None:
        return total
    counts = [_number((item.text or "").strip()) for item in part if "uncorrectable" in item.tag]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _pages_pending(gpu: Element) -> bool | None:
    pages = gpu.find("retired_pages")
    if pages is None:
        return None
    return _switch(_text(pages, "pending_retirement") or _text(pages, "pending_blacklist"))


def _link(gpu: Element, part: str) -> tuple[int, int] | None:
    base = f"pci/pci_gpu_link_info/{part}"
    names = ("current_link_gen", "max_link_gen")
    if part == "link_widths":
        names = ("current_link_width", "max_link_width")
    current, most = (_number(_text(gpu, f"{base}/{name}")) for name in names)
    return (current, most) if current is not None and most is not None else None


def _reasons(throttle: Element | None) -> Iterator[str]:
    for item in throttle if throttle is not None else ():
        name = re.sub(r"^clocks_(event|throttle)_reasons?_", "", item.tag)
        if name in _SLOWING and (item.text or "").strip() == "Active":
            yield name


def _processes(gpu: Element) -> Iterator[tuple[int, str]]:
    for item in gpu.findall("processes/process_info"):
        pid = _number(_text(item, "pid"))
        if pid is not None:
            yield pid, _text(item, "process_name")


def dcgm_log(lines: tuple[str, ...]) -> tuple[str, ...]:
    """What DCGM's background checks said, each once: `WARNING Thermal: words`."""
    found = (re.search(r"Detected a (\w+) in health system (\w+): '?(.*?)'?$", x) for x in lines)
    return tuple(dict.fromkeys(f"{m[1]} {m[2]}: {m[3].strip()}" for m in found if m))


def dcgm_diag(text: str) -> tuple[str, ...]:
    """What the table of `dcgmi diag` does not pass: `FAILURE memory: GPU1: Fail`.

    DCGM 3 prints a row a test, DCGM 4 rows of GPUs beneath each. Warnings follow as rows whose
    first column is `Warning`, or a name already said.
    """
    found: list[str] = []
    test = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 2 or not line.strip().startswith("|") or cells[0].startswith("-----"):
            continue
        name, result = cells
        test = name if name and name not in {"Warning", "Info", "Error"} else test
        if re.search(r"\bFail\b", result):
            found.append(f"FAILURE {test}: {result}")
        elif re.search(r"\bWarn\b", result) or name in {"Warning", "Error"}:
            found.append(f"WARNING {test}: {result}")
    return tuple(dict.fromkeys(found))
