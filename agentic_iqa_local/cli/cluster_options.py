"""The options that take a batch to several workers, on this machine or a cluster, and what goes with them."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentic_iqa_local.batch.ray import Place, RayRunner
    from agentic_iqa_local.batch.runner import Runner
    from agentic_iqa_local.batch.work import Work

MOST_WORKERS = 1024


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("on several workers or machines", "with Ray; see docs/batches.md")
    where.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="local: workers on this machine; HOST:PORT or auto: of a cluster that `ray start` made",
    )
    where.add_argument(
        "--workers", type=int, metavar="N", help="with --cluster: workers in all, each with a model"
    )
    where.add_argument(
        "--gpus-per-worker",
        type=float,
        metavar="G",
        help="with --cluster: GPUs of each worker, such as 1, 2 or 0.5 (default: 0, workers compute on CPUs)",
    )


def check_cluster(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the program with one sentence for options that do not go together."""
    if args.cluster is None:
        for option in ("workers", "gpus_per_worker"):
            if getattr(args, option) is not None:
                parser.error(
                    f"--{option.replace('_', '-')}: expected with --cluster ADDRESS or --cluster local"
                )
        return
    if args.workers is None:
        parser.error("--cluster: expected with --workers N, how many there are to be")
    if not 1 <= args.workers <= MOST_WORKERS:
        parser.error(f"--workers: expected 1 to {MOST_WORKERS}, got {args.workers}")
    if args.gpus_per_worker is not None and not 0 < args.gpus_per_worker <= 64:
        parser.error(f"--gpus-per-worker: expected more than 0, up to 64, got {args.gpus_per_worker:g}")
    if args.gpu is not None:
        parser.error("--gpu: expected without --cluster, whose workers get theirs by --gpus-per-worker")
    if args.cpu and args.gpus_per_worker:
        parser.error("--cpu: expected without --gpus-per-worker")


def place_of(args: argparse.Namespace) -> "Place | None":
    """Where the workers of a command line are; None without --cluster. Raises ClusterError where the address is
    none or does not answer."""
    if args.cluster is None:
        return None
    from agentic_iqa_local.batch.ray import Place, check_address

    check_address(args.cluster)
    return Place(args.cluster, args.workers, args.gpus_per_worker or 0.0)


def chosen_batch(
    work: "Work[Any, Any]", device: str, place: "Place | None", **window: Any
) -> "Runner[Any, Any] | RayRunner[Any, Any]":
    """What does the work: a process on this machine, or a cluster's workers."""
    if place is None:
        from agentic_iqa_local.batch.runner import Runner

        return Runner(work, device, **window)
    from agentic_iqa_local.batch.ray import RayRunner

    return RayRunner(work, place, **window)
