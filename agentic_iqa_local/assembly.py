"""The language model of a GGUF file under the names that Qwen2.5-VL's checkpoints have."""

from pathlib import Path

import torch

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_llama(gguf_file: Path) -> dict[str, torch.Tensor]:
    """The float32 weights of a Llama GGUF, dequantised, keyed as a Hugging Face Llama's inner model (`layers.0.mlp.up_proj.weight`).

    llama.cpp stores the rows of q and k so that RoPE turns neighbours; here they are put back to halves, as transformers turns them.
    """
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(gguf_file)
    heads = {
        "attn_q": reader.fields["llama.attention.head_count"].contents(),
        "attn_k": reader.fields["llama.attention.head_count_kv"].contents(),
    }
    weights = {}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in heads:
                rows, columns = weight.shape
                weight = weight.view(heads[part], -1, 2, columns).transpose(1, 2).reshape(rows, columns)
            weights[f"layers.{layer}.{LAYER_NAMES[part]}.weight"] = weight
        else:
            weights[{"token_embd": "embed_tokens.weight", "output_norm": "norm.weight"}[name]] = weight
    return weights
