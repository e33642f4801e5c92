"""Run as a program: llama.cpp's own server, of the package xllamacpp, on the loopback until stdin
closes.

The first line of stdin says its parameters as JSON, those of its parts with a dot between. It
answers with its address in a line. What goes wrong stands on stderr, in llama.cpp's own log. It
imports nothing of this project, and is a process of its own: llama.cpp may abort.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
import signal
import sys

import xllamacpp

ENUMS = {
    "cache_type_k": xllamacpp.ggml_type,
    "cache_type_v": xllamacpp.ggml_type,
    "flash_attn_type": xllamacpp.llama_flash_attn_type,
}


def serve(parameters: dict) -> None:
    """Serves until nobody writes to stdin any more."""
    kinds = {str(device["type"]) for device in xllamacpp.get_device_info()}
    if parameters["n_gpu_layers"] and not any("TYPE_GPU" in kind for kind in kinds):
        sys.exit(
            "this build of xllamacpp has no GPU: pass --cpu, or install the build for your card"
        )
    chosen = xllamacpp.CommonParams()
    for name, value in parameters.items():
        *path, last = name.split(".")
        part = chosen
        for step in path:
            part = getattr(part, step)
        setattr(part, last, getattr(ENUMS[last], value) if last in ENUMS else value)
    server = xllamacpp.Server(chosen)
    print(server.listening_address, flush=True)  # noqa: T201 - the parent reads it
    sys.stdin.read()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    serve(json.loads(sys.stdin.readline()))
