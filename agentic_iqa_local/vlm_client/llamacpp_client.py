"""A GGUF model served by llama.cpp: by a server that this program starts for the model folder, or
by a llama-server of yours.

The processor's files lie in the folder too: prompts are rendered here and pictures are resized here
as the model's processor does, since llama.cpp would resize in its own way. What the server makes of
the text is compared token by token, of the pictures by their count. Letters are read from the most
likely tokens, which the server gives with raw log-probabilities over the whole vocabulary.
"""

import functools
import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance.hf
from PIL import Image
from pydantic import BaseModel

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.devices import describe_device
from agentic_iqa_local.vlm_client import ModelLost, VLMClient, VLMError, VLMSession
from agentic_iqa_local.vlm_client.connection import Answer, Connection, png_text, server_key
from agentic_iqa_local.vlm_client.constraints import json_schema
from agentic_iqa_local.vlm_client.llamacpp_probe import Probe, probed
from agentic_iqa_local.vlm_client.llamacpp_server import LocalServer
from agentic_iqa_local.vlm_client.model_folder import find_gguf
from agentic_iqa_local.vlm_client.rendering import Rendered, Renderer

MOST_LIKELY = 200  # tokens that are asked for first; many more where a letter is not among them
# Added to the logit of the token that shall be sampled. llama.cpp gives no log-probabilities where
# the first byte of a longer character is sampled; what it gives does not depend on the sampling.
SAMPLED = 1000.0
# What llama.cpp calls formats that are not quantised
FORMATS = {"all F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# llama.cpp puts these around a picture of Qwen's models by itself
WRAPPED = "<|vision_start|>{}<|vision_end|>"


class Modalities(BaseModel):
    """What a model takes beside text."""

    vision: bool


class Properties(BaseModel):
    """What a llama.cpp server says of itself and of its model's files."""

    modalities: Modalities
    media_marker: str = "<__media__>"
    model_path: str
    model_ftype: str = "unknown"
    build_info: str


class Tokens(BaseModel):
    """The ids of a text."""

    tokens: list[int]


class Candidate(BaseModel):
    """A token that could come next; its log-probability is None where it is no number."""

    id: int
    logprob: float | None


class Position(BaseModel):
    """The most likely tokens at one position."""

    top_logprobs: list[Candidate]


class Timings(BaseModel):
    """Counted work: how many tokens of the prompt were found in the cache."""

    cache_n: int = 0


class Completion(BaseModel):
    """A completion of a llama.cpp server."""

    content: str
    tokens: list[int] = []
    tokens_evaluated: int
    completion_probabilities: list[Position] = []
    timings: Timings = Timings()


class LlamaCppClient(VLMClient):
    """A connection to one served model. Sessions may be used from many threads."""

    def __init__(self, name: str, settings: ModelSettings, device: str):
        super().__init__(name, settings, Renderer(name, settings, weights=False))
        self.require("llamacpp", quantization="none", device_map="none", dtype="auto")
        if self.renderer.size is None:
            expected = "expected a model that sees a picture in its own size, such as Qwen-VL"
            got = f"{self.renderer.config.model_type} resizes and tiles, in llama.cpp another way"
            mistake = f"backend llamacpp: {expected}, {got}"
            raise VLMError(mistake, "use the backend transformers for it")
        self.device, self.local = device, None
        if settings.server is None:
            files = find_gguf(self.renderer.folder)
            self.local = LocalServer(files, self.renderer, settings, device)
            self.at_once = self.local.slots
        else:
            self.require("llamacpp with a server of yours", exact=False)
        self.start = f"llama-server -m MODEL.gguf --mmproj MMPROJ.gguf for {self.renderer.folder}"
        self._restarting = threading.Lock()
        self.probe = Probe(guidance=False, apart=0.0)
        try:
            self._connect()
            self.probe = probed(self)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        """Looks at the server. Raises ModelLost for none, VLMError for one of another kind."""
        local, settings = self.local, self.settings
        url = local.url if local else settings.server or ""
        key = local.key if local else server_key()
        self.server = Connection(url, key, settings.server_timeout, "llama.cpp", self.start)
        self.label = f"llama.cpp {self.name}" if local else self.server.label
        self.server.label = self.label
        self.server.served()
        self.properties = self.server.ask(Properties, f"{url}/props")
        if not self.properties.modalities.vision:
            mistake = f"{self.label}: expected a model that sees pictures, it reads text only"
            raise VLMError(mistake, "start it with --mmproj MMPROJ.gguf")

    def ask(self, kind: type[Answer], path: str, body: dict[str, Any]) -> Answer:
        """The server's answer to a `body` at `path`. Raises ModelLost, VLMError; the program's own
        server that has ended is started again, and only what was under way fails."""
        server = self.server
        try:
            return server.ask(kind, f"{server.url}{path}", body)
        except ModelLost as error:
            if self.local is None:
                raise
            with self._restarting:
                words = self.local.last_words()
                if self.server is server:  # no other thread was faster
                    self.local.start()
                    self._connect()
            raise VLMError(
                f"{self.label}: its process ended while it answered ({words})"
            ) from error

    @functools.lru_cache(maxsize=256)  # noqa: B019 - texts come back with each picture
    def tokens_of(self, text: str) -> list[int]:
        """The server's token ids of `text`."""
        body = {"content": text, "add_special": False, "parse_special": True}
        return self.ask(Tokens, "/tokenize", body).tokens

    @functools.cached_property
    def grammar_tokenizer(self) -> Any:
        return llguidance.hf.from_tokenizer(self.renderer.tokenizer)

    @functools.cached_property
    def vocabulary(self) -> int:
        return self.renderer.config.get_text_config().vocab_size

    def open(self, images: Sequence[Image.Image]) -> "LlamaCppSession":
        return LlamaCppSession(self, images)

    @property
    def version(self) -> str:
        return self.local.version if self.local else self.properties.build_info[:100]

    def describe(self) -> dict[str, Any]:
        kind = self.properties.model_ftype[:100]
        about = super().describe() | {
            "engine": f"llama.cpp ({self.version})",
            "dtype": FORMATS.get(kind, kind),
            "quantization": "none" if kind in FORMATS else kind,
            "device": self.device if self.local else self.server.url,
        }
        if self.local:
            about["hardware"] = describe_device(self.device)
        return about

    def close(self) -> None:
        if self.local:
            self.local.end()


class LlamaCppSession(VLMSession):
    """One assessment's images, resized and encoded once."""

    client: LlamaCppClient
    exif: Image.Exif | None = None  # that the pictures are sent with: the probe's

    def __init__(self, client: LlamaCppClient, images: Sequence[Image.Image]):
        super().__init__(client, images)
        self.guidance = client.probe.guidance  # whether llguidance constrains, or a JSON schema

    def _write(
        self, rendered: Rendered, schema: type[BaseModel], temperature: float, max_tokens: int
    ) -> str:
        rules = json_schema(schema)
        guidance = guidance_grammar(rules)
        constraint = {"grammar": guidance} if self.guidance else {"json_schema": rules}
        completion = self.complete(
            rendered,
            n_predict=max_tokens,
            temperature=temperature,
            seed=self.usage.calls,
            return_tokens=True,
            **constraint,
        )
        matcher = llguidance.LLMatcher(self.client.grammar_tokenizer, guidance)
        for token in completion.tokens:
            # of what the schema leaves no choice about nothing counts as chosen
            self.usage.decoded += not matcher.compute_ff_tokens()
            matcher.consume_token(token)
        return completion.content

    def _logprobs(self, rendered: Rendered, tokens: list[int]) -> Mapping[int, float]:
        return self.most_likely(rendered, tokens, sampled=tokens[0])

    def most_likely(
        self, rendered: Rendered, tokens: list[int], *, sampled: int, temperature: float = 0.0
    ) -> Mapping[int, float]:
        """The log-probabilities of the most likely tokens right after `rendered`, of so many that
        `tokens` are among them, as they are read where the token `sampled` is. Raises VLMError."""
        every = self.client.vocabulary
        options = {"temperature": temperature, "logit_bias": [[sampled, SAMPLED]]}
        for count in (MOST_LIKELY, 50 * MOST_LIKELY):
            if count < every:
                given = self._first(rendered, count, **options)
                if given.keys() >= set(tokens):
                    return given
        return self._first(rendered, every, **options)

    def _first(self, rendered: Rendered, count: int, **options: Any) -> dict[int, Any]:
        """The `count` most likely tokens with their log-probabilities. Raises VLMError for an
        answer that has not so many, or some twice."""
        completion = self.complete(rendered, n_predict=1, n_probs=count, **options)
        positions = completion.completion_probabilities
        candidates = positions[0].top_logprobs if positions else []
        given = {one.id: one.logprob for one in candidates}
        if not len(given) == len(candidates) >= count:
            expected = f"expected the log-probabilities of the {count} most likely tokens"
            got = f"got {len(given)} different ones of {len(candidates)}"
            mistake = f"{self.client.label}: {expected}, {got}"
            raise VLMError(mistake, "use a llama-server that answers n_probs")
        return given

    @functools.cached_property
    def _pictures(self) -> list[str]:
        resize = self.client.renderer.resized
        resized = map(resize, self.images, self.seen)
        return [png_text(image, self.exif) for image in resized]

    def complete(self, rendered: Rendered, **options: Any) -> Completion:
        """One completion with `options` of llama.cpp. Raises VLMError if the server makes other
        tokens of the prompt than the processor here."""
        client = self.client
        whole = rendered.prompt_with(self._expand(rendered)) + rendered.answer_ids
        marker = client.properties.media_marker
        prompt = {
            "prompt_string": marker.join(self._texts(rendered)),
            "multimodal_data": self._pictures,
        }
        # of llama.cpp's samplers only the temperature
        body = {
            "prompt": prompt,
            "samplers": ["temperature"],
            "cache_prompt": not client.settings.exact,
        }
        completion = client.ask(Completion, "/completion", body | options)
        if completion.tokens_evaluated != len(whole):
            expected = f"expected it to see {len(whole)} tokens of prompt and pictures"
            mistake = f"{client.label}: {expected}, it saw {completion.tokens_evaluated}"
            advice = "start it with --image-min-tokens and --image-max-tokens of docs/models.md"
            raise VLMError(mistake, advice)
        self._count(whole, completion.timings.cache_n)
        return completion

    def _texts(self, rendered: Rendered) -> list[str]:
        """The prompt before, between and after its pictures. Raises VLMError if the server's
        tokenizer makes other ids of it than the one here."""
        client = self.client
        picture = client.renderer.processor.image_token
        wrapped = WRAPPED.format(picture)
        if wrapped in rendered.text:
            picture = wrapped
        texts = rendered.text.split(picture)
        place = client.renderer.encode(picture)
        theirs = list(client.tokens_of(texts[0]))
        for text in itertools.islice(texts, 1, None):
            theirs += place + client.tokens_of(text)
        if theirs != rendered.prompt_ids + rendered.answer_ids:
            expected = f"expected the tokens that the tokenizer in {client.renderer.folder} makes"
            mistake = f"{client.label}: {expected}, its file makes others"
            raise VLMError(mistake, "make or fetch the GGUF files of this very model")
        return texts


def guidance_grammar(schema: Mapping[str, Any]) -> str:
    """`schema` as a grammar that llguidance in llama.cpp reads, with its style of JSON."""
    return f"%llguidance {{}}\nstart: %json {json.dumps(schema)}"
