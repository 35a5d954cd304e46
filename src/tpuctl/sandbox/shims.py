"""How programs that know nothing of the sandbox get to it: `ssh` and `scp` that find its workers, and gcloud's environment.

gcloud starts the first `ssh` and `scp` on PATH, and ssh takes no configuration from the environment (both: gcloud 528
and OpenSSH source). So two programs of these names come first on PATH; they start the real ones with a configuration of
ours, which sends the addresses of workers through the sandbox's sshd and leaves everything else to the configuration of
the user and of the system.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tpuctl.errors import NotFoundError
from tpuctl.sandbox.sshd import SshdUnavailableError, proxy_command
from tpuctl.sandbox.sshd.folders import make_private_folder, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PROGRAMS = ("ssh", "scp")
# All of 198.18.0.0/15, the addresses of workers.
_CONFIGURATION = """\
# Made by `tpuctl sandbox serve`: the workers of the sandbox in {world}
Host 198.18.* 198.19.*
    ProxyCommand {proxy}
Match all
Include ~/.ssh/config
Match all
Include /etc/ssh/ssh_config
"""
_SHIM = """\
#!/bin/sh
# Made by `tpuctl sandbox serve`. A `-F` of your own comes later and wins: then the sandbox's workers are not found.
exec {program} -F {configuration} "$@"
"""
# The APIs that the sandbox serves, as gcloud's properties call them.
_APIS = (
    *("TPU", "COMPUTE", "STORAGE", "CLOUDRESOURCEMANAGER", "SERVICEUSAGE", "IAM", "ORGPOLICY", "OSLOGIN"),
    "CLOUDBILLING",
)


class NotServedError(NotFoundError):
    """No `tpuctl sandbox serve` was found that offers this world."""

    def __init__(self) -> None:
        super().__init__(
            "the sandbox is not served", hint="run `tpuctl sandbox serve` in another terminal, or give `--port`"
        )


def make_shims(world: Path) -> Path:
    """Make `ssh` and `scp` for a world where they are missing and return their folder.

    Raises `SshdUnavailableError` where OpenSSH's client is not installed.
    """
    folder = world.absolute().parent / "programs"
    make_private_folder(folder)
    # A ProxyCommand is expanded by ssh: %h is the address.
    proxy = proxy_command(world, "ADDRESS").removesuffix("ADDRESS") + "%h"
    configuration = folder / "ssh_config"
    write_private_file(configuration, _CONFIGURATION.format(world=world.parent, proxy=proxy))
    for name in _PROGRAMS:
        words = {"program": shlex.quote(_real(name, folder)), "configuration": shlex.quote(str(configuration))}
        write_private_file(folder / name, _SHIM.format(**words), mode=0o700)
    return folder


def _real(name: str, shims: Path) -> str:
    """Return the path of the real program: the first on PATH that is not a shim."""
    path = os.environ.get("PATH", os.defpath)
    folders = [
        folder for folder in path.split(os.pathsep) if folder and os.path.realpath(folder) != os.path.realpath(shims)
    ]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise SshdUnavailableError(f"there is no `{name}` on this machine")
    return found


def environment(world: Path, url: str, *, project: str, zone: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which an unmodified gcloud works on a served world and talks to nobody else.

    PATH and NO_PROXY are those of `environ`, extended. gcloud keeps its key and host keys in `~/.ssh` as ever: only
    another HOME moves them (gcloud 528 source). Sources of the rest: gcloud 528, tried.
    """
    folder = make_shims(world)
    rest = [entry for entry in environ.get("PATH", os.defpath).split(os.pathsep) if entry != str(folder)]
    direct = ["127.0.0.0/8", "localhost"]
    direct += [entry for entry in (environ.get("NO_PROXY") or environ.get("no_proxy") or "").split(",") if entry]
    no_proxy = ",".join(dict.fromkeys(direct))
    return {
        "PATH": os.pathsep.join([str(folder), *rest]),
        # A path of exactly `/` stands for each API's usual one.
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{url}/" for api in _APIS},
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
        # Your own configuration may impersonate, or go through a proxy.
        "CLOUDSDK_CONFIG": str(world.absolute().parent / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": project,
        "CLOUDSDK_COMPUTE_ZONE": zone,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "0",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
    }


def exports(variables: Mapping[str, str]) -> str:
    """Return variables as lines that a POSIX shell sources."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def note_served(world: Path, url: str) -> None:
    """Write down where a world is served, for `served_at`."""
    write_private_file(_served(world), url)


def forget_served(world: Path, url: str) -> None:
    """Undo `note_served`, unless another server has come since."""
    if _read(world) == url:
        _served(world).unlink(missing_ok=True)


def served_at(world: Path) -> str:
    """Return the URL at which a world is served now. Raises `NotServedError`."""
    url = _read(world)
    try:
        parts = urlsplit(url)
        if not parts.hostname or not parts.port:
            raise NotServedError
        socket.create_connection((parts.hostname, parts.port), timeout=2).close()
    # A damaged file holds no URL.
    except (OSError, ValueError) as error:
        raise NotServedError from error
    return url


def _read(world: Path) -> str:
    try:
        return _served(world).read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _served(world: Path) -> Path:
    return world.with_name(world.name + "-served")
