"""Writes the record that certify compares the embedded set-up with: float32 letters of the probe pictures by
a plain pass of transformers, what the model saw, the tools' scores, and the hashes of what these rest on.

    python scripts/training/certify_record.py

After another embedded model, other tool maps or other weights of a tool. It runs on the CPU, and refuses
where the set-up's own letters are not those of the plain pass.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentic_iqa_local.files import write_whole
from agentic_iqa_local.cli.console import Parser, exit_status, safe_streams
from agentic_iqa_local.config import load_settings
from agentic_iqa_local.offline.certify.apart import ApartError
from agentic_iqa_local.offline.certify.certificate import RECORD
from agentic_iqa_local.offline.certify.certification import Certification, Wanted
from agentic_iqa_local.offline.certify.letters import judge_inputs, judge_plain
from agentic_iqa_local.offline.certify.tools import measure_tools


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=RECORD, metavar="FILE", help="default: the one that ships"
    )
    args = parser.parse_args(argv)
    return exit_status(lambda: record(args.out))


def record(out: Path) -> int:
    """Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="certify-") as scratch:
        made = Certification(Wanted(load_settings(), "cpu", cpu=True), Path(scratch))
        for check in (judge_inputs(made.base, made.plain, "float32"), judge_plain(made.base, made.plain)):
            if check.status == "fail":
                raise ApartError(f"no record was written: {check.verdict}")
        made.measured_tools = made.apart(measure_tools, *made.set_up)
        content = made.certificate.model_dump()
    content["model"]["letters"] = made.plain["letters"]
    content["model"]["about"] = {
        key: content["model"]["about"][key]
        for key in ("engine", "dtype", "quantization", "attention", "device")
    }
    del content["others"]
    write_whole(out, json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False))
    print(f"{out}: {len(content['probes'])} pictures, {len(content['tools']['scores'])} tools")
    return 0


if __name__ == "__main__":
    sys.exit(main())
