"""Read settings from configuration files, with line numbers, and from gcloud's own files, without starting gcloud.

A key of a configuration file can be changed without touching the other lines. Which keys exist, and which files may have
them, is the subject of `settings`; this module handles YAML and the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuctl.config.settings import (
    NEVER_IN_FILES,
    SETTINGS,
    ConfigEntry,
    ConfigFile,
    FileKind,
    GcloudProperty,
    RawRecord,
    RawValue,
    ValueKind,
    as_grants,
    as_items,
    as_pairs,
    as_record,
    as_records,
    check_file_entry,
    check_record_field,
    check_value_form,
)
from tpuctl.errors import SettingError
from tpuctl.files import output_path, read_regular_file, real_path, replace_private_file
from tpuctl.spelling import closest_match
from tpuctl.yaml_reader import compose_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tpuctl.config.settings import SettingSpec

PROJECT_FILE_NAME = "tpuctl.yaml"
_NULL = "tag:yaml.org,2002:null"
# PyYAML's node; with the C loader its types do not say what marks hold.
_Node = Any
_LONGEST, _MOST = 256 << 10, 20_000
# Compute Engine accepts 256 KiB in one metadata value [documentation of metadata].
_LONGEST_SCRIPT = 256 << 10
_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "timestamp")}


def find_project_file(start: Path, *, home: Path | None = None) -> Path | None:
    """Return the nearest `tpuctl.yaml` in `start` or above it, up to the home folder or the root. None if there is none.

    Folders that cannot be read are skipped.
    """
    for folder in (start, *start.parents):
        candidate = folder / PROJECT_FILE_NAME
        try:
            if candidate.is_file():
                return candidate
        except OSError:
            continue
        if folder == (home or _home()):
            break
    return None


def user_config_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the user file, `$XDG_CONFIG_HOME/tpuctl/config.yaml`, which need not exist."""
    configured = environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification requires ignoring a relative path.
    if configured.startswith("/"):
        return Path(configured) / "tpuctl" / "config.yaml"
    return Path(environ.get("HOME") or _home() or "/") / ".config" / "tpuctl" / "config.yaml"


def load_config_file(path: Path) -> ConfigFile:
    """Read a configuration file, each key with its line; an absent file is empty.

    Raises `SettingError` with file and line for invalid YAML, no mapping, an unknown or repeated key, or a value of the wrong
    form.
    """
    return ConfigFile(path, _entries(path, _read(path)))


def load_project_file(path: Path, environ: Mapping[str, str], *, any_owner: bool = False) -> ConfigFile:
    """Read a project file, with the content of the script that it names and the digest of both.

    Everything is read once, so the digest covers exactly what is used. Raises `SettingError` as `load_config_file` does, also
    for a file of another user unless `any_owner`, and for a script outside the project folder.
    """
    content, owners = _content(path)
    foreign = None if any_owner else foreign_owner(owners, os.geteuid(), environ)
    if foreign is not None:
        import pwd  # noqa: PLC0415  # only for this error

        try:
            name = f"the user `{pwd.getpwuid(foreign).pw_name}`"
        except KeyError:
            name = f"another user (uid {foreign})"
        raise SettingError(
            f"{path} belongs to {name}, not to you: it is not read",
            hint="copy it to a folder of your own, or run tpuctl elsewhere\n"
            "if you trust its author: pass `--trust-project-file`, or set `TPUCTL_TRUST_PROJECT_FILE=1`",
        )
    entries = _entries(path, _decoded(path, content))
    parts = [os.fsencode(path.resolve()), content]
    if entry := entries.get("startup_script"):
        script = _script(path, entry)
        entries["startup_script"] = replace(entry, content=_decoded(path, script, entry))
        parts.append(script)
    if entry := entries.get("ssh_key"):
        parts += _key_content(path, entry)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:%b" % (len(part), part))
    return ConfigFile(path, entries, digest.hexdigest())


def foreign_owner(owners: Iterable[int], uid: int, environ: Mapping[str, str]) -> int | None:
    """Return the first owner that is neither the user nor root; None if there is none.

    Under sudo, the calling user counts as the user too, as for git's `safe.directory`. As there, the owner decides, not write
    access to the folder: a file that another user creates there belongs to that user.
    """
    known = {0, uid}
    if uid == 0 and (caller := environ.get("SUDO_UID", "")).isascii() and caller.isdigit() and len(caller) < 10:
        known.add(int(caller))
    return next((owner for owner in owners if owner not in known), None)


def is_within_folder(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, with all symlinks resolved."""
    return path.resolve().is_relative_to(folder.resolve())


def _entries(path: Path, text: str) -> dict[str, ConfigEntry]:
    entries: dict[str, ConfigEntry] = {}
    for key_node, value_node in _pairs(_compose(path, text), path):
        key, place = str(key_node.value), _place(path, key_node)
        if key_node.id != "scalar":
            raise SettingError(f"{place}: a key is one word", hint="an example line: `zone: us-central2-b`")
        if key in NEVER_IN_FILES:
            raise SettingError(f"{place}: `{key}` is not read from a file", hint=NEVER_IN_FILES[key])
        if key not in SETTINGS:
            raise SettingError(f"{place}: unknown key `{key}`", hint=_did_you_mean(key))
        if key in entries:
            raise SettingError(f"{place}: duplicate key `{key}`, first in line {entries[key].line}")
        value: RawValue
        if value_node.id == "sequence" and SETTINGS[key].kind is ValueKind.RECORDS:
            value = tuple(_record(item, key, path) for item in value_node.value)
        elif value_node.id == "sequence":
            value = tuple(_scalar(item, key, path) for item in value_node.value)
        elif value_node.id == "mapping":
            value = _mapping(value_node, key, path)
        else:
            value = _scalar(value_node, key, path)
        try:
            check_value_form(SETTINGS[key], value)
        except ValueError as error:
            raise SettingError(f"{place}: `{key}`: {error}") from None
        entries[key] = ConfigEntry(value, key_node.start_mark.line + 1)
    return entries


def check_startup_script(path: Path, named: str) -> None:
    """Raise `SettingError` for a startup script that this project file may not name; the script need not exist."""
    try:
        _script_path(path.parent, named, place=f"{path}: `startup_script` is `{named}`")
    except (OSError, ValueError, RuntimeError) as error:  # as below
        raise SettingError(f"{path}: `startup_script` is `{named}`: it is not a path: {error}") from None


def _script_path(folder: Path, named: str, *, place: str) -> Path:
    script = (folder / named).resolve()
    if named.startswith("~") or Path(named).is_absolute() or not is_within_folder(script, folder):
        raise SettingError(
            f"{place}: a project file may only name a script inside its folder, {folder}",
            hint="copy the script into that folder, or pass `--startup-script`",
        )
    return script


def _script(path: Path, entry: ConfigEntry) -> bytes:
    """Return the content of the startup script of a project file. Raises `SettingError` if it is outside the project folder."""
    named = str(entry.value)
    place = f"{path} line {entry.line}: `startup_script` is `{named}`"
    try:
        # If the file is replaced in between, its content has another digest, which is not trusted.
        return read_regular_file(_script_path(path.parent, named, place=place), longest=_LONGEST_SCRIPT)[0]
    except (OSError, ValueError, RuntimeError) as error:  # before 3.13 a symlink loop is a RuntimeError
        raise SettingError(f"{place}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


def _key_content(path: Path, entry: ConfigEntry) -> list[bytes]:
    """Return the resolved paths of both files of a key, and their content if they are in the project folder.

    A pull may replace either file, or point a symlink at another key; a `tpuctl.yaml` that is a symlink names a key beside the
    symlink.
    """
    parts = []
    for suffix in ("", ".pub"):
        half = path.parent / f"{entry.value}{suffix}"
        try:
            parts.append(os.fsencode(half.resolve()))
            parts.append(
                read_regular_file(half, longest=_LONGEST_SCRIPT)[0] if is_within_folder(half, path.parent) else b""
            )
        except (OSError, ValueError, RuntimeError):  # as above
            parts.append(b"")
    return parts


def set_in_config_file(path: Path, key: str, value: str) -> None:
    """Set one key, and keep the other lines. The file is replaced atomically, with mode 0600. The caller holds its lock.

    `value` is written as on the command line: a list `a,b`, pairs `a=1,b=2`. Raises `SettingError` for an unknown key, an
    invalid value, or a file whose layout does not allow the change.
    """
    if key in NEVER_IN_FILES:
        raise SettingError(f"`{key}` is not a setting of a file", hint=NEVER_IN_FILES[key])
    if key not in SETTINGS:
        raise SettingError(f"unknown setting `{key}`", hint=_did_you_mean(key))
    kind = FileKind.PROJECT if path.name == PROJECT_FILE_NAME else FileKind.USER
    check_file_entry(kind, key, value, place=str(path))
    _change_entry(path, key, parse_command_line_value(SETTINGS[key], value))


def unset_in_config_file(path: Path, key: str) -> bool:
    """Remove a key with its lines, and keep the other lines. Return whether the key existed."""
    return _change_entry(path, key, None)


def _change_entry(path: Path, key: str, value: RawValue | None) -> bool:
    """Put one line in the place of the lines of a key, or at the end, or remove them; return whether the key existed."""
    text = _read(path)
    pair = _find(_compose(path, text), key, path)
    start = end = len(text)
    if pair is not None:
        start = text.rfind("\n", 0, pair[0].start_mark.index) + 1
        end = text.find("\n", _end(pair[1], text)) + 1 or end
    elif value is None:
        return False
    newline = "\r\n" if "\r\n" in text else "\n"
    before = text[:start] + (newline if text[:start] and text[start - 1] != "\n" else "")
    line = "" if value is None else f"{key}: {render_yaml_value(value)}{newline}"
    _replace_if_same(path, text, before + line + text[end:], {key: value})
    return pair is not None


def _replace_if_same(path: Path, old: str, new: str, change: Mapping[str, RawValue | None]) -> None:
    """Write the new text if its content differs from the old one only by the change; with an unusual layout it may not."""
    expected = {**_plain_content(_compose(path, old), path), **change}
    try:
        same = _plain_content(_compose(path, new), path) == {
            key: value for key, value in expected.items() if value is not None
        }
    except SettingError:
        same = False
    if not same:
        keys = ", ".join(f"`{key}`" for key in change)
        raise SettingError(f"{path} has a layout in which {keys} cannot be changed", hint="edit it by hand")
    # A symlink of the user's own file (to dotfiles elsewhere) stays a symlink; a project may be another's.
    target = output_path(path, path.parent) if path.name == PROJECT_FILE_NAME else real_path(path)
    try:
        replace_private_file(target, new.encode())
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror or error}") from error


def _read(path: Path) -> str:
    return _decoded(path, _content(path)[0])


def _content(path: Path) -> tuple[bytes, tuple[int, ...]]:
    """Return the content of a configuration file, and the owners of it and of a symlink to it. Empty if it is absent."""
    try:
        content, status = read_regular_file(path, longest=_LONGEST)
        return content, (status.st_uid, path.lstat().st_uid)
    except FileNotFoundError:
        return b"", ()
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror or error}") from error


def _decoded(path: Path, content: bytes, entry: ConfigEntry | None = None) -> str:
    try:
        return content.decode("utf-8-sig" if entry is None else "utf-8")
    except UnicodeDecodeError as error:
        what = f"{path} line {entry.line}: `{entry.value}`" if entry else str(path)
        raise SettingError(f"{what} is not UTF-8 text") from error


def _compose(path: Path, text: str) -> _Node:
    """Return YAML nodes, which have line numbers; no objects are constructed, so the file cannot run anything."""
    if not text:
        return None
    return compose_yaml(text, str(path), error=SettingError, longest=_LONGEST, most=_MOST)


def _pairs(root: _Node, path: Path) -> list[tuple[_Node, _Node]]:
    if root is None or root.tag == _NULL:
        return []
    if root.id != "mapping":
        raise SettingError(
            f"{_place(path, root)}: expected `key: value` lines", hint="an example line: `zone: us-central2-b`"
        )
    return list(root.value)


def _find(root: _Node, key: str, path: Path) -> tuple[_Node, _Node] | None:
    return next((pair for pair in _pairs(root, path) if pair[0].value == key), None)


def _mapping(node: _Node, key: str, path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, item in node.value:
        if (inner := _scalar(name, key, path)) in texts:
            raise SettingError(f"{_place(path, name)}: duplicate key `{key}.{inner}`")
        texts[inner] = "" if item.tag == _NULL else _scalar(item, f"{key}.{inner}", path)
    return texts


def _record(node: _Node, key: str, path: Path) -> RawRecord:
    """Return one entry of a list of records. Errors have the line of the entry, not of the list."""
    spec, at = SETTINGS[key], node
    texts = _mapping(node, key, path) if node.id == "mapping" else _scalar(node, key, path)
    try:
        for at, _ in node.value if node.id == "mapping" else ():
            check_record_field(spec, str(at.value))
        at = node
        record = as_record(spec, texts)
        as_grants(spec, (record,))
    except ValueError as error:
        raise SettingError(f"{_place(path, at)}: `{key}`: {error}") from None
    return record


def _scalar(node: _Node, key: str, path: Path) -> str:
    if node.tag == _NULL:
        raise SettingError(f"{_place(path, node)}: `{key}` has no value")
    if node.id != "scalar" or node.tag not in _SCALARS:
        raise SettingError(f"{_place(path, node)}: `{key}`: one plain value is expected here")
    return str(node.value)


def _plain_content(root: _Node, path: Path) -> dict[str, object]:
    """Return the content of any document, for comparison."""

    def content(node: _Node) -> object:
        if node.id == "sequence":
            return tuple(content(item) for item in node.value)
        if node.id == "mapping":
            return {str(name.value): content(item) for name, item in node.value}
        return str(node.value)

    return {str(name.value): content(item) for name, item in _pairs(root, path)}


def _end(node: _Node, text: str) -> int:
    """Return the end of a value. In PyYAML a block ends at the next token, after comments and blank lines."""
    if node.id != "scalar" and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last, text)
    start, end = int(node.start_mark.index), int(node.end_mark.index)
    return start + len(text[start:end].rstrip())


def _place(path: Path, node: _Node) -> str:
    return f"{path} line {node.start_mark.line + 1}"


def _did_you_mean(key: str) -> str:
    guess = closest_match(key.replace("-", "_"), SETTINGS)
    return f"did you mean `{guess}`?" if guess else "run `tpuctl config show` to see every setting"


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./@+=-]*(?::[A-Za-z0-9_./@+=-]+)*")
# JSON's escapes are valid in YAML, but YAML folds these at the end of a line, or does not print them.
_ESCAPES = {0x7F: "\\x7f", 0x85: "\\N", 0x2028: "\\L", 0x2029: "\\P"}


def parse_command_line_value(spec: SettingSpec, value: str) -> RawValue:
    """Parse a value written as on the command line. Raises `ValueError` with the reason."""
    parsers: dict[ValueKind, Callable[[SettingSpec, str], RawValue]]
    parsers = {ValueKind.LIST: as_items, ValueKind.PAIRS: as_pairs, ValueKind.RECORDS: as_records}
    return parsers[spec.kind](spec, value) if spec.kind in parsers else value


def render_yaml_value(value: RawValue) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() != "null"
        return value if plain else json.dumps(value, ensure_ascii=False).translate(_ESCAPES)
    if isinstance(value, tuple):
        return "[" + ", ".join(render_yaml_value(item) for item in value) + "]"
    return (
        "{" + ", ".join(f"{render_yaml_value(name)}: {render_yaml_value(text)}" for name, text in value.items()) + "}"
    )


# gcloud's files have the layout of gcloud 528 [gcloud 528 source: core/configurations/named_configs.py, core/config.py].
# Where gcloud stores its logins; the last one is that of old versions [gcloud 528 source: core/config.py].
_STORES: Final = ("credentials.db", "access_tokens.db", "legacy_credentials", "credentials")
# Other sources of a gcloud account: a named file, or Cloud Shell [gcloud 528 source: credentials/store.py].
_NAMED: Final = re.compile(r"^\s*(?:access_token_file|credential_file_override)\s*[=:]", re.MULTILINE | re.IGNORECASE)
_ELSEWHERE: Final = (
    *("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE"),
    *("CLOUD_SHELL", "DEVSHELL_CLIENT_PORT"),
)
_LONGEST_FILE: Final = 1 << 20
_CONFIGURATION_NAME = re.compile(r"[a-z][-a-z0-9]*")
_WANTED: Final = frozenset({"compute/region"} | {spec.gcloud for spec in SETTINGS.values() if spec.gcloud})


def read_gcloud_properties(environ: Mapping[str, str]) -> Mapping[str, GcloudProperty]:
    """Return the properties of gcloud's active configuration that tpuctl uses, by names like `compute/zone`.

    A file that is absent, invalid or unreadable has no properties. gcloud's variables (`CLOUDSDK_CORE_PROJECT`, …) are not read
    here: they rank higher than files when settings are resolved.
    """
    name, file = gcloud_configuration_name(environ), gcloud_configuration_file(environ)
    if file is None:
        return {}
    import configparser  # noqa: PLC0415  # not needed by --help

    parser = configparser.ConfigParser()
    try:
        parser.read_string(_text(file))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    found = {}
    for section in parser.sections():
        for key in parser[section]:
            with suppress(configparser.Error):
                value = parser.get(section, key)
                if f"{section}/{key}" in _WANTED and value:
                    found[f"{section}/{key}"] = GcloudProperty(value, name)
    return found


def gcloud_configuration_name(environ: Mapping[str, str]) -> str:
    """Return the name of gcloud's active configuration, by default `default`."""
    name = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME", "")
    if not name:
        with suppress(OSError, UnicodeDecodeError):
            name = _text(_folder(environ) / "active_config").strip()
    # gcloud replaces an invalid name by `default` too; here that also keeps it out of a path.
    return name if name == "NONE" or _CONFIGURATION_NAME.fullmatch(name) else "default"


def gcloud_configuration_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of gcloud's active configuration, which need not exist. None if gcloud is set to use none."""
    name = gcloud_configuration_name(environ)
    # gcloud's reserved name for no configuration.
    return None if name == "NONE" else _folder(environ) / "configurations" / f"config_{name}"


def adc_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the application default credentials, which need not exist.

    It is `GOOGLE_APPLICATION_CREDENTIALS` if set, else gcloud's file [google-auth source: _default.py].
    """
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return Path(named) if named else _folder(environ) / "application_default_credentials.json"


def gcloud_may_have_login(environ: Mapping[str, str]) -> bool:
    """Return whether gcloud may have a login, without starting it: that takes a second, and creates its folder.

    False only if gcloud stores no login and no setting names one elsewhere. A file that cannot be read may contain one.
    """
    if any(environ.get(name) for name in _ELSEWHERE):
        return True
    folder, program = _folder(environ), shutil.which("gcloud", path=environ.get("PATH"))
    try:
        if any(path.name in _STORES for path in folder.iterdir()):
            return True
    except FileNotFoundError:
        pass
    except OSError:
        return True
    files = [gcloud_configuration_file(environ), folder / "properties"]
    # The properties of the whole installation are at its root.
    files += [Path(program).resolve().parent.parent / "properties"] if program else []
    for file in files:
        try:
            if file and _NAMED.search(_text(file, errors="replace")):
                return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def _text(file: Path, *, errors: str = "strict") -> str:
    return read_regular_file(file, longest=_LONGEST_FILE)[0].decode("utf-8", errors)


def _folder(environ: Mapping[str, str]) -> Path:
    configured = environ.get("CLOUDSDK_CONFIG")
    return Path(configured) if configured else Path(environ.get("HOME") or "/") / ".config" / "gcloud"
