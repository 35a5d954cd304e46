"""Checks of the value of a setting before it is written to a file, the same as those of the commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.api.endpoint import Endpoint
from tpuctl.cli.zones import may_exist, near_zone
from tpuctl.configfile import PROJECT_FILE_NAME, check_script
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.model.labels import check_labels, check_tags
from tpuctl.names import BucketPath, check_login, check_project, check_zone
from tpuctl.preflight.wanted import parse_bucket
from tpuctl.settings import SETTINGS
from tpuctl.settings.values import as_items, as_pairs, check_value

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Service accounts of other domains exist (`…@developer.gserviceaccount.com`, domain-scoped projects): only the form is checked.
_EMAIL = re.compile(r"[^@\s/,]+@[^@\s/,]+\.[^@\s/,]+")
_PART_OF_A_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_setting(key: str, value: str, *, file: Path) -> str | None:
    """Return a warning for an unusual value, None for a valid one.

    Raises `InvalidInputError` for a value that no command accepts, with the one that was probably meant. The kind of value (a
    number, a duration, one of several words) is checked by `settings`.
    """
    try:
        check_value(SETTINGS[key], value)
    except ValueError:
        return None  # `settings` reports that when it sets the value
    if not value:
        return None
    if key == "zone":
        check_zone(value)
        near = near_zone(value)
        if near is None:
            return None
        if may_exist(value):
            return f"tpuctl knows no TPUs in `{value}`, but in `{near}`; `tpuctl types` asks the API"
        raise InvalidInputError(
            f"tpuctl knows no TPUs in `{value}`: nothing was set",
            hint=f"did you mean `{near}`?\nfor a new zone write `zone: {value}` to {file}",
        )
    if key == "startup_script" and file.name == PROJECT_FILE_NAME:
        check_script(file, value)
    if check := _CHECKS.get(key):
        check(value)
    return None


def _check_name(text: str) -> None:
    """Raise `SettingError` unless the text has the form of a name or of a resource path."""
    if not all(_PART_OF_A_NAME.fullmatch(part) for part in text.removeprefix("https://").split("/")):
        raise SettingError(f"`{text}` is not a name", hint="write it like `NAME` or `projects/P/…/NAME`")


def _check_version(text: str) -> None:
    if not _PART_OF_A_NAME.fullmatch(text.rsplit("/", 1)[-1]):
        raise SettingError(f"`{text}` is not a runtime version", hint="see `tpuctl versions --zone ZONE`")


def _check_email(text: str) -> None:
    # Commas separate a chain of delegates [gcloud 528 help, --impersonate-service-account].
    if not all(_EMAIL.fullmatch(account.strip()) for account in text.split(",")):
        raise SettingError(
            f"`{text}` is not a service account", hint="write it like `NAME@PROJECT.iam.gserviceaccount.com`"
        )


def _check_buckets(text: str) -> None:
    for url in as_items(SETTINGS["buckets"], text):
        parse_bucket(url)


_CHECKS: dict[str, Callable[[str], object]] = {
    "project": check_project,
    "quota_project": check_project,
    "endpoint": Endpoint.parse,
    "type": accelerators.check,
    "version": _check_version,
    "impersonate_service_account": _check_email,
    # `default` is Compute Engine's word for the default account of a machine.
    "service_account": lambda text: None if text == "default" else _check_email(text),
    "user": check_login,
    "network": _check_name,
    "subnetwork": _check_name,
    "journal": BucketPath.parse,
    "lease": BucketPath.parse,
    "labels": lambda text: check_labels(as_pairs(SETTINGS["labels"], text)),
    "buckets": _check_buckets,
    "data_buckets": _check_buckets,
    "checkpoint_buckets": _check_buckets,
    "billing_project": check_project,
    "tags": lambda text: check_tags(as_items(SETTINGS["tags"], text)),
}
