"""What replans make good: gaps planted in assessments."""

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from agentic_iqa_local.errors import UserError
from agentic_iqa_local.laboratory.bench.setup import environment, progress


def gaps(args: argparse.Namespace) -> dict:
    """What replanning makes of planted gaps, on each model."""
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.iqa_tools import ToolRunner
    from agentic_iqa_local.laboratory.gaps import (
        GAPS,
        RECOVERED,
        RECOVERED_BY_A_MODEL,
        Bench,
        make_cases,
        run_cases,
        summary,
    )
    from agentic_iqa_local.studies.store import check_folder

    if args.pictures < 1 or min(args.limits) < 0:
        raise UserError(
            f"expected --pictures of at least 1 and --limits of at least 0, got {args.pictures} and"
            f" {min(args.limits)}"
        )
    for place in filter(None, (args.out, args.rows)):
        check_folder(place.absolute().parent)
    device = choose_device(args.gpu, args.gpu is None)
    runner, limits = ToolRunner(device=device), sorted({0, *args.limits})
    models = {name: _gap_model(name, device, runner) for name in args.model}
    readings, summaries = {}, {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as files:
        cases = make_cases(args.photos, args.pictures, Path(scratch), progress)
        rows = files.enter_context(args.rows.open("w", encoding="utf-8")) if args.rows else None
        for name, services_of in models.items():
            runs = []
            for run in run_cases(
                Bench(services_of, limits, readings),
                cases,
                lambda line, name=name: progress(f"{name}: {line}"),
            ):
                runs.append(run)
                if rows:
                    rows.writelines(json.dumps({"model": name} | line) + "\n" for line in run.lines())
            summaries[name] = summary(runs, limits, RECOVERED.get(name, RECOVERED_BY_A_MODEL))
    return {
        "model": "planted gaps",
        "pictures": args.pictures,
        "photographs": len({case.photo for case in cases}),
        "limits": limits,
        "how": {gap.name: " ".join((gap.__doc__ or "").split()) for gap in GAPS},
        "gaps": summaries,
        "environment": environment(args),
        "date": time.strftime("%Y-%m-%d"),
    }


def _gap_model(name: str, device: str, runner):
    """What gives the services that answer a question about a case: the script that knows its truth, or a
    model, loaded now."""
    from agentic_iqa_local.config import load_settings
    from agentic_iqa_local.laboratory.oracle import Oracle
    from agentic_iqa_local.services import Services

    settings = load_settings()
    if name == "scripted":

        def services_of(case, asked):
            oracle = Oracle(case.crop, asked.scope, asked.reference is not None)
            return Services(settings, device, {settings.summarizer.backend: oracle}, runner)

        return services_of
    if name != "embedded":
        settings = settings.with_options(model=os.path.abspath(name))
    services = Services(settings, device, tools=runner)
    services.client("summarizer")
    return lambda case, asked: services
