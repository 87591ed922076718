"""Records what a model answers to the prompts of a recording, so that a replay needs no model.

    python benches/record.py --model .models/SmolLM2-135M-Instruct python/ngram_spec/recordings/*.jsonl

Reads `messages` from each line, answers them in vLLM without speculation (float32, greedy), and writes the
line back with model, tokenizer, decoding, output, prompt_token_ids, output_token_ids and eos_token_ids.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from ngram_spec.recordings import FileTokenizer, render_messages

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    # Threads that spin at a barrier come to a standstill where anything else wants the same core.
    "OMP_NUM_THREADS": "1",
    # One process: whatever goes wrong is one traceback.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="JSON lines with messages; rewritten"
    )
    parser.add_argument("--model", required=True, type=Path, help="folder of a model with a ChatML template")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="(default: %(default)s)")
    options = parser.parse_args()

    tokenizer = FileTokenizer(options.model / "tokenizer.json")
    records = {file: [json.loads(line) for line in file.open("rb")] for file in options.files}
    everything = [record for file_records in records.values() for record in file_records]
    prompts = [tokenizer.encode(render_messages(record["messages"])) for record in everything]
    vllm_version, outputs = complete(options.model, prompts, options.max_new_tokens)
    for record, prompt, output in zip(everything, prompts, outputs, strict=True):
        record |= {
            "model": options.model.name,
            "tokenizer": options.model.name,
            "decoding": f"greedy, float32, max {options.max_new_tokens} new tokens, vllm {vllm_version}",
            "output": output.text,
            "prompt_token_ids": prompt,
            "output_token_ids": list(output.token_ids),
            "eos_token_ids": list(tokenizer.eos_token_ids),
        }
    for file, file_records in records.items():
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in file_records)
        file.write_text("".join(lines), encoding="utf-8")


def complete(model: Path, prompts: list[list[int]], max_new_tokens: int) -> tuple[str, list[Any]]:
    """Return vLLM's version and its completion for each prompt, in order."""
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    import vllm  # reads its environment variables when imported

    engine = vllm.LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=max(map(len, prompts)) + max_new_tokens,
        enable_prefix_caching=False,
    )
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=max_new_tokens)
    # One prompt at a time, so that no output depends on which prompts shared its batch.
    outputs = [engine.generate({"prompt_token_ids": prompt}, sampling)[0].outputs[0] for prompt in prompts]
    return vllm.__version__, outputs


if __name__ == "__main__":
    main()
