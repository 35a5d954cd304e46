"""`tpuctl bundle`: collect the evidence that support asks for in one file, without secrets and within limits.

`bundle` gets documents from the API and this machine, adds the verdict on the logs and the list of files, packs and reports;
start there. `checklist` prints what the journal shows of a node.
`bundle_workers` gets files from all workers at the same time; `bundle_contents` stores and packs them;
`tpuctl.redaction` removes secrets. It imports `explain` (the verdict), `doctor` (its findings), `nodes`,
`cloud`, `ssh`, `output` and `app`.

What a reader must know:

- `BundleContents` is the only way into a bundle: everything passes through `Redactor` as it arrives, file names too. Only
  files that tpuctl writes about the contents are added as they are.
- Workers are not trusted: names, sizes and numbers of files are bounded here, frames by `ssh.channel`, and all of it by the
  program on the worker (`ssh.agent.worker_evidence`).
- A source that fails is a missing item with its reason, not a failure of the command. The requests to the API and every
  worker have a timeout; the one deadline of the command limits them all.
- The file appears complete or not at all, readable only by its owner. A bundle changes nothing, in the cloud or on workers:
  it uses the ssh key that is there.
- A secret without a known form, or a name before it, cannot be found. So the command asks the user to review the file.
"""
