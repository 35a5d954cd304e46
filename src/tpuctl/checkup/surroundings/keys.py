"""Rules about the ssh key for workers, the permissions of its files, and the ssh agent."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Known, Unknown, known
from tpuctl.preflight.findings import AddToAgent, Found, Level, MakeSshKey, Remedy, SetMode, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Keys, Surroundings
    from tpuctl.preflight.findings import Rule

_RENEW = Remedy("create a new key pair; the old one is kept under another name", "tpuctl ssh-key renew")
# Others may read the folder, which ssh does not mind, but not write to it.
_WRITABLE = 0o022
_FILE, _SSH = 0o600, ".ssh"


@rule("TPU915", "the ssh key")
def key(environment: Surroundings) -> Iterator[Found]:
    """Check the ssh key for workers: `~/.ssh/google_compute_engine`, which gcloud uses too, or the one named by a setting.

    An error if other users may read the private key, since ssh refuses to use it, or if a named key does not exist. A note if
    gcloud's key does not exist: it is created when first needed.
    """
    keys = environment.keys
    subject = str(keys.private.path)
    facts = {"path": subject, "mode": keys.private.octal}
    if keys.private.is_open():
        text = f"other users may read the private key (mode {keys.private.octal})"
        remedy = Remedy.by(SetMode(subject, 0o600), "restrict it to your user")
        why = "ssh refuses to use such a key"
        yield Found(level=Level.ERROR, subject=subject, text=text, why=why, remedies=(remedy,), facts=facts)
    elif keys.private.problem:
        text = f"the private key cannot be read: {keys.private.problem}"
        remedy = Remedy("make it readable for your user, or name another key with `--ssh-key`")
        yield Found(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,), facts=facts)
    elif keys.private.is_there:
        yield Found(level=Level.OK, subject=subject, text="the private key exists", facts=facts)
    elif _agent_has(keys):
        text = "an agent holds the private key; there is no key file"
        yield Found(level=Level.OK, subject=subject, text=text, facts=facts)
    elif keys.home is not None:
        text = "no ssh key exists yet; `tpuctl up` and `tpuctl ssh` create it when they need it"
        remedy = Remedy.by(MakeSshKey(str(keys.home)), "create it now")
        yield Found(level=Level.NOTE, subject=subject, text=text, remedies=(remedy,), facts=facts)
    else:
        remedy = Remedy(
            "name an existing key, or create this one", shlex.join(["ssh-keygen", "-t", "ed25519", "-f", subject])
        )
        text = "the key does not exist, and no agent holds it"
        yield Found(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,), facts=facts)


@rule("TPU916", "ssh key pair")
def pair(environment: Surroundings) -> Iterator[Found]:
    """Compare the public ssh key, which is put on the workers, with the private one, which logs in.

    An error if they are not one pair; unknown if the private key has a passphrase.
    """
    keys = environment.keys
    subject = str(keys.public_half.path)
    if not keys.private.is_there or keys.private.problem or keys.private.is_open():
        return
    public, derived = keys.public, keys.derived
    if isinstance(public, Unknown):
        text = f"the public key cannot be used: {public.reason}"
        remedy = Remedy("move it away: tpuctl writes it again from the private key")
        yield Found(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,))
    elif not isinstance(public, Known):
        level = Level.ERROR if keys.is_locked else Level.OK
        text = "the public key does not exist" + (
            ", and the private one has a passphrase" if keys.is_locked else " yet"
        )
        remedy = Remedy("write it from the private key", f"{_derive(keys)} > {shlex.quote(subject)}")
        yield Found(level=level, subject=subject, text=text, remedies=(remedy,) if keys.is_locked else ())
    elif isinstance(derived, Known):
        if derived.value == public.value:
            yield Found(level=Level.OK, subject=subject, text="the public and the private key are one pair")
            return
        text = "the public key does not belong to the private key"
        why = "workers would accept only a key that you do not have, and refuse yours: `Permission denied (publickey)`"
        words = "move the public key away: tpuctl writes it again from the private key"
        away = Remedy(words, shlex.join(["mv", subject, f"{subject}.old"]))
        remedies = (away, *((_RENEW,) if keys.home else ()))
        yield Found(level=Level.ERROR, subject=subject, text=text, why=why, remedies=remedies)
    elif keys.is_locked and not _agent_has(keys):
        text = "the ssh keys could not be compared: the private key has a passphrase"
        remedy = Remedy("compare them", _derive(keys))
        yield Found(level=Level.UNKNOWN, subject=subject, text=text, remedies=(remedy,))
    elif isinstance(derived, Unknown) and not keys.is_locked:
        if derived.is_passing:
            text = f"the ssh keys could not be compared: {derived.reason}"
            yield Found(level=Level.UNKNOWN, subject=subject, text=text, is_passing=True)
            return
        text = f"`{keys.private.path}` is not a usable private key: {derived.reason}"
        remedies = (_RENEW,) if keys.home else (Remedy("name another key with `--ssh-key`"),)
        yield Found(level=Level.ERROR, subject=subject, text=text, remedies=remedies)


@rule("TPU917", "passphrase and agent")
def agent(environment: Surroundings) -> Iterator[Found]:
    """Check that an ssh agent holds a key that has a passphrase: tpuctl never asks for a passphrase.

    A warning if no agent holds it.
    """
    keys = environment.keys
    if keys.agent is None:
        return
    held = known(keys.agent)
    count = None if held is None else len(held)
    match keys.agent:
        case Known(_):
            agent_text = f"an agent answers and holds {count} key{'' if count == 1 else 's'}"
        case Unknown(reason):
            agent_text = f"the agent of `SSH_AUTH_SOCK` does not answer: {reason}"
        case _:
            agent_text = "no agent is running"
    if keys.is_locked and not _agent_has(keys):
        path = str(keys.private.path)
        start = () if isinstance(keys.agent, Known) else (Remedy("start an agent first", 'eval "$(ssh-agent)"'),)
        remedies = (*start, Remedy.by(AddToAgent(path), "add the key to the agent"))
        yield Found(
            level=Level.WARNING,
            subject=path,
            text=f"the key has a passphrase, and no agent holds it: {agent_text}",
            why="tpuctl does not ask for a passphrase, so every login would fail",
            remedies=remedies,
            facts={"agentKeys": count},
        )
    elif isinstance(keys.agent, Unknown):
        remedy = Remedy("unset `SSH_AUTH_SOCK`, or start a new agent", 'eval "$(ssh-agent)"')
        yield Found(
            level=Level.NOTE, subject="ssh agent", text=agent_text, remedies=(remedy,), facts={"agentKeys": None}
        )
    else:
        yield Found(level=Level.OK, subject="ssh agent", text=agent_text, facts={"agentKeys": count})


@rule("TPU918", "permissions of ssh files")
def guarded(environment: Surroundings) -> Iterator[Found]:
    """Check the permissions of the key's folder and of the known_hosts files.

    A warning if other users may write to them: someone who can change them can impersonate a worker. A note if other users may
    read a folder `.ssh`. The mode of another folder, which may hold more than a key, is not judged.
    """
    fine = []
    for entry, mode in ((environment.keys.folder, 0o700), *((file, _FILE) for file in environment.keys.known_hosts)):
        subject, is_ssh = str(entry.path), entry.path.name == _SSH
        if entry.is_open(_WRITABLE):
            level, text = Level.WARNING, f"other users may write to it (mode {entry.octal})"
        elif entry.problem:
            level, text = Level.WARNING, f"it cannot be used: {entry.problem}"
        elif is_ssh and entry.is_open():
            level, text = Level.NOTE, f"other users may read it (mode {entry.octal})"
        else:
            fine += [subject] if entry.is_there else []
            continue
        remedy = Remedy("make it readable for your user")
        if entry.is_open() and (mode == _FILE or is_ssh):
            remedy = Remedy.by(SetMode(subject, mode), "restrict it to your user")
        elif entry.is_open():
            remedy = Remedy("move the key to a private folder such as `~/.ssh`, and name it there")
        yield Found(level=level, subject=subject, text=text, remedies=(remedy,), facts={"mode": entry.octal})
    if fine:
        names = ", ".join(f"`{name}`" for name in fine)
        yield Found(level=Level.OK, subject="ssh files", text=f"only your user may write to {names}")


def _derive(keys: Keys) -> str:
    return shlex.join(["ssh-keygen", "-y", "-f", str(keys.private.path)])


def _agent_has(keys: Keys) -> bool:
    public, held = known(keys.public), known(keys.agent)
    return public is not None and held is not None and public in held


RULES: tuple[Rule[Surroundings], ...] = (key, pair, agent, guarded)
