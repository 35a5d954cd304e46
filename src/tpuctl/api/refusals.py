"""What a question that was refused comes to: there is no such thing, or a permission is missing, and which."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuctl.api.errors import translate
from tpuctl.api.failures import RefusedError, TransportError
from tpuctl.diagnosis import Where, classify
from tpuctl.errors import AccessError, NotFoundError, ServiceUnavailableError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.api.failures import Refusal

# What `diagnosis` calls a missing permission; its advice is about TPUs.
PERMISSION_DENIED = "iam-permission-denied"
# Reasons of the older format for a 403 that no permission mends, where their text is not a known one [documentation: error
# responses of Cloud Storage; users of Compute Engine]: what they come to, and what helps.
_OTHER_CAUSES = {
    "accessNotConfigured": ("api-disabled", "enable the API in the project, and try again after some minutes"),
    "accountDisabled": ("billing-disabled", "link an open billing account to the project that owns it"),
}


@contextmanager
def about(what: str, permission: str | None) -> Iterator[None]:
    """Turn the failures of `api/` into tpuctl's exceptions; `what` is asked for in words, `permission` is what that takes.

    It is nothing where the question takes none. Raises `NotFoundError` only if the API itself says that it does not exist.
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
        hint = "check the name and the project; `tpuctl config show` tells which project is meant"
        return NotFoundError(f"{what} does not exist", hint=hint)
    refusal = failure.refusal
    if not refusal.is_from_api and refusal.code == 403:
        # A proxy's, or of Google's front end: it knows nothing of permissions.
        message = f"the answer about {what} is not the API's: {refusal.message}"
        return ServiceUnavailableError(message, hint="check the endpoint and the proxy, then try again")
    if refusal.code != 403 or not isinstance(error, AccessError):
        return error
    if error.error_id is None and (cause := _OTHER_CAUSES.get(refusal.status)):
        return AccessError(f"{what} could not be asked about: {refusal.message}", hint=cause[1], error_id=cause[0])
    if permission and error.error_id in {None, PERMISSION_DENIED}:
        lacking = _named_in(refusal) or permission
        hint = f"have a role with `{lacking}` granted to the identity that calls are made as (`tpuctl config show`)"
        message = f"`{lacking}` is not allowed on {what}: {refusal.message}"
        return AccessError(message, hint=hint, error_id=error.error_id)
    return error


def _named_in(refusal: Refusal) -> str | None:
    """Return the permission that the API itself names: that of who pays for a request is another than that of the bucket."""
    verdict = classify(str(refusal), where=Where.API, reason=refusal.reason or None)
    return verdict.facts.get("permission") if verdict else None
