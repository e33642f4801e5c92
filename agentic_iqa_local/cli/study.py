"""Studies the agent on images with human scores. Nothing leaves this machine.

examples:
  {study} run /data/tid2013 --out runs/tid2013
  {study} run my40.csv --mos-range 1 5 --out runs/my40
  {study} run /data/koniq10k --split test --gpu 0 --out runs/koniq10k
  {study} report runs/tid2013 runs/koniq10k --out reports/both
  {study} compare runs/koniq10k runs/koniq10k_qwen
  {study} COMMAND --help

Results go to stdout, all else to stderr. Exit status: 0 done, 2 wrong usage or a run that cannot be used, 130
interrupted: the rows so far are kept, and the same run goes on.
"""

import argparse

from agentic_iqa_local.cli import study_report, study_run
from agentic_iqa_local.cli.command import Command, Help, Parser
from agentic_iqa_local.files import command

# name → (what it does, its help, which adds its options, its work)
COMMANDS = {
    "run": (
        "each image's inference, once, into a folder that survives a kill",
        study_run.ABOUT, study_run.options, study_run.run,
    ),
    "fit": (
        "p_c's temperature and η, and intervals of q, from a part of a run, for assess.py and report --fit",
        study_report.FIT, study_report.fit_options, study_report.fit,
    ),
    "report": (
        "every scoring mode of cached runs against the human scores, without touching a model",
        study_report.REPORT, study_report.report_options, study_report.report,
    ),
    "compare": (
        "run against run on the same images: two models, or two versions of the program",
        study_report.COMPARE, study_report.compare_options, study_report.compare,
    ),
}  # fmt: skip


def options(parser: Parser) -> None:
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, text, add_options, work) in COMMANDS.items():
        text = text.replace("{study}", command("study"))
        one = commands.add_parser(name, help=about, description=text, formatter_class=Help)
        add_options(one)
        one.set_defaults(work=work)


main = Command("study", __doc__, options, lambda args: args.work(args), interrupted="interrupted: the same run goes on")
