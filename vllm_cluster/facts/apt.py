"""The distribution, apt's sources and our keyrings, in one round trip; and a key from afar."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from vllm_cluster.plan.apt import KEYRINGS, SOURCES, System

_SCRIPT = rf"""
. /etc/os-release
echo "system $ID ${{VERSION_ID:--}} ${{VERSION_CODENAME:--}} $(dpkg --print-architecture)"
grep -HEs '^(deb |URIs:)' /etc/apt/sources.list {SOURCES}/*.list {SOURCES}/*.sources |
  sed 's/^/source /'
for f in {KEYRINGS}/vllm-cluster-*.asc; do
  [ -f "$f" ] && echo "key $f $(base64 -w0 "$f")"
done
command -v curl >/dev/null || echo "curl missing"
true
"""


@dataclass(frozen=True)
class AptState:
    """`sources`: (file, line) of every source in use. `keys`: our keyrings and their content."""

    system: System
    sources: list[tuple[str, str]] = field(default_factory=list)
    keys: dict[str, bytes] = field(default_factory=dict)
    curl: bool = True


class AptFact(FactBase[AptState]):
    """See AptState."""

    @staticmethod
    def default() -> AptState:
        return AptState(System("", "", "", ""))

    def command(self) -> StringCommand:
        return StringCommand(_SCRIPT.strip())

    def process(self, output: list[str]) -> AptState:
        rows = [line.partition(" ")[::2] for line in output if line.strip()]
        system = next((value.split() for name, value in rows if name == "system"), [])
        if len(system) != 4:
            raise FactProcessError("/etc/os-release says nothing of ID and VERSION_ID")
        keys = [value.partition(" ")[::2] for name, value in rows if name == "key"]
        try:
            found = {path: base64.b64decode(text, validate=True) for path, text in keys}
        except binascii.Error as error:
            raise FactProcessError(f"a keyring's content is not base64: {error}") from error
        return AptState(
            system=System(*system),
            sources=[value.partition(":")[::2] for name, value in rows if name == "source"],
            keys=found,
            curl="curl" not in {name for name, _ in rows},
        )


class FetchedKey(FactBase[bytes]):
    """What lies at `url`, fetched by the host; empty when it does not answer."""

    @staticmethod
    def default() -> bytes:
        return b""

    def command(self, url: str) -> StringCommand:
        return StringCommand(
            "curl --fail --silent --show-error --location --max-time 60 --max-filesize 1000000",
            QuoteString(url),
            "| base64 -w0; echo",
        )

    def process(self, output: list[str]) -> bytes:
        try:
            return base64.b64decode("".join(output), validate=True)
        except binascii.Error as error:
            raise FactProcessError(f"not base64: {error}") from error
