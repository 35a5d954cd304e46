"""The files that the settings of a run come from, and the settings that they make with flags and variables."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.app.state_paths import trusted_folder
from tpuctl.config import sources
from tpuctl.config.settings import SETTINGS, resolve_settings
from tpuctl.config.trusted_files import TrustedFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.app.app import Invocation
    from tpuctl.config.settings import ConfigFile, GcloudProperty, Settings


class ConfigFiles:
    """The files of one run, each read once, so that the trusted content is the content in use."""

    def __init__(self, invocation: Invocation, flags: Mapping[str, Any]) -> None:
        self._invocation, self._flags = invocation, flags

    @property
    def project_path(self) -> Path | None:
        """The project file named by the command, else the nearest `tpuctl.yaml` here or above, else None."""
        home = self._invocation.environ.get("HOME")
        named: Path | None = self._flags.get("spec_file")
        if named is not None or not self._invocation.searches_project_file:
            return named
        return sources.find_project_file(self._invocation.folder, home=Path(home) if home else None)

    @cached_property
    def project(self) -> ConfigFile | None:
        """The project file, None if there is none."""
        path = self.project_path
        return sources.load_project_file(path, self._invocation.environ, any_owner=self._trusts_all) if path else None

    @cached_property
    def is_trusted(self) -> bool:
        """Whether all keys of the project file apply: none requires trust, or the user trusted its present content."""
        file = self.project
        if file is None or not file.trusted_keys or self._trusts_all:
            return True
        return TrustedFiles(trusted_folder(self._invocation.environ)).has(file.path, file.digest)

    @cached_property
    def user(self) -> ConfigFile:
        """The user's own file."""
        return sources.load_config_file(sources.user_config_path(self._invocation.environ))

    @cached_property
    def gcloud(self) -> Mapping[str, GcloudProperty]:
        """The properties of gcloud's configuration."""
        return sources.read_gcloud_properties(self._invocation.environ)

    @property
    def _trusts_all(self) -> bool:
        """Return whether `trust_project_file` is on in a flag or a variable; a file cannot set it."""
        without_files = resolve_settings(_as_settings(self._flags), self._invocation.environ, None, None, {})
        return without_files.is_on("trust_project_file")

    def resolve(self, shared: Mapping[str, Any], flags: Mapping[str, Any]) -> Settings:
        """Return the settings that the shared flags, a command's own flags, the variables and the files make."""
        return resolve_settings(
            {**_as_settings(shared), **flags},
            self._invocation.environ,
            self.project,
            self.user,
            self.gcloud,
            is_trusted=self.is_trusted,
        )


def _as_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that are settings, as a file would write them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in flags.items()
        if name in SETTINGS
    }
