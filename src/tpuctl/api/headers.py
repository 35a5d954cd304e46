"""Parse HTTP headers, which a server may have garbled."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def parse_date(text: str | None) -> datetime | None:
    """Parse the time of a `Date` or `Retry-After` header; None if it is absent or garbled."""
    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        # The digits of a zone are not bounded.
        return None
    # Years at the ends of the calendar overflow as soon as an hour is added or a time zone applied.
    if not 2 <= moment.year <= 9998:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
