"""GPUs by name, with the memory that CUDA really reports.

The number on the box is not what a process sees: an "80 GB" A100 has 79.15
GiB for CUDA. The totals are those of PyTorch's out-of-memory messages ("GPU 0
has a total capacity of 79.15 GiB"), the lower one where boards differ.
"""

from __future__ import annotations

import contextlib

from vllm_cluster.plan.memory.facts import GIB, MIB, GpuFacts

#: name: total GiB for CUDA, compute capability, NVLink between the GPUs of its usual host
_KNOWN: dict[str, tuple[float, tuple[int, int]]] = {
    "T4": (14.56, (7, 5)),
    "V100-16GB": (15.77, (7, 0)),
    "V100-32GB": (31.73, (7, 0)),
    "RTX-3090": (23.56, (8, 6)),
    "A10": (21.98, (8, 6)),
    "A10G": (21.99, (8, 6)),
    "A40": (44.34, (8, 6)),
    "RTX-A6000": (47.41, (8, 6)),
    "A100-40GB": (39.38, (8, 0)),
    "A100-80GB": (79.14, (8, 0)),
    "L4": (22.03, (8, 9)),
    "L40": (44.39, (8, 9)),
    "L40S": (44.39, (8, 9)),
    "RTX-4090": (23.52, (8, 9)),
    "RTX-6000-Ada": (47.37, (8, 9)),
    "H100-80GB": (79.10, (9, 0)),
    "H100-NVL": (93.01, (9, 0)),
    "H200": (139.72, (9, 0)),
    "GH200-96GB": (94.50, (9, 0)),
    "B200": (178.35, (10, 0)),
    "RTX-5090": (31.36, (12, 0)),
    "RTX-PRO-6000": (94.97, (12, 0)),
}
_ALIASES = {"A100": "A100-80GB", "H100": "H100-80GB", "V100": "V100-32GB", "A6000": "RTX-A6000"}


def known_gpus() -> tuple[str, ...]:
    """The names that `gpu_by_name` takes."""
    return tuple(_KNOWN)


def gpu_by_name(name: str) -> GpuFacts:
    """Facts of a GPU by its short name or the name that nvidia-smi prints.

    Raises KeyError with the known names.
    """
    wanted = _key(name)
    short = {_key(known): known for known in _KNOWN} | {
        _key(alias): known for alias, known in _ALIASES.items()
    }
    found = short.get(wanted) or next(
        (short[key] for key in sorted(short, key=len, reverse=True) if key in wanted), None
    )
    if found is None:
        raise KeyError(f"GPU {name!r} is not known; known: {', '.join(_KNOWN)}")
    gib, capability = _KNOWN[found]
    return GpuFacts(name=found, memory_bytes=int(gib * GIB), compute_capability=capability)


def gpu_from_nvidia_smi(name: str, total_mib: int, compute_capability: tuple[int, int]) -> GpuFacts:
    """Facts of a GPU from `nvidia-smi --query-gpu=name,memory.total,compute_cap`.

    nvidia-smi's total includes what the driver keeps (about 1 % on data centre
    boards: 81920 MiB on an A100 of which CUDA has 81043); where the name is
    known its CUDA total is taken if lower.
    """
    memory = int(total_mib * MIB * 0.985)
    with contextlib.suppress(KeyError):
        memory = min(total_mib * MIB, gpu_by_name(name).memory_bytes)
    return GpuFacts(name=name, memory_bytes=memory, compute_capability=compute_capability)


def _key(name: str) -> str:
    words = name.lower().replace("nvidia", "").replace("geforce", "").replace("tesla", "")
    for form in ("sxm4", "sxm5", "sxm2", "sxm", "pcie", "pci-e", "hbm3", "hbm2e"):
        words = words.replace(form, "")
    return "".join(c for c in words if c.isalnum())
