"""The ssh key that workers let in, what guards it, and what an agent holds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Known, Unknown, known
from tpuctl.preflight.findings import AddToAgent, Found, Level, MakeSshKey, Remedy, SetMode, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Keys, Surroundings
    from tpuctl.preflight.findings import Rule

_RENEW = Remedy("make a new pair; the old one is kept aside", "tpuctl ssh-key renew")
# Others may read the folder, which ssh does not mind, but not write to it.
_WRITABLE = 0o022
_FILE, _SSH = 0o600, ".ssh"


@rule("TPU915", "the ssh key")
def key(seen: Surroundings) -> Iterator[Found]:
    """Look for the ssh key that workers let in: `~/.ssh/google_compute_engine`, gcloud's too, or the one that is named.

    It is an error where others may read the private half, since ssh does not use it then, and where a key that is named is not
    there. Where gcloud's is missing that is a note: it is made when it is first needed.
    """
    keys = seen.keys
    subject = str(keys.private.path)
    facts = {"path": subject, "mode": keys.private.octal}
    if keys.private.is_open():
        text = f"others may read the private key (mode {keys.private.octal})"
        remedy = Remedy.by(SetMode(subject, 0o600), "keep it for yourself")
        why = "ssh does not use such a key"
        yield Found(level=Level.ERROR, subject=subject, text=text, why=why, remedies=(remedy,), facts=facts)
    elif keys.private.problem:
        text = f"the private key cannot be read: {keys.private.problem}"
        remedy = Remedy("make it yours and readable, or name a key with `--ssh-key`")
        yield Found(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,), facts=facts)
    elif keys.private.is_there:
        yield Found(level=Level.OK, subject=subject, text="the private key is there", facts=facts)
    elif _agent_has(keys):
        text = "the private half is no file: an agent holds it"
        yield Found(level=Level.OK, subject=subject, text=text, facts=facts)
    elif keys.home is not None:
        text = "there is no ssh key yet; `tpuctl up` and `tpuctl ssh` make it when they need it"
        remedy = Remedy.by(MakeSshKey(str(keys.home)), "make it now")
        yield Found(level=Level.NOTE, subject=subject, text=text, remedies=(remedy,), facts=facts)
    else:
        remedy = Remedy(
            "name a key that is there, or make it", shlex.join(["ssh-keygen", "-t", "ed25519", "-f", subject])
        )
        text = "there is no such key, and no agent holds it"
        yield Found(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,), facts=facts)


@rule("TPU916", "both halves of the ssh key")
def pair(seen: Surroundings) -> Iterator[Found]:
    """Compare the public half of the ssh key with the private one: workers are told the first, and asked with the second.

    It is an error where they do not belong together, and unknown where the private half has a passphrase.
    """
    keys = seen.keys
    subject = str(keys.public_half.path)
    if not keys.private.is_there or keys.private.problem or keys.private.is_open():
        return
    public, derived = keys.public, keys.derived
    if isinstance(public, Unknown):
        text = f"the public half cannot be used: {public.reason}"
        remedy = Remedy("move it away: it is written again from the private one")
        yield Found(level=Level.ERROR, subject=subject, text=text, remedies=(remedy,))
    elif not isinstance(public, Known):
        level = Level.ERROR if keys.is_locked else Level.OK
        text = "there is no public half" + (", and the private one has a passphrase" if keys.is_locked else " yet")
        remedy = Remedy("write it from the private one", f"{_derive(keys)} > {shlex.quote(subject)}")
        yield Found(level=level, subject=subject, text=text, remedies=(remedy,) if keys.is_locked else ())
    elif isinstance(derived, Known):
        if derived.value == public.value:
            yield Found(level=Level.OK, subject=subject, text="both halves belong together")
            return
        text = "the public half does not belong to the private one"
        why = "workers would be told of a key that nobody has, and refuse the other: `Permission denied (publickey)`"
        words = "move the public half away: it is written again from the private one"
        away = Remedy(words, shlex.join(["mv", subject, f"{subject}.old"]))
        remedies = (away, *((_RENEW,) if keys.home else ()))
        yield Found(level=Level.ERROR, subject=subject, text=text, why=why, remedies=remedies)
    elif keys.is_locked and not _agent_has(keys):
        text = "whether both halves belong together is not known: the private one has a passphrase"
        remedy = Remedy("compare them", _derive(keys))
        yield Found(level=Level.UNKNOWN, subject=subject, text=text, remedies=(remedy,))
    elif isinstance(derived, Unknown) and not keys.is_locked:
        yield _unusable(keys, derived)


def _unusable(keys: Keys, derived: Unknown) -> Found:
    subject = str(keys.public_half.path)
    if derived.is_passing:
        text = f"whether both halves belong together is not known: {derived.reason}"
        return Found(level=Level.UNKNOWN, subject=subject, text=text, is_passing=True)
    text = f"`{keys.private.path}` is no private key that can be used: {derived.reason}"
    remedies = (_RENEW,) if keys.home else (Remedy("name another key with `--ssh-key`"),)
    return Found(level=Level.ERROR, subject=subject, text=text, remedies=remedies)


@rule("TPU917", "passphrase and agent")
def agent(seen: Surroundings) -> Iterator[Found]:
    """Look whether a key with a passphrase is held by an ssh agent: nobody can type it on all workers at once.

    It is a warning where it is not.
    """
    keys = seen.keys
    if keys.agent is None:
        return
    held = known(keys.agent)
    count = None if held is None else len(held)
    match keys.agent:
        case Known(_):
            told = f"an agent answers and holds {count} key{'' if count == 1 else 's'}"
        case Unknown(reason):
            told = f"the agent of `SSH_AUTH_SOCK` does not answer: {reason}"
        case _:
            told = "there is no agent"
    if keys.is_locked and not _agent_has(keys):
        path = str(keys.private.path)
        start = () if isinstance(keys.agent, Known) else (Remedy("start an agent first", 'eval "$(ssh-agent)"'),)
        remedies = (*start, Remedy.by(AddToAgent(path), "let the agent hold the key"))
        yield Found(
            level=Level.WARNING,
            subject=path,
            text=f"the key has a passphrase, and no agent holds it: {told}",
            why="workers are reached without asking, so that every login would fail",
            remedies=remedies,
            facts={"agentKeys": count},
        )
    elif isinstance(keys.agent, Unknown):
        remedy = Remedy("unset `SSH_AUTH_SOCK`, or start the agent anew", 'eval "$(ssh-agent)"')
        yield Found(level=Level.NOTE, subject="ssh agent", text=told, remedies=(remedy,), facts={"agentKeys": None})
    else:
        yield Found(level=Level.OK, subject="ssh agent", text=told, facts={"agentKeys": count})


@rule("TPU918", "who may change what ssh trusts")
def guarded(seen: Surroundings) -> Iterator[Found]:
    """Look at the modes of the key's folder and of the files of known host keys.

    It is a warning where others may write them: whoever can change them can pass for a worker. A folder `.ssh` that others may
    read is a note. Of another folder, which may be there for more than a key, the mode is left to you.
    """
    fine = []
    for entry, mode in ((seen.keys.folder, 0o700), *((file, _FILE) for file in seen.keys.known_hosts)):
        subject, is_ssh = str(entry.path), entry.path.name == _SSH
        if entry.is_open(_WRITABLE):
            level, text = Level.WARNING, f"others may write to it (mode {entry.octal})"
        elif entry.problem:
            level, text = Level.WARNING, f"it cannot be used: {entry.problem}"
        elif is_ssh and entry.is_open():
            level, text = Level.NOTE, f"others may look into it (mode {entry.octal})"
        else:
            fine += [subject] if entry.is_there else []
            continue
        remedy = Remedy("make it yours and readable")
        if entry.is_open() and (mode == _FILE or is_ssh):
            remedy = Remedy.by(SetMode(subject, mode), "keep it for yourself")
        elif entry.is_open():
            remedy = Remedy("move the key to a folder that is yours alone, such as `~/.ssh`, and name it there")
        yield Found(level=level, subject=subject, text=text, remedies=(remedy,), facts={"mode": entry.octal})
    if fine:
        names = ", ".join(f"`{name}`" for name in fine)
        yield Found(level=Level.OK, subject="ssh files", text=f"nobody else may write to {names}")


def _derive(keys: Keys) -> str:
    return shlex.join(["ssh-keygen", "-y", "-f", str(keys.private.path)])


def _agent_has(keys: Keys) -> bool:
    public, held = known(keys.public), known(keys.agent)
    return public is not None and held is not None and public in held


RULES: tuple[Rule[Surroundings], ...] = (key, pair, agent, guarded)
