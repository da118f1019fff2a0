"""What a start that takes long is at, told now and then while it is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host
from pyinfra.context import host

from vllm_cluster.plan.how_far import how_far

_OFTEN_S, _SELDOM_S = 15.0, 30.0
_SELDOM_FROM_S = 120.0
_LIMIT_S = 10
_LINES = 60


@contextmanager
def starting(unit: str, each: Host | None = None) -> Iterator[None]:
    """While the block runs, tell how far the start of `unit` is on `each`, or on this host.

    Nothing in a dry run, of a start that takes less than 15 s, or while the host does not say.
    """
    on = each or _this_host()
    with telling(on, f"{unit}: starting", lambda: _said(on, unit)) if on else nullcontext():
        yield


@contextmanager
def lasting(what: str) -> Iterator[None]:
    """While the block runs, tell that `what` lasts on this host; nothing in a dry run."""
    on = _this_host()
    with telling(on, what) if on else nullcontext():
        yield


def _this_host() -> Host | None:
    """Itself: in another thread `host` stands for none. None in a dry run."""
    return host.state.inventory.get_host(host.name) if host.state.is_executing else None


@contextmanager
def telling(each: Host, what: str, ask: Callable[[], str | None] = str) -> Iterator[None]:
    """While the block runs, tell `what` lasts and what `ask` answers; None: not this time."""
    ended = threading.Event()
    threading.Thread(target=_tell, args=(each, what, ask, ended), daemon=True).start()
    try:
        yield
    finally:
        # Not joined: a question that hangs would keep the run waiting.
        ended.set()


def _tell(each: Host, what: str, ask: Callable[[], str | None], ended: threading.Event) -> None:
    began_s, lasted_s = time.monotonic(), 0.0
    while not ended.wait(_pause_s(lasted_s)):
        words, lasted_s = ask(), time.monotonic() - began_s
        if words is not None and not ended.is_set():
            each.log(f"{what} for {lasted_s:.0f} s{': ' * bool(words)}{words}")


def _pause_s(lasted_s: float) -> float:
    return _OFTEN_S if lasted_s < _SELDOM_FROM_S else _SELDOM_S


def _said(each: Host, unit: str) -> str | None:
    """The last of this start's log that tells something; None where the host cannot be asked."""
    this_start = f"_SYSTEMD_INVOCATION_ID=$(systemctl show -P InvocationID {unit})"
    look = f"journalctl --quiet --no-pager --all --output=cat --lines={_LINES} {this_start}"
    try:
        good, out = each.run_shell_command(
            StringCommand(f"systemctl is-active {unit}; {look}"),
            _sudo=bool(each.data.get("_sudo")),
            _timeout=_LIMIT_S,
        )
    except Exception:  # pyinfra's connectors raise what their libraries do
        return None
    state, *log = [line.line for line in out] or [""]
    if state == "deactivating":
        return "what ran before still ends"
    return how_far("\n".join(log)) if good else None
