"""How a unit ended last, from systemd's own lines."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path

import pytest

from tests.unit.doctor.cases import changed, sound
from tests.unit.doctor.test_bundle import examination
from vllm_cluster.doctor import state
from vllm_cluster.doctor.ending import Ending, last_end
from vllm_cluster.doctor.first_cause import message
from vllm_cluster.facts.doctor import script
from vllm_cluster.facts.doctor.model import Recovery, Unit
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections

S = "node-a systemd[1]: "
CRASHED = (
    f"10.0 {S}Starting vllm.service - vLLM server of lab: tiny...",
    f"20.0 {S}vllm.service: Main process exited, code=exited, status=1/FAILURE",
    f"20.1 {S}vllm.service: Failed with result 'exit-code'.",
    f"25.0 {S}vllm.service: Scheduled restart job, restart counter is at 1.",
    f"25.1 {S}Starting vllm.service - vLLM server of lab: tiny...",
    "8.0 node-a docker[1]: OSError: No space left on device",
    "15.0 node-a docker[7]: torch.OutOfMemoryError: CUDA out of memory",
    "19.0 node-a docker[7]: RuntimeError: Engine core initialization failed",
)


def ended(*lines: str) -> Ending | None:
    return last_end(Unit("vllm.service", ends=lines))


def test_a_crash_has_its_exit_code_and_the_first_cause_of_that_life() -> None:
    found = ended(*CRASHED)
    assert found == Ending(20.0, "status=1/FAILURE", "torch.OutOfMemoryError: CUDA out of memory")


def test_dockers_own_words_are_told_without_its_stamp() -> None:
    said = (
        'time="2026-11-30T21:51:34Z" level=error msg="error waiting for container: unexpected EOF"'
    )
    lost = f"20.0 {S}vllm.service: Main process exited, code=exited, status=125/n/a"
    found = ended(CRASHED[0], lost, f"19.0 node-a docker[7]: {said}")
    assert found is not None
    assert found.why == "error waiting for container: unexpected EOF"


def test_an_end_that_came_after_the_state_was_read_is_not_shown_beneath_it() -> None:
    facts = sound().facts["node-a"]
    unit = facts.unit("vllm.service")
    for later_s, shown in ((-100, True), (3, False)):
        at = unit.changed_s + later_s
        ended_s = f"{at} {S}vllm.service: Main process exited, code=exited, status=1/FAILURE"
        ends = (f"{at - 9} {S}Starting vllm.service - x", ended_s)
        units = {**facts.units, unit.name: replace(unit, ends=ends)}
        told = state.to_json(examination(changed(sound(), "node-a", units=units)))
        assert bool(told["hosts"]["node-a"]["units"]["vllm.service"]["last_end"]) is shown


def test_what_is_told_of_earlier_ends_is_no_cause_of_this_one() -> None:
    earlier = (
        "15.0 node-a vllm-cluster[9]: started again 4 times in 24 h, because: CUDA out of memory"
    )
    found = ended(CRASHED[0], CRASHED[1], earlier, CRASHED[7])
    assert found is not None
    assert found.why == "RuntimeError: Engine core initialization failed"


def test_an_exit_code_has_no_name_of_init_scripts() -> None:
    for said, how in (
        ("exited, status=3/NOTIMPLEMENTED", "status=3"),
        ("exited, status=1/FAILURE", "status=1/FAILURE"),
        ("killed, status=6/ABRT", "code=killed, status=6/ABRT"),
    ):
        found = ended(CRASHED[0], f"20.0 {S}vllm.service: Main process exited, code={said}")
        assert found is not None
        assert found.how == how


def test_an_engine_that_dies_with_exit_code_0_did_end() -> None:
    found = ended(
        f"10.0 {S}Starting vllm.service - vLLM server...",
        f"30.0 {S}vllm.service: Deactivated successfully.",
        f"35.0 {S}vllm.service: Scheduled restart job, restart counter is at 1.",
        f"35.1 {S}Starting vllm.service - vLLM server...",
        "29.0 node-a docker[7]: EngineDeadError: EngineCore encountered an issue",
    )
    assert found is not None
    assert found.text() == "ended by itself: EngineDeadError: EngineCore encountered an issue"


def test_a_stop_that_was_asked_for_has_no_cause() -> None:
    found = ended(
        f"10.0 {S}Starting vllm.service - vLLM server...",
        f"30.0 {S}Stopping vllm.service - vLLM server...",
        f"31.0 {S}vllm.service: Main process exited, code=exited, status=143/n/a",
        f"31.1 {S}vllm.service: Deactivated successfully.",
        f"32.1 {S}Starting vllm.service - vLLM server...",
    )
    assert found == Ending(31.0, "stopped on request")


def test_a_stop_while_vllm_started_is_one_that_was_asked_for_though_its_container_was_killed() -> (
    None
):
    found = ended(
        f"10.0 {S}Starting vllm.service - vLLM server...",
        "20.0 node-a vllm[7]: stopped while vLLM started; its container is ended",
        f"20.6 {S}vllm.service: Main process exited, code=exited, status=137/n/a",
        f"20.8 {S}vllm.service: Failed with result 'exit-code'.",
    )
    assert found == Ending(20.6, "stopped on request")


def test_a_stop_during_the_start_is_one_that_was_asked_for() -> None:
    lines = (
        f"10.0 {S}Starting vllm.service - vLLM server...",
        f"20.1 {S}vllm.service: Deactivated successfully.",
        f"20.2 {S}Starting vllm.service - vLLM server...",
        "15.0 node-a vllm-cluster[81]: watchdog: no token; the container is ended",
    )
    assert ended(*lines) == Ending(20.1, "stopped on request")
    waits = last_end(Unit("vllm.service", sub="auto-restart", ends=lines[:2]))
    assert waits == Ending(20.1, "ended by itself")


def test_a_unit_that_gave_up_says_so_when_nothing_ran_any_more() -> None:
    found = ended(
        f"8.0 {S}Starting vllm.service - vLLM server...",
        f"9.0 {S}vllm.service: Main process exited, code=exited, status=1/FAILURE",
        f"9.1 {S}vllm.service: Failed with result 'exit-code'.",
        f"11.1 {S}Starting vllm.service - vLLM server...",
        "11.2 node-a vllm-cluster[5]: gave up after 10 starts, because: ValueError: no KV cache",
        f"11.3 {S}vllm.service: Control process exited, code=exited, status=3/NOTIMPLEMENTED",
        f"11.4 {S}vllm.service: Failed with result 'exit-code'.",
        f"11.5 {S}Stopped vllm.service - vLLM server...",
    )
    assert found is not None
    assert found.time_s == 11.3
    assert found.why == "gave up after 10 starts, because: ValueError: no KV cache"


# As journals of a lab had them whose real Ray and vLLM were ended in many ways.
ACCESS = (
    '19.1 node-a docker[7]: INFO:     10.77.0.200:42672 - "POST /v1/completions HTTP/1.1" 200 OK'
)
WARNING = (
    "18.9 node-a docker[7]: (RayWorkerProc pid=513)   object_tensor = torch.frombuffer(pickle.dumps"
)
KILLED = (
    f"10.0 {S}Starting vllm.service - vLLM server of lab: tiny...",
    f"20.0 {S}vllm.service: Main process exited, code=exited, status=137/n/a",
    f"20.1 {S}vllm.service: Failed with result 'exit-code'.",
    f"20.6 {S}vllm.service: Scheduled restart job, restart counter is at 1.",
    f"20.7 {S}Starting vllm.service - vLLM server of lab: tiny...",
)
NEXT = (
    "20.9 node-a unless-stopped[9]: waiting for 2 GPUs; Ray shows: urllib.error.URLError: <urlopen",
)


def why(*lines: str, noted: Recovery | None = None) -> str:
    found = last_end(Unit("vllm.service", ends=lines), noted)
    assert found is not None
    return found.why


def test_who_asked_what_of_the_api_is_no_reason_and_nothing_is_made_up() -> None:
    assert why(*KILLED, WARNING, ACCESS) == ""


def test_the_next_starts_lines_are_no_reason_though_it_begins_within_a_second() -> None:
    assert why(*KILLED, *NEXT) == ""
    assert why(*KILLED, *(line.replace("waiting for 2", "ValueError: 2") for line in NEXT)) == ""


def test_what_was_waited_for_and_came_is_no_reason() -> None:
    waited = "10.3 node-a unless-stopped[6]: waiting for 2 GPUs; Ray shows: URLError: refused"
    died = (
        "19.9 node-a docker[7]: (EngineCore pid=482) ERROR 11-30 15:07:13 "
        "[ray_executor_v2.py:522] RayWorkerProc rank=[1] died unexpectedly, shutting down executor."
    )
    assert why(*KILLED, waited) == ""
    assert why(*KILLED, waited, died) == (
        "RayWorkerProc rank=[1] died unexpectedly, shutting down executor."
    )


def test_the_watchdogs_line_is_the_reason_before_all() -> None:
    said = (
        "19.8 node-a vllm-cluster[81]: watchdog: no token for 180 s; the container is ended",
        "19.7 node-a docker[7]: torch.OutOfMemoryError: CUDA out of memory",
    )
    assert why(*KILLED, *said) == "watchdog: no token for 180 s"


def test_the_watchdogs_line_of_another_life_is_no_reason() -> None:
    before = "9.0 node-a vllm-cluster[81]: watchdog: no token for 180 s; the container is ended"
    after = before.replace("9.0 ", "21.0 ")
    assert why(*KILLED, before, after) == ""


@pytest.mark.parametrize(
    ("when_s", "said", "reason"),
    [
        (20.0, "start: 10.77.0.12 left Ray", "start: 10.77.0.12 left Ray"),
        (21.0, "ValueError: unknown", ""),
        (21.0, "torch.OutOfMemoryError: x", "torch.OutOfMemoryError: x"),
        (21.0, "- current keyed subscribers: 0", ""),
        (12.0, "start: 10.77.0.12 left Ray", ""),
        (90.0, "start: 10.77.0.12 left Ray", ""),
    ],
)
def test_what_the_unit_noted_of_a_restart_counts_for_the_end_before_it(
    when_s: float, said: str, reason: str
) -> None:
    assert why(*KILLED, ACCESS, noted=Recovery(again=((when_s, said),))) == reason


def test_the_root_cause_is_the_reason_and_not_what_points_to_it() -> None:
    engine = "node-a vllm[7]: (EngineCore pid=477) ERROR 11-30 19:12:01 [core.py:1192]"
    failed = (
        f"19.0 {engine} EngineCore failed to start.",
        f"19.1 {engine} ValueError: of cheese",
        "19.2 node-a vllm[7]: RuntimeError: Engine core initialization failed.",
    )
    noted = Recovery(again=((21.0, "RuntimeError: Engine core initialization failed."),))
    assert why(*FAILED, *failed) == "ValueError: of cheese"
    assert why(*FAILED, *failed, noted=noted) == "ValueError: of cheese"
    assert why(*FAILED, *failed[::2]) == "EngineCore failed to start."


BAD = "19.0 node-a docker[7]: ValueError: bad request of a client"
SERVED = f"15.0 {S}Started vllm.service - vLLM server of lab: tiny."
FAILED = tuple(line.replace("137/n/a", "1/FAILURE") for line in KILLED)


def test_an_error_is_the_reason_of_a_start_that_failed_and_not_of_what_served_or_was_killed() -> (
    None
):
    assert why(*FAILED, BAD) == "ValueError: bad request of a client"
    assert why(*KILLED, BAD) == ""
    assert why(*(FAILED[0], SERVED, *FAILED[1:]), BAD) == ""
    out_of_memory = "19.5 node-a docker[7]: torch.OutOfMemoryError: x"
    assert why(*KILLED, BAD, out_of_memory) == "torch.OutOfMemoryError: x"


def test_an_error_is_the_reason_where_the_end_took_the_wait_for_a_completion_with_it() -> None:
    wait = f"20.05 {S}vllm.service: Control process exited, code=killed, status=15/TERM"
    assert why(*FAILED[:2], wait, *FAILED[2:], BAD) == "ValueError: bad request of a client"


def test_active_says_of_rays_units_only_that_the_container_ran() -> None:
    lines = (FAILED[0], SERVED, *FAILED[1:], BAD)
    head = last_end(Unit("ray-head.service", ends=lines))
    assert head is not None
    assert head.why == "ValueError: bad request of a client"


def test_an_error_of_hours_before_is_no_reason() -> None:
    lines = [line.replace("20.", "9020.", 1) for line in FAILED]
    assert why(*lines, "19.0 node-a docker[7]: ValueError: a request that was bad") == ""


def test_a_process_of_rays_that_was_killed_is_named_and_the_end_of_its_log_is_not() -> None:
    head = [line.replace("vllm.service", "ray-head.service") for line in KILLED]
    head[1:3] = [f"20.0 {S}ray-head.service: Deactivated successfully."]
    ray = "19.9 node-a docker[3]: 2026-11-30 15:04:32,011\tERR scripts.py"
    found = ended(
        *head,
        f"{ray}:1307 -- Some Ray subprocesses exited unexpectedly:",
        f"{ray}:87 --   gcs_server [exit code=-9]",
        f"{ray}:115 -- ----- BEGIN gcs_server.out tail (exit code(s)=-9 (signal 9)) -----",
        "19.9 node-a docker[3]: - current keyed subscribers: 0",
        "19.9 node-a docker[3]: Global stats: 3 total (0 active)",
        f"{ray}:128 -- ----- END gcs_server.out tail (exit code(s)=-9 (signal 9)) -----",
        f"{ray}:1315 -- Remaining processes will be killed.",
    )
    assert found is not None
    assert found.text() == "ended by itself: gcs_server [exit code=-9]"


def test_docker_that_ends_under_a_container_is_the_reason() -> None:
    lost = (
        '19.9 node-a docker[7]: time="2026-11-30T15:08:03Z" level=error '
        'msg="error waiting for container: unexpected EOF"'
    )
    assert "error waiting for container" in why(*KILLED, ACCESS, lost)


def test_words_that_no_sign_knows_are_the_reason_where_dockers_own_client_failed() -> None:
    words = (
        "19.8 node-a docker[7]: docker: Error response from daemon: conflicting options",
        "19.9 node-a docker[7]: See 'docker run --help'.",
    )
    assert why(*KILLED, *words) == ""
    failed = [line.replace("137/n/a", "125/n/a") for line in KILLED]
    assert why(*failed, *words).endswith("from daemon: conflicting options")


def test_what_never_ended_has_no_end() -> None:
    assert ended() is None
    assert ended(f"10.0 {S}Starting vllm.service - vLLM server...") is None


def test_the_screen_shows_the_last_end_and_why() -> None:
    facts = sound().facts["node-a"]
    unit = replace(facts.units["vllm.service"], in_a_row=1, ends=CRASHED)
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    case = changed(case, "node-a", clock_s=145.0)
    told = state.to_json(examination(case))["hosts"]["node-a"]["units"]["vllm.service"]
    assert told["restarts"] == 1
    assert told["ended_s_ago"] == 125
    assert "ended 2m05s ago: status=1/FAILURE: torch.OutOfMemoryError" in state.text(
        examination(case)
    )


def test_the_screen_does_not_say_the_watchdogs_reason_twice() -> None:
    facts = sound().facts["node-a"]
    words = "watchdog: no token for 180 s"
    line = f"19.8 node-a vllm-cluster[81]: {words}; the container is ended"
    unit = replace(facts.units["vllm.service"], restarts=1, ends=(*KILLED, line))
    case = changed(sound(), "node-a", units={**facts.units, unit.name: unit})
    noted = {"vllm": Recovery(watchdog=(words,))}
    text = state.text(examination(changed(case, "node-a", recovery=noted)))
    assert text.count(words) == 1


JOURNAL = r"""#!/bin/bash
case $* in
  *UNIT=*_PID*|*_PID=1*) grep systemd "$LINES_OF" ;;
  *SYSLOG_IDENTIFIER=*) grep vllm-cluster "$LINES_OF" ;;
  *) cat "$LINES_OF" ;;
esac
"""


def brought(tmp_path: Path, *lines: str, log_lines: int = 40, state: str = "active") -> list[str]:
    """What the doctor's script brings of the ends of a unit with such a journal."""
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\necho {state}\n[ {state} = active ]\n")
    (tmp_path / "systemctl").chmod(0o755)
    journal = tmp_path / "lines"
    journal.write_text("\n".join(lines))
    (tmp_path / "journalctl").write_text(JOURNAL)
    (tmp_path / "journalctl").chmod(0o755)
    parts = resources("vllm_cluster.facts.doctor") / "gather"
    shell = "".join((parts / name).read_text() for name in ("00-frame.sh", "10-host.sh"))
    plan = sound().plan
    values = script(plan, plan.hosts["node-a"], salt="s", log_lines=40)
    lines_of = values.splitlines()
    known = [next(one for one in lines_of if one.startswith(n)) for n in ("noise=", "causes=")]
    shell += f"\nmark={MARK}\n" + "\n".join(known)
    shell += f"\nlog_lines={log_lines} ours=(ray-head.service)\nunit_ends\n"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LINES_OF": str(journal)}
    done = subprocess.run(
        ["bash", "-c", shell], env=environment, capture_output=True, text=True, check=True
    )
    return list(Sections(done.stdout).one("ends").lines)


@pytest.mark.parametrize(
    ("log_lines", "state", "told"),
    [(0, "active", False), (0, "activating", True), (40, "active", True)],
)
def test_without_logs_the_script_brings_ends_only_where_a_unit_is_not_active(
    tmp_path: Path, log_lines: int, state: str, *, told: bool
) -> None:
    assert bool(brought(tmp_path, *KILLED, log_lines=log_lines, state=state)) is told


RAY = "19.9 node-a docker[3]: 2026-11-30 15:04:32,011\tERR scripts.py"
BEGIN_TAIL = f"{RAY}:115 -- ----- BEGIN raylet.out tail (exit code(s)=-9 (signal 9)) -----"


def test_the_script_brings_the_words_before_hundreds_of_lines_of_rays_own_logs(
    tmp_path: Path,
) -> None:
    told = "[2026-11-30 15:04:31,000 E 77 77] (raylet) main.cc:9: 13 Workers killed due to memory"
    lines = brought(
        tmp_path,
        KILLED[0], "19.8 node-a vllm-cluster[81]: watchdog: no token; the container is ended",
        f"{RAY}:87 --   raylet [exit code=-9]", BEGIN_TAIL,
        f"19.9 node-a docker[3]: {told}", *["19.9 node-a docker[3]: - objects unsealed: 0"] * 200,
        f"{RAY}:128 -- ----- END raylet.out tail (exit code(s)=-9 (signal 9)) -----",
        "19.9 node-a docker[3]: 2026-11-30 15:04:32,000\tINFO node.py:9 -- news", *[ACCESS] * 99,
        KILLED[1],
    )  # fmt: skip
    words = [message(line)[1] for line in lines if " systemd[" not in line]
    assert "watchdog: no token; the container is ended" in words
    assert any("raylet [exit code=-9]" in line for line in words)
    assert told in words
    assert not any("unsealed" in line or "INFO" in line for line in words)


def test_a_log_that_ray_could_not_show_whole_hides_no_line_of_the_next_life(tmp_path: Path) -> None:
    unsealed = "19.9 node-a docker[3]: - objects unsealed: 0"
    later = "29.0 node-a docker[9]: ValueError: the next life"
    ended_again = KILLED[1].replace("20.0", "30.0", 1)
    lines = brought(tmp_path, KILLED[0], BEGIN_TAIL, unsealed, *KILLED[1:], later, ended_again)
    assert later in lines
    assert unsealed not in lines


def test_the_script_brings_the_cause_from_before_the_tracebacks_of_all_ranks(
    tmp_path: Path,
) -> None:
    cause = "19.0 node-a docker[7]: (RayWorkerProc pid=9) ERROR 11-30 [w.py:3] ValueError: no room"
    stamp = "19.5 node-a docker[7]: (EngineCore pid=8) ERROR 11-30 22:16:35 [core.py:1]   "
    frames = [f"{stamp}File {n}" for n in range(100)]
    follows = "19.9 node-a docker[7]: RuntimeError: Engine core initialization failed. See above"
    lines = brought(tmp_path, CRASHED[0], cause, *frames, follows, *CRASHED[1:5])
    assert cause in lines
    assert sum(line.startswith(stamp) for line in lines) < 100
    found = last_end(Unit("vllm.service", ends=tuple(lines)))
    assert found is not None
    assert found.why.endswith("ValueError: no room")


def test_the_script_brings_that_a_unit_became_active(tmp_path: Path) -> None:
    assert SERVED in brought(tmp_path, KILLED[0], SERVED, *KILLED[1:])


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (KILLED, "status=137/n/a: Ray's head ended"),
        ((KILLED[0], f"15.0 {S}Stopping vllm.service - vLLM...", *KILLED[1:]),
         "stopped: Ray's head ended"),
        ((*KILLED, "19.0 node-a docker[7]: OutOfMemoryError"), "status=137/n/a: OutOfMemoryError"),
    ],
)  # fmt: skip
def test_the_end_of_rays_head_is_why_vllm_ended_with_it(ends: tuple[str, ...], said: str) -> None:
    facts = sound().facts["node-a"]
    name = "ray-head.service"
    head = (f"5.0 {S}Starting {name} - x", f"19.5 {S}{name}: Deactivated successfully.",
            f"20.0 {S}{name}: Scheduled restart job, restart counter is at 1.")  # fmt: skip
    units = {
        **facts.units,
        name: replace(facts.units[name], ends=head),
        "vllm.service": replace(facts.units["vllm.service"], ends=ends),
    }
    told = state.to_json(examination(changed(sound(), "node-a", units=units)))
    assert told["hosts"]["node-a"]["units"]["vllm.service"]["last_end"] == said


def test_a_session_made_anew_says_of_the_head_and_of_vllm_for_which_end_of_vllm() -> None:
    facts = sound().facts["node-a"]
    why = "the Ray session is made anew before start 3 of vllm; the end of the last one: ValueError"
    head = (
        f"5.0 {S}Starting ray-head.service - x",
        f"19.4 node-a vllm-cluster[7]: {why}",
        f"19.5 {S}ray-head.service: Main process exited, code=exited, status=137/n/a",
        f"20.0 {S}ray-head.service: Scheduled restart job, restart counter is at 1.",
    )
    stopped = (f"10.0 {S}Starting vllm.service - vLLM...", f"19.6 {S}Stopping vllm.service - x",
               f"20.0 {S}vllm.service: Deactivated successfully.")  # fmt: skip
    units = {
        **facts.units,
        "ray-head.service": replace(facts.units["ray-head.service"], ends=head),
        "vllm.service": replace(facts.units["vllm.service"], ends=stopped),
    }
    told = state.to_json(examination(changed(sound(), "node-a", units=units)))
    shown = told["hosts"]["node-a"]["units"]
    assert shown["ray-head.service"]["last_end"] == f"status=137/n/a: {why}"
    assert shown["vllm.service"]["last_end"] == f"stopped: {why}"
