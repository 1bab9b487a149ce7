# SPDX-License-Identifier: Apache-2.0
"""Reads native libraries without running them: ELF dynamic tables, GPU code inside CUDA fat binaries."""
