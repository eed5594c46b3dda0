"""What setup.cfg cannot say: the library of kernels, which is left out if it cannot be compiled."""

from pathlib import Path
from zlib import crc32

from setuptools import Extension, setup

SOURCE = "asyncrl/core/kernels.c"

setup(
    ext_modules=[
        Extension(
            "asyncrl.core._kernels",
            [SOURCE],
            define_macros=[("SOURCE", f"{crc32(Path(SOURCE).read_bytes())}u")],
            extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno"],
            libraries=["m"],
            py_limited_api=True,  # it has nothing of Python's, so one file serves every version
            optional=True,
        )
    ]
)
