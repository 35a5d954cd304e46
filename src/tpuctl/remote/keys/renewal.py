"""A key that workers refuse: moving the pair aside for a new one.

That is what the troubleshooting guides of Cloud TPU advise. It is offered and never done unasked: the old pair may open
other machines, so it is kept.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from tpuctl.remote.keys.pair import (
    SshKeyError,
    default_path,
    ensure_key,
    public_path,
    run_program,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.remote.keys.pair import Runner, SshKey


def renew(home: Path, *, login: str, runner: Runner = run_program) -> tuple[SshKey, Path | None]:
    """Move gcloud's key pair aside, make a new one, and return it with where the old private half is now.

    `google_compute_engine` becomes `old-google_compute_engine`, `old-2-…`, …: nothing is ever written over. Nothing where
    there was none. Raises `SshKeyError` and `SshProgramMissingError`; where no key can be made the old pair is put back.
    """
    path = default_path(home)
    try:
        moved = _move_aside(path)
    except OSError as error:
        hint = f"make the folder `{path.parent}` writable for you"
        raise SshKeyError(f"`{path}` cannot be moved aside: {error.strerror}", hint=hint) from error
    try:
        key = ensure_key(home, login=login, runner=runner)
    except BaseException:
        if moved is not None:
            _move(moved, path)
        raise
    return key, moved


def fingerprint(key: SshKey, *, runner: Runner = run_program) -> str:
    """Return a key's fingerprint, `SHA256:…`, as ssh shows it. Raises `SshKeyError` and `SshProgramMissingError`."""
    path = key.path if key.is_in_agent else public_path(key.path)
    done = runner(["ssh-keygen", "-l", "-f", str(path)])
    words = done.stdout.split()
    if done.returncode != 0 or len(words) < 2:
        raise SshKeyError(
            f"`{path}` has no fingerprint: {done.stderr.strip()}", hint="`tpuctl ssh-key renew` makes anew"
        )
    return words[1]


def _move_aside(path: Path) -> Path | None:
    if not path.exists() and not public_path(path).exists():
        return None
    names = (f"old-{path.name}" if number == 1 else f"old-{number}-{path.name}" for number in count(1))
    places = (path.with_name(name) for name in names)
    aside = next(place for place in places if not place.exists() and not public_path(place).exists())
    _move(path, aside)
    return aside


def _move(source: Path, target: Path) -> None:
    for old, new in ((source, target), (public_path(source), public_path(target))):
        if old.exists():
            old.rename(new)
