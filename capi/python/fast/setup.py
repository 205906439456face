# SPDX-License-Identifier: Apache-2.0
from setuptools import Extension, setup

setup(ext_modules=[Extension("libmooncake_fast", ["libmooncake_fast.c"], extra_compile_args=["-O2", "-Wall", "-Wextra"])])
