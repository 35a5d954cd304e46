"""Run a command on a new TPU, and delete the TPU at the end: after a success, a failure, Ctrl-C and SIGTERM.

    python3 examples/python/train.py v5litepod-16 'python3 train.py --steps 1000'

If this process is killed without a signal, the time limit of the node ends it. Try it without an account, and without costs:
`TPUCTL_SANDBOX=1 TPUCTL_ZONE=us-west4-a python3 examples/python/train.py v5litepod-8 hostname`.
"""

from __future__ import annotations

import logging
import secrets
import signal
import sys
from collections.abc import Callable
from datetime import timedelta

from tpuctl import Client, NodeSpec, OutputPiece, Tier, TpuctlError

LONGEST = timedelta(hours=8)


def train(client: Client, accelerator_type: str, command: str, on_output: Callable[[OutputPiece], None]) -> int:
    """Run a command on all workers of a new node, and return the exit code."""
    # No other node has this name, so that none is deleted by mistake.
    node = f"train-{secrets.token_hex(4)}"
    spec = NodeSpec(accelerator_type=accelerator_type, tier=Tier.SPOT, labels={"job": "train"})
    try:
        client.up(node, spec, ttl=LONGEST + timedelta(hours=1), timeout=timedelta(minutes=45))
        client.run(node, command, timeout=LONGEST, on_output=on_output).check()
    except TpuctlError as error:
        logging.error("%s%s", error, f" ({error.hint})" if error.hint else "")  # noqa: TRY400  # the text says what to do, a traceback does not
        return error.exit_code
    finally:
        # After Ctrl-C the command may still run there.
        client.down(node, yes=True)
    return 0


def show(piece: OutputPiece) -> None:
    """Write output of a worker as it arrives."""
    stream = sys.stderr if piece.is_stderr else sys.stdout
    stream.buffer.write(piece.data)
    stream.flush()


def end(*_: object) -> None:
    """Let SIGTERM end the program as Ctrl-C does, so that the node is deleted."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with Client() as tpus:
        sys.exit(train(tpus, sys.argv[1], sys.argv[2], show))
