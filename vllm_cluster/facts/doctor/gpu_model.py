"""GPUs, their driver, and RDMA ports as a host shows them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One GPU of `nvidia-smi -q -x`. None where the card or the driver does not say."""

    index: int
    name: str
    uuid: str
    bus: str = ""
    memory_bytes: int = 0
    used_bytes: int = 0
    utilization: int | None = None
    temperature_c: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
    ecc: bool | None = None
    compute_mode: str = ""
    uncorrected_volatile: int | None = None
    uncorrected_aggregate: int | None = None
    pages_pending: bool | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    link_gen: tuple[int, int] | None = None
    link_width: tuple[int, int] | None = None
    throttle: tuple[str, ...] = ()
    recovery_action: str = ""
    fabric: str = ""
    processes: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Gpus:
    """The GPUs and the driver behind them.

    `error`: nvidia-smi's words where it failed. `kernels`: that may be booted -> the driver's
    module for it, empty where none was built.
    """

    error: str = ""
    driver: str = ""
    cuda: str = ""
    loaded: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    cdi: frozenset[str] = frozenset()
    kernels: dict[str, str] = field(default_factory=dict)
    cards: tuple[Gpu, ...] = ()
    topology: str = ""
    dcgm: tuple[str, ...] = ()


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA adapter, such as mlx5_0/ports/1. `gids`: index -> (type, card)."""

    name: str
    state: str
    physical: str
    rate_gbit: float
    layer: str
    errors: dict[str, int] = field(default_factory=dict)
    gids: dict[int, tuple[str, str]] = field(default_factory=dict)
