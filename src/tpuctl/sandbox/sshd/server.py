"""OpenSSH's sshd for one connection to one sandbox worker: its configuration, and its programs."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl import platforms
from tpuctl.clock import parse_timestamp
from tpuctl.sandbox.sshd.folders import Folders, write_private_file
from tpuctl.sandbox.sshd.host_keys import HOST_KEY_FILE, SshdUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

_KEY_LINE = re.compile(r"(?P<login>[^:\s]+):(?P<key>(?:ssh|ecdsa|sk)-[\w@.-]+ +[A-Za-z0-9+/]+=*)(?: (?P<comment>.*))?")


def find_sshd(folders: Iterable[str] = platforms.SSHD_FOLDERS) -> str:
    """Return the path of sshd. Raises `SshdUnavailableError` naming its package."""
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    found = shutil.which("sshd", path=path)
    if found is None:
        hint = "install it (Debian and Ubuntu: `sudo apt-get install openssh-server`; no service needs to run)"
        raise SshdUnavailableError("ssh to sandbox workers needs OpenSSH's `sshd`, which was not found", hint=hint)
    return str(Path(found).absolute())  # sshd cannot re-execute itself under a relative name


def authorized_keys(login: str, *key_lists: str, now: datetime | None = None) -> str:
    """Return the authorized keys of one user from metadata values (`ssh-keys`: lines `LOGIN:TYPE BASE64 comment`).

    Omitted are lines of other users, lines that are not plain keys (sshd would obey options), and with `now` expired keys in
    Google's form.
    """
    lines = [line for value in key_lists for line in value.splitlines()]
    matches = (_KEY_LINE.fullmatch(line.strip()) for line in lines)
    keys = dict.fromkeys(
        match["key"]
        for match in matches
        if match and match["login"] == login and not _is_expired(match["comment"], now)
    )
    return "".join(f"{key}\n" for key in keys)


def _is_expired(comment: str | None, now: datetime | None) -> bool:
    """Return whether a key expired: its comment is `google-ssh {"userName":…,"expireOn":…}` [Compute Engine documentation].

    A key with an invalid time does not expire [guest agent's tests].
    """
    form, _, words = (comment or "").partition(" ")
    if form != "google-ssh" or now is None:
        return False
    try:
        end = parse_timestamp(json.loads(words)["expireOn"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return end is not None and end <= now


def configure(folders: Folders, session: Path, keys: str, *, login: str) -> Path:
    """Write the files of sshd for one worker and return its configuration file."""
    write_private_file(folders.control / "authorized_keys", keys)
    path = folders.control / "sshd_config"
    settings = {
        "HostKey": f'"{folders.node / HOST_KEY_FILE}"',
        "AuthorizedKeysFile": '"{}"'.format(str(folders.control / "authorized_keys").replace("%", "%%")),
        "AllowUsers": login,
        # A session runs as the user who runs ssh, who owns the worker's home; that may be root.
        "PermitRootLogin": "prohibit-password",
        "ForceCommand": shlex.quote(str(session)),
        "StrictModes": "no",
        "UsePAM": "yes" if _needs_pam(login) else "no",
        "PidFile": "none",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UseDNS": "no",
        "PrintMotd": "no",
        "PrintLastLog": "no",
        "AcceptEnv": "LANG LC_*",
        "LogLevel": "ERROR",
    }
    if server := next((path for path in platforms.SFTP_SERVERS if os.access(path, os.X_OK)), None):
        # internal-sftp would run in sshd itself, bypass the session program, and use the real home.
        settings["Subsystem"] = f"sftp {server}"
    write_private_file(path, "".join(f"{key} {value}\n" for key, value in settings.items()))
    return path


def _needs_pam(login: str) -> bool:
    """Return whether sshd would reject this account for its lock (`!`) unless PAM decides."""
    if os.geteuid() != 0 or not Path("/etc/pam.d/sshd").exists():
        return False
    try:
        lines = Path("/etc/shadow").read_text("utf-8").splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{login}:!") for line in lines)


def become_sshd(sshd: str, configuration: Path) -> None:
    """Replace this process with an sshd that serves one connection on stdin and stdout. Does not return."""
    if os.geteuid() == 0 and (needed := platforms.sshd_privilege_separation()):
        try:
            needed.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot create `{needed}`, which sshd needs when root runs it: {error.strerror}"
            raise SshdUnavailableError(text, hint=f"create it with `sudo mkdir -p {needed}`") from error
    log = configuration.parent / "log"
    # The log goes to a file: stderr of a ProxyCommand appears on the user's terminal.
    os.execv(sshd, [sshd, "-i", "-f", str(configuration), "-E", str(log)])  # noqa: S606  # an argv, no shell


def own_login() -> str:
    """Return the name of the user who runs this process: the only one that can log in to a sandbox worker."""
    return pwd.getpwuid(os.geteuid()).pw_name
