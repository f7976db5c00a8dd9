# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ half of the emulator, torch_npu._emulator.

The object is kept under build/, in a folder for each torch and Python, and built again if a source changed.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from pathlib import Path

# torch would import the emulator that is about to be built.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import setup
from setuptools.command.build_py import build_py
from torch.utils.cpp_extension import BuildExtension, CppExtension

_OBJECT = os.path.join("build", f"torch-{torch.__version__}-{sys.implementation.cache_tag}")
_DEFINES = ["-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"]
_FALSE_ALARMS = ["-Wno-stringop-overflow"]  # g++ 12, in torch's intrusive_ptr


def all_sources() -> str:
    """One file that includes every source: parsing torch's headers costs more than compiling all of them."""
    path = Path("build", "all_sources.cpp")
    text = "".join(f'#include "../{source}"\n' for source in sorted(glob.glob("csrc/*.cpp")))
    if not path.exists() or path.read_text() != text:  # ninja goes by the time of the last change
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(path)


class BuildModules(build_py):
    def run(self) -> None:
        # setuptools would put modules that are long gone into the wheel.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildEmulator(BuildExtension):
    def finalize_options(self) -> None:
        # However new the extension is, it may be for another torch. ninja knows what is up to date.
        self.force = True
        self.build_temp = _OBJECT
        super().finalize_options()


setup(
    ext_modules=[
        CppExtension(
            "torch_npu._emulator",
            [all_sources()],
            extra_compile_args=["-O1", "-g0", "-fvisibility=hidden", *_DEFINES, *_FALSE_ALARMS],
        )
    ],
    cmdclass={"build_py": BuildModules, "build_ext": BuildEmulator},
)
