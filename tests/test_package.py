"""A wheel built from the repository works outside of it, with its YAML files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return the folder that the wheel was installed to."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", folder, REPOSITORY], check=True, timeout=200
    )
    (wheel,) = folder.glob("llama_autofit-*.whl")
    place = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


@pytest.fixture
def autofit(installed, tmp_path):
    """Return a function that runs the installed autofit in an empty folder."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "autofit", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed),
                 "XDG_CONFIG_HOME": str(tmp_path / "config")},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done

    return run


def test_the_wheel_has_all_yaml_files_and_tables(installed):
    """Every space, dialect, workload and recorded table is in the wheel, byte for byte."""
    for folder, pattern in (
        ("search_spaces", "**/*.yaml"),
        ("search_spaces", "**/*.txt"),
        ("runners", "*.yaml"),
        ("results/landscapes", "*.csv"),
    ):
        files = [*(REPOSITORY / folder).glob(pattern)]
        assert files
        for file in files:
            inside = installed / "autofit/_data" / file.relative_to(REPOSITORY)
            if folder == "results/landscapes":
                inside = installed / "autofit/_data/landscapes" / file.name
            assert inside.read_bytes() == file.read_bytes()


def test_the_wheel_has_no_tests(installed):
    """The wheel has only the package, typed, and its licence."""
    top = {path.name for path in installed.iterdir()}

    assert top == {"autofit", next(name for name in top if name.endswith(".dist-info"))}
    assert [*installed.glob("*.dist-info/licenses/LICENSE")]
    assert (installed / "autofit/py.typed").exists()


def test_the_installed_package_is_imported(installed):
    """The package of the wheel is imported, not the one of the repository."""
    printed = subprocess.run(
        [sys.executable, "-P", "-c", "import autofit; print(autofit.__file__)"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip

    assert printed.strip() == str(installed / "autofit/__init__.py")


def test_spaces_dialects_and_workloads_are_found(autofit, installed):
    """The hint for an unknown name lists the shipped files with their folder."""
    model = str(installed / "model.gguf")
    from autofit.model.synth.random_model import SynthSpec, write_model  # noqa: PLC0415

    write_model(SynthSpec(layers=1, experts=2, used=1, embd=64, ff=32, vocab=300, type="f16"),
          Path(model))  # fmt: skip
    for option, name in (("--dialect", "llama_server"), ("--workload", "chat")):
        done = autofit("plan", model, option, "nonesuch", "--device", "CUDA0=1000")
        assert done.returncode == 2
        listed = [line.split() for line in done.stderr.splitlines()]
        folders = {words[0]: words[-1] for words in listed if len(words) > 1}
        assert folders[name].startswith(f"{installed}/autofit/_data/")


def test_bundled_files_are_valid(autofit, installed):
    """`check` accepts every shipped file."""
    data = installed / "autofit/_data"
    files = [*data.glob("search_spaces/**/*.yaml"), *data.glob("runners/*.yaml")]
    done = autofit("check", *(str(file) for file in files))

    assert done.returncode == 0, done.stderr


def test_a_model_can_be_planned(autofit, tmp_path):
    """A model is written, planned and printed as a table."""
    assert autofit("synth", "m.gguf", "--layers", "2", "--header-only").returncode == 0
    done = autofit("plan", "m.gguf", "--device", "CUDA0=24000")

    assert done.returncode == 0, done.stderr
    assert "largest context that fits" in done.stdout


@pytest.mark.parametrize("name", ["demo", "tune", "doctor"])
def test_commands_have_help(autofit, name):
    """--help works without the repository."""
    done = autofit(name, "--help")

    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")
