"""Reads in vLLM's source what this package relies on, and keeps it in tests/vllm_versions.json by version.

    python tests/record_vllm.py              # of the installed vLLM
    python tests/record_vllm.py WHEEL...     # of wheels, or of folders that hold a vllm folder

Nothing of vLLM is imported, so a wheel for any platform does.
"""

import argparse
import ast
import importlib.util
import json
import re
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ngram_spec.vllm_version import calls_of_propose

RECORDS = Path(__file__).with_name("vllm_versions.json")
GPU_RUNNER, CPU_RUNNER = "v1/worker/gpu_model_runner.py", "v1/worker/cpu_model_runner.py"
# What `ngram_spec.vllm` reads of vllm_config, where it stands in vLLM.
CONFIG = {
    "config/vllm.py VllmConfig": [
        "additional_config",
        "model_config",
        "parallel_config",
        "speculative_config",
    ],
    "config/model.py ModelConfig": [
        "enable_prompt_embeds",
        "get_vocab_size",
        "hf_config",
        "hf_text_config",
        "max_model_len",
        "try_get_generation_config",
    ],
    "config/parallel.py ParallelConfig": [
        "data_parallel_index",
        "distributed_executor_backend",
        "prefill_context_parallel_size",
        "rank",
        "tensor_parallel_size",
    ],
    "config/speculative.py SpeculativeConfig": [
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
    ],
}


def installed() -> Path | None:
    """Where the installed vLLM lies, without importing it."""
    found = importlib.util.find_spec("vllm")
    return Path(str(found.origin)).parent if found else None


def version_of(package: Traversable) -> str:
    """The release, without what it was built for."""
    (version,) = re.findall(r"__version__ = version = '([^'+]+)", read(package, "_version.py"))
    return str(version)


def record(package: Traversable) -> dict[str, Any]:
    """What stands in the folder `vllm` that is given."""
    (call,) = calls_of_propose(read(package, GPU_RUNNER))
    door = function(package, "v1/spec_decode/custom_class_proposer.py", "create_custom_proposer")
    (made,) = [c for c in calls(door) if isinstance(c.func, ast.Name) and c.func.id == "user_class"]
    speculative_methods = assigned(package, "config/speculative.py", "SpeculativeMethod")
    assert isinstance(speculative_methods, ast.Subscript)
    assert isinstance(speculative_methods.slice, ast.Tuple)
    names = function(package, "engine/arg_utils.py", "create_speculative_config").args.args
    drafts = function(package, "v1/executor/multiproc_executor.py", "take_draft_token_ids")
    output_rank = function(package, "v1/executor/multiproc_executor.py", "_get_output_rank")
    return {
        "propose_positional": [last_name(argument) for argument in call.args],
        "propose_keywords": [keyword.arg for keyword in call.keywords],
        "constructor": [last_name(argument) for argument in made.args],
        "needed_methods": sorted({"propose", *needed_methods(package)}),
        "vllm_config": {
            place.partition(" ")[2]: [name for name in names if name in members(package, *place.split(" "))]
            for place, names in CONFIG.items()
        },
        "batch_size_schedule_dropped_by": dropping(package, "num_speculative_tokens_per_batch_size"),
        "create_speculative_config": [name.arg for name in names],
        "spec_flags": sorted(
            name for name in members(package, "engine/arg_utils.py", "EngineArgs") if name.startswith("spec_")
        ),
        "max_spec_len": ast.literal_eval(assigned(package, "v1/sample/rejection_sampler.py", "MAX_SPEC_LEN")),
        "methods": [ast.unparse(item).strip("'") for item in speculative_methods.slice.elts],
        "plugin_group": ast.literal_eval(assigned(package, "plugins/__init__.py", "DEFAULT_PLUGINS_GROUP")),
        "drafts_are_those_of": [
            last_name(keyword.value)
            for call in calls(drafts)
            for keyword in call.keywords
            if keyword.arg == "unique_reply_rank"
        ],
        "output_rank_follows_from": sorted(
            node.attr
            for node in ast.walk(output_rank)
            if isinstance(node, ast.Attribute) and last_name(node.value) == "parallel_config"
        ),
    }


def needed_methods(package: Traversable) -> Iterator[str]:
    """What the runners call on a proposer while they load, without asking whether it is there."""
    for file in (GPU_RUNNER, CPU_RUNNER):
        load_model = function(package, file, "load_model")
        asked = {
            call
            for node in ast.walk(load_model)
            if isinstance(node, ast.If) and "hasattr(self.drafter" in ast.unparse(node.test)
            for call in calls(node)
        }
        for call in calls(load_model):
            method = call.func
            if (
                call not in asked
                and isinstance(method, ast.Attribute)
                and last_name(method.value) == "drafter"
            ):
                yield method.attr


def dropping(package: Traversable, option: str) -> list[str]:
    """The functions of config/vllm.py that set this option to None."""
    return [
        node.name
        for node in ast.walk(ast.parse(read(package, "config/vllm.py")))
        if isinstance(node, ast.FunctionDef)
        and any(
            isinstance(part, ast.Assign)
            and last_name(part.targets[0]) == option
            and ast.unparse(part.value) == "None"
            for part in ast.walk(node)
        )
    ]


def read(package: Traversable, file: str) -> str:
    return package.joinpath(*file.split("/")).read_text(encoding="utf-8")


def function(package: Traversable, file: str, name: str) -> ast.FunctionDef:
    (found,) = [
        node
        for node in ast.walk(ast.parse(read(package, file)))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return found


def assigned(package: Traversable, file: str, name: str) -> ast.expr:
    """The right side of `name = ...`, at the top of a file."""
    (found,) = [
        node.value
        for node in ast.parse(read(package, file)).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return found


def members(package: Traversable, file: str, name: str) -> set[str]:
    """The fields and methods that a class itself defines."""
    (found,) = [
        node
        for node in ast.parse(read(package, file)).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    fields = {ast.unparse(node.target) for node in found.body if isinstance(node, ast.AnnAssign)}
    return fields | {node.name for node in found.body if isinstance(node, ast.FunctionDef)}


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def last_name(expression: ast.expr) -> str:
    return ast.unparse(expression).rpartition(".")[2]


def write(records: dict[str, dict[str, Any]]) -> None:
    """Keep the records, one fact a line, oldest version first."""
    versions = []
    for version in sorted(records, key=lambda version: [int(part) for part in version.split(".")]):
        facts = (f"    {json.dumps(name)}: {json.dumps(fact)}" for name, fact in records[version].items())
        versions.append(f"  {json.dumps(version)}: {{\n" + ",\n".join(facts) + "\n  }")
    RECORDS.write_text("{\n" + ",\n".join(versions) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="WHEEL")
    packages: list[Traversable] = []
    for path in map(Path, parser.parse_args().packages):
        packages.append(zipfile.Path(path, "vllm/") if path.suffix == ".whl" else path / "vllm")
    if not packages:
        found = installed()
        packages = [found] if found else parser.error("no vLLM is installed: give a wheel")
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    for package in packages:
        version = version_of(package)
        known = records.get(version)
        records[version] = record(package)
        print(version, "is new" if known is None else "as before" if known == records[version] else "CHANGED")
    write(records)


if __name__ == "__main__":
    main()
