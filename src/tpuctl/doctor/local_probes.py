"""Read facts about this machine: Python, tpuctl, gcloud, ssh and rsync, folders, files and ssh keys.

Nothing is changed here.
"""

from __future__ import annotations

import locale
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tpuctl.check.facts import Absent, Fact, Known, Unknown, value_or_none
from tpuctl.decoding import ShapeError, decode, parse_json
from tpuctl.doctor.doctor_facts import GcloudInstallation, InstalledProgram, LocalMachine, PathStatus, SshKeyFacts
from tpuctl.errors import TpuctlError
from tpuctl.files import read_regular_file
from tpuctl.installation import read_installation
from tpuctl.nodes.journal import LocalJournalStore, UnreadableJournalError
from tpuctl.ssh.keys import default_key_path, public_key_path

if TYPE_CHECKING:
    from tpuctl.installation import Dependency

T = TypeVar("T")

# The option that prints the version; the other programs have none.
_VERSION_OPTIONS = {"ssh": "-V", "rsync": "--version"}
PROBED_PROGRAMS = ("ssh", "scp", "ssh-keygen", "ssh-add", "rsync")
# A program prints its version or a key at once; one that waits for something is terminated.
_PATIENCE_SECONDS = 3.0
_RSYNC = re.compile(r"rsync +version (\S{1,40})")
_PUBLIC = re.compile(r"((?:ssh|ecdsa|sk)-[\w@.-]{1,80} [A-Za-z0-9+/]{1,20000}=*)(?: [^\n]*)?\n?")
# The error of `ssh-keygen -y` for a key with a passphrase [observed: OpenSSH 9.2].
_LOCKED = "incorrect passphrase"


def read_local_machine(
    environ: Mapping[str, str],
    programs: Mapping[str, Fact[InstalledProgram]],
    *,
    state: Path,
    config: Path,
    journal: Path | None,
) -> LocalMachine:
    """Return the facts about this machine. `programs` come from parallel calls of `probe_program`."""
    own = read_installation()
    bytes_left = {}
    with suppress(OSError):
        # The folder need not exist.
        bytes_left[str(state)] = shutil.disk_usage(_nearest_existing(state)).free
    return LocalMachine(
        python=own.python,
        executable=own.executable,
        environment=own.prefix if own.is_virtual else None,
        tpuctl=own.version,
        installed_by="an editable checkout" if own.is_editable else own.installer,
        packages={package.name: _package_version(package) for package in own.dependencies},
        required={package.name: package.least for package in own.dependencies if package.least},
        gcloud=_gcloud(environ),
        programs=programs,
        folders={
            what: path_status(path, is_folder=True, is_written=True)
            for what, path in (("state", state), ("config", config))
        },
        bytes_left=bytes_left,
        journal=_count_journal(journal) if journal else None,
        term=environ.get("TERM"),
        locale=next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), None),
        encoding=sys.stdout.encoding or locale.getpreferredencoding(do_setlocale=False),
    )


def _package_version(package: Dependency) -> Fact[str]:
    if not package.is_importable:
        return Absent()
    return Known(package.version) if package.version else Unknown("it was not installed as a package")


def _count_journal(folder: Path) -> Fact[int]:
    """Return the number of nodes in the journal."""
    store = LocalJournalStore(folder)
    try:
        store.check()
        return Known(len(store.names()))
    except UnreadableJournalError as error:
        return Unknown(error.message)
    except OSError as error:
        return Unknown(_os_error_text(error))


def _gcloud(environ: Mapping[str, str]) -> Fact[GcloudInstallation]:
    """Return the installed gcloud without starting it, which takes half a second.

    Source: gcloud 528, files VERSION and lib/googlecloudsdk/core/config.json.
    """
    path = find_program("gcloud", environ)
    if path is None:
        return Absent()
    real = Path(path).resolve()
    # snap starts every program through its own, under the name of the program.
    root = Path("/snap/google-cloud-cli/current") if real.name == "snap" else real.parent.parent
    version = read_text_fact(root / "VERSION", most=100)
    if not isinstance(version, Known):
        return Known(GcloudInstallation(path, None, Unknown(f"there is no file `{root / 'VERSION'}`")))
    return Known(GcloudInstallation(path, str(root), Known(version.value.strip()), _gcloud_packaging(root)))


def _gcloud_packaging(root: Path) -> str | None:
    """Return what installed gcloud: `snap`, `apt`, `dnf` or `other`. None if its own updater is on."""
    about = value_or_none(read_text_fact(root / "lib" / "googlecloudsdk" / "core" / "config.json"))
    try:
        if not decode(Mapping[str, Any], parse_json(about or "{}")).get("disable_updater"):  # type: ignore[type-abstract]
            return None
    except ShapeError:
        return None
    if root.is_relative_to("/snap"):
        return "snap"
    managers = {"apt": "/var/lib/dpkg/status", "dnf": "/etc/dnf"} if root.is_relative_to("/usr") else {}
    return next((name for name, mark in managers.items() if Path(mark).exists()), "other")


def probe_program(name: str, environ: Mapping[str, str]) -> Fact[InstalledProgram]:
    """Return a program and its version. Absent if it is not on PATH."""
    path = find_program(name, environ)
    if path is None:
        return Absent()
    if name not in _VERSION_OPTIONS:
        return Known(InstalledProgram(path, Absent("it has no version option")))
    output = _run_program([path, _VERSION_OPTIONS[name]], environ)
    if not isinstance(output, Known):
        return Known(InstalledProgram(path, output))
    first = next(iter((output.value.out or output.value.err).splitlines()), "").strip()
    number = _RSYNC.search(first)
    text = number[1] if number else first.partition(",")[0]
    return Known(InstalledProgram(path, Known(text[:80]) if text else Unknown("it prints none")))


class DerivedPublicKey(NamedTuple):
    """The public key of a private key, and whether the private key has a passphrase."""

    public: Fact[str]
    is_locked: bool = False


def private_key_path(key: Path | None, home: Path) -> Path:
    """Return the path of the private key, which need not exist: an agent may hold it."""
    key = key or default_key_path(home)
    return key.with_suffix("") if key.suffix == ".pub" else key


def read_ssh_keys(
    private: Path,
    *,
    home: Path | None,
    known_hosts: tuple[Path, ...],
    derived: Fact[DerivedPublicKey] | None,
    agent: Fact[frozenset[str]] | None,
) -> SshKeyFacts:
    """Return the key pair. `derived` is None if there is no private key, `agent` if no agent was asked."""
    public = public_key_path(private)
    return SshKeyFacts(
        private=path_status(private),
        public_half=path_status(public),
        home=home,
        folder=path_status(private.parent, is_folder=True),
        known_hosts=tuple(map(path_status, known_hosts)),
        public=_parse_public_key(read_text_fact(public)),
        derived=derived.value.public if isinstance(derived, Known) else derived,
        is_locked=isinstance(derived, Known) and derived.value.is_locked,
        agent=agent,
    )


def derive_public_key(path: Path, environ: Mapping[str, str]) -> Fact[DerivedPublicKey]:
    """Return the public key of a private key, computed by ssh-keygen without a passphrase."""
    program = find_program("ssh-keygen", environ)
    if program is None:
        return Unknown("there is no `ssh-keygen`", is_passing=True)
    output = _run_program([program, "-y", "-P", "", "-f", str(path)], environ)
    if not isinstance(output, Known):
        return output
    code, out, err = output.value
    if code == 0:
        return Known(DerivedPublicKey(_parse_public_key(Known(out))))
    if _LOCKED in err:
        return Known(DerivedPublicKey(Unknown("it has a passphrase"), is_locked=True))
    return Unknown(next(iter(err.strip().splitlines()), "ssh-keygen gives no reason"))


def list_agent_keys(environ: Mapping[str, str]) -> Fact[frozenset[str]]:
    """Return the public keys that an agent holds. Absent if there is no agent."""
    if not environ.get("SSH_AUTH_SOCK"):
        return Absent("`SSH_AUTH_SOCK` is not set")
    program = find_program("ssh-add", environ)
    if program is None:
        return Unknown("there is no `ssh-add`")
    output = _run_program([program, "-L"], environ)
    if not isinstance(output, Known):
        return output
    code, out, err = output.value
    # 1: the agent has no keys; 2: no agent answers [ssh-add(1)].
    if code > 1:
        return Unknown(next(iter(err.strip().splitlines()), "ssh-add gives no reason").lower())
    return Known(frozenset(" ".join(line.split()[:2]) for line in out.splitlines() if line[:1].islower()))


def _parse_public_key(text: Fact[str]) -> Fact[str]:
    if not isinstance(text, Known):
        return text
    match = _PUBLIC.fullmatch(text.value)
    return Known(match[1]) if match else Unknown("it is not a public key")


def path_status(path: Path, *, is_folder: bool = False, is_written: bool = False) -> PathStatus:
    """Return the status of a file or folder. An absent one has a problem only if it is written and cannot be created."""
    try:
        status = path.stat()
    except FileNotFoundError:
        above, problem = _nearest_existing(path.parent), None
        if not above.is_dir():
            problem = f"`{above}` is not a folder"
        elif not os.access(above, os.W_OK | os.X_OK):
            problem = f"it does not exist, and you may not write to `{above}`"
        return PathStatus(path, problem=problem if is_written else None)
    except OSError as error:
        return PathStatus(path, problem=_os_error_text(error))
    mode, is_own = stat.S_IMODE(status.st_mode), status.st_uid == os.geteuid()
    if stat.S_ISDIR(status.st_mode) != is_folder:
        return PathStatus(path, mode, is_own, "it is not a folder" if is_folder else "it is a folder")
    needed = os.R_OK | (os.X_OK if is_folder else 0) | (os.W_OK if is_written else 0)
    problem = None if os.access(path, needed) else "you may not " + ("write to it" if is_written else "read it")
    return PathStatus(path, mode, is_own, problem)


def read_text_fact(path: Path, *, most: int = 1 << 20) -> Fact[str]:
    """Return the text of a regular file of at most `most` bytes."""
    try:
        return Known(read_regular_file(path, longest=most)[0].decode("utf-8"))
    except FileNotFoundError:
        return Absent("there is no such file")
    except OSError as error:
        return Unknown(_os_error_text(error))
    except UnicodeDecodeError:
        return Unknown("it is not text")


def fact_of(get: Callable[[], T]) -> Known[T] | Unknown:
    """Return the value as a fact, Unknown with the message of an error."""
    try:
        return Known(get())
    except TpuctlError as error:
        return Unknown(error.message)
    except OSError as error:
        return Unknown(str(error))


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a program on PATH, None if there is no such program."""
    return shutil.which(name, path=environ.get("PATH"))


class _ProgramOutput(NamedTuple):
    code: int
    out: str
    err: str


def _run_program(argv: list[str], environ: Mapping[str, str]) -> Known[_ProgramOutput] | Unknown:
    """Run a program without input and terminal, and return its output. Unknown if it does not end within three seconds."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PATIENCE_SECONDS,
            # No password prompt, neither at the terminal nor in a window.
            env={**environ, "SSH_ASKPASS_REQUIRE": "never"},
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return Unknown("it did not answer", is_passing=True)
    except OSError as error:
        return Unknown(_os_error_text(error))
    return Known(_ProgramOutput(done.returncode, done.stdout, done.stderr))


def _nearest_existing(path: Path) -> Path:
    for one in (path, *path.parents):
        try:
            one.stat()
        except OSError:
            continue
        return one
    return Path("/")


def _os_error_text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
