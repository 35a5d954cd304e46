"""Takes secrets out of text that leaves this machine, and says what kind each was: `[redacted oauth-token]`. Pure.

It works on bytes, as they come, in bounded memory and linear time; whatever is no secret passes byte by byte. What it does not
know by its form or by the name before it, it cannot find: it lessens the risk, and a person should still look.
"""

from tpuctl.diagnosis.redaction.accounts import Accounts
from tpuctl.diagnosis.redaction.documents import without_secrets, without_suspects
from tpuctl.diagnosis.redaction.stream import Redactor, redact

__all__ = ["Accounts", "Redactor", "redact", "without_secrets", "without_suspects"]
