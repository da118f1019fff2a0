"""The agent's command line. One JSON object on stdout with --json, a line for people without.

Exit status: 0 done; 1 failed, with the reason on stderr; 2 wrong arguments; 3 another process
does this job already; 4 a copy is not what it should be; 5 a disk or a server failed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from vllm_cluster.weights.agent import commands, looks
from vllm_cluster.weights.agent.errors import (
    AlreadyRunningError,
    StoppedError,
    UnreadableError,
    WeightsError,
    from_os_error,
)
from vllm_cluster.weights.agent.layout import Layout

_IDLE_NICE = 19


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    _allow_many_files()
    if options.idle:
        os.nice(_IDLE_NICE)
    try:
        status, answer = options.run(Layout(options.root), options)
    except AlreadyRunningError as exc:
        return _complain(exc, options.json, 3)
    except UnreadableError as exc:
        return _complain(exc, options.json, 5)
    except WeightsError as exc:
        return _complain(exc, options.json, 1)
    except OSError as exc:  # a disk that fails while it is only looked at
        error = from_os_error(exc, file=str(exc.filename or options.root))
        return _complain(error, options.json, 5)
    _print(answer, options.json)
    return int(status)


def _stop(number: int, _frame: FrameType | None) -> None:
    raise StoppedError(f"stopped by {signal.Signals(number).name}")


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 8192:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))


def _complain(exc: WeightsError, as_json: bool, status: int) -> int:
    if as_json:
        print(json.dumps({"error": exc.as_dict()}))
    print(exc, file=sys.stderr)
    return status


def _print(answer: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer))
        return
    for line in answer.get("lines", []) if isinstance(answer, dict) else answer:
        print(line)


def _image(command: str) -> Any:
    """A command for images: its module is imported when it is called."""

    def run(layout: Layout, options: argparse.Namespace) -> Any:
        from vllm_cluster.weights.agent import image_commands  # noqa: PLC0415

        return getattr(image_commands, command)(layout, options)

    return run


def _add_image_verbs(verb: Callable[[str, Any, str], argparse.ArgumentParser]) -> None:
    added = verb("image-pull", _image("pull"), "let Docker pull an image, and note its ID")
    added.add_argument("--reference", required=True, help="NAME@sha256:…")
    added.add_argument("--tag", required=True, help="the name that it keeps on this host")
    added.add_argument("--into", type=Path, required=True)
    added = verb("image-export", _image("export"), "take layers of an image out of Docker")
    added.add_argument("--image", required=True, help="its ID")
    added.add_argument("--layers", required=True, help="diff IDs, separated by commas")
    added.add_argument("--into", type=Path, required=True)
    added.add_argument("--seed", action="store_true", help="for a tree that is to be fetched")
    added = verb("image-load", _image("load"), "give a placed tree to Docker")
    added.add_argument("--wish", required=True, help="tree and tags, JSON: a file, or -")
    added.add_argument("--detach", action="store_true")


def _parser() -> argparse.ArgumentParser:
    # A width, or argparse imports shutil to ask the terminal, at every start.
    shape = partial(argparse.HelpFormatter, width=100)
    parser = argparse.ArgumentParser(
        prog="weights-agent", description=__doc__.splitlines()[0], formatter_class=shape
    )
    parser.add_argument("--root", type=Path, required=True, help="where the weights of a host lie")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--idle", action="store_true", help="only when nobody else wants the core")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, formatter_class=shape)
        added.set_defaults(run=run)
        return added

    for name, text in (
        ("pull", "take part in a fan-out: fetch what is missing, pass it on, end when all have it"),
        ("serve", "take part as one that has the model already"),
        ("repair", "read every byte, fetch the bad pieces from the others"),
    ):
        added = verb(name, commands.take_part, text)
        added.set_defaults(how=name)
        added.add_argument("--job", required=True, help="the job's JSON: a file, or - for stdin")
        added.add_argument("--detach", action="store_true", help="outlive this connection")
    added = verb("obtain", commands.obtain_model, "place a model from a source, on the first host")
    added.add_argument("--wish", required=True, help="model and sources, JSON: a file, or -")
    added.add_argument("--detach", action="store_true")
    added = verb("download", commands.download_model, "run by a Python that has huggingface_hub")
    added.add_argument("--repo", required=True)
    added.add_argument("--revision", required=True)
    added.add_argument("--into", type=Path, required=True)
    added.add_argument("--exclude", action="append", default=[])
    added.add_argument("--reserve-bytes", type=int, default=1 << 30)
    added.add_argument("--workers", type=int, default=8)
    _add_image_verbs(verb)
    _add_looks(verb)
    added = verb("verify", commands.verify_models, "read every byte of the placed copies")
    added.add_argument("--identity", help="this one only")
    added.add_argument("--report", type=Path, help="write what was found there too")
    verb("list", commands.list_models, "the placed copies")
    added = verb("status", commands.show_jobs, "the jobs, running or last")
    added.add_argument("--key")
    added = verb("follow", commands.follow_job, "a line a second until the job ends")
    added.add_argument("--key", required=True)
    added = verb("stop", commands.stop_job, "end a job; what it has is kept")
    added.add_argument("--key", required=True)
    added = verb("remove", commands.remove_model, "remove a placed copy that nobody uses")
    added.add_argument("--key", required=True)
    added = verb("pin", commands.pin_model, "a unit uses this copy, and no other")
    added.add_argument("--key", required=True)
    added.add_argument("--user", required=True)
    added = verb("unpin", commands.unpin_model, "a unit does not use it any more")
    added.add_argument("--key", required=True)
    added.add_argument("--user", required=True)
    return parser


def _add_looks(verb: Callable[[str, Any, str], argparse.ArgumentParser]) -> None:
    for name, run, text in (
        ("check", looks.check_model, "a glance: is this model placed, whole, the one?"),
        ("look", looks.look_at_model, "the same for a deploy, with what works on it"),
        ("note", looks.note_model, "read a model on a file system that hosts only read, once"),
    ):
        added = verb(name, run, text)
        added.add_argument("--model", required=True)
        added.add_argument("--revision", required=True)
        added.add_argument("--identity", help="the manifest's hash it must have")
        added.add_argument("--path", help="where it lies, if this tool did not place it")
        added.add_argument("--notes", help="where this host keeps what it knows of it")
        added.add_argument("--pin", help="the unit that is about to use it")
        added.add_argument("--given", action="store_true", help="another host's notes on stdin")
        added.add_argument("--found", action="store_true", help="the bytes another host found")
    added = verb("room", looks.make_room, "is there room for a push, on the right disk?")
    added.add_argument("--into", type=Path, required=True)
    added.add_argument("--bytes", type=int, required=True)
    added.add_argument("--reserve-bytes", type=int, default=1 << 30)
    added.add_argument("--mountpoint")
