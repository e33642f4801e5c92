"""The options that take a batch to several workers, on this machine or a cluster."""

import argparse
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.cli.command import UsageError
from agentic_iqa_local.cli.options import number

if TYPE_CHECKING:
    from agentic_iqa_local.batch.ray import Place, RayRunner
    from agentic_iqa_local.batch.runner import Runner
    from agentic_iqa_local.batch.work import Work


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("on several workers or machines", "with Ray; see docs/cluster.md")
    about = "local: workers on this machine; HOST:PORT or auto: of a cluster that `ray start` made"
    where.add_argument("--cluster", metavar="ADDRESS", help=about)
    about = "with --cluster: workers in all, each with a model"
    where.add_argument("--workers", type=number(int, 1, 1024), metavar="N", help=about)
    about = "with --cluster: GPUs of each worker, such as 1, 2 or 0.5 (default: 0, workers compute on CPUs)"
    where.add_argument("--gpus-per-worker", type=number(float, 0.01, 64), metavar="G", help=about)


def place_of(args: argparse.Namespace) -> "Place | None":
    """Where the workers of a command line are; None without --cluster. Raises UsageError for options that do not go
    together, ClusterError where the address is none or does not answer."""
    if args.cluster is None:
        if args.workers or args.gpus_per_worker:
            raise UsageError("--workers, --gpus-per-worker: expected with --cluster local or --cluster ADDRESS")
        return None
    if args.workers is None:
        raise UsageError("--cluster: expected with --workers N, how many there are to be")
    if args.gpu is not None or (args.cpu and args.gpus_per_worker):
        given = "--cpu" if args.cpu else "--gpu"
        raise UsageError(f"{given}: expected without --cluster, whose workers get GPUs by --gpus-per-worker")
    if getattr(args, "map", None) and args.cluster != "local":
        raise UsageError("--map: expected without --cluster ADDRESS: a map would be drawn to its worker's disk")
    from agentic_iqa_local.batch.ray import Place, check_address

    check_address(args.cluster)
    return Place(args.cluster, args.workers, args.gpus_per_worker or 0.0)


def chosen_batch(
    work: "Work[Any, Any]", device: str, place: "Place | None", **window: Any
) -> "Runner[Any, Any] | RayRunner[Any, Any]":
    """What does the work: a process on this machine, or a cluster's workers."""
    from agentic_iqa_local.batch.ray import RayRunner
    from agentic_iqa_local.batch.runner import Runner

    return Runner(work, device, **window) if place is None else RayRunner(work, place, **window)
