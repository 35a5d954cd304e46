"""Python, tpuctl, gcloud and the programs for workers, as they are installed here."""

from __future__ import annotations

import locale
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl import __version__
from tpuctl.actions.checkup.files import ask_program, bytes_left, entry, find_program, text_of
from tpuctl.checkup.surroundings.facts import Gcloud, Machine, Program
from tpuctl.journal import LocalStore, UnreadableJournalError
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown, known
from tpuctl.shapes import ANY, Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import Distribution

    from tpuctl.actions.checkup.ways import Ways

# Each package by its name in indexes, and the module that is imported.
_PACKAGES = {
    "google-api-python-client": "googleapiclient",
    "google-auth": "google.auth",
    "google-auth-httplib2": "google_auth_httplib2",
    "click": "click",
    "rich": "rich",
    "pyyaml": "yaml",
}
# How each program is asked for its version; those that are left out have none to tell.
_ASKED = {"ssh": "-V", "rsync": "--version"}
PROGRAMS = ("ssh", "scp", "ssh-keygen", "ssh-add", "rsync")
_AT_LEAST = re.compile(r"([A-Za-z0-9_.-]{1,100}) ?(?:\(?>= ?([0-9.]{1,40}))?")
_RSYNC = re.compile(r"rsync +version (\S{1,40})")


def look(ways: Ways, programs: Mapping[str, Fact[Program]]) -> Machine:
    """Return this machine; `programs` have been asked for their versions side by side."""
    environ = ways.environ
    places = {"state": ways.state, "config": ways.user_file.parent}
    left = {str(ways.state): bytes_left(ways.state)}
    own = _distribution("tpuctl")
    return Machine(
        python=sys.version_info[:3],
        executable=sys.executable,
        environment=sys.prefix if sys.prefix != sys.base_prefix else None,
        tpuctl=__version__,
        installed_by=_installed_by(own),
        packages={name: _version(name, module) for name, module in _PACKAGES.items()},
        required=_required(own),
        gcloud=_gcloud(environ),
        programs=programs,
        folders={what: entry(path, is_folder=True, is_written=True) for what, path in places.items()},
        bytes_left={path: size for path, size in left.items() if size is not None},
        journal=_journal(ways.journal) if ways.journal else None,
        term=environ.get("TERM"),
        locale=next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), None),
        encoding=sys.stdout.encoding or locale.getpreferredencoding(do_setlocale=False),
    )


def find(name: str, environ: Mapping[str, str]) -> Fact[Program]:
    """Return a program, and what it says of its version."""
    path = find_program(name, environ)
    if path is None:
        return Absent()
    if name not in _ASKED:
        return Known(Program(path, Absent("it has none to tell")))
    said = ask_program([path, _ASKED[name]], environ)
    if not isinstance(said, Known):
        return Known(Program(path, said))
    first = next(iter((said.value.out or said.value.err).splitlines()), "").strip()
    number = _RSYNC.search(first)
    text = number[1] if number else first.partition(",")[0]
    return Known(Program(path, Known(text[:80]) if text else Unknown("it does not say")))


def _gcloud(environ: Mapping[str, str]) -> Fact[Gcloud]:
    """Return gcloud without starting it, which takes half a second.

    Source: gcloud 528, files VERSION and lib/googlecloudsdk/core/config.json.
    """
    path = find_program("gcloud", environ)
    if path is None:
        return Absent()
    real = Path(path).resolve()
    # snap starts every program by one of its own, under the program's name.
    snap = Path("/snap/google-cloud-cli/current")
    root = snap if real.name == "snap" else real.parent.parent
    version = text_of(root / "VERSION", most=100)
    if not isinstance(version, Known):
        return Known(Gcloud(path, None, Unknown(f"there is no file `{root / 'VERSION'}`")))
    return Known(Gcloud(path, str(root), Known(version.value.strip()), _packaging(root)))


def _packaging(root: Path) -> str | None:
    about = known(text_of(root / "lib" / "googlecloudsdk" / "core" / "config.json"))
    try:
        is_off = bool(Shape("", {"disable_updater": ANY}).read(parse_json(about or "{}")).get("disable_updater"))
    except ShapeError:
        is_off = False
    if not is_off:
        return None
    if root.is_relative_to("/snap"):
        return "snap"
    if not root.is_relative_to("/usr"):
        return "other"
    return "apt" if Path("/var/lib/dpkg/status").exists() else "dnf" if Path("/etc/dnf").exists() else "other"


def _distribution(name: str) -> Distribution | None:
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  # 15 ms

    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _version(name: str, module: str) -> Fact[str]:
    from importlib.util import find_spec  # noqa: PLC0415  # only for this command

    try:
        if find_spec(module) is None:
            return Absent()
    except (ImportError, ValueError):
        return Absent()
    found = _distribution(name)
    return Known(found.version) if found else Unknown("it was not installed as a package")


def _required(own: Distribution | None) -> dict[str, str]:
    found = {}
    for line in (own.requires if own else None) or ():
        match = _AT_LEAST.match(line)
        if match and match[2] and "extra ==" not in line:
            found[match[1].lower()] = match[2]
    return found


def _installed_by(own: Distribution | None) -> str | None:
    if own is None:
        return None
    if '"editable": true' in (own.read_text("direct_url.json") or ""):
        return "an editable checkout"
    parts = Path(sys.prefix).parts
    if "pipx" in parts:
        return "pipx"
    if "uv" in parts and "tools" in parts:
        return "uv tool"
    return (own.read_text("INSTALLER") or "").strip() or None


def _journal(folder: Path) -> Fact[int]:
    store = LocalStore(folder)
    try:
        store.check(None)
        return Known(len(store.names()))
    except UnreadableJournalError as error:
        return Unknown(error.message)
    except OSError as error:
        return Unknown((error.strerror or str(error)).lower())
