"""Access to the sandbox for programs that do not know it: `ssh` and `scp` that reach its workers, and gcloud's environment.

gcloud starts the first `ssh` and `scp` on PATH, and ssh takes no configuration from the environment (both: gcloud 528
and OpenSSH source). So two programs of these names come first on PATH; they start the real ones with a configuration
that sends the addresses of workers through the sandbox's sshd and includes the configuration of the user and of the system
for everything else.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tpuctl.errors import NotFoundError
from tpuctl.files import make_private_folder
from tpuctl.sandbox.sshd import proxy_command
from tpuctl.sandbox.sshd.daemon import SshdUnavailableError, write_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PROGRAMS = ("ssh", "scp")
# All of 198.18.0.0/15, the addresses of workers.
_CONFIGURATION = """\
# Written by `tpuctl sandbox serve`: the workers of the sandbox in {folder}
Host 198.18.* 198.19.*
    ProxyCommand {proxy}
Match all
Include ~/.ssh/config
Match all
Include /etc/ssh/ssh_config
"""
_SHIM = """\
#!/bin/sh
# Written by `tpuctl sandbox serve`. Your own `-F` overrides this one: then ssh does not find the sandbox's workers.
exec {program} -F {configuration} "$@"
"""
# The APIs that the sandbox serves, by their names in gcloud's properties.
_APIS = (
    *("TPU", "COMPUTE", "STORAGE", "CLOUDRESOURCEMANAGER", "SERVICEUSAGE", "IAM", "ORGPOLICY", "OSLOGIN"),
    "CLOUDBILLING",
)


class NotServedError(NotFoundError):
    """No running `tpuctl sandbox serve` serves this sandbox."""

    def __init__(self) -> None:
        super().__init__(
            "the sandbox is not served", hint="run `tpuctl sandbox serve` in another terminal, or give `--port`"
        )


def make_shims(state_path: Path) -> Path:
    """Write `ssh` and `scp` for a sandbox if they are missing, and return their folder.

    Raises `SshdUnavailableError` if OpenSSH's client is not installed.
    """
    folder = state_path.absolute().parent / "programs"
    make_private_folder(folder)
    # A ProxyCommand is expanded by ssh: %h is the address.
    proxy = proxy_command(state_path, "ADDRESS").removesuffix("ADDRESS") + "%h"
    configuration = folder / "ssh_config"
    write_private_file(configuration, _CONFIGURATION.format(folder=state_path.parent, proxy=proxy))
    # The real programs: the first on PATH that are not shims.
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(entry for entry in entries if entry and os.path.realpath(entry) != os.path.realpath(folder))
    for name in _PROGRAMS:
        program = shutil.which(name, path=path)
        if program is None:
            raise SshdUnavailableError(f"there is no `{name}` on this machine")
        text = _SHIM.format(program=shlex.quote(program), configuration=shlex.quote(str(configuration)))
        write_private_file(folder / name, text, mode=0o700)
    return folder


def gcloud_environment(
    state_path: Path, url: str, *, project: str, zone: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables with which an unmodified gcloud uses a served sandbox and contacts no other service.

    PATH and NO_PROXY extend those of `environ`. gcloud keeps its key and host keys in `~/.ssh` as usual: only
    another HOME moves them (gcloud 528 source). Sources of the rest: gcloud 528, tried.
    """
    folder = make_shims(state_path)
    rest = [entry for entry in environ.get("PATH", os.defpath).split(os.pathsep) if entry != str(folder)]
    direct = ["127.0.0.0/8", "localhost"]
    direct += [entry for entry in (environ.get("NO_PROXY") or environ.get("no_proxy") or "").split(",") if entry]
    no_proxy = ",".join(dict.fromkeys(direct))
    return {
        "PATH": os.pathsep.join([str(folder), *rest]),
        # The path `/` selects each API's default path.
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{url}/" for api in _APIS},
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
        # The user's own configuration may set impersonation or a proxy.
        "CLOUDSDK_CONFIG": str(state_path.absolute().parent / "gcloud"),
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


def shell_exports(variables: Mapping[str, str]) -> str:
    """Return variables as lines that a POSIX shell sources."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def record_served_address(state_path: Path, url: str) -> None:
    """Record the address at which a sandbox is served, for `served_at`."""
    write_private_file(_address_file(state_path), url)


def remove_served_address(state_path: Path, url: str) -> None:
    """Remove the record of `note_served`, unless another server has replaced it."""
    if _read_address(state_path) == url:
        _address_file(state_path).unlink(missing_ok=True)


def read_served_address(state_path: Path) -> str:
    """Return the URL at which a sandbox is served now. Raises `NotServedError`."""
    url = _read_address(state_path)
    try:
        parts = urlsplit(url)
        if not parts.hostname or not parts.port:
            raise NotServedError
        socket.create_connection((parts.hostname, parts.port), timeout=2).close()
    # A damaged file holds no URL.
    except (OSError, ValueError) as error:
        raise NotServedError from error
    return url


def _read_address(state_path: Path) -> str:
    try:
        return _address_file(state_path).read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _address_file(state_path: Path) -> Path:
    return state_path.with_name(state_path.name + "-served")
