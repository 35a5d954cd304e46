"""Read facts about this machine: Python, tpuctl, gcloud, ssh and rsync, folders, files and ssh keys.

Nothing is changed here.
"""

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

# The name of each package, and the module that is imported.
_PACKAGES = {
    "google-api-python-client": "googleapiclient",
    "google-auth": "google.auth",
    "google-auth-httplib2": "google_auth_httplib2",
    "click": "click",
    "rich": "rich",
    "pyyaml": "yaml",
}
# The option that prints the version; the other programs have none.
_ASKED = {"ssh": "-V", "rsync": "--version"}
PROGRAMS = ("ssh", "scp", "ssh-keygen", "ssh-add", "rsync")
_AT_LEAST = re.compile(r"([A-Za-z0-9_.-]{1,100}) ?(?:\(?>= ?([0-9.]{1,40}))?")
_RSYNC = re.compile(r"rsync +version (\S{1,40})")


def look(context: Ways, programs: Mapping[str, Fact[Program]]) -> Machine:
    """Return the facts about this machine. `programs` come from parallel calls of `find`."""
    environ = context.environ
    places = {"state": context.state, "config": context.user_file.parent}
    left = {str(context.state): bytes_left(context.state)}
    own = _distribution("tpuctl")
    lower_bounds = (_AT_LEAST.match(line) for line in (own and own.requires) or () if "extra ==" not in line)
    return Machine(
        python=sys.version_info[:3],
        executable=sys.executable,
        environment=sys.prefix if sys.prefix != sys.base_prefix else None,
        tpuctl=__version__,
        installed_by=_installed_by(own),
        packages={name: _version(name, module) for name, module in _PACKAGES.items()},
        required={match[1].lower(): match[2] for match in lower_bounds if match and match[2]},
        gcloud=_gcloud(environ),
        programs=programs,
        folders={what: entry(path, is_folder=True, is_written=True) for what, path in places.items()},
        bytes_left={path: size for path, size in left.items() if size is not None},
        journal=_count_journal(context.journal) if context.journal else None,
        term=environ.get("TERM"),
        locale=next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), None),
        encoding=sys.stdout.encoding or locale.getpreferredencoding(do_setlocale=False),
    )


def find(name: str, environ: Mapping[str, str]) -> Fact[Program]:
    """Return a program and its version. Absent if it is not on PATH."""
    path = find_program(name, environ)
    if path is None:
        return Absent()
    if name not in _ASKED:
        return Known(Program(path, Absent("it has no version option")))
    output = ask_program([path, _ASKED[name]], environ)
    if not isinstance(output, Known):
        return Known(Program(path, output))
    first = next(iter((output.value.out or output.value.err).splitlines()), "").strip()
    number = _RSYNC.search(first)
    text = number[1] if number else first.partition(",")[0]
    return Known(Program(path, Known(text[:80]) if text else Unknown("it prints none")))


def _gcloud(environ: Mapping[str, str]) -> Fact[Gcloud]:
    """Return the installed gcloud without starting it, which takes half a second.

    Source: gcloud 528, files VERSION and lib/googlecloudsdk/core/config.json.
    """
    path = find_program("gcloud", environ)
    if path is None:
        return Absent()
    real = Path(path).resolve()
    # snap starts every program through its own, under the name of the program.
    snap = Path("/snap/google-cloud-cli/current")
    root = snap if real.name == "snap" else real.parent.parent
    version = text_of(root / "VERSION", most=100)
    if not isinstance(version, Known):
        return Known(Gcloud(path, None, Unknown(f"there is no file `{root / 'VERSION'}`")))
    about = known(text_of(root / "lib" / "googlecloudsdk" / "core" / "config.json"))
    try:
        is_off = bool(Shape("", {"disable_updater": ANY}).read(parse_json(about or "{}")).get("disable_updater"))
    except ShapeError:
        is_off = False
    packaging = None
    if is_off and root.is_relative_to("/snap"):
        packaging = "snap"
    elif is_off and root.is_relative_to("/usr") and Path("/var/lib/dpkg/status").exists():
        packaging = "apt"
    elif is_off and root.is_relative_to("/usr") and Path("/etc/dnf").exists():
        packaging = "dnf"
    elif is_off:
        packaging = "other"
    return Known(Gcloud(path, str(root), Known(version.value.strip()), packaging))


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


def _count_journal(folder: Path) -> Fact[int]:
    """Return the number of nodes in the journal."""
    store = LocalStore(folder)
    try:
        store.check(None)
        return Known(len(store.names()))
    except UnreadableJournalError as error:
        return Unknown(error.message)
    except OSError as error:
        return Unknown((error.strerror or str(error)).lower())
