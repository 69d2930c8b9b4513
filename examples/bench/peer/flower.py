"""Aggregates updates with Flower's own FedAvg and says what it took.

It is told, as JSON on standard input, of the updates' files and the layers in them.
In the scope "memory" the clock starts when all updates are held as Flower's server
holds them once they have arrived; in the scope "files" when nothing is.
"""

import json
import os
import sys
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import flwr
import numpy as np
from flwr.common import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords


def read(job, i):
    """One site's update as its reply."""
    arrays = []
    with open(job["files"][i], "rb") as f:
        f.seek(job["header"])
        for shape in job["shapes"]:
            n = int(np.prod(shape))
            arrays.append(np.fromfile(f, dtype="<f4", count=n).reshape(shape))
    return RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": job["weights"][i]})})


def main():
    job = json.load(sys.stdin)
    begin, cpu = time.perf_counter(), time.process_time()
    replies = [read(job, i) for i in range(len(job["files"]))]
    if job["scope"] == "memory":
        begin, cpu = time.perf_counter(), time.process_time()
    mean = aggregate_arrayrecords(replies, "num-examples")
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    total, squares = 0.0, 0.0
    for value in mean.values():
        x = value.numpy().astype(np.float64)
        total += float(x.sum())
        squares += float((x * x).sum())
    json.dump({"who": f"flwr {flwr.__version__}", "seconds": took, "cpu": cpu, "sum": total, "squares": squares}, sys.stdout)


main()
