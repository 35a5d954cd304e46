"""Settings: which exist, where each value comes from, and which value wins.

- `settings` (start here) is pure: the schema, the types of values, and `resolve_settings`, which chooses one value per setting
  and records its source. Precedence: flag, `TPUCTL_*`, variables of gcloud and Google, project file (`tpuctl.yaml`), user file,
  gcloud's active configuration, default.
- `sources` reads and changes the files, with line numbers, and reads gcloud's configuration without starting gcloud.
- `trusted_files` remembers the project files that the user trusts.

What a reader must know:

- A project file may come from an untrusted repository. Settings that send, run or open something, decide who pays, or disable
  a check (`FilePolicy.TRUSTED_FILE`) take effect only after `tpuctl trust`. Reading one of them from an untrusted file raises
  `UntrustedFileError`. A few settings are never read from a project file, or from any file.
- The digest of a trusted file covers the file and the script and key that it names. Each is read once, so that the trusted
  content is also the content in use.
- A value stays text until a command reads it: only then is a flag or a variable checked. File entries are checked at once.

To add a setting, add a row to the schema in `settings`. This room imports `models` and the base modules.
"""
