"""The name to log in with where the metadata's keys count. OS Login has names of its own."""

from __future__ import annotations

import os
import pwd
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")


def login_name(environ: Mapping[str, str]) -> str:
    """Return the user name to log in with: the local one, as gcloud does, made valid for Linux where it is not.

    The order of the variables is that of Python's getpass, which gcloud asks [gcloud 528 source].
    """
    names = (environ.get(variable) for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"))
    name = next((name for name in names if name), None) or _account()
    if _LOGIN.fullmatch(name):
        return name
    # A Windows domain is no part of the name, an address's host neither.
    short = name.rpartition("\\")[2].partition("@")[0]
    valid = re.sub(r"[^a-z0-9_-]", "_", short.lower()).lstrip("-")
    return valid if _LOGIN.fullmatch(valid) else f"u_{valid}"


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run with a user id that has no account
        return f"user{os.getuid()}"
