"""What is between the workers and whoever listens: it notices when nobody can take the output any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.remote.member import Member
    from tpuctl.remote.running.values import Audience, Ending


class Hearing:
    """Passes everything on until that fails. `failure` is why: a reader that went away, or a full disk.

    Its notes say what comes of it: whoever listens no more has the commands ended.
    """

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self.failure: OSError | None = None

    def output(self, member: Member, data: bytes, *, is_error: bool) -> None:
        """Pass on what a command printed."""
        if self.failure is None:
            try:
                self._audience.output(member, data, is_error=is_error)
            except OSError as error:
                self._fail(error)

    def ended(self, ending: Ending) -> None:
        """Pass on how it ended on one worker."""
        if self.failure is None:
            try:
                self._audience.ended(ending)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        # A local command in a pipe that closes ends quietly, too.
        if not isinstance(error, BrokenPipeError):
            error.add_note("what still ran of the command was ended on its workers")

    def gathering(self, there: int, total: int) -> None:
        """Pass on how many workers answer so far."""
        self._audience.gathering(there, total)

    def pressed(self) -> None:
        """Pass on that Ctrl-C was pressed."""
        self._audience.pressed()

    def note(self, member: Member | None, text: str) -> None:
        """Pass on what the user should know."""
        self._audience.note(member, text)
