"""What is examined of each model: its folder, an answer under a schema, and the letters."""

from typing import TYPE_CHECKING

from agentic_iqa_local.levels import LETTERS
from agentic_iqa_local.offline.doctor.checks import Finding, Setup, check
from agentic_iqa_local.paths import command

if TYPE_CHECKING:
    from PIL import Image

    from agentic_iqa_local.vlm_client.rendering import Renderer

SIDE = 192  # pixels; no tool asks for more


def renderer_of(setup: Setup, backend: str) -> "Renderer":
    """The model's processor and templates, without its weights."""
    from agentic_iqa_local.vlm_client.rendering import Renderer

    engine, _, name = backend.partition(".")
    return Renderer(name, setup.settings.model(backend), weights=engine != "server")


@check("folder", "copy the folder again")
def model_folder(setup: Setup, backend: str) -> Finding:
    """Is the folder a vision-language model that this transformers reads, with all its weight files whole?"""
    renderer = renderer_of(setup, backend)
    found = f"{renderer.folder}: {renderer.config.model_type}"
    if (weights := renderer.weights) is None:
        return "pass", f"{found}, its processor (the weights are the server's)", ""
    return (
        "pass",
        f"{found}, {weights.numbers / 1e6:.1f} million parameters in {len(weights.files)} file(s)",
        "",
    )


def pictures() -> tuple["Image.Image", "Image.Image"]:
    """A noisy picture and its original: RGB, SIDE×SIDE pixels, the same every time."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    shades = Image.fromarray(rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8))
    original = shades.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    noisy = np.asarray(original, np.float32) + rng.normal(0, 10, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)), original


@check("model", f"try it by itself: {command('assess')} PHOTO -vv, with the same options")
def model(setup: Setup, backend: str) -> Finding:
    """Does the model load, and answer about a picture under a schema?"""
    from agentic_iqa_local.nodes.prompts import DEFAULT_QUERY, summarizer_prompt
    from agentic_iqa_local.nodes.replies import letter_reply

    client = setup.services.pool.get(backend, setup.settings.model(backend))
    session = client.open([pictures()[0]])
    reply = letter_reply(LETTERS)
    answer = session.generate(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), reply, max_tokens=64)
    session.close()
    letter = reply.model_validate_json(answer).model_dump()["final_answer"]
    about = client.describe()
    return "pass", f"{about['engine']} answers {letter} on {about['device']} in {about['dtype']}", ""


@check("letters", "use another model")
def letters(setup: Setup, backend: str) -> Finding:
    """Are the letters A–E tokens of this model with finite log-probabilities, and does it mean to answer with
    them?"""
    from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX, DEFAULT_QUERY, summarizer_prompt

    client = setup.services.pool.get(backend, setup.settings.model(backend))
    session = client.open([pictures()[0]])
    read = session.read_letters(summarizer_prompt(DEFAULT_QUERY, None, scoring=True), ANSWER_PREFIX, LETTERS)
    session.close()
    found = ", ".join(
        f"{letter} {read.logprobs[letter]:.2f} (token {read.token_ids[letter]})" for letter in LETTERS
    )
    found = f"{found}; {read.off_letter_mass:.2%} of the probability lies off them"
    if read.off_letter_mass > setup.settings.fusion.off_letter_warning:
        return (
            "warn",
            found,
            "this model hardly takes the answer format: use a model that follows instructions",
        )
    return "pass", found, ""
