"""The lease of a node: the record of which process may change it, and the rules for taking it. Pure.

The record of a node is only replaced by compare-and-swap, so that one of two competing processes gets it. Expiry depends on
the age of the record by the clock of its store; times inside a record are never compared, because the clocks of machines
differ.

- A holder renews every third of the time to live. It may renew an expired lease that no other process has taken.
- Before each change of the cloud it writes the verb (`acting`), and clears it afterwards. It must not send the change if
  this write fails, or began longer ago than `LeasePolicy.acts_within`: it writes again first.
- A free or expired lease may be taken; with `steal` also a held one, but never while its holder has a change in flight.
- `down`, `delete` and `stop` replace it by a permanent tombstone, so that no watcher creates the node again.
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
# The owner is part of a file name.
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
# The purposes that remove a tombstone, because the user wants the node again. A watcher does not.
_REVIVING: Final = frozenset({"up", "run", "create", "start", "reset"})


class LeaseError(TpuctlError):
    """The lease of a node cannot be read or written. No change was made."""

    kind = "lease"


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """The durations of leases."""

    # How long a lease is valid after its last renewal.
    ttl: timedelta = timedelta(minutes=2)
    # The part of that time which is reserved for a request in flight.
    margin: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=2)

    @property
    def renews_every(self) -> timedelta:
        """Return the age at which a holder renews its record."""
        return self.ttl / 3

    @property
    def acts_within(self) -> timedelta:
        """Return how long after the beginning of its last write a holder may send a change of the cloud."""
        return self.ttl - self.margin

    @property
    def waits_at_most(self) -> timedelta:
        """Return how long another process waits for a change of the holder in flight."""
        return self.ttl + self.margin


@dataclass(frozen=True, slots=True)
class Identity:
    """One process. `token` is random, so that it identifies the process uniquely."""

    host: str
    pid: int
    token: str

    @property
    def owner(self) -> str:
        """Return the unique id of this process in records."""
        return f"{self.host}-{self.pid}-{self.token}"

    def who(self, purpose: str) -> str:
        """Describe this process for users."""
        return f"{purpose} on {self.host} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a lease by a command. `at` is by the clock of that machine: it is shown, and never compared."""

    by: str
    who: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """The stored record of a node."""

    owner: str
    who: str
    purpose: str
    ttl: timedelta
    # The verb while a change of the cloud is in flight.
    acting: str | None = None
    # Set in a tombstone.
    ended: Ended | None = None

    def to_json(self) -> bytes:
        """Return the stored form of the record."""
        document = {**asdict(self), "ttl": self.ttl.total_seconds()}
        if self.ended:
            document["ended"]["at"] = format_timestamp(self.ended.at)
        return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Record:
        """Parse the record stored at `where`. Raises `LeaseError` for an invalid record, which never counts as free."""
        try:
            data = _RECORD.read(parse_json(content))
            ended = data.get("ended")
            return cls(
                owner=data["owner"],
                who=data["who"],
                purpose=data["purpose"],
                ttl=timedelta(seconds=float(data["ttl"])),
                acting=data.get("acting") or None,
                ended=Ended(ended["by"], ended["who"], _parse_moment(ended["at"])) if ended else None,
            )
        except ValueError as error:
            raise LeaseError(
                f"cannot read `{where}`: not a lease of this version of tpuctl; no change was made",
                hint="make sure that no process uses the node, delete the file or object, and try again",
            ) from error


@dataclass(frozen=True, slots=True)
class Stored:
    """A record with the information of its store."""

    record: Record
    # Never used twice for a node.
    version: str
    age: timedelta
    # Whether the process that wrote it is alive; None if the store does not know. If known, the age is ignored.
    is_alive: bool | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The holder of a node, or the command that ended the lease (`ended`). `age` is the time since the last renewal."""

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
        return f"`{self.who}` holds the lease{doing}, renewed {ago}"


class Standing(Enum):
    """What the stored record means for a process that wants the lease."""

    FREE = auto()
    OURS = auto()
    HELD = auto()
    ACTING = auto()
    ENDED = auto()


def judge(found: Stored | None, owner: str) -> Standing:
    """Return what the stored record means for `owner`. The first rule that matches wins."""
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
    """Return whether the lease has expired or its process is dead."""
    return found.age >= found.record.ttl if found.is_alive is None else not found.is_alive


def may_take(standing: Standing, purpose: str, *, steal: bool) -> bool:
    """Return whether the lease may be taken for a purpose; never while its holder has a change in flight."""
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
    """Return the record of a process that takes the lease."""
    return Record(identity.owner, identity.who(purpose), purpose, policy.ttl)


def tombstone(identity: Identity, by: str, now: datetime, policy: LeasePolicy) -> Record:
    """Return the tombstone of a command that ends the lease."""
    record = held(identity, by, policy)
    return replace(record, ended=Ended(by, record.who, now.replace(microsecond=0)))


def seen(found: Stored) -> Lease:
    """Return the part of a record that other processes show."""
    record = found.record
    return Lease(record.who, record.purpose, found.age, record.acting, record.ended)


def _parse_moment(text: str) -> datetime:
    moment = parse_timestamp(text)
    if moment is None:
        raise ValueError(text)
    return moment
