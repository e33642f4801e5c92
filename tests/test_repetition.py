"""A text that repeats itself is told from sentences, lists, numbers and tables."""

import pytest
from scripted import (
    ScriptedClient,
    ScriptedTools,
    moderate_blur,
    plan_reply,
    scripted_answers,
    scripted_services,
)

from agentic_iqa_local import assess
from agentic_iqa_local.nodes.repetition import repeats_itself
from agentic_iqa_local.nodes.written import sound
from agentic_iqa_local.output.report import account

LOOPS = [
    "The picture is too dark the picture.",
    "Noise grows with noise noise noise light light light light",
    "the picture is the picture is the picture is",
    "Edges are soft. Edges are soft. Edges are soft.",
    "noise light grain noise grain light noise light grain noise light noise grain light noise grain"
    " noise light grain noise light noise light grain noise grain light noise light grain",
    "hahahahahaha",
    "Blurrrrrrrrrrrrrry",
    "模糊模糊模糊模糊",
    "图像质量很好，图像质量很好，图像质量很好。",
    "ภาพเบลอภาพเบลอภาพเบลอ",
]
SOUND = [
    "",
    "The image shows moderate blur affecting sharpness, consistent with tool score of 2.6.",
    "Severe noise: LocalNR reads severity 3.4 of 5. Moderate blur: Edges smear in one direction. The"
    " quality is fair. Fused score 2.63 of 5: LocalNR says 2.71, the model alone Poor.",
    "Slight blur of the sky, slight blur of the sea, slight blur of the trees; no noise, no banding.",
    "| sky | blur | none |\n| sea | blur | none |\n| leaves | blur | none |",
    "Crops: 3.2 3.2 3.2 3.2 3.2 3.2 3.2 3.2; the mean is 3.2.",
    "1. Blur: the edges are soft. 2. Noise: the sky is grainy. 3. Contrast: the tones are flat.",
    "The noise that is there is noise that low light makes, not noise that compression makes.",
    "Mississippi, Tartar and Baden-Baden are sharp; the papperlapapp of the couscous is not.",
    "图像清晰，色彩自然，天空有轻微噪点，树叶边缘略显模糊，但整体质量良好。",
    "この画像は全体的に少しぼやけていますが、ノイズはほとんど見られません。",
    "Изображение резкое, цвета естественные, шум в небе едва заметен.",
    "ภาพนี้เบลอเล็กน้อย แต่สีเป็นธรรมชาติ",
    "Tile 1 shows blur at the top left, tile 2 shows blur at the top left, tile 3 shows none.",
]


@pytest.mark.parametrize("text", LOOPS)
def test_a_text_that_repeats_itself_is_found(text):
    assert repeats_itself(text)


@pytest.mark.parametrize("text", SOUND)
def test_sentences_lists_numbers_and_tables_pass(text):
    assert not repeats_itself(text)


LOOP = "soft soft soft soft soft soft soft"


@pytest.mark.parametrize(
    "text", ["Noise grows with brightnessleft {.", 'It is soft", "severity": "slight"}']
)
def test_debris_of_json_is_no_sentence(text):
    warned = []
    assert sound(text, "its words", warned.append) is None
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("query", "choices", "answer"),
    [("What grows here?", None, LOOP), ("Is it blurry?", ["Yes", "No"], "B"), (None, None, "C")],
)
def test_no_written_field_of_a_row_repeats_itself(picture, query, choices, answer):
    """The row says that the model did."""
    replies = scripted_answers(
        PlannerReply=plan_reply(query_type="Other" if answer == LOOP else "IQA"),
        AnalysisReply={"Global": [moderate_blur()["Global"][0] | {"explanation": LOOP}]},
        SummaryReply={"final_answer": answer, "quality_reasoning": LOOP},
    )
    services = scripted_services(ScriptedClient(replies), ScriptedTools({"NIQE": 3.0}))
    row = assess(picture, query=query, choices=choices, services=services)
    shown = row.model_dump_json(exclude={"failed_tries"}) + account(row)
    assert "soft soft" not in shown
    assert "the model repeated itself in its reasoning" in shown
