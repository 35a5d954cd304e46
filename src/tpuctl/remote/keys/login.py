"""The login name for keys in metadata. OS Login uses other names."""

from __future__ import annotations

import os
import pwd
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")


def login_name(environ: Mapping[str, str]) -> str:
    """Return the login name: the local user name, as gcloud does, converted to a valid name for Linux.

    The order of the variables is that of Python's getpass, which gcloud uses [gcloud 528 source].
    """
    names = (environ.get(variable) for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"))
    name = next((name for name in names if name), None)
    if name is None:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a container may run with a user id that has no account
            name = f"user{os.getuid()}"
    if _LOGIN.fullmatch(name):
        return name
    # Remove a Windows domain, or the host of an e-mail address.
    short = name.rpartition("\\")[2].partition("@")[0]
    valid = re.sub(r"[^a-z0-9_-]", "_", short.lower()).lstrip("-")
    return valid if _LOGIN.fullmatch(valid) else f"u_{valid}"
