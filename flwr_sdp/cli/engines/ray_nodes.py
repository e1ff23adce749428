"""Print the machines of the Ray cluster at RAY_ADDRESS, as JSON.

In a process of its own, so that the launcher joins no cluster and can give up waiting for one.
"""

from __future__ import annotations

import json
import logging

import ray


def main() -> None:
    """Join the cluster, list its machines, and leave; the cluster goes on."""
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    ray.shutdown()
    print(
        json.dumps([{"cpus": each.get("CPU", 0), "gpus": each.get("GPU", 0)} for each in resources])
    )


if __name__ == "__main__":
    main()
