#!/usr/bin/env python3
# Managed by vllm-cluster. Watches what runs in this container, from inside it.
"""Says every few seconds whether vLLM, or Ray on this host, is alive; one line each:

    well WORDS      it works
    waits WORDS     no sign of life yet, and not for too long either
    dead WORDS      it hangs: the container is to be ended. The program ends with this.
    gone WORDS      so too, but the head is what ended: that says nothing of this host

vLLM is alive when its engine's counters move, or when a request of one token comes back: a busy
server that makes progress is never asked, and a long prefill shows as KV cache that fills.
`/health` and `/v1/models` answer 200 over an engine that hangs, so nobody asks them. Where Ray
holds its ranks, it is dead with the first of them: vLLM sees that too, but may hang at its end.
"""

import argparse
import re
import socket
import sys
import threading
import time
import urllib.error

import probe

TICK_S = 5
# An idle engine is asked this often.
ASK_EVERY_S = 20
# Written from what the engine sends back (vllm/v1/metrics/loggers.py, 0.26 to 0.33), unlike the
# counts of requests, which the API server changes by itself when a client leaves.
PROGRESS = re.compile(
    r"^vllm:(?:generation_tokens|prompt_tokens|iteration_tokens|kv_cache_usage_perc|"
    r"num_preemptions)\w*(?:\{[^}]*\})? \S+$",
    re.MULTILINE,
)


def say(word, words):
    print(word, " ".join(words.split())[:300], flush=True)


class Request(threading.Thread):
    """One request of one token, beside the watching."""

    def __init__(self, limit_s):
        super().__init__(daemon=True)
        self.limit_s, self.answered, self.words = limit_s, False, "no answer"
        self.start()

    def run(self):
        try:
            probe.answer(self.limit_s)
            self.answered = True
        except urllib.error.HTTPError as error:
            self.words = f"HTTP {error.code}: {error.read(300).decode(errors='replace')}"
            # Turned away before the engine: by a key that was replaced, say. The engine is not
            # judged by that, and nobody restarts a server for it.
            self.answered = error.code < 500 and error.code != 429
        except (OSError, ValueError, KeyError) as error:
            self.words = str(error) or type(error).__name__


class Engine:
    """vLLM's engine. `hang_s`: how long it may show no sign of life."""

    # For vLLM to end by itself after it has lost a rank, with its own words in the journal.
    LOST_S = 5

    def __init__(self, hang_s, now):
        self.hang_s, self.alive, self.asked = hang_s, now, now
        self.counters = self.request = self.lost = None
        self.ranks = set()
        self.load, self.words = {}, "not asked yet"

    def look(self, now):
        if probe.RAY and self._lost_a_rank(now):
            return "dead", "a rank has died in Ray, and vLLM has not ended"
        counters = self._counters()
        if counters and self.counters is not None and counters != self.counters:
            self.alive = now
        self.counters = counters or self.counters
        self._ask(now)
        silent_s = now - self.alive
        counts = [f"{count:.0f} {name}" for name, count in sorted(self.load.items())]
        load = f"requests: {', '.join(counts) or 'unknown'}"
        if silent_s > self.hang_s:
            return "dead", f"no token for {silent_s:.0f} s ({self.words}; {load})"
        if silent_s > ASK_EVERY_S + 2 * TICK_S:
            return "waits", f"no token for {silent_s:.0f} s ({self.words}; {load})"
        return "well", load

    def _lost_a_rank(self, now):
        try:
            ranks = set(probe.ranks())
        except (OSError, ValueError, KeyError, TypeError):
            return False  # no dashboard: nothing is known
        if self.ranks <= ranks:
            self.ranks, self.lost = ranks, None
        elif self.lost is None:
            self.lost = now
        return self.lost is not None and now - self.lost >= self.LOST_S

    def _ask(self, now):
        if self.request is not None and not self.request.is_alive():
            if self.request.answered:
                self.alive = now
            self.words, self.request = self.request.words, None
        if self.request is None and now - max(self.alive, self.asked) >= ASK_EVERY_S:
            self.request, self.asked = Request(self.hang_s), now
            self.words = "no answer"

    def _counters(self):
        try:
            text = probe.text(probe.API + "/metrics", {}, TICK_S)
        except (OSError, ValueError):
            return None
        self.load = {name: float(count) for name, count in probe.LOAD.findall(text)}
        return PROGRESS.findall(text)


class Node:
    """Ray on this host. `head`: this is the head's host. `gcs`: address and port of the head's GCS;
    None where probe.py is of a generation before it said so."""

    # A raylet that its head does not know, or calls dead, never comes back by itself in less than
    # a minute. Twice, since the head's answer may be one of a moment ago.
    REFUSED_TIMES = 2
    # A GCS whose port is closed has ended, and its session with it: it is kept in memory only. A
    # cable that is out closes no port. Twice, since a firewall may be in the middle of a change.
    CLOSED_TIMES = 2
    CONNECT_S = 2
    # What the GCS of another session answers (seen with Ray 2.60).
    OTHER_SESSION = "WrongClusterID"
    SILENT_S = 60
    # Until its first answer Ray is starting: a minute on a host that is busy with other starts, and
    # whoever ends it then makes it begin anew.
    START_S = 600

    def __init__(self, url, head, gcs, now):
        self.url, self.head, self.gcs, self.refused, self.closed = url, head, gcs, 0, 0
        self.answered = self.listed = now + self.START_S - self.SILENT_S

    def look(self, now):
        if self.gcs is not None and not self.head and self._is_closed():
            # The agent would wait for the GCS, and hide for how long.
            word = "gone" if self.closed >= self.CLOSED_TIMES else "waits"
            return word, f"the Ray head's GCS at {self.gcs[0]}:{self.gcs[1]} has ended"
        try:
            probe.text(self.url, {}, TICK_S)
            self.answered, self.refused = now, 0
        except urllib.error.HTTPError as error:
            words = error.read(300).decode(errors="replace")
            self.answered = now
            if error.code in {401, 403}:
                # A token that is being replaced, say: Ray itself is not judged by that.
                return "waits", f"Ray's agent turns the watchdog away: {words}"
            self.refused += 1
            if self.refused >= self.REFUSED_TIMES:
                word = "gone" if self.OTHER_SESSION in words and not self.head else "dead"
                return word, f"Ray's head does not hold this host for alive: {words}"
        except (OSError, ValueError) as error:
            if now - self.answered > self.SILENT_S:
                return "dead", f"no answer of Ray's agent for too long: {error}"
            return "waits", f"no answer of Ray's agent: {error}"
        if self.refused:
            return "waits", "Ray's head does not hold this host for alive"
        return self._dashboard(now) if self.head else ("well", "")

    def _is_closed(self):
        try:
            socket.create_connection(self.gcs, self.CONNECT_S).close()
        except ConnectionRefusedError:
            self.closed += 1
            return True
        except OSError:
            return False  # not reached: what Ray makes of that is judged
        self.closed = 0
        return False

    def _dashboard(self, now):
        """The head's list of nodes: vLLM's start waits for it. A server that runs needs it not."""
        try:
            probe.count()
            self.listed = now
        except (OSError, ValueError, KeyError) as error:
            if now - self.listed > self.SILENT_S and not self._serves():
                return "dead", f"no list of nodes from Ray for too long: {error}"
            return "waits", f"no list of nodes from Ray: {error}"
        return "well", ""

    @staticmethod
    def _serves():
        try:
            probe.text(probe.API + "/health", {}, TICK_S)
        except (OSError, ValueError):
            return False
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("unit", choices=("vllm", "ray-head", "ray-worker"))
    unit = parser.parse_args().unit
    now = time.monotonic()
    if unit == "vllm":
        watched = Engine(probe.HANG_S, now)
    else:
        watched = Node(probe.RAYLET, unit == "ray-head", getattr(probe, "GCS", None), now)
    while True:
        word, words = watched.look(time.monotonic())
        say(word, words)
        if word in {"dead", "gone"}:
            sys.exit(3)
        time.sleep(TICK_S if unit == "vllm" else 2)


if __name__ == "__main__":
    main()
