"""A llama.cpp server of one's own, and what calls itself one, scripted on this machine's loopback: its letters count
only if they are those of the model, and every failure is one sentence."""

import base64
import io
import json
import math

import httpx2
import openai
import pytest
from conftest import EMBEDDED
from families import SCORING
from PIL import Image, ImageStat

from agentic_iqa_local.config import ModelSettings
from agentic_iqa_local.nodes.prompts import ANSWER_PREFIX
from agentic_iqa_local.state import LETTERS
from agentic_iqa_local.vlm_client import ModelLost, VLMError
from agentic_iqa_local.vlm_client.llamacpp_client import LlamaCppClient
from agentic_iqa_local.vlm_client.rendering import Renderer
from agentic_iqa_local.vlm_client.server_client import ServerClient

URL = "http://127.0.0.1:8080"
MARKER = "<__media_7__>"
PICTURE = Image.effect_noise((224, 224), 60).convert("RGB")
RENDERER = Renderer("embedded", ModelSettings(path=str(EMBEDDED)), weights=False)
A_TO_E = [RENDERER.encode(letter)[0] for letter in LETTERS]


class Server:
    """A llama.cpp server whose likeliest tokens are the letters; each follows how bright the picture is. A test puts in
    what another server does."""

    owner = "llamacpp"
    vision = True

    def __init__(self):
        self.asked: list[dict] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content or b"null")
        answers = {
            "/v1/models": self.models,
            "/props": self.properties,
            "/tokenize": self.tokenize,
            "/completion": self.complete,
        }
        if request.url.path not in answers:
            return httpx2.Response(404, json={"error": "File Not Found"})
        return httpx2.Response(200, json=answers[request.url.path](body))

    def models(self, body):
        return {"data": [{"id": "model.gguf", "owned_by": self.owner}]}

    def properties(self, body):
        about = {"model_path": "model.gguf", "model_ftype": "Q8_0", "build_info": "b7001-abc"}
        return about | {"media_marker": MARKER, "modalities": {"vision": self.vision}}

    def tokenize(self, body):
        return {"tokens": RENDERER.encode(body["content"])}

    def complete(self, body):
        self.asked.append(body)
        text = body["prompt"]["prompt_string"]
        files = map(base64.b64decode, body["prompt"]["multimodal_data"])
        pictures = [self.open(file) for file in files]
        tokens = len(RENDERER.encode(text.replace(MARKER, "<|vision_start|><|vision_end|>")))
        tokens += sum(self.tokens_of(picture) for picture in pictures)
        answer = {"content": "", "tokens_evaluated": tokens, "timings": {"cache_n": 7}}
        if "json_schema" in body or "grammar" in body:
            return answer | {"content": '{"final_answer": "B"}', "tokens": []}
        brightness = ImageStat.Stat(pictures[0]).mean[0]
        values = [math.log(0.1 + 0.1 * math.sin(brightness + i) ** 2) for i in range(5)]
        return answer | {"completion_probabilities": [{"top_logprobs": self.top(body, values)}]}

    def open(self, file):
        return Image.open(io.BytesIO(file))

    def tokens_of(self, picture):
        return picture.width * picture.height // 32**2

    def top(self, body, values):
        """As many entries as were asked for: the letters, then other tokens."""
        others = (token for token in range(10**6) if token not in A_TO_E)
        entries = list(zip(A_TO_E, values, strict=True))
        while len(entries) < body["n_probs"]:
            entries.append((next(others), -20.0))
        return [{"id": token, "token": "x", "logprob": value} for token, value in entries]


@pytest.fixture
def serving(monkeypatch, tmp_path):
    """Puts a server at URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    real = openai.DefaultHttpxClient

    def serve(server):
        over = httpx2.MockTransport(server)
        monkeypatch.setattr(
            "openai.DefaultHttpxClient", lambda **options: real(transport=over, **options)
        )
        return server

    return serve


def connect(**options) -> LlamaCppClient:
    return LlamaCppClient(
        "embedded", ModelSettings(path=str(EMBEDDED), server=URL, **options), "cpu"
    )


def read(client):
    return client.open([PICTURE]).read_letters(SCORING, ANSWER_PREFIX, LETTERS)


def refused(said, ask=connect, kind=VLMError, **options):
    with pytest.raises(kind, match=said) as caught:
        ask(**options)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700
    return str(caught.value)


def test_what_is_asked_and_answered(serving):
    server = serving(Server())
    client = connect()
    found = read(client)
    brightness = ImageStat.Stat(PICTURE).mean[0]
    expected = [math.log(0.1 + 0.1 * math.sin(brightness + i) ** 2) for i in range(5)]
    assert list(found.logprobs.values()) == expected
    assert found.off_letter_mass == pytest.approx(1 - math.fsum(map(math.exp, expected)))
    body = server.asked[-1]
    assert (body["n_predict"], body["n_probs"], body["temperature"]) == (1, 200, 0)
    assert body["prompt"]["prompt_string"].count(MARKER) == 1
    assert client.describe()["engine"] == "llama.cpp (b7001-abc)"
    assert client.describe()["device"] == URL
    assert not any("grammar" in body for body in server.asked)  # a build without it may abort
    refused("expected exact: False", exact=True)


def test_a_probe_that_was_passed_is_not_made_again(serving):
    server = serving(Server())
    connect()
    made = len(server.asked)
    connect()
    assert len(server.asked) == made > 0
    server.properties = lambda body: Server.properties(server, body) | {"build_info": "b7002-def"}
    connect()
    assert len(server.asked) > made


class FewerEntries(Server):
    """A server with a limit of its own, such as OpenAI's 20."""

    def top(self, body, values):
        return super().top(body, values)[:20]


class SameToken(Server):
    """Tokens by what they write: those of half a character all look the same."""

    def top(self, body, values):
        entries = super().top(body, values)
        return entries[:-1] + entries[-2:-1]


class NoNumber(Server):
    def top(self, body, values):
        return super().top(body, [None] * 5)


class MinusInfinity(Server):
    def top(self, body, values):
        return super().top(body, [-1e30] * 5)


class NoIds(Server):
    def top(self, body, values):
        return [{"token": "A", "logprob": -1.0}] * body["n_probs"]


class OtherCounts(Server):
    """It resizes to patches of 28 pixels."""

    def tokens_of(self, picture):
        return picture.width * picture.height // 28**2


class AfterSampling(Server):
    """Probabilities of what may be drawn: the temperature and biases change them."""

    def top(self, body, values):
        biased = [value * max(body["temperature"], 1.0) for value in values]
        return super().top(body, biased)


class OfWhatIsDrawn(Server):
    def complete(self, body):
        answer = super().complete(body)
        top = [{"id": 1, "prob": 0.5}]
        return answer | {"completion_probabilities": [{"top_probs": top}]}


class Moody(Server):
    """Another answer each time."""

    def top(self, body, values):
        return super().top(body, [value - 0.1 * len(self.asked) for value in values])


class Turning(Server):
    """It turns pictures as EXIF data say; of half of them it sees the light part."""

    def open(self, file):
        picture = super().open(file)
        return picture.crop((0, 0, 64, 64)).resize(picture.size) if picture.getexif() else picture


class OtherTokenizer(Server):
    def tokenize(self, body):
        return {"tokens": RENDERER.encode(body["content"])[1:]}


class WritesNoJson(Server):
    def complete(self, body):
        return super().complete(body) | {"content": "Good."}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FewerEntries, "expected the log-probabilities of the 200 most likely tokens, got 20"),
        (SameToken, "got 199 different ones of 200"),
        (NoNumber, "expected a finite log-probability of at most 0 for the letter A, got None"),
        (MinusInfinity, "expected a finite log-probability"),
        (NoIds, r"expected a llama.cpp server's answer, got something else \(.*id.*"),
        (
            OtherCounts,
            "expected it to see .* tokens of prompt and pictures, it saw .*image-min-tokens",
        ),
        (AfterSampling, "expected the same letters with another sampling, they differ by"),
        (OfWhatIsDrawn, r"got something else \(.*top_logprobs"),
        (Moody, "expected the same letters a second time, they differ by"),
        (Turning, "expected the same letters of the picture with EXIF data, they differ by"),
        (
            OtherTokenizer,
            "expected the tokens that the tokenizer in .* makes, its file makes others",
        ),
        (WritesNoJson, "expected JSON of a schema, it wrote something else"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_server_that_fails_the_probe_is_refused(serving, kind, said):
    serving(kind())
    assert f"server {URL}: " in refused(said)


@pytest.mark.parametrize(
    ("owner", "name"),
    [("library", "Ollama"), ("organization_owner", "LM Studio"), ("sglang", "SGLang")],
)
@pytest.mark.parametrize("engine", [LlamaCppClient, ServerClient])
def test_servers_without_tokens_of_letters_are_named(serving, owner, name, engine):
    server = serving(Server())
    server.owner = owner
    settings = ModelSettings(path=str(EMBEDDED), server=URL)
    said = f"this is {name}, which gives no log-probabilities by token id; serve the model with "
    refused(said, ask=lambda: engine("embedded", settings, "cpu"))


def test_each_engine_names_the_other(serving):
    server = serving(Server())
    settings = ModelSettings(path=str(EMBEDDED), server=URL)
    refused(
        "this is llama.cpp; use engine llamacpp",
        ask=lambda: ServerClient("embedded", settings, "cpu"),
    )
    server.owner = "vllm"
    refused("this is vLLM; use engine server")
    server.owner, server.vision = "llamacpp", False
    refused("expected a model that sees pictures, it reads text only; start it with --mmproj")


def test_a_port_that_something_else_has(serving):
    serving(lambda request: httpx2.Response(200, content=b"<html>"))
    refused("expected a llama.cpp server's answer, got something else.*is it llama.cpp")
    serving(lambda request: httpx2.Response(404, content=b"no"))
    refused("failed with 404")
    serving(lambda request: httpx2.Response(503, content=b"loading model"))
    refused("failed with 503 .loading model", kind=ModelLost)
