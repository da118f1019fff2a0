"""Which line of a failed start's log is shown as its reason."""

from __future__ import annotations

from vllm_cluster.plan.start_log import why

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


def test_the_root_cause_is_told_and_not_the_line_that_points_to_it() -> None:
    cause = "ValueError: No available memory for the cache blocks. Try increasing it."
    assert why(f"{_START}{_ENGINE}{cause}\n{_FOLLOWS}") == cause


def test_an_error_of_no_known_kind_is_the_cause_too() -> None:
    log = f'{_START}{_ENGINE}    raise ValueError("x")\n{_ENGINE}ValueError: of cheese\n{_FOLLOWS}'
    assert why(log) == "ValueError: of cheese"


def test_without_another_the_line_that_follows_has_to_do() -> None:
    assert why(_START + _FOLLOWS).startswith("RuntimeError: Engine core initialization failed.")


def test_news_and_what_was_waited_for_are_no_reason() -> None:
    assert why(_START) == ""
