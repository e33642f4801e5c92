"""What a vLLM server's answers must be."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """The fields of an answer that are used; others are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class _Model(Answer):
    id: str


class ModelList(Answer):
    """The answer of /v1/models."""

    data: Annotated[list[_Model], Field(fail_fast=True)]


class Version(Answer):
    """The answer of /version."""

    version: str


class _PromptDetails(Answer):
    cached_tokens: Annotated[int, Field(ge=0)] | None = None


class _Usage(Answer):
    completion_tokens: int = Field(ge=0)
    prompt_tokens_details: _PromptDetails | None = None


class Completion(Answer):
    """What every answer of /v1/chat/completions says of the prompt."""

    usage: _Usage
    prompt_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.usage.prompt_tokens_details
        return (details and details.cached_tokens) or 0


class _Message(Answer):
    content: str | None


class _TextChoice(Answer):
    message: _Message


class TextCompletion(Completion):
    """A written answer."""

    choices: Annotated[list[_TextChoice], Field(min_length=1, max_length=1)]


class _TokenLogprob(Answer):
    token: str
    logprob: float


class _Position(Answer):
    top_logprobs: Annotated[list[_TokenLogprob], Field(fail_fast=True)]


class _Logprobs(Answer):
    content: Annotated[list[_Position], Field(min_length=1, max_length=1)]


class _LetterChoice(Answer):
    logprobs: _Logprobs


class LetterCompletion(Completion):
    """The log-probabilities of one token."""

    choices: Annotated[list[_LetterChoice], Field(min_length=1, max_length=1)]
