"""What messages and logs mean, and what helps: the only package that reads message text.

Codes alone are not enough: an unavailable zone, an exhausted quota and a malformed request share them. The messages are package
data (`data/messages/`). Pure: text goes in, verdicts come out; only `command` opens files and calls the API. Start with
`messages` (what tpuctl knows), then `scanner` (finds it in a log) and `conclusion` (cause or symptom).
"""
