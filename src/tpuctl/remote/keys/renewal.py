"""Replace the key pair: rename the old pair and create a new one.

The troubleshooting guides of Cloud TPU advise this for a key that workers refuse. It only happens on request, and the old pair
is kept, because other machines may accept only that.
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
    """Rename gcloud's key pair, create a new one, and return it with the new path of the old private key.

    `google_compute_engine` becomes `old-google_compute_engine`, `old-2-…`, …; no file is overwritten. The path is None if there
    was no old pair. Raises `SshKeyError` and `SshProgramMissingError`; if no key can be created, the old pair is restored.
    """
    path = default_path(home)
    try:
        moved = None
        if path.exists() or public_path(path).exists():
            names = (f"old-{path.name}" if number == 1 else f"old-{number}-{path.name}" for number in count(1))
            candidates = (path.with_name(name) for name in names)
            moved = next(one for one in candidates if not one.exists() and not public_path(one).exists())
            _move_pair(path, moved)
    except OSError as error:
        hint = f"make the folder `{path.parent}` writable"
        raise SshKeyError(f"cannot rename `{path}`: {error.strerror}", hint=hint) from error
    try:
        key = ensure_key(home, login=login, runner=runner)
    except BaseException:
        if moved is not None:
            _move_pair(moved, path)
        raise
    return key, moved


def fingerprint(key: SshKey, *, runner: Runner = run_program) -> str:
    """Return the fingerprint of a key, `SHA256:…`, as ssh prints it. Raises `SshKeyError` and `SshProgramMissingError`."""
    path = key.path if key.is_in_agent else public_path(key.path)
    done = runner(["ssh-keygen", "-l", "-f", str(path)])
    words = done.stdout.split()
    if done.returncode != 0 or len(words) < 2:
        raise SshKeyError(
            f"cannot read the fingerprint of `{path}`: {done.stderr.strip()}",
            hint="create a new key: `tpuctl ssh-key renew`",
        )
    return words[1]


def _move_pair(source: Path, target: Path) -> None:
    for old, new in ((source, target), (public_path(source), public_path(target))):
        if old.exists():
            old.rename(new)
