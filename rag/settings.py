"""All settings of the service in one object: environment, then `groundwell.toml`, then the defaults."""

import os

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from ingest.settings import ENVIRONMENT_PREFIX, IngestSettings
from llm.options import EngineOptions, Options, RerankerOptions, refuse_unknown
from rag.grounding import GroundingOptions
from rag.profile import AnswerOptions
from rag.selection import RetrievalOptions


class ServerOptions(Options):
    """Where the service listens."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    grace_seconds: float = Field(5.0, ge=0, description="time for streams to end when the service stops")


class Settings(IngestSettings):
    """What `groundwell serve` reads; a section or option it does not know is an error that names the nearest."""

    model_config = SettingsConfigDict(extra="forbid")

    engine: EngineOptions = EngineOptions()
    retrieval: RetrievalOptions = RetrievalOptions()
    reranker: RerankerOptions = RerankerOptions()
    answer: AnswerOptions = AnswerOptions()
    grounding: GroundingOptions = GroundingOptions()
    server: ServerOptions = ServerOptions()

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest(cls, values: dict) -> dict:
        for name in values:
            refuse_unknown(name, cls.model_fields, what="groundwell.toml")
        for variable in os.environ:  # pydantic-settings looks only for names that it knows
            section, separator, _ = variable.removeprefix(ENVIRONMENT_PREFIX).partition("__")
            if variable.startswith(ENVIRONMENT_PREFIX) and separator:
                refuse_unknown(section.lower(), cls.model_fields, what=f"the environment ({variable})")
        return values
