"""Which line of a log is shown as the reason of an end, and which words of it."""

from __future__ import annotations

import pytest

from vllm_cluster.plan.last_words import plain, sign, why

_ENGINE = "(EngineCore pid=477) ERROR 11-30 19:12:01 [core.py:1192] "
_SERVER = "(APIServer pid=435) "
_START = f"""waiting for the Ray head
no completion yet: <urlopen error [Errno 111] Connection refused>
{_SERVER}WARNING 11-30 19:11:40 [system_utils.py:255] with error OSError: [Errno 24] Too many
{_SERVER}INFO 11-30 19:11:41 [model.py:733] Resolved architecture: LlamaForCausalLM
{_SERVER}INFO: 10.0.0.9:5 - "POST /v1/completions HTTP/1.1" 503 Service Unavailable Error: x
"""
_FOLLOWS = f"""{_SERVER}Traceback (most recent call last):
{_SERVER}    raise RuntimeError(
{_SERVER}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
vllm.service: Main process exited, code=exited, status=1/FAILURE
"""  # noqa: E501


def why_of(log: str) -> str:
    return why(log.splitlines())


def test_the_root_cause_is_told_and_not_the_line_that_points_to_it() -> None:
    cause = "ValueError: No available memory for the cache blocks. Try increasing it."
    assert why_of(f"{_START}{_ENGINE}{cause}\n{_FOLLOWS}") == cause


def test_an_error_of_no_known_kind_is_the_cause_too() -> None:
    for cause in ("ValueError: of cheese", "AssertionError"):
        log = f'{_START}{_ENGINE}    raise ValueError("x")\n{_ENGINE}{cause}\n{_FOLLOWS}'
        assert why_of(log) == cause


def test_without_another_the_line_that_follows_has_to_do() -> None:
    assert why_of(_START + _FOLLOWS).startswith("RuntimeError: Engine core initialization failed.")


def test_news_and_what_was_waited_for_are_no_reason() -> None:
    assert why_of(_START) == ""


def test_what_a_configuration_was_refused_for_is_the_reason_and_not_that_it_was() -> None:
    refused = f"{_SERVER}pydantic_core._pydantic_core.ValidationError: 1 validation error for M"
    value = "Value error, User-specified max_model_len (99999) is greater than the derived one"
    assert why_of(f"{refused}\n{_SERVER}  {value}\n{_SERVER}    For further information") == value
    assert why_of(refused).endswith("1 validation error for M")


def test_the_rank_that_died_is_told_and_not_the_engine_that_went_with_it() -> None:
    died = "RayWorkerProc rank=[1] died unexpectedly, shutting down executor."
    log = (
        f"{_ENGINE}{died}\n{_ENGINE}EngineCore encountered a fatal error.\n{_ENGINE}Traceback "
        f"(most recent call last):\n{_ENGINE}RuntimeError: Executor failed.\n"
        f"{_SERVER}ERROR 11-30 19:12:02 [async_llm.py:708] AsyncLLM output_handler failed.\n"
    )
    assert why_of(log) == died


_RAYLET = "(raylet) Raylet is terminated"
_STOP = "[2026-11-30 20:28:57,154 I 26 26] (raylet) node_manager.cc:124: Stop: sending SIGKILL to 7"


@pytest.mark.parametrize("before", ["", "    ", "(raylet) ", "(raylet)     "])
def test_news_of_rays_own_parts_are_no_reason_wherever_they_are_shown(before: str) -> None:
    assert sign(before + _STOP) is None
    assert why([before + _STOP]) == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{_ENGINE}ValueError: x", "ValueError: x"),
        ("2026-11-30 20:25:04,395\tERR scripts.py:87 --   raylet [exit code=-9]",
         "raylet [exit code=-9]"),
        ("2026-11-30 20:25:04,395ERR scripts.py:87 -- raylet [exit code=-9]",
         "raylet [exit code=-9]"),
        ("[2026-11-30 00:51:02,798 E 329 329] (raylet) node_manager.cc:3069: 13 Workers killed",
         "13 Workers killed"),
        ("(RayWorkerProc pid=7, ip=10.0.0.2) ERROR 11-30 19:12:01 [a.py:1] OSError: x",
         "(RayWorkerProc pid=7, ip=10.0.0.2) OSError: x"),
        (f"{_RAYLET}. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user",
         _RAYLET),
        ("End of file. There are some potential root causes. (1) SIGKILL", "End of file"),
    ],
)  # fmt: skip
def test_what_loggers_put_before_the_words_and_guesses_behind_them_are_not_shown(
    line: str, words: str
) -> None:
    assert plain(line) == words


def test_a_guess_names_no_cause_and_the_words_before_it_do() -> None:
    line = f"{_RAYLET}. Termination is unexpected. Possible reasons include: (1) SIGKILL by x"
    died = f"{_ENGINE}RayWorkerProc rank=[1] died unexpectedly, shutting down executor."
    assert why([died, line], errors=False) == _RAYLET
    assert why([died, "RuntimeError: Executor failed."]).startswith("RayWorkerProc rank=[1] died")


def test_an_error_that_no_sign_knows_counts_only_where_errors_do() -> None:
    assert why(["ValueError: bad request"], errors=False) == ""
    assert why(["torch.OutOfMemoryError: x", "ValueError: y"], errors=False).endswith("Error: x")


def test_a_long_reason_is_cut_at_a_word() -> None:
    told = why(["ValueError: " + "no room " * 60])
    assert len(told) <= 301
    assert told.endswith(("no…", "room…"))
    assert why(["ValueError: " + "x" * 400]) == "ValueError: " + "x" * 288 + "…"
