"""Training on a Dask cluster beside one machine: accuracy for several seeds, seconds, and the cost model.

    python benchmarks/cluster.py --rows 1000000 --shards 8 --sync-every 50 --seeds 3
    python benchmarks/cluster.py --workers 2 --picture docs/cluster.png

The table is like Covertype: numbers with seven classes of unequal size, whose borders are curved. Both train for the
same number of epochs. The last column compares the measured seconds of an epoch with ``LocalSGD.epoch_seconds``, which
supposes a core for each worker. Needs the extra ``dask``.

``--picture`` measures the seconds of rounds of 10 to 2,000 steps instead, and draws them beside the cost model. The
seconds of a step are those of a fit on one machine that precedes each measurement.
"""

from __future__ import annotations

import argparse
import time
import warnings

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from onnxtrain_sklearn.dask import DaskOrtGradientClassifier, LocalSGD


def table(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels: the largest of seven curved functions, with noise, as in a forest's regions."""
    shape = np.random.default_rng(0)  # the same borders for all seeds
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 20)).astype(np.float32)
    first, second = shape.normal(size=(20, 40)), shape.normal(size=(40, 7))
    scores = np.tanh(X @ (first / 3)) @ second + np.linspace(0, 6, 7)
    return X, (scores + 2.0 * rng.normal(size=scores.shape)).argmax(axis=1)


def draw_rounds(client: Client, workers: int, path: str) -> None:
    """Measure the seconds of rounds of several lengths, and draw them beside the cost model and one machine."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # A compiled step takes 40 microseconds, less than messages are worth; the portable one stands for larger networks.
    X, y = table(workers * 200 * 2000, 0)
    rows = da.from_array(X, chunks=(len(X) // workers, 20)), da.from_array(y, chunks=len(y) // workers)
    settings = {"tol": 0, "random_state": 0, "engine": "portable", "max_iter": 3}
    lengths, measured, predicted, alone = [10, 20, 50, 100, 200, 500, 1000, 2000], [], [], []
    for steps in lengths:
        local = OrtGradientClassifier(MLP((64,)), **settings).fit(X, y)
        step = float(np.median([row["seconds"] for row in local.history_])) / (len(X) / 200)
        averaging = LocalSGD(steps, n_shards=workers)
        found = DaskOrtGradientClassifier(MLP((64,)), client=client, averaging=averaging, **settings).fit(*rows)
        rounds = 2000 / steps
        measured.append(float(np.median([row["seconds"] for row in found.history_[1:]])) / rounds)
        n_parameters = sum(weight.size for weight in found.weights_.values())
        options = {"step_seconds": step, "n_parameters": n_parameters}
        predicted.append(averaging.epoch_seconds(len(X), workers, **options) / rounds)
        alone.append(workers * steps * step)
        print(
            f"{steps:5} steps: {measured[-1]:7.4f} s, predicted {predicted[-1]:7.4f}, alone {alone[-1]:7.4f}",
            flush=True,
        )
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.loglog(lengths, measured, "o-", label=f"{workers} workers, measured")
    axes.loglog(lengths, predicted, "--", color="gray", label=f"{workers} workers, cost model")
    axes.loglog(lengths, alone, ":", color="black", label="one machine, the same minibatches")
    axes.set(xlabel="steps of a shard between two averages", ylabel="seconds of a round")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--sync-every", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument(
        "--rate-factor", type=float, default=1.0, help="learning rate of the cluster over the local one"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--picture", help="file of the picture of rounds")
    parser.add_argument("--threads", action="store_true", help="workers are threads of this process")
    given = parser.parse_args()
    warnings.simplefilter("ignore")

    processes = {"n_workers": given.workers, "threads_per_worker": 1, "processes": not given.threads}
    with LocalCluster(**processes, dashboard_address=":0") as cluster, Client(cluster) as client:
        if given.picture:
            draw_rounds(client, given.workers, given.picture)
            return
        print(f"{'seed':>4} {'one machine':>12} {'plain mean':>11} {'Nesterov':>9} {'difference':>11}", end="")
        print(f" {'seconds, alone':>15} {'cluster':>8} {'predicted':>10}")
        differences = []
        for seed in range(given.seeds):
            X, y = table(given.rows, seed)
            X_test, y_test = table(100_000, 1000 + seed)
            settings = {"max_iter": given.epochs, "tol": 0, "random_state": seed, "engine": "portable"}
            settings |= {"learning_rate_init": given.learning_rate, "alpha": 0}
            began = time.perf_counter()
            alone = OrtGradientClassifier(MLP((64,)), **settings).fit(X, y)
            seconds = (time.perf_counter() - began) / given.epochs
            rows = da.from_array(X, chunks=(given.rows // 16, 20)), da.from_array(y, chunks=given.rows // 16)
            scores = {}
            for name, options in {"mean": (1.0, 0.0), "nesterov": (0.7, 0.9)}.items():
                rate, momentum = options
                averaging = LocalSGD(
                    given.sync_every, n_shards=given.shards, outer_learning_rate=rate, outer_momentum=momentum
                )
                found = DaskOrtGradientClassifier(MLP((64,)), client=client, averaging=averaging, **settings)
                found.set_params(learning_rate_init=given.learning_rate * given.rate_factor).fit(*rows)
                scores[name] = found.to_local().score(X_test, y_test)
            took = float(np.mean([row["seconds"] for row in found.history_[1:]]))
            step = seconds * 200 / given.rows
            n_parameters = sum(weight.size for weight in found.weights_.values())
            predicted = averaging.epoch_seconds(given.rows, given.workers, step_seconds=step, n_parameters=n_parameters)
            # More shards than workers share the workers: each round has the steps of all of them.
            rounds = given.rows / 200 / given.shards / given.sync_every
            predicted += (rounds - given.rows / 200 / given.workers / given.sync_every) * 0.045
            score = alone.score(X_test, y_test)
            differences.append(scores["nesterov"] - score)
            print(
                f"{seed:4} {score:12.4f} {scores['mean']:11.4f} {scores['nesterov']:9.4f} {differences[-1]:+11.4f}",
                end="",
            )
            print(f" {seconds:15.2f} {took:8.2f} {predicted:10.2f}", flush=True)
        print(f"mean difference {np.mean(differences):+.4f}, least {min(differences):+.4f}; at least -.005 is wanted")


if __name__ == "__main__":
    main()
