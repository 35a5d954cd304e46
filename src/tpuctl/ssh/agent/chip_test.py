"""Runs on a worker, as a job: tests its chips with JAX or PyTorch/XLA, and reports each step in a line on stdout.

All workers of a slice run it at the same time, because a framework waits for all of them. A line is CHIP_TEST_MARK and a JSON
object with what it adds to the report, which workers/node_test.py parses. The products and sums have exact results, so
that a chip that computes wrongly is found too. It must run under Python 3.8.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time

from tpuctl.ssh.agent.tpu_devices import device_files, device_root

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CHIP_TEST_MARK = "tpuctl-test "
NO_FRAMEWORK, CANNOT_TEST = 3, 4
# One measurement: a chain of products of bfloat16 matrices, which keeps a chip busy for tens of milliseconds.
SIDE, PRODUCTS = 4096, 64
# Number of float32 values of each chip in one sum over all chips.
SUMMED = 16 * 1024 * 1024
REPEATS = 3


def check_chips(request: dict[str, Any]) -> None:
    """Run the test. `together`: all workers of a slice of several run it; `bounds`: this worker is tested alone."""
    # Python would only note INT, and continue to wait inside libtpu.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    files = device_files(device_root())
    report(deviceFiles=len(files))
    measure = measure_with_jax if importlib.util.find_spec("jax") else measure_with_torch_xla
    if measure is measure_with_torch_xla and not importlib.util.find_spec("torch_xla"):
        sys.exit(NO_FRAMEWORK)
    if request["bounds"]:
        # libtpu then waits for no other worker [observed: users' scripts for one host of a slice].
        os.environ.update(
            TPU_PROCESS_BOUNDS="1,1,1", TPU_CHIPS_PER_PROCESS_BOUNDS=request["bounds"], CLOUD_TPU_TASK_ID="0"
        )
        os.environ["TPU_VISIBLE_DEVICES"] = ",".join(map(str, range(len(files))))
    measure(request)
    report(phase="done")


def measure_with_jax(request: dict[str, Any]) -> None:
    """Measure all chips of this worker, then a sum over all chips, with JAX."""
    # Without a TPU it fails, and does not test the CPU.
    os.environ["JAX_PLATFORMS"] = "tpu"
    import jax  # noqa: PLC0415  # takes seconds, and is often missing
    import jax.numpy as jnp  # noqa: PLC0415

    report(framework="JAX", version=jax.__version__)
    report(phase="start")
    if request["together"]:
        jax.distributed.initialize()
    devices, total = jax.local_devices(), jax.device_count()
    # A chip of v2 and v3 is two devices with the same coordinates.
    chips = list(dict.fromkeys(tuple(device.coords) for device in devices))
    report(chips=len(chips))
    report(phase="product")
    multiply = jax.jit(lambda ones, mean: jax.lax.fori_loop(0, PRODUCTS, lambda _, product: product @ mean, ones))
    for device in devices:
        ones = jax.device_put(jnp.ones((SIDE, SIDE), jnp.bfloat16), device)
        mean = jax.device_put(jnp.full((SIDE, SIDE), 1 / SIDE, jnp.bfloat16), device)
        seconds, product = best_of(lambda *given: multiply(*given).block_until_ready(), ones, mean)
        report_product(chips.index(tuple(device.coords)), seconds, is_right=bool((product == 1).all()))
    if total > 1:
        report(phase="all-reduce")
        add = jax.pmap(lambda one: jax.lax.psum(one, "devices"), axis_name="devices")
        # This places a row on each device, so that the measurement copies none.
        rows = jax.pmap(lambda one: one + 0)(jnp.ones((len(devices), SUMMED), jnp.float32))
        seconds, sums = best_of(lambda: add(rows).block_until_ready())
        is_right = all(bool((shard.data == total).all()) for shard in sums.addressable_shards)
        report_sum(total, seconds, is_right=is_right)


def measure_with_torch_xla(request: dict[str, Any]) -> None:
    """Measure all chips of this worker, then a sum over all chips, with PyTorch/XLA: a process for each chip."""
    os.environ["PJRT_DEVICE"] = "TPU"
    import torch_xla  # noqa: PLC0415  # takes seconds, and is often missing
    import torch_xla.distributed.xla_multiprocessing as xmp  # noqa: PLC0415

    report(framework="PyTorch/XLA", version=torch_xla.__version__)
    if request["bounds"]:
        sys.stderr.write("PyTorch/XLA needs all workers of a slice: test it without --worker\n")
        sys.exit(CANNOT_TEST)
    report(phase="start")
    # This program is no file, which a spawned process would have to read.
    xmp.spawn(measure_torch_device, start_method="fork")


def measure_torch_device(_index: int) -> None:
    """Measure one device with PyTorch/XLA, in its own process."""
    import torch  # noqa: PLC0415  # takes seconds, and is often missing
    import torch_xla  # noqa: PLC0415
    import torch_xla.core.xla_model as xm  # noqa: PLC0415
    import torch_xla.runtime as xr  # noqa: PLC0415

    # Old versions have only the second of both.
    device, total = (getattr(torch_xla, "device", None) or xm.xla_device)(), xr.world_size()
    step = getattr(torch_xla, "sync", None) or xm.mark_step
    # The devices of v2 and v3 are the two cores of a chip, in one process.
    chip = xr.local_ordinal() // xr.addressable_device_count()
    is_first = xr.local_ordinal() == 0
    if is_first:
        report(chips=xr.local_process_count())
        report(phase="product")

    def multiply() -> Any:
        product = ones
        for _ in range(PRODUCTS):
            product = product @ mean
        return finish(product)

    def finish(tensor: Any) -> Any:
        step()
        xm.wait_device_ops()
        return tensor

    ones = torch.ones((SIDE, SIDE), dtype=torch.bfloat16, device=device)
    mean = torch.full((SIDE, SIDE), 1 / SIDE, dtype=torch.bfloat16, device=device)
    seconds, product = best_of(multiply)
    report_product(chip, seconds, is_right=bool((product == 1).all()))
    if total > 1:
        if is_first:
            report(phase="all-reduce")
        row = torch.ones((SUMMED,), dtype=torch.float32, device=device)
        seconds, sums = best_of(lambda: finish(xm.all_reduce(xm.REDUCE_SUM, row)))
        is_right = bool((sums == total).all())
        if is_first or not is_right:
            report_sum(total, seconds, is_right=is_right)


def best_of(call: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """Return the shortest time of some calls, in seconds, and the last result. The first call, which compiles, is left out."""
    result, shortest = call(*given), float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        result = call(*given)
        shortest = min(shortest, time.perf_counter() - began)
    return shortest, result


def report_product(chip: int, seconds: float, *, is_right: bool) -> None:
    """Report the chain of products of a device."""
    figure = 2 * SIDE**3 * PRODUCTS / seconds / 1e12
    report(products=[{"chip": chip, "teraflops": figure, "isRight": is_right}])


def report_sum(devices: int, seconds: float, *, is_right: bool) -> None:
    """Report the sum. Its bandwidth is that of a ring: each device sends and receives all but its own share, twice."""
    speed = 2 * (devices - 1) / devices * 4 * SUMMED / 1e9 / seconds
    report(sums=[{"devices": devices, "seconds": seconds, "gigabytesPerSecond": speed, "isRight": is_right}])


def report(**fields: Any) -> None:
    """Write a line, with one system call: processes of several chips share stdout."""
    os.write(1, (CHIP_TEST_MARK + json.dumps(fields) + "\n").encode("ascii"))
