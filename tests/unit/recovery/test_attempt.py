"""The starts of a unit are counted, also where the count is lost or cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_cluster.plan import signs

SCRIPT = Path(__file__).parents[3] / "templates/usr/local/lib/vllm-cluster/attempt"
# What a host has, as words on standard output, which no limit on files keeps back.
STAND_INS = {
    "sleep": 'echo "sleeps $1"',
    "logger": "grep MESSAGE=",
    "systemctl": 'case $* in *NRestarts*) echo "$RESTARTS" ;; show*) echo 10 ;; esac',
    "journalctl": "true",
    "docker": 'echo "$@" >>"$UNITS_STATE/asked"',
}


def _stamped(process: str, log: tuple[str, ...]) -> Iterator[bytes]:
    """As --output=short-unix has them; an @ may name the process too."""
    for line in log:
        when, _, words = line.rpartition("@")
        time_s, _, other = when.partition(" ")
        stamp = f"{time_s or 1000}.0 node-a {other or process}: "
        yield f"{stamp}{words}\n".encode("utf-8", "surrogateescape")


class Unit:
    """A unit's starts, counted in a directory."""

    def __init__(self, folder: Path) -> None:
        self.state, self.programs = folder / "units", folder / "bin"
        self.starts = self.state / "vllm.starts"
        for path in (self.state, self.programs):
            path.mkdir()
        for name, body in STAND_INS.items():
            (self.programs / name).write_text(f"#!/bin/bash\n{body}\n")
            (self.programs / name).chmod(0o755)
        self.language = "C"
        self.script = shutil.copy(SCRIPT, folder)
        (folder / "signs").write_text(signs.patterns())

    def gives_up(self, *log: str, full: bool = False) -> str:
        """Why, after ten starts, the last of which is `0123` and left `log`."""
        self.starts.write_text("10\n")
        self.left(*log)
        status, words = self.begin(full=full)
        assert status == 3
        return words.partition(", because: ")[2].partition("\n")[0]

    def left(self, *log: str, said: tuple[str, ...] = ()) -> None:
        """The last start, `0123`, left this in the journal at 1000 s, or at the time before an @,
        and of it systemd `said` this. Other starts left nothing."""
        (self.state / "vllm.invocation").write_text("0123\n")
        self.programs.joinpath("log").write_bytes(b"".join(_stamped("docker[7]", log)))
        self.programs.joinpath("said").write_bytes(b"".join(_stamped("systemd[1]", said)))
        (self.programs / "journalctl").write_text(
            f"#!/bin/sh\ncd {self.programs}\n"
            "case $* in *_PID=1*=0123*) cat said ;; *=0123*) cat log ;; esac\n"
        )

    def begun(self, name: str, starts: int) -> None:
        """The unit of that name is in that start of its own."""
        (self.state / f"{name}.starts").write_text(f"{starts}\n")
        (self.state / f"{name}.invocation").write_text(f"{name}-{starts}\n")

    def ran(self, *starts: str) -> None:
        """These starts of vLLM ran in the Ray session that is there."""
        head = (self.state / "ray-head.invocation").read_text()
        (self.state / "vllm.ran").write_text("".join(f"{start} {head}" for start in starts))

    def begin(self, *, full: bool = False, restarts: int = 0) -> tuple[int, str]:
        """Status and words of one start, which is systemd's own where it counts `restarts`.

        `full`: no file takes another byte.
        """
        return self.attempt("begin", "vllm", "/dev/null", full=full, restarts=restarts)

    def attempt(self, *words: str, full: bool = False, restarts: int = 0) -> tuple[int, str]:
        limit = "ulimit -f 0; trap '' XFSZ; " if full else ""
        environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "UNITS_STATE": str(self.state),
            "INVOCATION_ID": "0123",
            "RESTARTS": str(restarts),
            "LANG": self.language,
        }
        done = subprocess.run(
            ["bash", "-c", f'{limit}exec bash "$@"', "-", self.script, *words],
            env=environment, capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        return done.returncode, done.stdout


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    return Unit(tmp_path)


def test_pauses_grow_and_the_tenth_start_is_the_last(unit: Unit) -> None:
    said = [unit.begin() for _ in range(10)]
    assert [status for status, _ in said] == [0] * 10
    slept = [words.rpartition("sleeps ")[2].strip() for _, words in said]
    assert slept == ["", "", "5", "10", "20", "40", "80", "160", "300", "300"]
    status, words = unit.begin()
    assert status == 3
    assert "gave up after 10 starts" in words
    assert not list(unit.state.glob("*.new"))


def test_the_start_that_made_the_session_anew_pauses_once(unit: Unit) -> None:
    unit.starts.write_text("3\n")
    assert "sleeps 10" in unit.begin()[1]
    (unit.state / "vllm.renewed").write_text("4\n")
    unit.starts.write_text("3\n")  # the new head stopped it
    assert "sleeps" not in unit.begin()[1]
    assert "sleeps 20" in unit.begin()[1]


def test_the_head_is_told_why_its_session_is_made_anew_and_keeps_its_starts(unit: Unit) -> None:
    unit.left("ValueError: Free memory on device")
    unit.begun("ray-head", starts=2)
    unit.begun("vllm", starts=3)
    unit.ran("0122", "0123")
    told = unit.attempt("session", "vllm")[1].splitlines()
    why = "the Ray session is made anew before start 3 of vllm; the end of the last one: ValueError"
    assert [why in line for line in told] == [True, True]
    assert told[1].startswith("MESSAGE=")
    assert (unit.state / "asked").read_text() == "kill ray-head\n"
    assert (unit.state / "ray-head.starts").read_text() == "1\n"
    unit.attempt("begin", "ray-head", "/dev/null", restarts=1)
    assert (unit.state / "ray-head.starts").read_text() == "2\n"
    assert not (unit.state / "ray-head.history").exists()


def test_a_full_run_keeps_the_count_and_pauses_longest(unit: Unit) -> None:
    unit.starts.write_text("2\n")
    for _ in range(2):
        status, words = unit.begin(full=True)
        assert status == 0
        assert f"{unit.starts}, cannot be written" in words
        assert words.endswith("pausing 300 s before it\nsleeps 300\n")
        assert unit.starts.read_text() == "2\n", "a write that fails leaves what was there"
    assert unit.begin()[1].endswith("sleeps 5\n"), "counted again once there is room"


def test_the_first_start_on_a_full_run_pauses_too(unit: Unit) -> None:
    status, words = unit.begin(full=True)
    assert status == 0
    assert words.endswith("sleeps 300\n")
    assert not unit.starts.exists()


@pytest.mark.parametrize("text", ["", "garbage\n", "08\n", "1\n2\n", "-4\n", "9" * 30])
def test_what_is_no_count_pauses_longest_and_is_counted_anew(unit: Unit, text: str) -> None:
    unit.starts.write_text(text)
    status, words = unit.begin()
    assert status == 0
    assert f"{unit.starts}, holds no number" in words
    assert words.endswith("sleeps 300\n")
    assert unit.starts.read_text() == "1\n"
    assert "sleeps" not in unit.begin()[1]
    assert unit.begin()[1].endswith("sleeps 5\n")


def test_a_directory_in_the_place_of_the_count_pauses_longest(unit: Unit) -> None:
    unit.starts.mkdir()
    status, words = unit.begin()
    assert status == 0
    assert f"{unit.starts}, cannot be written" in words
    assert words.endswith("sleeps 300\n")
    assert not list(unit.starts.iterdir())


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("cafe start: 10.77.0.12 left Ray\n", "ValueError: Free memory"),
        ("cafe start: 10.77.0.12 left Ray\n0123 watchdog: no token\n", "watchdog: no token"),
    ],
)
def test_the_watchdogs_word_is_the_reason_only_where_it_is_of_the_last_start(
    unit: Unit, said: str, reason: str
) -> None:
    (unit.state / "vllm.watchdog").write_text(said)
    assert unit.gives_up("ValueError: Free memory", "the end") == reason


@pytest.mark.parametrize("advice", ["See 'docker run --help'.", "Run 'docker run --help' for more"])
@pytest.mark.parametrize("words", ["mkdir /a: no space left on device", "invalid reference format"])
def test_dockers_words_are_the_reason_and_not_its_advice(
    unit: Unit, words: str, advice: str
) -> None:
    assert unit.gives_up(f"docker: {words}", "", advice) == f"docker: {words}"


def test_a_full_disk_is_deeper_than_what_follows_from_it(unit: Unit) -> None:
    full = "docker: Error: mkdir /a: no space left on device"
    assert unit.gives_up("ERROR at once", full, "ValueError: none") == full


def test_a_long_log_on_a_full_disk_still_has_its_reason(unit: Unit) -> None:
    log = ["a line of no meaning"] * 9999
    assert unit.gives_up(*log, "ValueError: none", "the end", full=True) == "ValueError: none"


def test_what_comes_again_after_it_held_is_told_from_the_fourth_time_on(unit: Unit) -> None:
    said = []
    for number in range(1, 6):
        unit.left(f"ValueError: number {number}")
        assert unit.begin(restarts=1)[0] == 0
        said.append(unit.attempt("held", "vllm")[1])
        assert not unit.starts.exists()
    assert said[:3] == ["", "", ""]
    for number in (4, 5):
        words = f"started again {number} times in 24 h, the last time because: ValueError: number"
        assert f"{words} {number}" in said[number - 1]


def test_starts_that_somebody_asked_for_and_those_of_days_ago_are_not_told(unit: Unit) -> None:
    history = unit.state / "vllm.history"
    history.write_text("1700000000 ValueError: long ago\n" * 60)
    for _ in range(4):
        unit.begin(restarts=0)
    assert unit.attempt("held", "vllm") == (0, "")
    unit.begin(restarts=1)
    assert len(history.read_text().splitlines()) == 50
    assert unit.attempt("held", "vllm") == (0, "")
    assert not list(unit.state.glob("*.new"))


def test_an_end_with_the_head_is_no_start_of_ones_own_and_is_not_told(unit: Unit) -> None:
    for _ in range(4):
        assert unit.begin(restarts=1) == (0, "")
        assert unit.starts.read_text() == "1\n"
        assert unit.attempt("excused", "vllm") == (0, "")
    assert unit.attempt("held", "vllm") == (0, "")
    assert len((unit.state / "vllm.history").read_text().splitlines()) == 1, "the first one's"


def test_an_excuse_holds_once(unit: Unit) -> None:
    unit.begin(restarts=1)
    unit.attempt("excused", "vllm")
    for count in (1, 2):
        unit.begin(restarts=1)
        assert unit.starts.read_text() == f"{count}\n"
    assert len((unit.state / "vllm.history").read_text().splitlines()) == 2


def test_a_container_that_does_not_end_is_excused_once(unit: Unit) -> None:
    unit.starts.write_text("7\n")
    unit.begin()
    assert unit.starts.read_text() == "8\n"
    for _ in range(3):
        unit.attempt("excused", "vllm")
    assert unit.starts.read_text() == "7\n"


# In colours, as Ray writes into the journal.
RAY, DIM = "2026-11-30 15:04:32,011\tERR scripts.py", "\x1b[2m"
SILENT = (
    "waiting for 2 GPUs; Ray shows: urllib.error.URLError: refused",
    'INFO:     10.77.0.200:42672 - "POST /v1/completions HTTP/1.1" 200 OK',
    "no completion yet: <urlopen error [Errno 111] Connection refused>",
    f"{RAY}:115 -- \x1b[31m----- BEGIN gcs_server.out tail (exit code(s)=-9 (signal 9)) -----",
    "[2026-11-30 15:04:31,000 I 77 77] (raylet) store_runner.cc:49: with directory /dev/shm",
    "- current keyed subscribers: 0",
    f"{RAY}:128 -- \x1b[31m----- END gcs_server.out tail (exit code(s)=-9 (signal 9)) -----",
    "(raylet)     [2026-11-30 15:04:31,000 I 26 26] (raylet) node_manager.cc:124: Stop: SIGKILL",
    "",
)


VLLM_NEWS = "(APIServer pid=7) WARNING 11-30 15:07:14 [loggers.py:9]"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (SILENT[:3], "its log names no cause"),
        (("EngineCore failed", *SILENT), "EngineCore failed"),
        ((f"{RAY}:87 -- gcs_server{DIM} [exit code=-9]", *SILENT), "gcs_server [exit code=-9]"),
        (("words that no sign knows", *SILENT[:3]), "words that no sign knows"),
        (
            ("ValueError: of cheese", f"{VLLM_NEWS} Free memory on device, /dev/shm is used"),
            "ValueError: of cheese",
        ),
        (("    raise OutOfMemoryError(", "ValueError: of cheese"), "ValueError: of cheese"),
        (("serving was refused", VLLM_NEWS), "serving was refused"),
    ],
)
def test_what_never_says_why_is_no_reason(unit: Unit, log: tuple[str, ...], reason: str) -> None:
    assert unit.gives_up(*log).endswith(reason)


@pytest.mark.parametrize(
    ("log", "noted"),
    [("worker of 10.77.0.11:6379", "its log names no cause"), ("ValueError: x", "ValueError: x")],
)
def test_the_last_words_of_what_served_are_not_noted_as_the_cause_of_a_restart(
    unit: Unit, log: str, noted: str
) -> None:
    unit.left(log)
    unit.begin(restarts=1)
    assert (unit.state / "vllm.history").read_text().partition(" ")[2] == f"{noted}\n"


STARTED = "700@Started vllm.service - vLLM server of lab: tiny."
ENDED = "1000@vllm.service: Main process exited, code=exited, status=1/FAILURE"
KILLED = "1000@vllm.service: Main process exited, code=exited, status=137/n/a"
SAID = "Error in preprocessing prompt inputs"
REFUSED = f"990@ERROR 11-30 15:07:13 [serving.py:5] {SAID}"
NEWS = ("INFO 11-30 15:07:14 [loggers.py:9] Engine 000: 0 running",) * 300
NONE = "its log names no cause"


@pytest.mark.parametrize(
    ("said", "log", "noted"),
    [
        ((STARTED, ENDED), (REFUSED, *NEWS), NONE),
        ((KILLED,), (REFUSED,), NONE),
        ((ENDED,), (REFUSED,), SAID),
        ((STARTED, ENDED), (REFUSED, "torch.OutOfMemoryError: x"), "torch.OutOfMemoryError: x"),
        ((STARTED, ENDED), ("699@torch.OutOfMemoryError: x", *NEWS), NONE),
        ((ENDED,), ("699@ValueError: x", *NEWS), NONE),
        (("1000@vllm.service: Control process exited, code=killed, status=15/TERM", ENDED),
         (REFUSED,), SAID),
    ],
)  # fmt: skip
def test_an_error_in_what_served_or_was_killed_and_what_was_long_before_is_no_cause_of_a_restart(
    unit: Unit, said: tuple[str, ...], log: tuple[str, ...], noted: str
) -> None:
    unit.left(*log, said=said)
    unit.begin(restarts=1)
    assert (unit.state / "vllm.history").read_text().partition(" ")[2] == f"{noted}\n"


def test_the_signs_that_attempt_leaves_out_are_any_error() -> None:
    errors = [sign.pattern for sign in signs.SIGNS if sign.meaning == signs.ERROR]
    assert signs.patterns().splitlines()[-3:-1] == errors


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("noise", f"{signs.NOISE}|{signs.NAMELESS}|{signs.PAST}"),
        ("logger", signs.LOGGER),
        ("docker", signs.DOCKER),
        ("guesses", signs.GUESSES),
    ],
)
def test_attempt_reads_a_log_with_the_patterns_of_doctor(name: str, pattern: str) -> None:
    assert f"\n{name}='{pattern}'\n" in SCRIPT.read_text()


ENGINE = "(EngineCore pid=477) ERROR 11-30 19:12:01 [core.py:1192] "


@pytest.mark.parametrize(
    ("log", "noted"),
    [
        ((f"{RAY}:87 --   raylet{DIM} [exit code=-9]",), "raylet [exit code=-9]"),
        (("(raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: (1) "
          "SIGKILL by the user or system OOM killer",), "(raylet) Raylet is terminated"),
        ((f"{ENGINE}EngineCore failed to start.", f"{ENGINE}Traceback (most recent call last):",
          f"{ENGINE}    raise ValueError(", f"{ENGINE}ValueError: of cheese",
          "RuntimeError: Engine core initialization failed."), "ValueError: of cheese"),
    ],
)  # fmt: skip
def test_a_cause_is_noted_in_its_own_words(unit: Unit, log: tuple[str, ...], noted: str) -> None:
    unit.left(*log)
    unit.begin(restarts=1)
    assert (unit.state / "vllm.history").read_text().partition(" ")[2] == f"{noted}\n"


def test_active_says_of_rays_units_only_that_the_container_ran(unit: Unit) -> None:
    unit.left("ValueError: no such flag", said=(STARTED, ENDED))
    (unit.state / "vllm.invocation").rename(unit.state / "ray-head.invocation")
    unit.attempt("begin", "ray-head", "/dev/null", restarts=1)
    assert (unit.state / "ray-head.history").read_text().endswith(" ValueError: no such flag\n")


@pytest.mark.parametrize("language", ["C", "C.UTF-8"])
def test_a_reason_with_bytes_that_are_no_text_is_found_in_any_language(
    unit: Unit, language: str
) -> None:
    unit.language = language
    reason = "ValueError: Free memory \udce2\udc96 on device"
    assert unit.gives_up("a line before", reason, "the end") == "ValueError: Free memory  on device"


@pytest.mark.parametrize("later", ["1001 docker[9]@ValueError: x", 'time="…" level=error msg="x"'])
def test_the_end_of_a_log_that_ray_could_not_show_whole_hides_only_its_own_lines(
    unit: Unit, later: str
) -> None:
    tail = (SILENT[3], "ValueError: of another process", *["- objects: 0"] * 9)
    assert unit.gives_up(*tail, later) == ("x" if "msg=" in later else "ValueError: x")
