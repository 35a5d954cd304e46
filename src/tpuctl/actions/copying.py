"""Copy files between this machine and workers. Local files are checked before any worker is contacted."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.remote.copying.answers import Asked
from tpuctl.remote.copying.everywhere import copy_everywhere
from tpuctl.remote.copying.prefixes import Prefixes
from tpuctl.remote.copying.values import Tally
from tpuctl.remote.copying.worker import Download, Upload
from tpuctl.remote.onboard.copy_frames import RefusedError, shown
from tpuctl.remote.onboard.copy_sending import list_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.clock import Clock
    from tpuctl.remote.copying.values import Copied, Wish
    from tpuctl.remote.member import Member
    from tpuctl.remote.onboard.copy_sending import Listing


def look(sources: Sequence[str], folder: Path, wish: Wish) -> Listing:
    """List the local files to send. Relative paths start in `folder`.

    Raises `InvalidInputError` for a missing or unreadable file, before anything is sent.
    """
    # Messages show paths as the user typed them.
    below = b"" if folder == Path.cwd() else os.fsencode(folder)
    paths = [os.path.join(below, os.fsencode(source)) for source in sources]  # noqa: PTH118  # pathlib knows no bytes
    try:
        listing = list_files(paths, recurse=wish.recurse)
    except RefusedError as error:
        kind, message = error.args
        hint = "add `-r` to copy folders" if kind == "folder" else None
        raise InvalidInputError(f"nothing was copied: {message}", hint=hint) from error
    if listing.failed:
        more = f", and {len(listing.failed) - 1} more" if len(listing.failed) > 1 else ""
        raise InvalidInputError(f"nothing was copied: {listing.failed[0]}{more}")
    names: dict[str, bytes] = {}
    for path, entry in listing.files:
        if names.setdefault(entry.path, path) != path:
            hint = "copy them to different folders"
            raise InvalidInputError(f"`{shown(path)}` and `{shown(names[entry.path])}` have the same name", hint=hint)
    return listing


def upload(
    members: Sequence[Member], listing: Listing, target: str, *, wish: Wish, tallies: Sequence[Tally], clock: Clock
) -> list[Copied]:
    """Copy to `target` on every member, and return the results."""
    prefixes = Prefixes()
    text = os.fsencode(target).decode("utf-8", "surrogateescape")
    one = partial(Upload, listing, text, wish, prefixes)
    return copy_everywhere(members, [one] * len(members), tallies, fanout=wish.fanout, clock=clock)


def download(
    members: Sequence[Member],
    patterns: Sequence[str],
    folder: Path,
    target: str,
    *,
    wish: Wish,
    tallies: Sequence[Tally],
    clock: Clock,
) -> list[Copied]:
    """Copy from every member to `target`; with several members into a folder for each, named by its label.

    Raises `InvalidInputError` if such a folder cannot be created, or if a pattern does not determine the local name.
    """
    for pattern in patterns:
        if pattern.rstrip("/").rpartition("/")[2] == "..":
            hint = f"name the folder, or use `{pattern.rstrip('/')}/.` for its contents"
            raise InvalidInputError(f"`{pattern}` does not determine a local name", hint=hint)
    umask = os.umask(0o077)
    os.umask(umask)
    texts = tuple(os.fsencode(pattern).decode("utf-8", "surrogateescape") or "." for pattern in patterns)
    below = [member.label if len(members) > 1 else "" for member in members]
    # `DST/` means a folder; pathlib would remove the slash.
    targets = [os.path.join(folder, target, one) if one else os.path.join(folder, target) for one in below]  # noqa: PTH118  # as above
    if len(members) > 1:
        try:
            for path in map(Path, targets):
                if path.is_symlink():
                    hint = "use another folder: each worker gets its own folder in it"
                    raise InvalidInputError(f"`{path}` is a symlink", hint=hint)
                path.mkdir(parents=path.parent.parent.is_dir(), exist_ok=True)
        except OSError as error:
            raise InvalidInputError(f"cannot create `{error.filename}`: {(error.strerror or '').lower()}") from error
    transfers = []
    for member, path_text in zip(members, targets, strict=True):
        # Hidden files (`.git`, `.envrc`) could affect other files in a folder, so they are copied only to an empty or new one.
        is_empty = True
        with suppress(OSError), os.scandir(path_text) as found:
            is_empty = next(found, None) is None
        request = Asked(texts, member.way.login, recurse=wish.recurse, hidden=is_empty)
        transfers.append(partial(Download, request, os.fsencode(path_text), wish, umask))
    return copy_everywhere(members, transfers, tallies, fanout=wish.fanout, clock=clock)
