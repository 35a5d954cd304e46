"""The only HTTP: typed clients of Google's APIs. Nothing above this package knows a URL, a discovery document or a version.

Imports `models`, the base, and `explain.messages`, which classifies the texts of refusals. google-auth is imported here only.

Start with `requests.py`: `ApiClient` is the base class of the clients (`tpu.py`, `storage.py`, `projects.py`, which has
Compute Engine and OS Login too). It builds a request from Google's discovery documents and sends it; `decide_retry` (pure)
says whether it may be sent again. `transport.py` holds the http objects, `endpoint.py` what they are made of,
`credentials.py` the tokens, `errors.py` all failures.

**Nothing is changed twice.** A change is sent again only if it certainly was not carried out (`NotSentError`, a rate
limit). If its answer is lost (`AnswerLostError`), the resource is read before anything else happens, and
`OutcomeUnknownError` is raised if that fails too. An answer that does not fit its declared shape is a
`GarbledAnswerError`: retried like a lost answer, and never taken for an absence. Only a 404 from the API itself means
that a resource does not exist.

Deadlines of calls
------------------
Every call has an end. `clock.limit_cloud_calls` is a block in which calls end with a deadline. `requests.retrying` asks
`clock.time_for_cloud_call` how long a call may take with its retries: a minute, or what is left. `transport.py` limits one
exchange, from the DNS lookup to the last byte. Deadlines are values of a context, which threads do not share: `fan_out`
passes them on; pass `clock.with_current_deadlines(function)` to any other thread.

- Fetches and changes of the loop (`NodeReconciler.within_deadline`), and the lookup of nodes before it (`within_deadline`,
  `retry_until_answered` in `nodes/policies.py`) end with the timeout of the command, by the clock of the
  cloud; 5 s more for one last fetch.
- A list of all pages and zones, and a command with `is_short`, end after a minute of real time.
- The release of leases ends after 5 s, the last lines of a journal after 10 s of real time.
- An exchange, with the token that it needs, ends with the real time that its call has left.

Real time, since a network knows no other. The clock of the embedded sandbox may run a million times as fast, but it has no
socket.
"""
