"""The rebuild of one host: seed, wait, key, deploy, comparison."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from vllm_cluster.control import fingerprints
from vllm_cluster.control.context import Context
from vllm_cluster.control.deploys import run_deploy
from vllm_cluster.control.fingerprints import Kept
from vllm_cluster.control.remote import as_root, root_command, ssh_argv
from vllm_cluster.control.run_lock import holding
from vllm_cluster.doctor.reach import ANSWER_TIMEOUT_S, run
from vllm_cluster.facts import fingerprint as fact
from vllm_cluster.plan import HostPlan
from vllm_cluster.plan.fingerprint import Fingerprint, differences
from vllm_cluster.rebuild import begun, known_hosts
from vllm_cluster.rebuild.begun import Begun
from vllm_cluster.rebuild.machine import Seen, awaited, look
from vllm_cluster.seed import host_key

Say = Callable[[str], None]
Ask = Callable[[str], bool]
DEPLOY = "cluster.py"
# Every file under /etc is hashed, on a machine that has just begun to work.
_FINGERPRINT_TIMEOUT_S = 5 * ANSWER_TIMEOUT_S


class RebuildError(Exception):
    """It ends here; the text says at which host, why, and what to do."""


@dataclass(frozen=True)
class Rebuild:
    """One rebuild. `say` tells a person, `ask` asks one; `accept` takes a new key unasked.

    `anew`: one that has not ended is not gone on with.
    """

    known: Context
    host: HostPlan
    say: Say
    ask: Ask
    accept: bool
    wait_s: float
    anew: bool = False

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name

    def place(self) -> known_hosts.Place:
        """Where its SSH key is known. Raises RebuildError, and OSError without OpenSSH."""
        port = self.known.cluster.description.ssh.port
        try:
            return known_hosts.place(ssh_argv(self.known.cluster, self.host), port)
        except (ValueError, KeyError) as error:
            raise RebuildError(f"{self.name}: ssh -G: {error}") from None

    def unfinished(self) -> Begun | None:
        """A rebuild of it that has not ended and that no later deploy has ended either."""
        cluster = self.known.cluster
        found, kept = begun.read(cluster, self.name), fingerprints.kept(cluster, self.name)
        if found is not None and kept is not None and kept.taken_s > found.since_s:
            self.say(
                f"{self.name}: a rebuild of {found.when} was ended by the deploy of {kept.when}; "
                "this is a new one"
            )
            begun.end(cluster, self.name)
            return None
        return found

    def resumed(self) -> Begun | None:
        """What this goes on with."""
        return None if self.anew else self.unfinished()

    def before(self) -> Kept | None:
        """What the host consisted of: read now if it is deployed and trusted, else as kept."""
        earlier = self.unfinished()
        if earlier is not None and not self.anew:
            file, key = begun.file_of(self.known.cluster, self.name), earlier.key
            self.say(
                f"{self.name}: goes on with a rebuild that was begun ({file}), last at work at "
                f"{earlier.when}: a machine that answers with {known_hosts.fingerprint(key)} "
                "counts as the new one, and is deployed to at once; --anew begins again instead"
            )
        if earlier is not None:  # what is there now may be half made
            return earlier.before
        kept = fingerprints.kept(self.known.cluster, self.name)
        if look(self.known.cluster, self.host).state != "deployed":
            return kept
        found = self._fingerprint()
        if found is None:
            return kept
        fingerprints.keep(self.known.cluster, self.name, found)
        return fingerprints.kept(self.known.cluster, self.name)

    def expected_key(self) -> str:
        """The key that the seed carries, as `TYPE BASE64`; empty where it carries none.

        Made anew where the host is known under it: the old system and the new must differ.
        """
        cluster = self.known.cluster
        install = cluster.description.install
        if install is None or install.host_key != "seed" or self.name not in install.hosts:
            return ""
        pair = host_key.kept(cluster, self.name)
        if pair is not None and self.resumed() is not None:
            return _bare(pair.public)
        if pair is None or _bare(pair.public) in known_hosts.keys(self.place()):
            pair = host_key.make(cluster, self.name)
        return _bare(pair.public)

    def await_machine(self, expected: str, before: Kept | None) -> None:
        """Wait for a bare system that lets us in, and know it by its key. Raises RebuildError."""
        place = self.place()
        old = known_hosts.keys(place)
        resumed = self.resumed()

        def ready(seen: Seen) -> str:
            if resumed is not None and seen.key == resumed.key and seen.state == "deployed":
                return ""
            return waits_for(seen, old, expected)

        seen = awaited(self.known.cluster, self.host, ready, self.say, self.wait_s)
        if seen is None:
            raise RebuildError(
                f"{self.name}: not there within {self.wait_s:.0f} s; look at its console, and run "
                "this again: it goes on from here"
            )
        if seen.key not in old:
            self._take(place, old, seen.key, expected)
        now = Begun(seen.key, before, time.time())
        begun.write(self.known.cluster, self.name, now)

    def _take(self, place: known_hosts.Place, old: list[str], new: str, expected: str) -> None:
        for key in old:
            self.say(f"{self.name}: known until now as {known_hosts.fingerprint(key)}")
        shown = known_hosts.fingerprint(new)
        self.say(f"{self.name}: answers with {new.split(maxsplit=1)[0]} {shown}")
        if new == expected:
            self.say(f"{self.name}: that is the key of its seed")
        elif not self.accept and not self.ask(
            f"Is that the key of {self.name}? Its console shows it: "
            "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
        ):
            raise RebuildError(
                f"{self.name}: its new key was not taken, and nothing was sent to it. Run again "
                "once you know the key, or let the seed carry one (install.host_key: seed)"
            )
        try:
            known_hosts.replace(place, new)
        except OSError as error:
            raise RebuildError(f"{place.file}: {error}") from None
        self.say(f"{place.file}: {self.name} is known by it now")

    def deploy(self) -> None:
        """Bring the whole cluster to its description. Raises RebuildError."""
        self.say(f"deploying {DEPLOY} to all hosts of {self.known.cluster.file.name}")
        try:
            failed = run_deploy(self.known.cluster.file, DEPLOY)
        finally:
            begun.touch(self.known.cluster, self.name)
        if failed:
            raise RebuildError(
                f"{self.name}: the deploy failed as shown above; mend that and run this again"
            )

    def compare(self, before: Kept | None) -> list[str]:
        """One line a difference between then and now. Raises RebuildError."""
        after = self._fingerprint()
        if after is None:
            raise RebuildError(f"{self.name}: its fingerprint cannot be read: it does not answer")
        return [] if before is None else differences(before.values, after)

    def run(self, expected: str, before: Kept | None) -> list[str]:
        """All of it, with the lock of the other hosts held; the lines of `compare`."""
        roots = {
            name: as_root(self.known.cluster, other)
            for name, other in self.known.plan.hosts.items()
            if name != self.name
        }
        with holding(f"rebuild of {self.name}", roots):
            self.await_machine(expected, before)
            self.deploy()
            lines = self.compare(before)
        begun.end(self.known.cluster, self.name)
        return lines

    def _fingerprint(self) -> Fingerprint | None:
        cluster = self.known.cluster
        argv = [*ssh_argv(cluster, self.host), root_command(cluster, "bash -s")]
        script = fact.script(self.known.plan.weights_directory)
        reply = run(argv, script, _FINGERPRINT_TIMEOUT_S)
        return fact.parse(reply.out.splitlines()) if reply.code == 0 else None


def waits_for(seen: Seen, old: list[str], expected: str) -> str:
    """What is not there yet; empty when the machine is ready."""
    if seen.state == "silent":
        return f"no answer over SSH ({seen.words})"
    # A deployed one was not wiped, by whatever key it was known: another type, a certificate.
    if seen.state == "deployed" or (seen.key in old and seen.state != "bare"):
        return "its old system still answers"
    if expected and seen.key not in {expected, *old}:
        return f"something answers with {known_hosts.fingerprint(seen.key)}, not its seed's key"
    if seen.state == "closed":
        return f"SSH answers and lets us not in yet ({seen.words})"
    return ""


def _bare(public: str) -> str:
    return " ".join(public.split()[:2])
