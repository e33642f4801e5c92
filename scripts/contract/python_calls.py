"""The contract's Python calls, as users make them; run as `python python_calls.py CALL ...` in the folder of
pictures. Prints a JSON object with the answer of each call."""

import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import agentic_iqa_local
from agentic_iqa_local import IQA, ScoreFusion, assess, compare, rank, run_pipeline, visualize_graph
from agentic_iqa_local.graph import decide_next_node
from agentic_iqa_local.state import PlannerError, PlannerInput, PlannerOutput, SummarizerOutput

LEAF, BLUR, NOISE, JPEG = (f"pictures/leaf{name}" for name in (".png", "_blur.png", "_noise.png", "_q8.jpg"))
SHIFTED, TOWER, SCENE = "pictures/leaf_shifted.png", "pictures/tower.png", "pictures/scene.png"
CALLS: dict[str, Callable[[], Any]] = {}
_opened: dict[str, IQA] = {}


def call(function: Callable[[], Any]) -> Callable[[], Any]:
    CALLS[function.__name__] = function
    return function


def iqa(**options: Any) -> IQA:
    """One IQA for all calls with the same options: the model is loaded once."""
    return _opened.setdefault(repr(options), IQA(cpu=True, **options))


def letters(**options: Any) -> IQA:
    return iqa(pipeline="letters", **options)


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call returns, or the built-in kind of what it raises and whether its message names a given word."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        builtin = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return {"raised": builtin.__name__, "says": bool(str(error))}


# The agent


@call
def py_assess():
    result = assess(LEAF)
    attributes = (result.q, result.level, result.letter, result.error, result.answer, result.p)
    account, row = result.explain(), result.to_dict()
    return [
        row,
        attributes,
        f"q {result.q:.2f}" in account,
        "leaf.png" in repr(result),
        bool(result._repr_html_()),
    ]


@call
def py_reference():
    return iqa()(BLUR, reference=LEAF).to_dict()


@call
def py_named_tool():
    return iqa()(TOWER, query="What does PIQE say of this picture?").to_dict()


@call
def py_choices():
    choices = ["Blur", "Noise", "Compression", "None"]
    return iqa()(NOISE, query="Which distortion dominates?", choices=choices).to_dict()


@call
def py_yes_or_no():
    return iqa()(BLUR, query="Is this picture blurry, yes or no?").to_dict()


@call
def py_region():
    return iqa()(TOWER, query="Is the sky noisy?", choices=["Yes", "No"]).to_dict()


@call
def py_where():
    return iqa()("pictures/damaged.png", query="Where is the picture damaged?").to_dict()


@call
def py_other_question():
    return iqa()(LEAF, query="What is shown in this picture?").to_dict()


@call
def py_drawing():
    return iqa()("pictures/drawing.png").to_dict()


@call
def py_replanned():
    return iqa(max_replan_iterations=3)(SHIFTED, reference=LEAF).to_dict()


@call
def py_never_replanned():
    return iqa(max_replan_iterations=0)(SHIFTED, reference=LEAF).to_dict()


@call
def py_agent_classification():
    return iqa(mode="classification")(JPEG).to_dict()


@call
def py_agent_map():
    result = iqa()("pictures/damaged.png", map=True)
    assert result.map is not None
    return [result.to_dict(), [worst.box for worst in result.map.worst]]


@call
def py_second_look():
    return iqa(at_least="Good", target_width=0.8, most_reads=12)(JPEG).to_dict()


@call
def py_conversation():
    with iqa().open(BLUR) as conversation:
        turns = [
            conversation.ask("Rate it"),
            conversation.ask("Is the sky noisy? yes or no"),
            conversation.ask("And the leaves?"),
        ]
        picture = conversation.picture
    return [picture, [turn.to_dict() for turn in turns], outcome(conversation.ask, "Again?")]


@call
def py_pipeline_state():
    state = run_pipeline("Rate this image.", JPEG, max_replan_iterations=2)
    return {
        key: value.model_dump(mode="json") if hasattr(value, "model_dump") else value for key, value in state.items()
    }


@call
def py_pipeline_failure():
    return dict(run_pipeline("Rate this image.", "broken/words.png"))


# The letters


@call
def py_kinds_of_pictures():
    with Image.open(LEAF) as picture:
        array = np.asarray(picture.convert("RGB"))
    file = Path(LEAF).read_bytes()
    given = [
        LEAF,
        Path(LEAF),
        array,
        Image.fromarray(array),
        file,
        array[..., 0],
        "broken/cut.jpg",
        "pictures/gone.png",
    ]
    return [row.to_dict() for row in letters()(given)]


@call
def py_references():
    rows = letters()([BLUR, NOISE, TOWER], reference=[LEAF, LEAF, None])
    return [row.to_dict() for row in rows]


@call
def py_letters_choices():
    return letters()(BLUR, query="Is it sharp?", choices=["Yes", "No"]).to_dict()


@call
def py_letters_classification():
    return letters(mode="classification")(JPEG).to_dict()


@call
def py_letters_uniform():
    return letters(mode="uniform")(JPEG, reference=LEAF, map=True).to_dict()


@call
def py_gates():
    gated = letters(at_least="C", error_rate=0.2, abstain_wider_than=1.0)
    return [gated(picture).to_dict() for picture in (LEAF, JPEG, NOISE)]


@call
def py_map():
    drawn = letters()("pictures/damaged.png", map="py_map.png")
    small = letters()("pictures/tower.png", map=True)
    return [drawn.to_dict(), Path("py_map.png").stat().st_size > 0, small.to_dict()]


@call
def py_map_reference():
    return letters()("pictures/damaged.png", reference="sample.png", map=True).to_dict()


@call
def py_unusual_pictures():
    pictures = ("framed.png", "grey.png", "see_through.png")
    plain = [letters()(f"pictures/{name}").to_dict() for name in pictures]
    return [*plain, letters(background="white")("pictures/see_through.png").to_dict()]


@call
def py_config():
    return IQA("mine.yaml", cpu=True, pipeline="letters")(LEAF).to_dict()


@call
def py_compare():
    pair = compare(JPEG, BLUR)
    better = pair.better and pair.better.image
    return [pair.to_dict(), pair.probability, better, pair.same_scene, bool(pair.explain())]


@call
def py_compare_scenes():
    return letters().compare(TOWER, SCENE).to_dict()


@call
def py_compare_reference():
    return letters().compare(JPEG, NOISE, reference=LEAF).to_dict()


@call
def py_rank():
    order = rank([LEAF, JPEG, "broken/words.png", BLUR, TOWER])
    return [order.to_dict(), order.best and order.best.image, bool(order.explain())]


# Without a model


@call
def py_mistakes():
    array, closed = np.zeros((64, 64), np.float32), IQA(cpu=True)
    closed.close()
    return {
        "array of floats": outcome(letters(), array),
        "number as picture": outcome(letters(), 3),
        "one choice": outcome(letters(), LEAF, choices=["Yes"]),
        "same choices": outcome(letters(), LEAF, choices=["Yes", "Yes"]),
        "choices as text": outcome(letters(), LEAF, choices="Yes"),
        "blank query": outcome(letters(), LEAF, query="  "),
        "pipeline": outcome(IQA, pipeline="letter"),
        "config": outcome(IQA, config="nowhere"),
        "config with a typing error": outcome(IQA, config="misspelt.yaml"),
        "model": outcome(IQA, model="nowhere", cpu=True),
        "option": outcome(IQA, colour=3),
        "gpu and cpu": outcome(IQA, gpu=0, cpu=True),
        "error rate": outcome(IQA, error_rate=2.0, at_least="Good"),
        "level": outcome(IQA, at_least="Splendid"),
        "replans": outcome(IQA, max_replan_iterations=-1),
        "references": outcome(letters(), [LEAF, TOWER], reference=[LEAF]),
        "closed": outcome(closed, LEAF),
        "conversation by letters": outcome(letters().open, LEAF),
        "conversation about nothing": outcome(iqa().open, "pictures/gone.png"),
        "rank of one": outcome(rank, [LEAF]),
    }


@call
def py_public_names():
    return [agentic_iqa_local.__all__, agentic_iqa_local.__version__, visualize_graph()]


@call
def py_score_fusion():
    fusion, sharp, literal = (
        ScoreFusion(),
        ScoreFusion(eta=2.5, temperature=0.5),
        ScoreFusion(normalize=False),
    )
    logits = {"A": -2.0, "B": -0.7, "C": -1.1, "D": -3.0, "E": -5.0}
    found: dict[str, Any] = {}
    for name, one in (("plain", fusion), ("sharp", sharp), ("literal", literal)):
        p = one.extract_vlm_probabilities(logits)
        q = one.fuse_scores([2.6, 3.4], p)
        found[name] = [
            p,
            one.compute_perceptual_weights([2.6, 3.4]),
            q,
            one.map_to_level(q),
            one.sensitivity([3.0], p),
        ]
    found["none"] = [
        fusion.compute_perceptual_weights([]),
        fusion.fuse_scores([], dict.fromkeys(range(1, 6), 0.2)),
    ]
    for answer in ("B", "B. Good", "good", 4):
        found[f"written {answer}"] = fusion.extract_vlm_probabilities(answer, "classification")
    found["uniform"] = fusion.extract_vlm_probabilities(None, "uniform")
    found["levels"] = [fusion.map_to_level(score) for score in (1.0, 1.5, 2.49, 3.5, 4.5, 5.0)]
    found["thresholds"] = fusion.map_to_level(3.0, [1.2, 2.2, 3.2, 4.2])
    found["four levels"] = ScoreFusion(quality_levels=(1, 2, 3, 4)).compute_perceptual_weights([2.0])
    mistakes = {
        "no logits": (fusion.extract_vlm_probabilities, None),
        "a letter too few": (fusion.extract_vlm_probabilities, {"A": 0.0}),
        "score": (fusion.mean_score, [5.5]),
        "level": (fusion.map_to_level, 7.0),
        "probabilities": (fusion.fuse_scores, [3.0], dict.fromkeys(range(1, 6), 0.5)),
        "eta": (ScoreFusion, -1.0),
    }
    return found | {name: outcome(*wrong) for name, wrong in mistakes.items()}


@call
def py_state_models():
    plan = {
        "query_type": "IQA",
        "query_scope": ["vehicle"],
        "distortion_source": "Explicit",
        "distortions": {"vehicle": ["Blurs"]},
        "reference_mode": "No-Reference",
        "required_tool": None,
        "plan": {"distortion_analysis": True},
    }
    planned = PlannerOutput.model_validate(plan)
    answer = SummarizerOutput(final_answer=" B ", quality_reasoning=" clear ", need_replan=True)
    schema = PlannerOutput.model_json_schema()
    wrong = {
        "query type": (PlannerOutput.model_validate, plan | {"query_type": "INVALID"}),
        "empty scope": (PlannerOutput.model_validate, plan | {"query_scope": []}),
        "blank answer": (
            SummarizerOutput.model_validate,
            {"final_answer": " ", "quality_reasoning": "clear"},
        ),
        "blank reasoning": (SummarizerOutput.model_validate, {"final_answer": "A", "quality_reasoning": " "}),
        "no such file": (PlannerInput.model_validate, {"query": "Rate it", "image_path": "gone.png"}),
        "no image": (PlannerInput.model_validate, {"query": "Rate it", "image_path": "notes.csv"}),
        "no query": (PlannerInput.model_validate, {"query": "", "image_path": LEAF}),
    }
    return {
        "plan": planned.model_dump(),
        "same": PlannerOutput.model_validate_json(planned.model_dump_json()) == planned,
        "input": PlannerInput(query=" Rate it ", image_path=LEAF).model_dump(),
        "error": PlannerError.from_exception(ValueError("no JSON"), attempt=2, backend="x").model_dump(mode="json"),
        "answer": answer.model_dump(),
        "reason set": answer.replan_reason,
        "required": sorted(schema["required"]),
        "examples": [len(model.model_json_schema()["examples"]) for model in (PlannerOutput, SummarizerOutput)],
        **{name: outcome(*arguments) for name, arguments in wrong.items()},
    }


@call
def py_next_node():
    again = SummarizerOutput(final_answer="C", quality_reasoning="?", need_replan=True, replan_reason="a gap")
    done = SummarizerOutput(final_answer="C", quality_reasoning="clear")
    states = [
        {"summarizer_result": result, "iteration_count": count, "max_replan_iterations": limit}
        for result in (again, done)
        for count, limit in ((0, 2), (1, 2), (2, 2), (0, 0), (1, 3))
    ]
    states += [{}, {"summarizer_result": again, "error": "failed"}, {"summarizer_result": again}]
    return [decide_next_node({"query": "Rate it", "image_path": LEAF, **state}) for state in states]  # pyright: ignore


def main() -> None:
    logging.getLogger("agentic_iqa_local").setLevel(logging.ERROR)
    answers = {}
    for name in sys.argv[1:]:
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                answer = CALLS[name]()
            except Exception as error:
                answer = {"raised": type(error).__name__}
                logging.exception(name)
        answers[name] = {"answer": answer, "took": time.perf_counter() - start}
    sys.stdout.write(json.dumps(answers, default=str))


if __name__ == "__main__":
    main()
