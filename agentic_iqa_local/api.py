"""`IQA`: one set-up, loaded once, that Python code asks about many pictures, and `Conversation`:
many questions about one."""

import itertools
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from agentic_iqa_local.config import (
    ConfigError,
    Options,
    Pipeline,
    Settings,
    fitted,
    load_settings,
)
from agentic_iqa_local.state import revised

# What pulls in LangGraph or a model's processor is imported where it is used: the command line
# checks its options with this module before anything is loaded.
if TYPE_CHECKING:
    from agentic_iqa_local.images.pictures import Picture
    from agentic_iqa_local.judgement.comparison import Comparison, Ranking
    from agentic_iqa_local.result import Assessment
    from agentic_iqa_local.services import Services

MOST_TURNS = 4  # of a conversation, that the model is told of


def choose_settings(options: Options | None = None, **values: Any) -> Settings:
    """The settings of the configuration that options name, with what the others change in it. The
    options are given as such, or by their values. Raises ConfigError."""
    options = options or Options.of(values)
    settings = options.applied_to(load_settings(options.config))
    return _with_fit(settings, Path(options.fit)) if options.fit else fitted(settings)


def _with_fit(settings: Settings, file: Path) -> Settings:
    """The temperature and η of a fit. Raises ConfigError where it is none, or of another model."""
    from agentic_iqa_local.files import folder_hash
    from agentic_iqa_local.judgement.fit import FitError, read_fit

    try:
        fit = read_fit(file)
    except FitError as error:
        raise ConfigError(f"fit: {error.message}", error.remedy) from error
    folder = settings.folder(settings.summarizer.backend)
    if folder.is_dir() and folder_hash(folder) != fit.model:
        expected = f"expected a fit of the model in {folder}, it was made with another"
        raise ConfigError(f"fit: {file}: {expected}", "fit it anew")
    fusion = revised(settings.fusion, temperature=fit.temperature, eta=fit.eta, fitted=fit.source)
    decisions = revised(settings.decisions, calibration=str(file.absolute()))
    return revised(settings, fusion=fusion, decisions=decisions)


def _check_model(settings: Settings, backend: str) -> None:
    """Raises VLMError where the folder of this backend's model lacks what its engine loads."""
    from agentic_iqa_local.vlm_client.model_folder import find_gguf
    from agentic_iqa_local.vlm_client.rendering import check_folder

    folder, weights = settings.folder(backend), settings.weights(backend)
    check_folder(folder, weights=weights == "safetensors")
    if weights == "GGUF":
        find_gguf(folder)


class IQA:
    """Assesses pictures with one set-up.

        with IQA(config="qwen2_5_vl_7b", gpu=0) as iqa:
            result = iqa("photo.jpg")
            results = iqa([array, pillow_image, path.read_bytes()])

    The model is loaded at the first picture, the tools when they are first used; both are kept
    until `close` or the end of `with`.

    Args:
        config: A set-up of configs/ by name, or a YAML file; the embedded set-up where it is left out.
        options: The other options of the command line by name (`config.Options`): model, models, engine, gpu,
            cpu, mode, pipeline, max_replan_iterations, fit, background, at_least, error_rate,
            abstain_wider_than, target_width, most_reads.

    Raises:
        ConfigError: A ValueError; what can be checked without loading is checked here.
        DeviceError: No such GPU.
        VLMError: A folder that holds no model.
    """

    def __init__(self, config: str | Path | None = None, **options: Any):
        chosen = Options.of({"config": config} | options)
        settings = choose_settings(chosen)
        from agentic_iqa_local.devices import choose_device
        from agentic_iqa_local.services import Services

        for backend in sorted(settings.backends):
            _check_model(settings, backend)
        self.pipeline: Pipeline = chosen.pipeline or "agent"
        self._compared_by: Pipeline = chosen.pipeline or "letters"
        self._services: Services | None = Services(settings, choose_device(chosen.gpu, chosen.cpu))
        self._conversations: weakref.WeakSet[Conversation] = weakref.WeakSet()
        _ = self._services.tools  # a bad file of maps is an error now

    @overload
    def assess(self, image: "Picture", *asked: Any, **how: Any) -> "Assessment": ...
    @overload
    def assess(
        self, image: "list[Picture] | tuple[Picture, ...]", *asked: Any, **options: Any
    ) -> "list[Assessment]": ...
    def assess(self, image, reference=None, query=None, choices=None, *, box=None, map=False):
        """The assessment of a picture, or of each in a list, in order.

        Args:
            image: A picture: a path, a Pillow image, a NumPy array (uint8; H×W grey, H×W×3 RGB or H×W×4 RGBA)
                or the bytes of an image file; or a list of pictures.
            reference: Its pristine original; for a list one for all, or a list of the same length with None
                where there is none.
            query: A question or an instruction; a rating where it is left out.
            choices: 2 to 10 answers to choose from.
            box: Where the regions of the query lie in each picture, as for `agentic_iqa_local.assess`.
            map: Whether the quality from place to place is mapped too; for one picture also the PNG to draw it to.

        Returns:
            The result, or a list of them. A picture that cannot be assessed has its reason in `error`.

        Raises:
            ValueError, TypeError: Arguments that make no sense, before anything is loaded.
            VLMError: A model that cannot run.
        """
        from agentic_iqa_local.images.pictures import check_picture
        from agentic_iqa_local.judgement.assessment import assess

        how = {"services": self._opened(), "pipeline": self.pipeline, "box": box, "map": map}
        if not isinstance(image, (list, tuple)):
            return assess(image, reference, query, choices, **how)
        if not isinstance(map, bool):
            expected = f"expected True for several pictures, got one file, {map}"
            raise ValueError(f"map: {expected}; ask one by one")
        pairs = list(zip(image, _of_each(reference, len(image)), strict=True))
        for picture in itertools.chain.from_iterable(pairs):
            if picture is not None:
                check_picture(picture)
        return [assess(one, original, query, choices, **how) for one, original in pairs]

    __call__ = assess

    def compare(self, first: "Picture", second: "Picture", **how: Any) -> "Comparison":
        """Which of two pictures is better, by the pipeline that this set-up was given, or letters;
        `reference` as for `comparison.compare`."""
        from agentic_iqa_local.judgement.comparison import compare

        how = {"services": self._opened(), "pipeline": self._compared_by} | how
        return compare(first, second, **how)

    def rank(self, pictures: "Sequence[Picture]", **how: Any) -> "Ranking":
        """The order of pictures from the best to the worst; arguments as for `compare`."""
        from agentic_iqa_local.judgement.comparison import rank

        how = {"services": self._opened(), "pipeline": self._compared_by} | how
        return rank(pictures, **how)

    def open(self, image: "Picture", reference: "Picture | None" = None) -> "Conversation":
        """A conversation about a picture, which stays open for it. Raises what `Conversation` does,
        and ValueError with the pipeline "letters", which has no Planner to take a question up."""
        if self.pipeline != "agent":
            expected = f"open: expected the pipeline agent, got {self.pipeline}"
            raise ValueError(f"{expected}; make another IQA, or assess one by one")
        conversation = Conversation(self._opened(), image, reference)
        self._conversations.add(conversation)
        return conversation

    def _opened(self) -> "Services":
        if self._services is None:
            raise RuntimeError("IQA: expected to be open, but it was closed; make a new one")
        return self._services

    def close(self) -> None:
        """Frees the model and the tools and closes what `open` gave; nothing can be asked
        afterwards."""
        for conversation in list(self._conversations):
            conversation.close()
        if self._services is not None:
            self._services.close()
            self._services = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _of_each(reference: Any, count: int) -> "list[Picture | None]":
    """The reference of each of so many pictures. Raises ValueError for a list of another length."""
    if not isinstance(reference, (list, tuple)):
        return [reference] * count
    if len(reference) != count:
        expected = f"expected one, or a list of as many as there are pictures, {count}"
        raise ValueError(f"reference: {expected}, got {len(reference)}")
    return list(reference)


class Conversation:
    """Questions about one picture, which stays open: its tokens are computed once, each tool
    measures it once, and the model knows the turns before a question.

        with IQA() as iqa, iqa.open("photo.jpg") as conversation:
            conversation.ask("Rate it")
            conversation.ask("Is the sky noisy?")

    Raises ImageError (a ValueError), in one sentence, for a picture or a reference that cannot be
    opened, and TypeError or ValueError for what is none. One question at a time may be asked.
    """

    def __init__(
        self,
        services: "Services",
        image: "Picture",
        reference: "Picture | None" = None,
    ):
        from agentic_iqa_local.images.pictures import as_file
        from agentic_iqa_local.images.reading import ImageError
        from agentic_iqa_local.nodes.workbench import Workbench

        self._services = services
        self._turns: list[dict[str, str]] = []
        self._asked = 0
        with ExitStack() as files:
            self._picture = files.enter_context(as_file(image))
            self._original = None if reference is None else files.enter_context(as_file(reference))
            original = self._original and str(self._original.path)
            try:
                self._bench = Workbench(services, str(self._picture.path), original)
            except ImageError as error:
                reason = self._picture.hide(str(error))
                if self._original:
                    reason = self._original.hide(reason)
                raise ImageError(reason) from None
            files.callback(self._bench.close)
            self._open: ExitStack | None = files.pop_all()

    @property
    def picture(self) -> str:
        """The picture's path, or what it is called where it was given in memory: "<array
        512×384>"."""
        return os.fspath(self._picture.name)

    def ask(
        self, query: str | None = None, choices: Sequence[str] | None = None, box: Any = None
    ) -> "Assessment":
        """The assessment that answers a query, by default a rating; the rest as for
        `agentic_iqa_local.assess`.

        What went wrong is in the result's `error`. Raises ValueError for a query or choices that
        make no sense, VLMError for a model that cannot be loaded and RuntimeError when the
        conversation, or its IQA, was closed.
        """
        from agentic_iqa_local.judgement.assessment import answered_row, start_state

        if self._open is None:
            raise RuntimeError(
                "Conversation: expected to be open, but it was closed; open the picture again"
            )
        services, pictures = self._services, (self._picture, self._original)
        state = start_state(services.settings, *pictures, query, choices, box)
        context = {"turns": self._turns[-MOST_TURNS:]} if self._turns else None
        if context:
            state["prior_context"] = context
        self._bench.begin_turn()
        try:
            row = answered_row(state, *pictures, "agent", services, bench=self._bench)
        except BaseException:  # also Ctrl-C: a cache may hold half a pass
            self._bench.models.close()
            raise
        self._asked += 1
        row.turn, row.prior_context = self._asked, context
        if row.error is None and row.plan is not None:
            self._turns.append({"query": row.query, "answer": row.answer})
        return row

    def close(self) -> None:
        """Frees what the picture's tokens take, and a file that was written for a picture in
        memory; nothing can be asked afterwards."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
