"""Translate the refusal of a read: the resource does not exist, or a permission is missing, and which."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuctl.api.errors import translate
from tpuctl.api.failures import RefusedError, TransportError
from tpuctl.diagnosis.classify import classify
from tpuctl.diagnosis.messages import Where
from tpuctl.errors import AccessError, NotFoundError, ServiceUnavailableError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator


# The id that `diagnosis` gives to a missing permission. Its hints are about TPUs.
PERMISSION_DENIED = "iam-permission-denied"
# Reasons of the older format for a 403 that no permission fixes [documentation: error responses of Cloud Storage; users of
# Compute Engine], with their error id and hint. Used if their text is unknown.
_OTHER_CAUSES = {
    "accessNotConfigured": ("api-disabled", "enable the API in the project, and try again after some minutes"),
    "accountDisabled": ("billing-disabled", "link an open billing account to the project that owns it"),
}


@contextmanager
def about(what: str, permission: str | None) -> Iterator[None]:
    """Translate `TransportError` and `RefusedError` of a read into tpuctl's exceptions.

    `what` describes the resource; `permission` is the one that the read requires, None if it requires none. Raises
    `NotFoundError` only after a 404 from the API.
    """
    try:
        yield
    except (TransportError, RefusedError) as failure:
        raise _translated(failure, what, permission) from failure


def _translated(failure: TransportError | RefusedError, what: str, permission: str | None) -> TpuctlError:
    error = translate(failure)
    if not isinstance(failure, RefusedError):
        return error
    if failure.refusal.is_not_found:
        hint = "check the name and the project; `tpuctl config show` shows the project"
        return NotFoundError(f"{what} does not exist", hint=hint)
    refusal = failure.refusal
    if not refusal.is_from_api and refusal.code == 403:
        # From a proxy or from Google's front end, which do not know permissions.
        message = f"the answer about {what} is not from the API: {refusal.message}"
        return ServiceUnavailableError(message, hint="check the endpoint and the proxy, then try again")
    if refusal.code != 403 or not isinstance(error, AccessError):
        return error
    if error.error_id is None and (cause := _OTHER_CAUSES.get(refusal.status)):
        return AccessError(f"cannot read {what}: {refusal.message}", hint=cause[1], error_id=cause[0])
    if permission and error.error_id in {None, PERMISSION_DENIED}:
        # The API may name another permission: for a request that another project pays, it is not the bucket's.
        verdict = classify(str(refusal), where=Where.API, reason=refusal.reason or None)
        lacking = (verdict.facts.get("permission") if verdict else None) or permission
        hint = f"ask for a role with `{lacking}` for your identity (`tpuctl config show`)"
        message = f"`{lacking}` is not allowed on {what}: {refusal.message}"
        return AccessError(message, hint=hint, error_id=error.error_id)
    return error
