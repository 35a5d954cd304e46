"""The body of `tpuctl ssh-key`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.app.worker_access import key_authorization, key_folder, metadata_login
from tpuctl.command_text import command_word
from tpuctl.durations import format_timestamp
from tpuctl.errors import InvalidInputError, NotConfirmedError
from tpuctl.output.terminal import View
from tpuctl.ssh.keys import default_key_path, ensure_key, key_fingerprint
from tpuctl.ssh.keys import renew_key as replace_key
from tpuctl.workers.targets import find_node

if TYPE_CHECKING:
    from tpuctl.app.app import App


def run_show(app: App, *, node: str | None) -> None:
    """Show the key pair: file, fingerprint, ssh agent."""
    key = ensure_key(key_folder(app), key=app.settings.path("ssh_key"), makes=False)
    shown: dict[str, Any] = {"path": str(key.path), "publicKey": key.public, "fingerprint": key_fingerprint(key)}
    if key.is_in_agent:
        shown["inAgent"] = True
    if node is not None:
        found = find_node(app, node)
        known = key_authorization(app).where_known(found, key, metadata_login(app))
        shown |= {"node": found.name.node_id, "login": known.login, "knownBy": known.keeper}
        if known.expires is not None:
            shown["expires"] = format_timestamp(known.expires)
    labels = {"path": "file", "publicKey": "public key", "inAgent": "private half", "knownBy": "known by"}
    texts = {**shown, **({"inAgent": "in the ssh agent"} if key.is_in_agent else {})}
    rows = [
        (labels.get(name, name), "not registered" if text is None else str(text), "") for name, text in texts.items()
    ]
    app.show(View(value=lambda: shown, text=lambda terminal: terminal.details(rows), names=lambda: [str(key.path)]))


def run_renew(app: App, *, yes: bool) -> None:
    """Rename the key pair that tpuctl shares with gcloud, and create a new one."""
    named = app.settings.path("ssh_key")
    if named is not None:
        hint = (
            f"create it with `ssh-keygen -t ed25519 -f {command_word('path', named)}`, or remove the setting `ssh_key`"
        )
        raise InvalidInputError(f"`{named}` is your own key: tpuctl never replaces it", hint=hint)
    path = default_key_path(key_folder(app))
    # The sandbox has its own pair.
    users = "" if app.is_sandbox else ", which gcloud uses too,"
    if path.exists() and not app.terminal.confirm(
        f"rename the key pair `{path}`{users} and create a new one?", yes=yes
    ):
        raise NotConfirmedError(hint="`tpuctl ssh-key show` shows the key")
    key, moved = replace_key(key_folder(app), login=metadata_login(app))
    if moved is not None:
        app.terminal.note(
            f"the old pair is now `{moved}`; for machines that accept only that key: `ssh -i {command_word('path', moved)}`"
        )
    app.terminal.note(
        f"created `{key.path}`, {key_fingerprint(key)}; the next `tpuctl ssh`, `run` or `up` registers it"
    )
