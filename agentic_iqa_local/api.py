"""`IQA`: one set-up, loaded once, that Python code asks about many pictures, and `Conversation`: many
questions about one."""

import difflib
import errno
import functools
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, get_args, overload

from agentic_iqa_local.config import Settings, load_settings
from agentic_iqa_local.config_sections import ConfigError
from agentic_iqa_local.levels import Mode
from agentic_iqa_local.request import Pipeline, check_choices, check_limit, check_query
from agentic_iqa_local.state import revised
from agentic_iqa_local.text import one_line
from agentic_iqa_local.vlm_client import BACKENDS

# What pulls in torch, LangGraph or a model's processor is imported where it is used: the command line checks
# its options with this module before anything is loaded.
if TYPE_CHECKING:
    from agentic_iqa_local.images.pictures import Picture
    from agentic_iqa_local.judgement.comparison import Comparison, Ranking
    from agentic_iqa_local.judgement.quality_map import MapRequest
    from agentic_iqa_local.result import Assessment
    from agentic_iqa_local.services import Services

PIPELINES = get_args(Pipeline)


def choose_settings(
    config: str | Path | None = None,
    *,
    model: str | Path | None = None,
    models: str | Path | None = None,
    engine: str | None = None,
    mode: str | None = None,
    fit: str | Path | None = None,
    background: str | None = None,
    **decisions: Unpack["Decisions"],
) -> Settings:
    """The settings of a configuration with what the options change in it; `decisions` are those of
    `config_sections.DecisionSettings`, `models` is the folder that models lie in. Raises ConfigError."""
    for option, value in (("engine", engine), ("mode", mode), ("background", background)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{option}: expected a text, got {type(value).__name__}")
    if engine is not None and engine not in BACKENDS:
        raise ConfigError(
            f"engine: expected {', '.join(BACKENDS)}, got '{engine:.200}'{_near(engine, BACKENDS)}"
        )
    settings = load_settings(config and _path("config", config))
    if models:
        settings = revised(settings, models_dir=os.path.abspath(_path("models", models)))
    if engine:
        settings = settings.with_engine(engine)
    if model:
        settings = settings.with_model(_path("model", model))
    if fit:
        settings = _with_fit(settings, Path(_path("fit", fit)))
    if mode:
        settings = settings.with_mode(mode)
    if unknown := sorted(decisions.keys() - Decisions.__annotations__.keys()):
        raise TypeError(f"got an unexpected option '{unknown[0]}'")
    if decisions:
        settings = settings.with_decisions(**decisions)
    return settings.with_background(background) if background else settings


class Decisions(TypedDict, total=False):
    """How sure answers have to be, see `config_sections.DecisionSettings`; `at_least` is a level's letter or
    word, or a number from 1 to 5."""

    target_width: float
    most_reads: int
    most_seconds: float
    abstain_wider_than: float
    at_least: str | float
    error_rate: float


def _path(option: str, value: str | os.PathLike[str]) -> str:
    """`value` as text. Raises ConfigError where no file or folder can have this name; whether there is one is
    for others to say."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(path, str):
        raise ConfigError(
            f"{option}: expected a path as text, got {type(path).__name__}", "decode it with os.fsdecode"
        )
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{option}: expected a path that can exist, got {path[:200]!r} ({reason})", "check it"
            ) from error
    return path


def _with_fit(settings: Settings, file: Path) -> Settings:
    """The temperature and η of a fit. Raises ConfigError where it is none, or of another model."""
    from agentic_iqa_local.judgement.fit import FitError, read_fit
    from agentic_iqa_local.provenance import folder_hash

    try:
        fit = read_fit(file)
    except FitError as error:
        raise ConfigError(f"fit: {error.message}", error.remedy) from error
    folder = Path(settings.model(settings.summarizer.backend).path)
    if os.path.isdir(folder) and folder_hash(folder) != fit.model:
        raise ConfigError(
            f"fit: {file}: expected a fit of the model in {folder}, it was made with another", "fit it anew"
        )
    changes = {"temperature": fit.temperature, "eta": fit.eta, "fitted": fit.source}
    decisions = revised(settings.decisions, calibration=str(file.absolute()))
    return revised(settings, fusion=revised(settings.fusion, **changes), decisions=decisions)


def _near(name: str, names: Any) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


class IQA:
    """Assesses pictures with one set-up, whose options are those of the command line.

        with IQA(config="qwen2_5_vl_7b", gpu=0) as iqa:
            result = iqa("photo.jpg")
            results = iqa([array, pillow_image, path.read_bytes()])

    What can be checked without loading is checked here: raises ConfigError, DeviceError, VLMError for a
    folder that holds no model, and ValueError. The model is loaded at the first picture, the tools when they
    are first used; both are kept until `close` or the end of `with`.
    """

    def __init__(
        self,
        config: str | Path | None = None,
        *,
        model: str | Path | None = None,
        models: str | Path | None = None,
        engine: str | None = None,
        gpu: int | str | None = None,
        cpu: bool = False,
        mode: Mode | None = None,
        pipeline: Pipeline | None = None,
        max_replan_iterations: int | None = None,
        fit: str | Path | None = None,
        background: str | None = None,
        **decisions: Unpack["Decisions"],
    ):
        if pipeline not in (None, *PIPELINES):
            raise ValueError(
                f"pipeline: expected {' or '.join(PIPELINES)}, got"
                f" {pipeline!r}{_near(str(pipeline), PIPELINES)}"
            )
        if max_replan_iterations is not None:
            check_limit(max_replan_iterations)
        settings = choose_settings(
            config,
            model=model,
            models=models,
            engine=engine,
            mode=mode,
            fit=fit,
            background=background,
            **decisions,
        )
        from agentic_iqa_local.devices import choose_device
        from agentic_iqa_local.services import Services
        from agentic_iqa_local.vlm_client.rendering import check_folder

        for backend in sorted(settings.backends):
            check_folder(Path(settings.model(backend).path), weights=not backend.startswith("server."))
        self.pipeline: Pipeline = pipeline or "agent"
        self._compared_by: Pipeline = pipeline or "letters"
        self.max_replan_iterations = max_replan_iterations
        self._services: Services | None = Services(settings, choose_device(gpu, cpu))
        self._conversations: weakref.WeakSet[Conversation] = weakref.WeakSet()
        _ = self._services.tools  # a bad file of maps is an error now

    @overload
    def assess(
        self,
        image: "Picture",
        reference: "Picture | None" = ...,
        query: str | None = ...,
        choices: Sequence[str] | None = ...,
        *,
        map: "bool | str | Path | MapRequest" = ...,
    ) -> "Assessment": ...
    @overload
    def assess(
        self,
        image: "list[Picture] | tuple[Picture, ...]",
        reference: "Picture | Sequence[Picture | None] | None" = ...,
        query: str | None = ...,
        choices: Sequence[str] | None = ...,
        *,
        map: "bool | MapRequest" = ...,
    ) -> "list[Assessment]": ...
    def assess(self, image, reference=None, query=None, choices=None, *, map: Any = False):
        """The assessment of a picture, or of each in a list, in order.

        A picture is a path, a Pillow image, a NumPy array (uint8; H×W grey, H×W×3 RGB or H×W×4 RGBA) or the
        bytes of an image file. `reference` is its pristine original: for a list one for all, or a list of the
        same length with None where there is none. `query`, `choices` and `map` are as for
        `agentic_iqa_local.assess`; maps of several pictures are drawn to no file. A picture that cannot be
        assessed has its reason in the result's `error`; arguments that make no sense raise ValueError or
        TypeError before anything is loaded, a model that cannot run VLMError.
        """
        from agentic_iqa_local.assessment import assess
        from agentic_iqa_local.images.pictures import check_picture
        from agentic_iqa_local.judgement.quality_map import map_request

        services = self._opened()
        check_choices(choices)
        if query is not None:
            check_query(query)
        several = isinstance(image, (list, tuple))
        images = list(image) if several else [image]
        references = list(reference) if isinstance(reference, (list, tuple)) else [reference] * len(images)
        if len(references) != len(images) or (isinstance(reference, (list, tuple)) and not several):
            raise ValueError(
                f"reference: expected one, or a list of as many as there are pictures, {len(images)}, got"
                f" {len(references)}"
            )
        if several and (request := map_request(map)) and request.png:
            raise ValueError(
                f"map: expected True for several pictures, got one file, {request.png}; ask one by one"
            )
        for picture in (*images, *(original for original in references if original is not None)):
            check_picture(picture)
        results = [
            assess(
                picture,
                original,
                query,
                choices,
                pipeline=self.pipeline,
                max_replan_iterations=self.max_replan_iterations,
                map=map,
                services=services,
            )
            for picture, original in zip(images, references, strict=True)
        ]
        return results if several else results[0]

    __call__ = assess

    def compare(
        self,
        first: "Picture",
        second: "Picture",
        reference: "Picture | None" = None,
        pairwise: bool | None = None,
    ) -> "Comparison":
        """Which of two pictures is better, by the pipeline that this set-up was given, or letters; see
        `comparison.compare`."""
        from agentic_iqa_local.judgement.comparison import compare

        return compare(first, second, reference=reference, pairwise=pairwise, **self._comparing())

    def rank(
        self,
        pictures: "Sequence[Picture]",
        reference: "Picture | None" = None,
        pairwise: bool | None = None,
    ) -> "Ranking":
        """The order of pictures from the best to the worst, by the pipeline that this set-up was given, or
        letters; see `comparison.rank`."""
        from agentic_iqa_local.judgement.comparison import rank

        return rank(pictures, reference=reference, pairwise=pairwise, **self._comparing())

    def _comparing(self) -> dict[str, Any]:
        return {
            "services": self._opened(),
            "pipeline": self._compared_by,
            "max_replan_iterations": self.max_replan_iterations,
        }

    def open(self, image: "Picture", reference: "Picture | None" = None) -> "Conversation":
        """A conversation about a picture, which stays open for it. Raises what `Conversation` does, and
        ValueError with the pipeline "letters", which reads a whole picture's letters and has no Planner to
        take a question up."""
        if self.pipeline != "agent":
            raise ValueError(
                f"open: expected the pipeline agent, got {self.pipeline}; make another IQA, or assess one"
                " by one"
            )
        conversation = Conversation(
            self._opened(), image, reference, max_replan_iterations=self.max_replan_iterations
        )
        self._conversations.add(conversation)
        return conversation

    def _opened(self) -> "Services":
        if self._services is None:
            raise RuntimeError("IQA: expected to be open, but it was closed; make a new one")
        return self._services

    def close(self) -> None:
        """Frees the model and the tools and closes what `open` gave; nothing can be asked afterwards."""
        for conversation in list(self._conversations):
            conversation.close()
        if self._services is not None:
            self._services.close()
            self._services = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._services is None:
            return "IQA(closed)"
        return one_line(f"IQA({self._services.settings.summarizer.backend} on {self._services.device})")


class Conversation:
    """Questions about one picture, which stays open: its tokens are computed once, each tool measures it
    once, and the model knows the turns before a question.

        with IQA() as iqa, iqa.open("photo.jpg") as conversation:
            conversation.ask("Rate it")
            conversation.ask("And the sky?")

    Raises ImageError (a ValueError), in one sentence, for a picture or a reference that cannot be opened, and
    TypeError or ValueError for what is none. One question at a time may be asked.
    """

    def __init__(
        self,
        services: "Services",
        image: "Picture",
        reference: "Picture | None" = None,
        *,
        max_replan_iterations: int | None = None,
    ):
        from agentic_iqa_local.assessment import question
        from agentic_iqa_local.images.pictures import as_file
        from agentic_iqa_local.images.reading import ImageError
        from agentic_iqa_local.nodes.workbench import open_images

        self._services, self._limit = services, max_replan_iterations
        self._turns: list[dict[str, Any]] = []
        self._asked, self._choices = 0, None
        with ExitStack() as files:
            self._picture = files.enter_context(as_file(image))
            self._original = None if reference is None else files.enter_context(as_file(reference))
            try:
                state = question(
                    self._picture, self._original, None, None, max_replan_iterations, services.settings
                )
                self._images = open_images(services, state)
            except ImageError as error:
                reason = self._picture.hide(str(error))
                raise ImageError(self._original.hide(reason) if self._original else reason) from None
            files.callback(self._images.close)
            self._open: ExitStack | None = files.pop_all()

    @property
    def picture(self) -> str:
        """The picture's path, or what it is called where it was given in memory: "<array 512×384>"."""
        return os.fspath(self._picture.name)

    def ask(self, query: str | None = None, choices: Sequence[str] | None = None) -> "Assessment":
        """The assessment that answers a query, by default a rating; `choices` as for
        `agentic_iqa_local.assess`.

        A query that only points on ("And the sky?") is of the last one's kind, and about a region it has its
        choices. What went wrong is in the result's `error`. Raises ValueError for a query or choices that
        make no sense, VLMError for a model that cannot be loaded and RuntimeError when the conversation, or
        its IQA, was closed.
        """
        from agentic_iqa_local.assessment import answered, assessment, question
        from agentic_iqa_local.nodes.conversation import prior_context, regions_pointed_to, turn

        if self._open is None:
            raise RuntimeError("Conversation: expected to be open, but it was closed; open the picture again")
        check_choices(choices)
        settings = self._services.settings
        state = question(self._picture, self._original, query, choices, self._limit, settings)
        corrections = []
        if self._choices and "choices" not in state and regions_pointed_to(state["query"]):
            state["choices"] = self._choices
            corrections = [f"choices: {' | '.join(self._choices)} (those of the last question)"]
        if context := prior_context(self._turns):
            state["prior_context"] = context
        self._images.begin_turn()
        answer = functools.partial(answered, images=self._images, pipeline="agent")
        try:
            row = assessment(state, self._picture, self._original, answer, "agent", settings)
        except BaseException:  # also Ctrl-C: a cache may hold half a pass
            self._images.close()
            raise
        self._asked += 1
        row.turn, row.prior_context = self._asked, context
        row.plan_corrections = corrections + row.plan_corrections
        if row.error is None and row.plan is not None:
            self._turns.append(turn(row.query, row.answer, row.plan))
            self._choices = state.get("choices")
        return row

    def close(self) -> None:
        """Frees what the picture's tokens take, and a file that was written for a picture in memory; nothing
        can be asked afterwards."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._open is None:
            return "Conversation(closed)"
        return one_line(f"Conversation({self.picture}, {self._asked} asked)")
