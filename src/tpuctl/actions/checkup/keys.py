"""Read the ssh key pair, the known_hosts files, and the keys of the ssh agent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.actions.checkup.files import ask_program, entry, find_program, text_of
from tpuctl.checkup.surroundings.facts import Keys
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown
from tpuctl.remote.keys.pair import default_path, public_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpuctl.actions.checkup.ways import Ways

_PUBLIC = re.compile(r"((?:ssh|ecdsa|sk)-[\w@.-]{1,80} [A-Za-z0-9+/]{1,20000}=*)(?: [^\n]*)?\n?")
# The error of `ssh-keygen -y` for a key with a passphrase [observed: OpenSSH 9.2].
_LOCKED = "incorrect passphrase"


class Derived(NamedTuple):
    """The public key of a private key, and whether the private key has a passphrase."""

    public: Fact[str]
    is_locked: bool = False


def private_path(context: Ways) -> Path:
    """Return the path of the private key, which need not exist: an agent may hold it."""
    key = context.key or default_path(context.home)
    return key.with_suffix("") if key.suffix == ".pub" else key


def look(context: Ways, derived: Derived | None, agent: Fact[frozenset[str]] | None) -> Keys:
    """Return the key pair. `derived` is None if there is no private key, `agent` if no agent was asked."""
    private = private_path(context)
    public = public_path(private)
    return Keys(
        private=entry(private),
        public_half=entry(public),
        home=context.home if context.key is None else None,
        folder=entry(private.parent, is_folder=True),
        known_hosts=tuple(map(entry, context.known_hosts)),
        public=_parsed(text_of(public)),
        derived=derived.public if derived else None,
        is_locked=derived is not None and derived.is_locked,
        agent=agent,
    )


def derive(path: Path, environ: Mapping[str, str]) -> Derived:
    """Return the public key of a private key, computed by ssh-keygen without a passphrase."""
    program = find_program("ssh-keygen", environ)
    if program is None:
        return Derived(Unknown("there is no `ssh-keygen`", is_passing=True))
    output = ask_program([program, "-y", "-P", "", "-f", str(path)], environ)
    if not isinstance(output, Known):
        return Derived(output)
    code, out, err = output.value
    if code == 0:
        return Derived(_parsed(Known(out)))
    if _LOCKED in err:
        return Derived(Unknown("it has a passphrase"), is_locked=True)
    return Derived(Unknown(next(iter(err.strip().splitlines()), "ssh-keygen gives no reason")))


def ask_agent(environ: Mapping[str, str]) -> Fact[frozenset[str]]:
    """Return the public keys that an agent holds. Absent if there is no agent."""
    if not environ.get("SSH_AUTH_SOCK"):
        return Absent("`SSH_AUTH_SOCK` is not set")
    program = find_program("ssh-add", environ)
    if program is None:
        return Unknown("there is no `ssh-add`")
    output = ask_program([program, "-L"], environ)
    if not isinstance(output, Known):
        return output
    # 1: the agent has no keys; 2: no agent answers [ssh-add(1)].
    if output.value.code > 1:
        return Unknown(next(iter(output.value.err.strip().splitlines()), "ssh-add gives no reason").lower())
    return Known(frozenset(" ".join(line.split()[:2]) for line in output.value.out.splitlines() if line[:1].islower()))


def _parsed(text: Fact[str]) -> Fact[str]:
    if not isinstance(text, Known):
        return text
    match = _PUBLIC.fullmatch(text.value)
    return Known(match[1]) if match else Unknown("it is not a public key")
