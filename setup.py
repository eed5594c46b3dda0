"""What setup.cfg cannot say: the library of kernels, which is left out if it cannot be compiled."""

from pathlib import Path
from zlib import crc32

from setuptools import Extension, setup

SOURCES = sorted(str(path) for path in Path("asyncrl/core").glob("[a-z]*.c"))
CHECKSUM = crc32(b"".join(Path(source).read_bytes() for source in SOURCES))

setup(
    ext_modules=[
        Extension(
            "asyncrl.core._kernels",
            SOURCES,
            define_macros=[("SOURCE", f"{CHECKSUM}u")],
            extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno"],
            libraries=["m"],
            py_limited_api=True,  # it has nothing of Python's, so one file serves every version
            optional=True,
        )
    ]
)
