"""The former place of what `config` holds now."""

from agentic_iqa_local.config import (  # noqa: F401
    ConfigError,
    DecisionSettings,
    FusionSettings,
    ImageSettings,
    ModelSettings,
    PlacedModel,
    RoleSettings,
    Section,
    ToolSettings,
    server_key,
    split_server,
)
