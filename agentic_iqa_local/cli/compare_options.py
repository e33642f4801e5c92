"""The options --compare and --best-of of the command assess, and which others go with them."""

import argparse

from agentic_iqa_local.cli.console import Parser


def add_compare_options(parser: Parser) -> None:
    """Adds them as a group of their own."""
    group = parser.add_argument_group(
        "which is better", "both use --pipeline letters unless told otherwise; docs/comparisons.md"
    )
    group.add_argument(
        "--compare",
        nargs="+",
        metavar="PICTURE",
        help=(
            "two pictures: the probability that the first is better; several: their order from the best to"
            " the worst"
        ),
    )
    group.add_argument(
        "--best-of",
        nargs="+",
        metavar="FOLDER",
        help=(
            "folders, globs or pictures: groups of near-duplicates, such as the frames of a burst, and the"
            " best of each; no file is moved or deleted"
        ),
    )
    group.add_argument(
        "--pairwise",
        choices=("auto", "always", "never"),
        help=(
            "whether the model is shown pictures in pairs too, in both orders; auto: where that has weight"
            " with this model (default: auto)"
        ),
    )


def check_compare(parser: Parser, args: argparse.Namespace) -> None:
    """Ends the program with one sentence for options that do not go together, and sets the pipeline."""
    comparing = "--compare" if args.compare else "--best-of" if args.best_of else None
    args.pipeline = args.pipeline or ("letters" if comparing else "agent")
    if comparing is None:
        if args.pairwise:
            parser.error("--pairwise: expected with --compare or --best-of")
        return
    if args.compare and args.best_of:
        parser.error("--best-of: expected without --compare; give one of them")
    for option, given, instead in (
        (args.pictures and args.pictures[0], args.pictures, f"name it behind {comparing}"),
        ("--manifest", args.manifest, f"name the pictures behind {comparing}"),
        ("--interactive", args.interactive, "ask about one picture"),
        ("--query", args.query, "pictures are compared by their quality"),
        ("--choices", args.choices, "pictures are compared by their quality"),
        ("--resume", args.resume, "compare anew"),
        ("--at-least", args.at_least, "assess the pictures without it"),
        ("--abstain-wider-than", args.abstain_wider_than, "assess the pictures without it"),
        ("--map", getattr(args, "map", None), "map the pictures one by one"),
        ("--gallery", args.gallery, "assess the pictures without it"),
        ("--list-tools", args.list_tools, "give it alone"),
    ):
        if given:
            parser.error(f"{option}: expected without {comparing}; {instead}")
    args.pictures = args.compare or args.best_of
