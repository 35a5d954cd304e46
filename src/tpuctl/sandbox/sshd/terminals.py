"""Check whether sshd can open terminals here for an ordinary user."""

from __future__ import annotations

import grp
import os


def terminal_obstacle() -> str | None:
    """Return why sshd would end a session with a terminal. None if it would not.

    sshd gives the terminal to the group `tty` and ends if it may not (OpenSSH source, sshpty.c). root always may; other
    users need `/dev/pts` mounted with `gid=` of that group, which containers often lack.
    """
    if os.geteuid() == 0:
        return None
    try:
        wanted = grp.getgrnam("tty").gr_gid
        ours, theirs = os.openpty()
    except (KeyError, OSError):
        return None  # without that group sshd uses the user's own
    try:
        found = os.fstat(theirs).st_gid
    finally:
        os.close(ours)
        os.close(theirs)
    if found == wanted or wanted in os.getgroups():
        return None
    return f"sshd cannot open a terminal for this user: /dev/pts is mounted without gid={wanted}"
