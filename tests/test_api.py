"""The Python API as a developer meets it: kinds of pictures, results, errors before loading, and silence."""

import json
import math
import os
import subprocess
import sys
import weakref
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image, ImageFilter
from scripted import ScriptedClient, ScriptedTools, plan_reply, scripted_answers, scripted_services

import agentic_iqa_local
from agentic_iqa_local import IQA, Assessment, assess, run_pipeline
from agentic_iqa_local.api import choose_settings
from agentic_iqa_local.batch.work import as_line
from agentic_iqa_local.config_sections import ConfigError
from agentic_iqa_local.devices import DeviceError
from agentic_iqa_local.graph import initial_state
from agentic_iqa_local.images.pictures import as_file
from agentic_iqa_local.images.reading import load_image
from agentic_iqa_local.levels import LEVEL_WORDS
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.services import Services
from agentic_iqa_local.vlm_client import VLMError


def test_each_set_up_keeps_its_own_models_folder(tmp_path):
    before = os.environ["AGENTIC_IQA_MODELS"]
    folders = [str(tmp_path / name) for name in ("first", "second")]
    first, second = (choose_settings(model="Some-VL", models=folder) for folder in folders)
    assert [str(each.folder(each.summarizer.backend)) for each in (first, second)] == [
        f"{folder}/Some-VL" for folder in folders
    ]
    assert [str(Services(each).tools.weights.root) for each in (first, second)] == folders
    assert os.environ["AGENTIC_IQA_MODELS"] == before


SAME_PIXELS = "the picture has the same pixels as its reference: nothing was lost against it"


def python(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that runs `program` in the checkout."""
    env = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, cwd=ROOT, env=os.environ | env
    )


@pytest.fixture
def scripted(picture):
    """An IQA whose model and tools are scripted, and the client."""
    client = ScriptedClient(scripted_answers())
    iqa = IQA(cpu=True)
    iqa._services = scripted_services(client, ScriptedTools({"NIQE": 2.6, "VSI": 4.0, "FSIM": 4.0}))
    return iqa, client


@pytest.fixture
def pixels(picture):
    return np.asarray(Image.open(picture))


# Kinds of pictures


def test_every_kind_of_picture_gives_the_same_score(photo_path, services):
    image = Image.open(photo_path)
    kinds = [photo_path, Path(photo_path), image, np.asarray(image.convert("RGB")), Path(photo_path).read_bytes(),
             Path(photo_path).as_uri()]  # fmt: skip
    results = [assess(kind, services=services, pipeline="letters") for kind in kinds]
    assert len({result.q for result in results}) == 1
    assert results[0].error is None
    size = len(kinds[4])
    assert [r.image for r in results] == [
        photo_path, photo_path, "<Pillow image 512×512>", "<array 512×512>", f"<{size} bytes>", photo_path,
    ]  # fmt: skip


def test_arrays_are_grey_rgb_or_rgba(pixels):
    with as_file(pixels[..., 0]) as file:
        assert np.array_equal(np.asarray(Image.open(file.path)), pixels[..., 0])
    with as_file(np.dstack([pixels, pixels[..., :1]])) as file:
        assert Image.open(file.path).mode == "RGBA"
    with as_file(pixels[::2, ::-1]) as file:  # a view with strides
        assert np.array_equal(np.asarray(Image.open(file.path)), pixels[::2, ::-1])


def test_files_of_pictures_in_memory_are_the_users_alone_and_go(pixels):
    with as_file(pixels) as file:
        folder = Path(file.path).parent
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


def test_a_pillow_image_is_turned_as_its_file_is(tmp_path, scripted, pixels):
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif)
    row = scripted[0](Image.open(tmp_path / "a.jpg"))
    assert row.warnings[0] == "The picture was turned upright (EXIF orientation 6)."


@pytest.mark.parametrize("mode", ["CMYK", "L", "P", "1", "I;16"])
def test_a_pillow_image_of_another_mode_is_converted_as_a_file_is(scripted, pixels, mode):
    grey = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    row = scripted[0](grey if mode == "I;16" else Image.fromarray(pixels).convert(mode))
    assert row.error is None
    assert "converted to RGB" in " ".join(row.warnings)


def test_an_opened_file_is_read_as_the_file_is(tmp_path, pixels):
    grey = pixels[..., 0].astype(np.uint16) * 257
    Image.fromarray(65535 - grey).save(tmp_path / "a.tif", tiffinfo={262: 0})
    for image in (Image.open(tmp_path / "a.tif"), Image.fromarray(grey.astype(">u2"))):
        assert image.mode in ("I;16", "I;16B")
        with as_file(image) as file:
            assert np.array_equal(np.asarray(load_image(file.path).pixels)[..., 0], pixels[..., 0])


def test_an_animated_image_is_refused_until_a_frame_is_chosen(tmp_path, pixels, scripted):
    first = Image.fromarray(pixels)
    first.save(tmp_path / "a.gif", save_all=True, append_images=[first.rotate(180)])
    image = Image.open(tmp_path / "a.gif")
    with pytest.raises(
        ValueError, match=r"got a GIF of several frames or pages; give one of them: image.copy\(\)"
    ):
        scripted[0](image)
    assert scripted[0](image.copy()).error is None


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (np.zeros((64, 96, 3), np.float32), ValueError, "(array * 255).round().astype('uint8')"),
        (np.full((64, 96), 300, np.uint16), ValueError, "(array / 257).round().astype('uint8')"),
        (np.full((64, 96), 200, np.int64), ValueError, "give array.astype('uint8')"),
        (np.full((64, 96), 70_000, np.int64), ValueError, "values scaled to 0 to 255"),
        (np.zeros((64, 96), bool), ValueError, "array.astype('uint8') * 255"),
        (np.zeros((3, 64, 96), np.uint8), ValueError, "array.transpose(1, 2, 0)"),
        (np.zeros((64, 96, 2), np.uint8), ValueError, "got 64×96×2"),
        (np.zeros((2, 64, 96, 3), np.uint8), ValueError, "list(array)"),
        (np.zeros(64, np.uint8), ValueError, "got 64"),
        (Image.new("HSV", (64, 64)), ValueError, ".convert('RGB')"),
        ("data:image/png;base64," + "A" * 100, ValueError, "base64.b64decode"),
        ("A" * 5000, ValueError, "got a text of 5000 characters"),
        (None, TypeError, "got NoneType"),
        (3, TypeError, "got int"),
    ],
)
def test_what_is_no_picture_is_refused_before_anything_is_opened(scripted, wrong, error, said):
    iqa, client = scripted
    for image, reference in ((wrong, None), ("a.png", wrong)):
        if reference is wrong is None:
            continue
        with pytest.raises(error) as caught:
            iqa(image, reference)
        assert said in str(caught.value)
        assert "AAAA" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert client.opened == []


def test_bytes_land_in_no_message(scripted):
    row = scripted[0](b"SECRET" * 20)
    assert row.error.startswith("<120 bytes>: expected a PNG")
    assert "SECRET" not in row.model_dump_json() + repr(row) + row._repr_html_() + row.explain()
    assert "agentic_iqa_" not in row.model_dump_json() + repr(row)  # nor does the temporary folder


def test_a_name_without_a_suffix_is_accepted_by_both_pipelines(tmp_path, picture):
    services = scripted_services(
        ScriptedClient(scripted_answers()), ScriptedTools({"NIQE": 2.6, "LocalNR": 2.6})
    )
    for name in ("photo", "photo.dat"):
        (tmp_path / name).write_bytes(Path(picture).read_bytes())
        assert [
            assess(tmp_path / name, pipeline=p, services=services).error for p in ("agent", "letters")
        ] == [None, None]
        assert not run_pipeline("Rate it.", str(tmp_path / name), services=services).get("error")


# References


def test_a_picture_with_its_references_pixels_is_compared_and_said_to_be_a_copy(picture, tmp_path):
    Image.open(picture).save(tmp_path / "same.bmp")
    client, tools = ScriptedClient(scripted_answers()), ScriptedTools({"VSI": 4.2, "FSIM": 4.5})
    services = scripted_services(client, tools)
    for pipeline in ("agent", "letters"):
        row = assess(picture, tmp_path / "same.bmp", pipeline=pipeline, services=services)
        assert row.error is None
        assert SAME_PIXELS in row.warnings
        assert row.plan is None or row.plan.reference_mode == "Full-Reference"
    assert client.opened == [2, 2]
    assert {name for name, _ in tools.runs} == {"VSI", "FSIM"}


def test_a_perfect_copy_is_not_below_a_damaged_one(photo, services):
    def q(picture):
        return assess(picture, photo, pipeline="letters", services=services).q

    jpeg = BytesIO()
    photo.save(jpeg, "JPEG", quality=90)
    assert q(photo) >= max(q(jpeg.getvalue()), q(photo.filter(ImageFilter.GaussianBlur(0.5))))


@pytest.mark.parametrize(
    "tool", ["PSNR", "PSNRY", "SSIM", "MS-SSIM", "VIF", "GMSD", "NLPD", "MAD", "CW-SSIM"]
)
def test_every_tool_measures_a_perfect_copy(photo, services, tool):
    half = photo.crop((0, 0, 256, 256))
    assert services.tools.score(tool, half, half).normalized > 3.8


def test_warnings_about_the_reference_name_it(pixels, tmp_path, scripted):
    exif = Image.Exif()
    exif[274] = 3
    Image.fromarray(pixels).save(tmp_path / "b.png", exif=exif)
    row = scripted[0](Image.fromarray(pixels[::-1, ::-1]), tmp_path / "b.png")
    assert (
        f"the reference {tmp_path}/b.png: The picture was turned upright (EXIF orientation 3)."
        in row.warnings
    )


def test_a_tools_failure_names_the_picture(picture):
    client, tools = ScriptedClient(scripted_answers()), ScriptedTools({})
    row = assess(picture, pipeline="letters", services=scripted_services(client, tools))
    assert row.error.startswith(f"{picture}: ")


def test_studies_go_on_comparing_identical_pairs(picture):
    services = scripted_services(ScriptedClient(scripted_answers()), ScriptedTools({}))
    images = OpenImages(services, picture, picture)
    assert images.reference is not None
    assert images.warnings == []


def test_a_shifted_reference_is_in_the_warnings(photo, scripted):
    pixels = np.asarray(photo)
    row = scripted[0](pixels[:, :-2], pixels[:, 2:])
    assert row.reference == "<array 510×512>"
    # What stands at x in the reference stands at x + 2 in the picture.
    assert "shifted by 2 pixels to the left against the picture" in row.warnings[0]


# Lists


def test_a_list_in_is_a_list_out_in_order(scripted, picture, pixels):
    rows = scripted[0]([picture, pixels, b"junk", Path("absent.png")])
    assert [row.image for row in rows] == [picture, "<array 96×64>", "<4 bytes>", "absent.png"]
    assert [row.error is None for row in rows] == [True, True, False, False]
    assert scripted[0]([]) == []
    assert scripted[0].assess((picture,))[0].q == rows[0].q


def test_references_are_one_for_all_or_one_each(scripted, picture, pixels):
    other = np.roll(pixels, 5, 0)
    rows = scripted[0]([picture, picture], [other, None])
    assert [row.reference for row in rows] == ["<array 96×64>", None]
    assert [row.reference for row in scripted[0]([picture, picture], other)] == ["<array 96×64>"] * 2
    for images, references in (([picture], [other, other]), (picture, [other])):
        with pytest.raises(
            ValueError, match="reference: expected one, or a list of as many as there are pictures, 1"
        ):
            scripted[0](images, references)


# Results


def test_a_rating_in_short_and_at_length(scripted, picture):
    row = scripted[0](picture)
    assert row.letter == row.final_answer
    assert row.level in LEVEL_WORDS.values()
    assert repr(row) == str(row) == f"Assessment({picture}: {row.letter} {row.level}, q {row.q:.2f})"
    assert row.to_dict() == json.loads(as_line(row))
    assert f"q {row.q:.2f}" in row.explain()
    page = row._repr_html_()
    assert page.startswith("<table>")
    assert f"{row.letter} {row.level}, q {row.q:.2f}" in page


def test_a_choice_and_a_failure_show_as_what_they_are(scripted, picture):
    row = scripted[0](picture, query="Is it <b>sharp</b>?", choices=["<Yes>", "No"])
    assert (row.letter, row.level, row.q) == (row.final_answer, None, None)
    assert repr(row).startswith(
        f"Assessment({picture}: {row.letter}. {row.choices[ord(row.letter) - 65]}, p "
    )
    page = row._repr_html_()
    assert "&lt;b&gt;sharp&lt;/b&gt;" in page
    assert "&lt;Yes&gt;" in page
    assert "<b>" not in page
    failed = scripted[0]("<script>.png")
    assert (failed.letter, failed.level) == (None, None)
    assert repr(failed).startswith("Assessment(<script>.png: failed: expected an image file")
    assert "&lt;script&gt;.png" in failed._repr_html_()
    assert "<script>" not in failed._repr_html_()


def test_a_free_answer_has_no_letter(picture):
    services = scripted_services(
        ScriptedClient(scripted_answers(PlannerReply=plan_reply(query_type="Other"))), ScriptedTools({})
    )
    row = assess(picture, query="What is shown?", services=services)
    assert (row.letter, row.level) == (None, None)
    assert row.final_answer in repr(row)


def test_fields_and_json_lines_are_as_before():
    assert {"letter", "level"}.isdisjoint(Assessment.model_fields)
    row = Assessment(image="a.png", query="Rate it.", mode="logits")
    assert {"letter", "level"}.isdisjoint(row.model_dump())


# Errors before loading


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"config": "nope"}, ConfigError, "config 'nope': no such file or set-up"),
        ({"mode": "logit"}, ConfigError, "mode: expected logits, classification, uniform, got 'logit'"),
        (
            {"engine": "vlm"},
            ConfigError,
            "engine: expected transformers, vllm, server, got 'vlm'; did you mean vllm?",
        ),
        (
            {"pipeline": "letter"},
            ValueError,
            "pipeline: expected agent or letters, got 'letter'; did you mean letters?",
        ),
        ({"background": "whit"}, ConfigError, "got 'whit'; did you mean white?"),
        ({"background": "#ffffff80"}, ConfigError, "transparent itself"),
        ({"max_replan_iterations": -1}, ValueError, "max_replan_iterations: expected 0 or more, got -1"),
        ({"fit": "/nowhere/fit.json"}, ConfigError, "/nowhere/fit.json"),
        ({"model": "no-such-model"}, VLMError, "no-such-model: there is none; fetch it"),
        ({"gpu": 0, "cpu": True}, DeviceError, "expected one of them"),
        ({"confg": "embedded"}, TypeError, "confg"),
    ],
)
def test_wrong_options_are_told_before_anything_is_loaded(options, error, said):
    with pytest.raises(error) as caught:
        IQA(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize("choices", ["Yes", ["Yes"], [1, 2], ["Yes", "Yes"]])
def test_choices_are_a_list_of_texts(scripted, picture, choices):
    for call in (
        lambda: scripted[0](picture, choices=choices),
        lambda: assess(picture, choices=choices, services=scripted[0]._services),
        lambda: run_pipeline("Is it sharp?", picture, choices=choices, services=scripted[0]._services),
        lambda: initial_state("Is it sharp?", picture, choices=choices),
    ):
        with pytest.raises(ValueError, match="choices: expected"):
            call()
    assert scripted[1].opened == []


def test_options_reach_the_settings(tmp_path):
    settings = IQA(cpu=True, mode="uniform", background="white", pipeline="letters")._services.settings
    assert (settings.fusion.mode, settings.images.background) == ("uniform", "white")


def test_a_background_makes_a_transparent_picture_assessable(scripted, pixels):
    iqa, _ = scripted
    clear = np.dstack([pixels, np.full(pixels.shape[:2], 100, np.uint8)])
    assert "--background white" in iqa(clear).error
    iqa._services.settings = iqa._services.settings.with_background("white")
    row = iqa(clear)
    assert row.error is None
    assert row.warnings[0] == "The transparent pixels were composited onto white."


# Life and manners


def test_the_model_is_loaded_at_the_first_picture_kept_and_freed_at_the_end(photo_path):
    with IQA(cpu=True, pipeline="letters") as iqa:
        assert repr(iqa) == "IQA(transformers.embedded on cpu)"
        assert not iqa._services.pool.clients
        first = iqa(photo_path)
        model = weakref.ref(iqa._services.client("summarizer").model)
        assert iqa(photo_path).q == first.q
        assert iqa._services.client("summarizer").model is model()
    assert model() is None
    with pytest.raises(RuntimeError, match="it was closed; make a new one"):
        iqa(photo_path)
    iqa.close()
    assert repr(iqa) == "IQA(closed)"


def test_nothing_is_printed():
    program = (
        "from agentic_iqa_local import IQA\nIQA(cpu=True, max_replan_iterations=0)('tests/data/sumac.png',"
        " 'tests/data/prudential.png')"
    )
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        # this package's own warning, which Python shows where no logging is set up
        (
            "the reference looks like another picture, or one that is turned, mirrored or scaled:"
            " full-reference scores then say nothing; give the original that this picture was made from"
        ),
    ]


def test_importing_and_looking_around_load_neither_torch_nor_pyiqa():
    program = (
        "import sys, agentic_iqa_local as a\nnames = dir(a)\nassert {'IQA', 'assess', 'Assessment',"
        " 'run_pipeline', 'visualize_graph', 'ScoreFusion'} <= set(names),"
        " names\na.IQA\nprint(sorted({'torch', 'pyiqa', 'transformers'} & set(sys.modules)))"
    )
    done = python(program)
    assert done.stdout == "[]\n", done.stderr


def test_every_public_name_is_there():
    for name in agentic_iqa_local.__all__:
        assert getattr(agentic_iqa_local, name) is not None
        assert name in dir(agentic_iqa_local)


def test_type_checkers_are_told_that_the_package_is_typed():
    import tomllib

    assert (ROOT / "agentic_iqa_local" / "py.typed").is_file()
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "py.typed" in shipped["agentic_iqa_local"]


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (np.zeros((0, 0, 3), np.uint8), "expected an array with pixels"),
        ("https://example.org/photo.png", "download it first"),
        (Image.new("I", (64, 64)), "scale its values"),  # .convert("RGB") would clip 16-bit values to white
    ],
)
def test_one_picture_that_is_none_is_told_before_any_is_assessed(
    photo_path, services, monkeypatch, picture, said
):
    monkeypatch.setattr(
        "agentic_iqa_local.assessment.assess", lambda *_, **__: pytest.fail("a picture was assessed")
    )
    with IQA(cpu=True) as iqa, pytest.raises(ValueError, match=said):
        iqa([photo_path, picture])


@pytest.mark.parametrize("choices", ["Yes", {"Yes", "No"}, {"a": 1, "b": 2}, (c for c in "ab"), 5])
def test_sets_and_generators_are_no_choices(photo_path, choices):
    with IQA(cpu=True) as iqa, pytest.raises(ValueError, match="choices: expected a list of texts"):
        iqa(photo_path, choices=choices)


@pytest.mark.parametrize("query", [b"hi", 5])
def test_a_query_is_a_text(photo_path, query):
    with IQA(cpu=True) as iqa, pytest.raises(ValueError, match="query: expected a text"):
        iqa(photo_path, query=query)


# A reasoning that fails


def test_a_fused_score_stays_when_the_reasoning_fails_three_times(picture):
    client = ScriptedClient(scripted_answers(SummaryReply="no JSON"), {letter: math.log(p) for letter, p in
                            zip("ABCDE", (0.05, 0.05, 0.1, 0.7, 0.1), strict=True)})  # fmt: skip
    services = scripted_services(client, ScriptedTools({"NIQE": 2.0}))
    row, state = assess(picture, services=services), run_pipeline("Rate it.", picture, services=services)
    result = state["summarizer_result"]
    assert (result.final_answer, result.quality_reasoning) == (
        "Unable to determine",
        "VLM output parsing failed",
    )
    assert row.error is None
    assert (row.letter, row.level, row.vlm_letter) == ("D", "Poor", "D")  # tools and letters both say 2
    assert (row.q, row.q_bar, row.p_c) == (result.fusion.q, 2.0, result.fusion.p_c)
    # the analysis' one finding, then the level, then the fusion's account
    assert row.quality_reasoning.startswith(
        "Moderate blurs: Edges appear soft. The quality is poor. Fused score "
    )
    assert "the model gave no valid reasoning in three tries" in " ".join(row.warnings)
    assert [t.details["role"] for t in row.failed_tries] == ["summarizer"] * 3
    assert not row.need_replan


def test_a_chosen_answer_stays_when_the_reasoning_fails_three_times(picture):
    client = ScriptedClient(
        scripted_answers(SummaryReply="no JSON"), {"A": math.log(0.2), "B": math.log(0.8)}
    )
    row = assess(
        picture,
        query="Is it a boat?",
        choices=["Yes", "No"],
        services=scripted_services(client, ScriptedTools({"NIQE": 2.0})),
    )
    assert row.error is None
    assert (row.letter, row.q) == ("B", None)
    assert row.quality_reasoning.startswith("The most probable answer is No (0.80).")


def test_a_free_answer_that_fails_three_times_is_a_failure(picture):
    client = ScriptedClient(
        scripted_answers(PlannerReply=plan_reply(query_type="Other"), SummaryReply="no JSON")
    )
    row = assess(picture, query="What is shown?", services=scripted_services(client, ScriptedTools({})))
    assert "no valid JSON in 3 attempts" in row.error
    assert (row.p_c, row.letter) == (None, None)
