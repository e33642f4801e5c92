"""compare() and rank(): probabilities, near-duplicates, pairwise reads and orders."""

import itertools
import json
import math

import choix
import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.stats import mannwhitneyu
from scripted import ScriptedClient, ScriptedTools, moderate_blur, scripted_answers, scripted_services

from agentic_iqa_local import IQA, compare, rank
from agentic_iqa_local.config import Settings
from agentic_iqa_local.judgement import comparison
from agentic_iqa_local.judgement.assessment import unassessed
from agentic_iqa_local.judgement.comparison import Candidate, Judge, PairwiseRead
from agentic_iqa_local.judgement.groups import best_of_groups
from agentic_iqa_local.judgement.near_duplicates import fingerprint, same_scene, scene_distance, scene_groups
from agentic_iqa_local.judgement.ordering import PAIRS_PER_PICTURE, pairs_to_compare, strengths
from agentic_iqa_local.judgement.pairwise_read import read_pair
from agentic_iqa_local.judgement.preference import (
    FitsError,
    PairFit,
    PairFits,
    draws_of,
    fitted_probability,
    logit,
    probability_above,
    read_fits,
    sigmoid,
)
from agentic_iqa_local.nodes.prompts import FIRST_AND_SECOND, chat_messages, comparison_prompt
from agentic_iqa_local.state import ToolExecutionLog
from agentic_iqa_local.synthetic.distortions import DISTORTIONS
from agentic_iqa_local.vlm_client import LetterRead, TokenUsage


def rated(q: float, name: str = "a.png", local_nr: float | None = None, sha256: str | None = None):
    """A row with a q, and what a fit may weigh."""
    row = unassessed(name, None, "Rate it", None, "letters", Settings())
    row.q, row.p_c, row.q_bar, row.eta, row.sigma = q, dict.fromkeys("ABCDE", 0.2), q, 1.0, 0.7
    row.final_answer, row.sha256 = "C", sha256 or name
    if local_nr is not None:
        row.tools = [
            ToolExecutionLog(
                tool_name="LocalNR", object_name="Global", distortion="Overall", raw_score=local_nr,
                normalized_score=local_nr, execution_time=0.0,
            )
        ]  # fmt: skip
    return row


def fit_of(weights: dict[str, float], pairwise: float = 0.0) -> PairFit:
    return PairFit(
        model="m", pipeline="letters", reference=False, weights=weights, pairwise=pairwise, pairs=10,
        photographs=2, source="a test", date="2026-01-01",
    )  # fmt: skip


SCENE = np.zeros(256, bool)
NO_PIXELS = Image.new("RGB", (64, 64))


def candidates(rows, scenes=None) -> list[Candidate]:
    scenes = scenes or [SCENE] * len(rows)
    return [Candidate(row, scene, lambda: NO_PIXELS) for row, scene in zip(rows, scenes, strict=True)]


def judge_with(fit: PairFit | None, **options) -> Judge:
    judge = Judge(Settings(), "letters", False, fits=PairFits(fits=()), **options)
    judge.__dict__["fit"] = fit  # in place of the one of the set-up's model
    return judge


def a_read(probability: float) -> PairwiseRead:
    return PairwiseRead(
        probability=probability, order_bias=0.0, letter_bias=0.0, flipped=False, off_letter_mass=0.0, calls=4,
        prefilled=1, reused=1, seconds=0.0,
    )  # fmt: skip


class TestProbability:
    def test_is_the_statistic_of_mann_and_whitney(self):
        rng = np.random.default_rng(0)
        one, other = rng.integers(0, 9, 40).astype(float), rng.integers(0, 9, 55).astype(float)  # with ties
        u = mannwhitneyu(one, other).statistic
        assert probability_above(one, other) == pytest.approx(u / (40 * 55))

    def test_both_orders_sum_to_one(self):
        rng = np.random.default_rng(1)
        one, other = rng.normal(3, 1, 30).clip(1, 5), rng.normal(2, 1, 20).clip(1, 5)
        assert probability_above(one, other) + probability_above(other, one) == pytest.approx(1)

    def test_of_the_same_values_is_one_half(self):
        values = np.array([1.0, 2.0, 2.0, 5.0])
        assert probability_above(values, values) == 0.5

    def test_without_an_interval_draws_follow_the_fused_distribution(self):
        # p is uniform and η 1, so w_c ∝ exp(−(q̄ − c)²): symmetric about q̄ = 3, where the median lies
        draws = draws_of(rated(3.0), None)
        assert np.median(draws) == pytest.approx(3.0, abs=0.01)
        assert (np.diff(draws) >= 0).all()
        assert draws.min() >= 1
        assert draws.max() <= 5

    def test_a_row_without_q_has_no_draws(self):
        with pytest.raises(ValueError, match="expected a rated picture"):
            draws_of(unassessed("a.png", None, "Why?", None, "agent", Settings()), None)

    def test_a_fit_weighs_differences(self):
        fit = fit_of({"q": 2.0, "LocalNR": 3.0})
        p = fitted_probability(fit, rated(3.5, local_nr=3.0), rated(3.0, local_nr=3.2))
        assert p == pytest.approx(1 / (1 + math.exp(-(2 * 0.5 - 3 * 0.2))))  # sigmoid(0.4)

    def test_a_fit_says_nothing_where_a_measurement_is_missing(self):
        assert fitted_probability(fit_of({"LocalNR": 3.0}), rated(3), rated(2, local_nr=2.0)) is None

    def test_logit_and_sigmoid_are_inverse_and_bounded(self):
        assert sigmoid(logit(0.3)) == pytest.approx(0.3)
        assert 0.999 < sigmoid(1e6) < 1
        assert logit(0.0) == pytest.approx(-7)
        assert logit(1.0) == pytest.approx(7)


class TestFits:
    def test_the_shipped_file_has_one_of_the_embedded_model(self, services):
        judge = Judge(services.settings, "letters", False)
        assert judge.fit is not None
        assert judge.fit.strength(rated(3.0, local_nr=3.0)) is not None

    def test_another_model_or_pipeline_has_none(self, services):
        assert read_fits().of("another", "letters", reference=False) is None
        assert Judge(services.settings, "agent", False).fit is None

    def test_no_file_is_no_fit(self, tmp_path):
        assert read_fits(tmp_path / "none.json").fits == ()

    def test_a_damaged_file_is_one_sentence(self, tmp_path):
        file = tmp_path / "fits.json"
        file.write_text('{"fits": [{"model": 3}]}')
        with pytest.raises(FitsError, match=r"expected fits of comparisons, got: .*"):
            read_fits(file)


class TestSameScene:
    @pytest.mark.parametrize("kind", ["jpeg", "gaussian_blur", "white_noise", "darken", "oversharpen"])
    def test_a_distorted_version_is_the_same(self, photo, kind):
        distorted = DISTORTIONS[kind].apply(np.asarray(photo), 4, np.random.default_rng(0))
        assert same_scene(fingerprint(photo), fingerprint(Image.fromarray(distorted)))

    def test_size_does_not_matter(self, photo):
        assert same_scene(fingerprint(photo), fingerprint(photo.resize((200, 150))))

    def test_another_subject_is_not(self, photo):
        other = Image.open("tests/data/prudential.png").convert("RGB")
        assert not same_scene(fingerprint(photo), fingerprint(other))
        assert scene_distance(fingerprint(photo), fingerprint(other)) > 0.35

    def test_neighbours_link_groups(self):
        # 0 and 2 differ in 120 bits, more than 80, but 1 is within 60 of either; 3 is far from all
        one, two, three = SCENE.copy(), SCENE.copy(), ~SCENE
        one[:60] = two[:120] = True
        assert scene_groups([SCENE, one, three, two]) == [[0, 1, 3], [2]]
        assert scene_groups([]) == []


class TestOrdering:
    @pytest.mark.parametrize("count", [2, 3, 6, 40, 200])
    def test_pairs_are_linear_and_link_all(self, count):
        prior = np.random.default_rng(count).normal(size=count).tolist()
        pairs = pairs_to_compare(prior, lambda i, j: sigmoid(prior[i] - prior[j]))
        assert len(pairs) <= PAIRS_PER_PICTURE * count
        assert len({frozenset(pair) for pair in pairs}) == len(pairs)
        order = sorted(range(count), key=lambda i: -prior[i])
        assert set(itertools.pairwise(order)) <= set(pairs)

    def test_strengths_of_consistent_probabilities_are_the_true_ones(self):
        # where P(i beats j) is sigmoid(s_i − s_j), the likelihood is greatest at s itself (up to a constant)
        true = np.array([2.0, -1.0, 0.5, 0.0, -1.5])
        pairs = pairs_to_compare(list(true), lambda i, j: 0.5)
        found = strengths(5, {(i, j): sigmoid(true[i] - true[j]) for i, j in pairs}, [0.0] * 5)
        np.testing.assert_allclose(found, true - true.mean(), atol=1e-3)

    def test_strengths_are_those_of_decided_comparisons(self):
        # ten comparisons of each pair of three pictures, decided 7:3, 6:4 and 8:2, by choix's own optimiser
        decided = {(0, 1): 0.7, (1, 2): 0.6, (0, 2): 0.8}
        data = [pair if k < 10 * p else pair[::-1] for pair, p in decided.items() for k in range(10)]
        expected = choix.opt_pairwise(3, data, alpha=1e-9)
        np.testing.assert_allclose(strengths(3, decided, [0.0] * 3), expected, atol=1e-3)

    def test_one_picture_has_no_strength(self):
        assert strengths(1, {}, [3.0]).tolist() == [0.0]


class TestJudge:
    def test_of_one_scene_the_fit_answers(self):
        one, other = candidates([rated(3.5), rated(3.0, "b.png")])
        result = judge_with(fit_of({"q": 4.0})).compare(one, other)
        assert result.basis == "same scene, fitted"
        assert result.probability == pytest.approx(sigmoid(2.0))
        assert result.independent < result.probability

    def test_of_different_scenes_independent_draws_answer(self):
        one, other = candidates([rated(3.5), rated(3.0, "b.png")], [SCENE, ~SCENE])
        result = judge_with(fit_of({"q": 4.0})).compare(one, other)
        assert result.basis == "fused distributions"
        assert result.probability == result.independent

    def test_without_a_fit_it_says_so(self):
        result = judge_with(None).compare(*candidates([rated(3.5), rated(3.0, "b.png")]))
        assert result.probability == result.independent
        assert "no fit of comparisons" in result.notes[0]

    def test_the_same_file_is_not_better_than_itself(self):
        result = judge_with(fit_of({"q": 4.0})).compare(*candidates([rated(3.5), rated(3.5)]))
        assert (result.probability, result.basis) == (0.5, "same pixels")
        assert result.notes == ["both are the same file: neither is better"]

    def test_a_pairwise_read_counts_by_its_weight(self):
        one, other = candidates([rated(3.0), rated(3.0, "b.png")])
        judge = judge_with(fit_of({"q": 4.0}, pairwise=0.5), read=lambda *_: a_read(0.8))
        assert judge.compare(one, other).probability == pytest.approx(sigmoid(0.5 * logit(0.8)))

    @pytest.mark.parametrize(
        ("weight", "always", "reads"), [(0.0, False, 0), (0.0, True, 1), (0.5, False, 1)]
    )
    def test_pairs_are_read_where_that_counts_or_is_asked_for(self, weight, always, reads):
        judge = judge_with(fit_of({"q": 4.0}, pairwise=weight), read=lambda *_: a_read(0.8), always=always)
        result = judge.compare(*candidates([rated(3.0), rated(3.1, "b.png")]))
        assert judge.reads == reads
        assert (result.pairwise is not None) == bool(reads)

    def test_reads_of_an_order_are_linear(self):
        rows = [rated(1 + 4 * i / 60, f"{i}.png") for i in range(60)]
        judge = judge_with(fit_of({"q": 4.0}, pairwise=0.5), read=lambda *_: a_read(0.5))
        ranking = judge.rank(candidates(rows))
        assert ranking.pairwise_reads == len(ranking.pairs) <= PAIRS_PER_PICTURE * 60
        assert [ranked.assessment.image for ranked in ranking.order] == [
            f"{i}.png" for i in range(59, -1, -1)
        ]
        assert [ranked.place for ranked in ranking.order] == list(range(1, 61))

    def test_too_many_pictures_are_refused(self, monkeypatch):
        monkeypatch.setattr(comparison, "MOST_PICTURES", 2)
        with pytest.raises(ValueError, match="expected at most 2 pictures, got 3"):
            judge_with(None).rank(candidates([rated(3), rated(3), rated(3)]))

    def test_groups_have_their_best(self):
        rows = [rated(3.0, "a.png"), rated(2.0, "b.png"), rated(3.4, "c.png")]
        groups = list(
            best_of_groups(judge_with(fit_of({"q": 4.0})), candidates(rows, [SCENE, ~SCENE, SCENE]))
        )
        assert [(group.number, group.best) for group in groups] == [(1, "c.png"), (2, "b.png")]
        assert [ranked.index for ranked in groups[0].order] == [2, 0]
        assert {(pair.first, pair.second) for pair in groups[0].pairs} == {(2, 0)}


class _Preferring:
    """A model that is shown two pictures and says A with a probability for each of its four reads."""

    def __init__(self, *answers: float):
        self.answers, self.opened, self.prompts = list(answers), [], []
        self.usage = TokenUsage(calls=2)

    def open(self, images):
        self.opened.append([image.size for image in images])
        return self

    def read_letters(self, prompt, answer_prefix, letters):
        self.prompts.append(prompt)
        p = self.answers.pop(0)
        return LetterRead({"A": math.log(p), "B": math.log(1 - p)}, 0.0, {})

    def close(self):
        pass


class TestPairwiseRead:
    small, large = Image.new("RGB", (64, 64)), Image.new("RGB", (96, 96))

    def test_averages_by_meaning(self):
        # [first, second]: A is the first .8, then B is the first .7; [second, first]: the one shown first,
        # which is the second, gets .4 as A and .5 as B. So the first is better with
        # ((.8 + .7)/2 + 1 − (.4 + .5)/2)/2 = (.75 + .55)/2 = .65, and the one shown first gains
        # (.75 + .45)/2 − .5 = .1. The letter A: (.8 + .3 + .4 + .5)/4 − .5 = 0.
        read = read_pair(client := _Preferring(0.8, 0.3, 0.4, 0.5), self.small, self.large)
        assert read.probability == pytest.approx(0.65)
        assert read.order_bias == pytest.approx(0.1)
        assert read.letter_bias == pytest.approx(0)
        assert not read.flipped
        assert client.opened == [[(64, 64), (96, 96)], [(96, 96), (64, 64)]]

    def test_one_that_always_prefers_the_first_flips(self):
        read = read_pair(_Preferring(0.9, 0.1, 0.9, 0.1), self.small, self.large)
        assert read.probability == pytest.approx(0.5)
        assert read.order_bias == pytest.approx(0.4)
        assert read.flipped

    def test_the_prompt_names_no_reference(self):
        (message,) = chat_messages(comparison_prompt(), 2, "images_first")
        text = message["content"][-1]["text"]
        assert "pristine" not in text
        assert f"A. {FIRST_AND_SECOND[0]}\nB. {FIRST_AND_SECOND[1]}" in text
        (message,) = chat_messages(comparison_prompt(reversed_letters=True), 2, "images_first")
        assert f"A. {FIRST_AND_SECOND[1]}\nB. {FIRST_AND_SECOND[0]}" in message["content"][-1]["text"]


class TestCompare:
    """With the real model and the real tools."""

    def test_both_orders_say_the_same(self, services, photo_path, noisy_path):
        there = compare(photo_path, noisy_path, services=services, pairwise=True)
        back = compare(noisy_path, photo_path, services=services, pairwise=True)
        assert there.probability > 0.9
        assert there.same_scene
        assert there.probability + back.probability == pytest.approx(1, abs=1e-9)
        assert there.pair.pairwise.probability + back.pair.pairwise.probability == pytest.approx(1, abs=1e-5)
        assert there.pair.pairwise.order_bias == pytest.approx(back.pair.pairwise.order_bias, abs=1e-5)
        assert there.better is there.first
        assert back.better is back.second

    def test_is_written_as_json_and_shown(self, services, photo_path, noisy_path):
        found = compare(photo_path, noisy_path, services=services)
        fields = json.loads(json.dumps(found.to_dict()))
        assert fields["kind"] == "comparison"
        assert fields["pair"]["probability"] == found.probability
        assert fields["pair"]["pairwise"] is None  # it has no weight with this model
        assert "The same scene" in found.explain()
        assert "better than" in repr(found)
        assert found._repr_html_().startswith("<pre>")

    def test_a_reference_is_used(self, services, photo, photo_path, noisy_path):
        blurred = DISTORTIONS["gaussian_blur"].apply(np.asarray(photo), 1, np.random.default_rng(0))
        found = compare(noisy_path, blurred, reference=photo_path, services=services)
        assert {run.tool_name for run in found.first.tools} == {"VSI", "FSIM"}
        assert found.better is found.second

    def test_a_reference_of_another_size_is_one_sentence(self, services, photo, photo_path, noisy_path):
        found = compare(noisy_path, photo, reference=photo.resize((300, 300)), services=services)
        assert found.probability is None
        assert "size" in found.error
        assert "not compared" in found.explain()

    def test_an_order_is_by_damage(self, services, photo):
        rng = np.random.default_rng(0)
        pictures = [DISTORTIONS["white_noise"].apply(np.asarray(photo), level, rng) for level in (3, 1, 5)]
        ranking = rank([*pictures, b"no picture"], services=services)
        assert [ranked.index for ranked in ranking.order] == [1, 0, 2]
        assert len(ranking.failed) == 1
        assert ranking.best is ranking.order[0].assessment
        assert ranking.order[-1].better_than_next is None
        assert "FAILED" in ranking.explain()

    def test_orientation_is_heeded(self, services, photo, tmp_path):
        # the same pixels stored turned, with the EXIF tag that turns them back
        exif = Image.Exif()
        exif[0x0112] = 6
        turned = tmp_path / "turned.png"
        photo.rotate(90, expand=True).save(turned, exif=exif)
        assert ImageOps.exif_transpose(Image.open(turned)).tobytes() == photo.tobytes()
        found = compare(photo, str(turned), services=services)
        assert found.pair.scene_distance == 0
        assert found.probability == pytest.approx(0.5)
        assert found.better is None

    def test_an_answer_that_is_no_rating_is_not_compared(self, picture):
        services = scripted_services(ScriptedClient(lambda *_: "{}"), ScriptedTools({}))
        services.settings.tools.no_reference[:] = ["LocalNR"]
        found = compare(picture, picture, services=services)
        assert found.pair is None
        assert found.error

    @pytest.mark.parametrize(
        ("options", "pipeline"),
        [({}, "letters"), ({"pipeline": "agent", "max_replan_iterations": 0}, "agent")],
    )
    def test_a_set_up_compares_as_the_function_does_and_keeps_its_limit(self, picture, options, pipeline):
        answers = scripted_answers(AnalysisReply=moderate_blur(severity="severe"))
        services = scripted_services(ScriptedClient(answers), ScriptedTools({"NIQE": 4.5}))
        services.settings.tools.no_reference[:] = ["NIQE"]
        iqa = IQA(cpu=True, **options)
        iqa._services = services
        rows = [
            iqa.compare(picture, picture).first,
            *(r.assessment for r in iqa.rank([picture, picture]).order),
        ]
        assert {(row.pipeline, len(row.replan_history)) for row in rows} == {(pipeline, 0)}
        assert compare(picture, picture, services=services).first.pipeline == "letters"

    def test_methods_of_a_set_up(self, photo_path, noisy_path):
        with IQA(pipeline="letters", cpu=True) as iqa:
            assert iqa.compare(photo_path, noisy_path).better.image == photo_path
            assert iqa.rank([noisy_path, photo_path]).best.image == photo_path
