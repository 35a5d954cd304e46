"""`torch_xla.distributed.xla_multiprocessing`."""

from __future__ import annotations

import multiprocessing
import sys
import threading

from sandbox_chips import Chips

from torch_xla._process import join, worker


def spawn(fn, args=(), nprocs=None, join=True, daemon=False, start_method="spawn"):
    """Call a function in a process for each chip, and in a thread for each of its cores."""
    worker.chips = Chips()
    context = multiprocessing.get_context(start_method)
    processes = [context.Process(target=_run_chip, args=(fn, args, chip)) for chip in range(worker.chips.count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if failed := [process for process in processes if process.exitcode]:
        sys.exit(f"a process of a chip has failed with exit code {failed[0].exitcode}")


def _run_chip(fn, args, chip) -> None:
    cores = [chip * worker.chips.cores + core for core in range(worker.chips.cores)]
    threads = [threading.Thread(target=_run_core, args=(fn, args, ordinal)) for ordinal in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run_core(fn, args, ordinal) -> None:
    join(ordinal)
    fn(ordinal, *args)
