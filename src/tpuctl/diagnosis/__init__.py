"""What messages and logs mean, and what helps: the only package that reads message text.

Codes alone do not tell: a full zone, a used-up quota and a bad request share them. The messages are package data
(`data/messages/`). Pure: text goes in, verdicts come out.
"""

from tpuctl.diagnosis.classify import Verdict, classify
from tpuctl.diagnosis.messages import Action, By, CheckFirst, Detail, Message, Role, Where, by_id, messages

__all__ = [
    "Action",
    "By",
    "CheckFirst",
    "Detail",
    "Message",
    "Role",
    "Verdict",
    "Where",
    "by_id",
    "classify",
    "messages",
]
