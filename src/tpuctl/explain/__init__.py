"""What messages, logs and ids mean, and what helps: the only package that compares the text of messages.

Codes alone are not enough: an unavailable zone, an exhausted quota and a malformed request share them. The error table of
the API (`cloud.errors`), the errors of ssh (`ssh.ssh_errors`) and the end of a failed `tpuctl run` ask here too.

One log takes three steps: `scanner` finds the known messages in it (values of `log_lines`), `conclusion` tells causes from
symptoms (`unrecognised` judges a log without a known message), `explanation_rendering` shows the verdicts. All modules but
`command` are pure: bytes go in, values come out; they neither open a file nor read a clock. The pure modules
import `models` and the base; `lookup` also asks `check` and `doctor` for the rules behind the ids of findings; only
`command` and the rendering import `app`, `nodes` and `output`.
Start with `messages` (what tpuctl knows), then `scanner.LogReader` and `conclusion.conclude`.

What a reader must know:

- Messages are data, `data/messages/*.yaml`. The order counts: the first entry that matches wins. CONTRIBUTING, "What tpuctl
  knows", says how to add one; nothing else needs a change. The second document of each file has its examples.
- A pattern is never searched in a whole log. Lines that hold no literal (anchor) of a known message are finished at once, and
  so are later lines of the same shape; around a literal, a few dozen lines of one worker are joined, so that a wrapped message
  is whole, and only there the patterns of its messages are searched. Each quantifier is bounded: time is linear in the log,
  memory does not depend on it, hostile logs included.
- The result does not depend on how the bytes are cut into pieces.
- `quotations` tells messages that are only quoted by the kind of file or of line; in doubt a message is real.
- `tests/corpus` compares the verdicts on real logs with what an expert would say.
"""
