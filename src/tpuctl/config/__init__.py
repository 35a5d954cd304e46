"""Settings: the schema, the sources of each, and which value wins.

`schema` lists all settings, `resolution` chooses a value and records its source; both are pure. The other modules read
configuration files, gcloud's configuration and the list of trusted files. Start reading at `resolution`.
"""
