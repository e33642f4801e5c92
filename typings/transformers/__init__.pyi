# The names of transformers that this program uses, for basedpyright: it would otherwise read all of its 2,500 files.
from typing import Any

from transformers.cache_utils import DynamicCache as DynamicCache
from transformers.models.auto.configuration_auto import AutoConfig as AutoConfig
from transformers.models.auto.image_processing_auto import AutoImageProcessor as AutoImageProcessor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)
from transformers.models.auto.modeling_auto import (
    AutoModelForImageTextToText as AutoModelForImageTextToText,
)
from transformers.models.auto.processing_auto import AutoProcessor as AutoProcessor
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.utils.quantization_config import BitsAndBytesConfig as BitsAndBytesConfig

__version__: str

def __getattr__(name: str) -> Any: ...
