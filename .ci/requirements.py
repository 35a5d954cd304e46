"""Print what pyproject.toml requires, one requirement a line.

GROUP: an extra, with what tpuctl needs and what builds it, or a dependency group. `--is-extra GROUP` ends with 0 or 1.
`--lowest`: the lowest versions that the dependencies and the extra `dev` allow, as constraints for pip.
`--build`: what builds tpuctl.
"""

import sys
import tomllib
from pathlib import Path

document = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
project = document["project"]
extras, groups = project["optional-dependencies"], document["dependency-groups"]
# hatchling needs `editables` for an editable installation.
build = [*document["build-system"]["requires"], "editables"]
match sys.argv[1:]:
    case ["--is-extra", group]:
        sys.exit(group not in extras)
    case ["--lowest"]:
        found = [text.replace(">=", "==") for text in (*project["dependencies"], *extras["dev"])]
    case ["--build"]:
        found = build
    case [group] if group in extras:
        found = [*project["dependencies"], *extras[group], *build]
    case [group]:
        found = groups[group]
sys.stdout.write("\n".join(found) + "\n")
