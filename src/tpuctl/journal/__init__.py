"""What tpuctl did to each node and saw of it: append-only JSON lines, kept for each node by itself.

The journal is written before anything is destroyed, so that a crash between delete and create loses nothing. A line holds
no token and no key, but a spec may hold secrets in its metadata: files are 0600.
"""

from tpuctl.journal.bucket import BucketStore, Objects
from tpuctl.journal.lasting import is_lasting
from tpuctl.journal.lines import Entry
from tpuctl.journal.local import LocalStore
from tpuctl.journal.record import Journal, Remembered
from tpuctl.journal.store import JournalError, Store, UnreadableJournalError

__all__ = [
    "BucketStore",
    "Entry",
    "Journal",
    "JournalError",
    "LocalStore",
    "Objects",
    "Remembered",
    "Store",
    "UnreadableJournalError",
    "is_lasting",
]
