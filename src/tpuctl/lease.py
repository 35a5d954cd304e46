"""Who may change a node: the record that says so, and what may be done about one that was found. Pure.

One record for each node is replaced by compare-and-swap only, so that of two who want the same one gets it. Time is judged
by the record's age as its store tells it; no time inside a record is ever compared, since machines' clocks differ.

- A holder renews every third of the time to live. It may renew what is expired, where nobody has taken it meanwhile.
- Before each change of the cloud it writes what it is about to do (`acting`), and clears that afterwards. It must not act
  where this write fails, nor when the write began longer ago than `LeasePolicy.acts_within`: it writes again first.
- What is free or expired may be taken; with `steal` also what is held, but never while its holder is acting.
- `down`, `delete` and `stop` put a tombstone in its place, which stays, so that no watcher makes the node again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

from tpuctl.clock import format_duration, format_timestamp, parse_timestamp
from tpuctl.errors import TpuctlError
from tpuctl.shapes import NUMBER, TIME, Scalar, Shape, parse_json

_ENDED = Shape("", {"by": str, "who": str, "at": TIME}, required=("by", "who", "at"))
# The owner is part of the name of a file.
_OWNER = Scalar(
    "the name of an owner", lambda value: type(value) is str and 0 < len(value) < 200 and value.isprintable()
)
_TTL = Scalar("a number of seconds", lambda value: NUMBER.accepts(value) and 0 <= float(value) < 10**9)
_RECORD = Shape(
    "",
    {"owner": _OWNER, "who": str, "purpose": str, "ttl": _TTL, "acting": str, "ended": _ENDED},
    required=("owner", "who", "purpose", "ttl"),
    nullable=True,
)
# Who asks by one of these for the node to be there again removes a tombstone; a watcher does not.
_REVIVING: Final = frozenset({"up", "run", "create", "start", "reset"})


class LeaseError(TpuctlError):
    """The record of who may change a node cannot be read or written; nothing was changed."""

    kind = "lease"


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long a holder that is not heard of keeps a node, and how much of that is left for a request under way."""

    ttl: timedelta = timedelta(minutes=2)
    margin: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=2)

    @property
    def renews_every(self) -> timedelta:
        """Return how old a record of one's own gets before it is written anew."""
        return self.ttl / 3

    @property
    def acts_within(self) -> timedelta:
        """Return how long after the beginning of its last write a holder may still send a change of the cloud."""
        return self.ttl - self.margin

    @property
    def waits_at_most(self) -> timedelta:
        """Return how long somebody waits for a holder that is acting."""
        return self.ttl + self.margin


@dataclass(frozen=True, slots=True)
class Identity:
    """One process. `token` is random, so that no two processes are ever taken for each other."""

    host: str
    pid: int
    token: str

    @property
    def owner(self) -> str:
        """Return the word for this process in records, which no other process has."""
        return f"{self.host}-{self.pid}-{self.token}"

    def who(self, purpose: str) -> str:
        """Return this process in words for people."""
        return f"{purpose} on {self.host} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Ended:
    """That the node was taken away on purpose. `at` is by that machine's clock: for people, never compared."""

    by: str
    who: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """What is stored for a node. `acting` is a verb while a change of the cloud is under way; `ended` makes it a tombstone."""

    owner: str
    who: str
    purpose: str
    ttl: timedelta
    acting: str | None = None
    ended: Ended | None = None

    def to_json(self) -> bytes:
        """Return the record as it is stored."""
        document = {**asdict(self), "ttl": self.ttl.total_seconds()}
        if self.ended:
            document["ended"]["at"] = format_timestamp(self.ended.at)
        return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Record:
        """Return the record that was stored `where`. Raises `LeaseError` for what is none: it is never taken for free."""
        try:
            data = _RECORD.read(parse_json(content))
            ended = data.get("ended")
            return cls(
                owner=data["owner"],
                who=data["who"],
                purpose=data["purpose"],
                ttl=timedelta(seconds=float(data["ttl"])),
                acting=data.get("acting") or None,
                ended=Ended(ended["by"], ended["who"], _moment(ended["at"])) if ended else None,
            )
        except ValueError as error:
            raise LeaseError(
                f"`{where}` is not a lease that this version can read; nothing was changed",
                hint="make sure that nobody works on the node, remove the file or object, and try again",
            ) from error


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as its store has it.

    `version` is never used twice for a node. `is_alive` tells whether the process that wrote it lives, where the store
    knows that; then age does not matter.
    """

    record: Record
    version: str
    age: timedelta
    is_alive: bool | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Who has a node, or took it away (`ended`). `age` is the time since the holder was last heard of."""

    who: str
    purpose: str
    age: timedelta
    acting: str | None = None
    ended: Ended | None = None

    def __str__(self) -> str:
        ago = f"{format_duration(self.age)} ago"
        if self.ended:
            return f"`{self.ended.by}` ended it {ago} ({self.ended.who})"
        doing = f", about to {self.acting}" if self.acting else ""
        return f"`{self.who}` holds it{doing}, last heard of {ago}"


class Standing(Enum):
    """What a record that was found means for one who wants the node."""

    FREE = auto()
    OURS = auto()
    HELD = auto()
    ACTING = auto()
    ENDED = auto()


def judge(found: Stored | None, owner: str) -> Standing:
    """Return what a record means for `owner`. The first rule that matches wins."""
    if found is None:
        return Standing.FREE
    if found.record.ended:
        return Standing.ENDED
    if found.record.owner == owner:
        return Standing.OURS
    if is_expired(found):
        return Standing.FREE
    return Standing.ACTING if found.record.acting else Standing.HELD


def is_expired(found: Stored) -> bool:
    """Return whether the holder of a record is no longer to be reckoned with."""
    return found.age >= found.record.ttl if found.is_alive is None else not found.is_alive


def may_take(standing: Standing, purpose: str, *, steal: bool) -> bool:
    """Return whether the node may be taken for a purpose; never from a holder that is acting."""
    match standing:
        case Standing.FREE | Standing.OURS:
            return True
        case Standing.ENDED:
            return steal or purpose in _REVIVING
        case Standing.HELD:
            return steal
        case Standing.ACTING:
            return False


def held(identity: Identity, purpose: str, policy: LeasePolicy) -> Record:
    """Return the record of one who takes a node."""
    return Record(identity.owner, identity.who(purpose), purpose, policy.ttl)


def tombstone(identity: Identity, by: str, now: datetime, policy: LeasePolicy) -> Record:
    """Return the record of one who takes a node away."""
    record = held(identity, by, policy)
    return replace(record, ended=Ended(by, record.who, now.replace(microsecond=0)))


def seen(found: Stored) -> Lease:
    """Return what others are told about a record."""
    record = found.record
    return Lease(record.who, record.purpose, found.age, record.acting, record.ended)


def _moment(text: str) -> datetime:
    moment = parse_timestamp(text)
    if moment is None:
        raise ValueError(text)
    return moment
