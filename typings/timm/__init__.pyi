# What this program uses of timm, for basedpyright: it would otherwise read the modules of all of its models.
from typing import Any

from timm.models._factory import create_model as create_model

def __getattr__(name: str) -> Any: ...
