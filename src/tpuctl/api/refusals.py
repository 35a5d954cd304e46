"""What a question that was refused comes to: there is no such thing, or a permission is missing, and which."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuctl.api.errors import translate
from tpuctl.api.failures import RefusedError, TransportError
from tpuctl.errors import AccessError, NotFoundError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What `diagnosis` calls a missing permission; its advice is about TPUs.
PERMISSION_DENIED = "iam-permission-denied"


@contextmanager
def about(what: str, permission: str | None) -> Iterator[None]:
    """Turn the failures of `api/` into tpuctl's exceptions; `what` is asked for in words, `permission` is what that takes.

    It is nothing where the question takes none. Raises `NotFoundError` only where the API itself says that it does not exist.
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
    is_denied = failure.refusal.code == 403 and isinstance(error, AccessError)
    if permission and is_denied and error.error_id in {None, PERMISSION_DENIED}:
        hint = f"have a role with `{permission}` granted to the identity that calls are made as (`tpuctl config show`)"
        message = f"`{permission}` is not allowed on {what}: {failure.refusal.message}"
        return AccessError(message, hint=hint, error_id=error.error_id)
    return error
