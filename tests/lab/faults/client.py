"""A client that streams one completion after another, and notes what it saw.

Runs as a program of its own at an address that is no host of the cluster. Each line of its
standard output is an event with the machine's clock: `begin`, `token` (the first and every
fiftieth), `whole`, `broken` (with the tokens before it), `refused`.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from typing import Any

MAX_TOKENS = 200
READ_LIMIT_S = 45.0
RETRY_S = 0.5


def main() -> None:
    """`client HOST PORT`, the API key on standard input; until it is killed."""
    host, port, key = sys.argv[1], int(sys.argv[2]), sys.stdin.readline().strip()
    while True:
        if not _stream(host, port, key):
            time.sleep(RETRY_S)


def _say(event: str, **more: Any) -> None:
    print(json.dumps({"time_s": round(time.time(), 2), "event": event, **more}), flush=True)


def _stream(host: str, port: int, key: str) -> bool:
    """One completion; whether it came whole."""
    body = {
        "model": "tiny", "prompt": "The cluster answers", "max_tokens": MAX_TOKENS,
        "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    began, tokens = time.time(), 0
    connection = http.client.HTTPConnection(host, port, timeout=READ_LIMIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            _say("refused", words=f"HTTP {answer.status}")
            return False
        for raw in answer:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                _say("whole", began_s=round(began, 2), tokens=tokens)
                return True
            if line.startswith("data: ") and '"error"' in line:
                _say("broken", tokens=tokens, words="an error in the stream")
                return False
            if line.startswith("data: "):
                tokens += 1
                if tokens % 50 == 1:
                    _say("token", tokens=tokens)
        _say("broken", tokens=tokens, words="the connection was closed")
    except (OSError, http.client.HTTPException) as error:
        words = str(error) or type(error).__name__
        _say("broken" if tokens else "refused", tokens=tokens, words=words)
    finally:
        connection.close()
    return False


if __name__ == "__main__":
    main()
