"""Whether sshd can open terminals here when an ordinary user runs it."""

from __future__ import annotations

import grp
import os


def terminal_obstacle() -> str | None:
    """Return why sshd would end a session that asks for a terminal, or nothing where it would not.

    sshd gives the terminal to the group `tty` and ends when it may not (OpenSSH source, sshpty.c). root always may; others
    need `/dev/pts` to be mounted with `gid=` of that group, which containers often leave out.
    """
    if os.geteuid() == 0:
        return None
    try:
        wanted = grp.getgrnam("tty").gr_gid
        ours, theirs = os.openpty()
    except (KeyError, OSError):
        return None  # without that group sshd takes the user's own
    try:
        found = os.fstat(theirs).st_gid
    finally:
        os.close(ours)
        os.close(theirs)
    if found == wanted or wanted in os.getgroups():
        return None
    return f"sshd cannot open a terminal for you here: /dev/pts is mounted without gid={wanted}"
