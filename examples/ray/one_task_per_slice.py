"""One task on each slice of a Ray cluster that `tpuctl ray up` made.

tpuctl ray up 'train-*' --install ray==2.60.0
tpuctl ssh train-0 --forward 8265 -N &
ray job submit --address http://127.0.0.1:8265 --working-dir examples/ray -- python3 one_task_per_slice.py
"""

import sys

import ray


@ray.remote(num_cpus=0)
class SliceHead:
    """Keeps the head resource of a slice for as long as it lives. Here a worker would start its part of the training."""

    def address(self) -> str:
        """Return where it runs."""
        return ray.util.get_node_ip_address()


def main() -> None:
    """Reserve the head resource of each slice, which exists once, and print where the tasks ran."""
    ray.init()
    heads = [name for name in ray.cluster_resources() if name.startswith("TPU-") and name.endswith("-head")]
    count = sum(int(ray.cluster_resources()[name]) for name in heads)
    slices = [SliceHead.options(resources={heads[0]: 1}).remote() for _ in range(count)]
    for address in ray.get([one.address.remote() for one in slices]):
        sys.stdout.write(f"a slice whose worker 0 is {address}\n")


if __name__ == "__main__":
    main()
