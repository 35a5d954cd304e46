"""What a failure has to do with how tpuctl was called: a mistyped zone, an endpoint that is not the one that was meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.errors import AccessError, InvalidRequestError, NotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.masking import public_url
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.cli.app import App

# Also `us-central1-ai1a`. What it finds beyond zones (names of nodes, say) is near to no zone.
_ZONE_LIKE = re.compile(r"\b[a-z]+-[a-z]+\d+-[a-z0-9]+\b")


def remedies(app: App, error: TpuctlError) -> Iterator[str]:
    """Return hints that the place which raised the error could not give."""
    if isinstance(error, (AccessError, InvalidRequestError, NotFoundError)):
        yield from _zones(error)
    if isinstance(error, (AccessError, ServiceUnavailableError)):
        yield from _endpoint(app, error)


def nothing_listens(error: BaseException) -> bool:
    """Tell whether a connection was refused: that does not pass by itself as a lost network or a busy service does."""
    origin = error
    while origin.__cause__ is not None:
        origin = origin.__cause__
    return isinstance(origin, ConnectionRefusedError)


def _zones(error: TpuctlError) -> Iterator[str]:
    from tpuctl.cli.zones import near_zone  # noqa: PLC0415  # only for failures that name a zone

    for zone in dict.fromkeys(_ZONE_LIKE.findall(error.message)):
        if near := near_zone(zone):
            yield f"tpuctl knows no TPUs in `{zone}`: did you mean `{near}`?"


def _endpoint(app: App, error: TpuctlError) -> Iterator[str]:
    try:
        setting = app.settings["endpoint"]
    except TpuctlError:
        return  # the settings are what is wrong
    if setting is None or app.is_sandbox or not _is_about_the_endpoint(error):
        return
    source = setting.source.place if setting.source.kind is not SourceKind.FLAG else "`--endpoint`"
    if nothing_listens(error):
        yield f"nothing listens at `{public_url(str(setting.value))}`, the endpoint that {source} names"
    else:
        yield f"calls go to the endpoint `{public_url(str(setting.value))}`, which {source} names; one looks like `https://HOST`"


def _is_about_the_endpoint(error: TpuctlError) -> bool:
    """Tell whether another endpoint may be what is missing: nothing was reached, or what answered is not the API."""
    from tpuctl.api.failures import GarbledAnswerError, NotSentError, RefusedError  # noqa: PLC0415  # only for failures

    match error.__cause__:
        case RefusedError(refusal=refusal):
            return not refusal.is_from_api
        case NotSentError() | GarbledAnswerError():
            return True
        case _:
            # Without an exchange it is the credentials that are missing; an incomplete list is the API's own word.
            return isinstance(error, AccessError)
