"""A sink that notices when output can no longer be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.remote.member import Member
    from tpuctl.remote.running.values import Audience, Ending


class Hearing:
    """Passes output and events on until the sink fails. `failure` is the error: its reader has gone, or a disk is full.

    After a failure the commands are terminated; the note on the error says so.
    """

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self.failure: OSError | None = None

    def output(self, member: Member, data: bytes, *, is_error: bool) -> None:
        """Pass on output of a command."""
        if self.failure is None:
            try:
                self._audience.output(member, data, is_error=is_error)
            except OSError as error:
                self._fail(error)

    def ended(self, ending: Ending) -> None:
        """Pass on the result of one worker."""
        if self.failure is None:
            try:
                self._audience.ended(ending)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        # A local command that writes to a closed pipe ends quietly, too.
        if not isinstance(error, BrokenPipeError):
            error.add_note("the command was terminated on the workers where it was still running")

    def gathering(self, there: int, total: int) -> None:
        """Pass on how many workers are connected."""
        self._audience.gathering(there, total)

    def pressed(self) -> None:
        """Pass on a Ctrl-C."""
        self._audience.pressed()

    def note(self, member: Member | None, text: str) -> None:
        """Pass on a note for the user."""
        self._audience.note(member, text)
