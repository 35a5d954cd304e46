"""Findings of `doctor NODE` about variables and frameworks on the workers: a row for each rule and each boundary."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from tests.doctor.node.examinations import problems, python, row_ids, seen
from tpuctl.check.facts import Known, Unknown
from tpuctl.check.findings import CheckRule, Remedy
from tpuctl.doctor.doctor_facts import AllWorkersFacts, PythonEnvironment, TpuVariables
from tpuctl.doctor.framework_rules import (
    check_compatible_versions,
    check_frameworks,
    check_same_versions,
    check_tensorflow_matches_image,
    is_older,
)
from tpuctl.doctor.worker_rules import check_backend_variables, check_log_variables, check_same_variables

UNREAD = Unknown("it broke")
# Lines of `pip check` [pip 24 source: commands/check.py].
JAXLIB = "jax 0.4.35 has requirement jaxlib<=0.4.35,>=0.4.34, but you have jaxlib 0.4.36."
SCIPY = "jax 0.4.35 requires scipy, which is not installed."
STRANGER = "pandas 2.0 requires numpy, which is not installed."


def env(**login: str) -> dict[str, Any]:
    return {"variables": Known(TpuVariables({}, login))}


def jobs(*one: dict[str, str], session: dict[str, str] | None = None) -> dict[str, Any]:
    return {"variables": Known(TpuVariables(session or {}, {}, one))}


def has(*environments: PythonEnvironment) -> dict[str, Any]:
    return {"environments": Known(environments)}


ROWS: list[tuple[CheckRule[AllWorkersFacts], tuple[dict[str, Any], ...], list[str]]] = [
    (
        check_log_variables,
        (env(TPU_LOG_DIR="disabled", TPU_MIN_LOG_LEVEL="0"), env(TPU_LOG_DIR="/logs", TPU_STDERR_LOG_LEVEL="3")),
        [],
    ),
    (
        check_log_variables,
        (env(TPU_LOG_DIR="deaktiviert"), env(TPU_LOG_DIR="deshabilitado")),
        [
            "warning worker 0: `TPU_LOG_DIR=deaktiviert` is set in login shells",
            "warning worker 1: `TPU_LOG_DIR=deshabilitado` is set in login shells",
        ],
    ),
    (
        check_log_variables,
        (env(TPU_MIN_LOG_LEVEL="4", TPU_STDERR_LOG_LEVEL="INFO"),),
        [
            "warning worker 0: `TPU_MIN_LOG_LEVEL=4` is set in login shells",
            "warning worker 0: `TPU_STDERR_LOG_LEVEL=INFO` is set in login shells",
        ],
    ),
    (
        check_log_variables,
        (env(TF_CPP_MIN_LOG_LEVEL="1"), env(TF_CPP_MIN_LOG_LEVEL="2")),
        ["note worker 1: `TF_CPP_MIN_LOG_LEVEL=2` is set in login shells"],
    ),
    (
        check_log_variables,
        ({"variables": UNREAD},),
        ["unknown worker 0: its variables could not be read: it broke"],
    ),
    (
        check_log_variables,
        ({"variables": Known(TpuVariables(login_unread="no shell"))},),
        ["unknown worker 0: the variables of login shells could not be read: no shell"],
    ),
    (
        check_backend_variables,
        (env(JAX_PLATFORMS="tpu,cpu", PJRT_DEVICE="TPU"),),
        [],
    ),
    (
        check_backend_variables,
        (jobs({"JAX_PLATFORMS": "cpu"}, session={"JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CUDA"}),),
        [
            "warning worker 0: `JAX_PLATFORMS=cpu` is set in a running job and ssh sessions",
            "warning worker 0: `PJRT_DEVICE=CUDA` is set in ssh sessions",
        ],
    ),
    (
        check_backend_variables,
        (env(TPU_VISIBLE_CHIPS="0", TPU_CHIPS_PER_PROCESS_BOUNDS="1,1,1"),),
        [
            "warning worker 0: `TPU_VISIBLE_CHIPS=0` is set in login shells",
            "warning worker 0: `TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1` is set in login shells",
        ],
    ),
    (
        check_backend_variables,
        (env(XRT_TPU_CONFIG="localservice;0;localhost:51011", LIBTPU_INIT_ARGS="--xla_x=1"),),
        [
            "note worker 0: `XRT_TPU_CONFIG=localservice;0;localhost:51011` is set in login shells",
            "note worker 0: `LIBTPU_INIT_ARGS=--xla_x=1` is set in login shells",
        ],
    ),
    (check_backend_variables, ({"variables": UNREAD},), []),
    (check_same_variables, (env(PJRT_DEVICE="TPU"), env(PJRT_DEVICE="TPU")), []),
    (
        check_same_variables,
        (env(JAX_PLATFORMS="tpu"), env(JAX_PLATFORMS="tpu"), env(), env(JAX_PLATFORMS="cpu")),
        ["warning worker 3: `JAX_PLATFORMS` is `tpu` on workers 0-1, not set on worker 2, `cpu` on worker 3"],
    ),
    (check_same_variables, (env(PJRT_DEVICE="TPU"), {"variables": UNREAD}), []),
    (
        check_frameworks,
        (has(),),
        [
            "note worker 0: no framework is installed in the system's Python, in conda or in an environment in the home",
        ],
    ),
    (
        check_frameworks,
        (has(python(jax="0.4.35", flax="0.10")), {"environments": UNREAD}),
        ["unknown worker 1: the installed frameworks could not be read: it broke"],
    ),
    (
        check_same_versions,
        (has(python(jax="0.4.35")), has(python(jax="0.4.35"))),
        [],
    ),
    (check_same_versions, (has(python(jax="0.4.35")), {"environments": UNREAD}), []),
    (check_same_versions, (has(), has()), []),
    (
        check_same_versions,
        (has(python(jax="1")), has(python(jax="1")), has(python(jax="2", flax="3")), has()),
        [
            "warning worker 3: `~/venv` has no frameworks here, but does on workers 0-2",
            "error worker 2: `flax` in `~/venv` is not installed on workers 0-1, 3 on worker 2",
            "error worker 2: `jax` in `~/venv` is 1 on workers 0-1, 2 on worker 2",
        ],
    ),
    (
        check_same_versions,
        (has(python(jax="1")), has(python("~/venv", "3.11", jax="1"))),
        ["warning worker 1: Python in `~/venv` is 3.10 on worker 0, 3.11 on worker 1"],
    ),
    (
        check_compatible_versions,
        (has(python(jax="0.4.35", jaxlib="0.4.34", libtpu="1")),),
        [],
    ),
    (
        check_compatible_versions,
        (
            has(
                replace(
                    python(jax="0.4.35", jaxlib="0.4.36", libtpu="1"), broken=(JAXLIB, SCIPY, "no such line", STRANGER)
                )
            ),
        ),
        [
            f"error worker 0: `pip check` in `~/venv`: {JAXLIB.removesuffix('.')}",
            f"warning worker 0: `pip check` in `~/venv`: {SCIPY.removesuffix('.')}",
        ],
    ),
    (
        check_compatible_versions,
        (has(replace(python(jax="0.4.35", libtpu="1"), unchecked="No module named pip")),),
        ["note worker 0: the requirements of the packages in `~/venv` were not checked: No module named pip"],
    ),
    (
        check_compatible_versions,
        (has(python(torch="2.5.1+cpu", torch_xla="2.5.0")), has(python(torch="2.6.0+cpu", torch_xla="2.5.0"))),
        ["error worker 1: torch 2.6.0+cpu and torch-xla 2.5.0 in `~/venv` are of different releases"],
    ),
    (
        check_compatible_versions,
        (has(python(jax="0.5.0")), has(python(libtpu="1", libtpu_nightly="2"))),
        [
            "warning worker 0: `~/venv` has JAX but no libtpu",
            "warning worker 1: libtpu 1 and libtpu-nightly 2 are both in `~/venv`",
        ],
    ),
    (check_compatible_versions, ({"environments": UNREAD},), []),
]


@pytest.mark.parametrize(("rule", "changes", "expected"), ROWS, ids=row_ids(ROWS))
def test_rule_yields_the_findings_of_each_case(
    rule: CheckRule[AllWorkersFacts], changes: tuple[dict[str, Any], ...], expected: list[str]
) -> None:
    assert problems(rule, seen(*changes)) == expected


@pytest.mark.parametrize(
    ("image", "packages", "expected"),
    [
        ("tpu-ubuntu2204-base", {"tensorflow": "2.4.0"}, []),
        (
            "tpu-vm-tf-2.11.0-pod",
            {"tensorflow": "2.11.1"},
            [],
        ),
        (
            "tpu-vm-tf-2.11.0-pod",
            {"tensorflow": "2.12.0"},
            ["warning: tensorflow 2.12.0 in `~/venv` is of another release than the image, `tpu-vm-tf-2.11.0-pod`"],
        ),
        (
            "tpu-vm-tf-2.11.0-pod",
            {"tensorflow": "2.11.0", "libtpu": "0.1"},
            [
                "note: libtpu 0.1 in `~/venv` is installed beside the libtpu of `tpu-vm-tf-2.11.0-pod`",
            ],
        ),
        (
            "tpu-vm-tf-2.11.0-pod",
            {"jax": "0.5.0"},
            ["note: no TensorFlow is found, although the image is `tpu-vm-tf-2.11.0-pod`"],
        ),
    ],
)
def test_tensorflow_matches_the_release_of_its_image(image: str, packages: dict[str, str], expected: list[str]) -> None:
    found = problems(check_tensorflow_matches_image, seen(has(python(**packages)), runtimeVersion=image))

    assert [line.replace(" worker 0", "") for line in found] == expected


def test_different_versions_remedy_installs_the_usual_one() -> None:
    (found,) = check_same_versions.judge(seen(*[has(python(jax="1"))] * 2, has(python(jax="2"))))

    # A plain `pip` would be that of another Python, which comes first on PATH.
    assert found.remedies == (
        Remedy(
            "install one version on all, here 1; it must fit the other packages and the image",
            "tpuctl run demo --worker 2 -- '~/venv/bin/python -m pip install \"jax==1\"'",
        ),
    )
    system = {"environments": Known((PythonEnvironment("system", "/usr", "3.10", {"jax": "1"}),))}
    other = {"environments": Known((PythonEnvironment("system", "/usr", "3.10", {"jax": "2"}),))}
    (found,) = check_same_versions.judge(seen(system, other))
    assert [one.command for one in found.remedies] == [
        "tpuctl run demo --worker 1 -- 'python3 -m pip install \"jax==1\"'"
    ]


@pytest.mark.parametrize(
    ("path", "shown"),
    [("~/my env", "~/'my env'"), ("~/a; rm -rf x", "PATH"), ("-rf", "PATH")],
    ids=["quoted", "hostile", "option"],
)
def test_environment_path_is_one_word_of_its_remedy(path: str, shown: str) -> None:
    (found,) = check_compatible_versions.judge(seen(has(python(path, jax="0.5.0"))))

    install = f'{shown}/bin/python -m pip install -U "jax[tpu]==0.5.0"'
    assert [remedy.command for remedy in found.remedies] == [
        shlex.join(["tpuctl", "run", "demo", "--worker", "0", "--", install])
    ]


@pytest.mark.parametrize(
    ("version", "least", "older"),
    [
        ("0.4.34", "0.4.35", True),
        ("0.4.35", "0.4.35", False),
        ("0.10", "0.4.35", False),
        ("2", "2.0.0", False),
        ("2.0rc1", "2.0", False),
        ("v1.9+cpu", "1.10", True),
        ("528.0.0", "529.0.0", True),
        ("nightly", "1", False),
    ],
)
def test_release_is_compared_number_by_number(version: str, least: str, older: bool) -> None:
    assert is_older(version, least) is older
