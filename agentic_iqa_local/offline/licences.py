"""The licences of what a bundle carries, and notices of those that restrict its use."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from agentic_iqa_local.offline.fetch import Wanted, short
from agentic_iqa_local.offline.manifest import Notice

OWN = "this project's own"
EMBEDDED_LICENCE = f"{OWN}, embedded/README.md names its photographs' licences"
FREE = (
    "apache-2.0",
    "mit",
    "bsd-2-clause",
    "bsd-3-clause",
    "cc0-1.0",
    "cc-by-4.0",
    OWN.lower(),
    EMBEDDED_LICENCE.lower(),
)
TERMS = {
    "cc-by-nc-sa-4.0": (
        "no commercial use, changes under the same licence",
        "https://creativecommons.org/licenses/by-nc-sa/4.0/",
    ),
    "qwen-research": (
        "research only; commercial use needs a licence of Alibaba Cloud's",
        "https://huggingface.co/Qwen/Qwen2.5-VL-3B-Instruct/blob/main/LICENSE",
    ),
    "unknown": ("read the model card before use", "no link known"),
}
PYIQA = Notice(
    licence="PolyForm-Noncommercial-1.0.0",
    of="pyiqa, which runs the tools",
    says="commercial use needs its authors' permission",
    url="https://polyformproject.org/licenses/noncommercial/1.0.0/",
)
NVIDIA = Notice(
    licence="LicenseRef-NVIDIA-Proprietary",
    of="CUDA libraries that torch's wheels for Linux bring",
    says="NVIDIA's licence agreement",
    url="https://docs.nvidia.com/cuda/eula/",
)


def binding(wanted: Iterable[Wanted]) -> list[Notice]:
    """A notice for each licence among the files that restricts their use, with the folder or repository it is
    about."""
    of: dict[str, list[str]] = {}
    for item in wanted:
        if item.licence.lower() not in FREE:
            parts = PurePosixPath(item.path).parts
            of.setdefault(item.licence, []).append(
                parts[0] if parts[0] != "tools" else parts[2 if parts[1] != "hub" else -1]
            )
    return [notice(licence, ", ".join(dict.fromkeys(names))) for licence, names in of.items()]


def notice(licence: str, of: str) -> Notice:
    says, url = TERMS.get(
        licence.lower(), ("read it before use, it may restrict what you do", "see the model card")
    )
    return Notice(licence=licence, of=short(of), says=says, url=url)
